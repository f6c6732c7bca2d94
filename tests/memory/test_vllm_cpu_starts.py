"""Real starts of vLLM 0.32 on a CPU with an explicit pool: blocks, tokens and concurrency come out equal."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specplan.errors import InputError
from specplan.memory.prediction import PoolPrediction
from specplan.memory.speculative import Speculation, parse_speculative_config
from specplan.memory.vllm import VllmFlags, predict_vllm
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.units import GIB
from specplan.values.formats import lookup
from specplan.values.model import Attention, DenseMLP, Layer, Model

CASES = json.loads((Path(__file__).parents[1] / "data" / "vllm_cpu_kv.json").read_text())["cases"]
SMOLLM2 = next(case["target"] for case in CASES if case["name"] == "bf16_1g_b128")
EXPLICIT = [case for case in CASES if case["kv_cache_bytes"] or case.get("error")]


def _model(geometry: dict[str, Any]) -> Model:
    mixer = Attention(
        heads=geometry["num_attention_heads"], kv_heads=geometry["num_key_value_heads"], head_dim=geometry["head_dim"]
    )
    layer = Layer(mixer=mixer, feed_forward=DenseMLP(width=64))
    return Model(
        name="geometry",
        source="recorded start",
        hidden_size=geometry["hidden_size"],
        vocab_size=geometry["vocab_size"],
        tied_embeddings=True,
        layers=(layer,) * geometry["num_hidden_layers"],
        weight_format=lookup("bfloat16"),
        max_position=8192,
    )


def _predict(case: dict[str, Any]) -> PoolPrediction:
    settings = case["settings"]
    spec = settings.get("spec")
    speculation: Speculation | None = None
    if spec is not None:
        speculation = parse_speculative_config(spec)
    loads = speculation is not None and speculation.has_draft_model
    draft = _model(case["draft"] or SMOLLM2) if loads else None
    extra = settings.get("extra", {})
    flags = VllmFlags(
        version="0.32.0",
        dtype={2: "bfloat16", 4: "float32", 1: "bfloat16"}[case["kv_elem_bytes"]],
        kv_cache_dtype=extra.get("kv_cache_dtype", "fp8" if case["kv_elem_bytes"] == 1 else "auto"),
        max_model_len=case.get("max_model_len") or 2048,
        block_size=settings.get("block_size"),
        kv_cache_memory_bytes=case["kv_cache_bytes"] or 2**30,
    )
    return predict_vllm(_model(case["target"] or SMOLLM2), load_accelerator("cpu"), flags, speculation, draft)


@pytest.mark.parametrize("case", EXPLICIT, ids=lambda case: case["name"])
def test_explicit_pools_equal_the_engines(case: dict[str, Any]) -> None:
    if case.get("error"):
        with pytest.raises(InputError, match="No common block size for 16"):
            _predict(case)
        return
    found = _predict(case)
    assert found.plan is not None
    assert found.plan.num_blocks == case["reported_blocks"]
    assert found.plan.tokens == case["reported_tokens"]
    assert round(found.plan.max_concurrency, 2) == case["reported_max_concurrency"]
    assert found.log_lines[0].startswith(f"CPU KV cache size: {case['reported_tokens']:,} tokens, Maximum concurrency")


@pytest.mark.parametrize(
    "case", [c for c in CASES if not c["kv_cache_bytes"] and not c.get("error")], ids=lambda c: c["name"]
)
def test_automatic_pools_follow_from_the_allocation(case: dict[str, Any]) -> None:
    # The size itself depends on the machine; its whole blocks do not.
    found = _predict({**case, "kv_cache_bytes": case["backing_allocation_bytes"]})
    assert found.plan is not None
    assert found.plan.num_blocks == case["reported_blocks"]


@pytest.mark.parametrize("case", [c for c in CASES if c.get("auto")], ids=lambda c: c["name"])
def test_automatic_sizes_are_the_share_less_weights_and_the_process(case: dict[str, Any]) -> None:
    auto = case["auto"]
    card = replace(load_accelerator("cpu"), memory_torch_bytes=auto["available_or_total_gib"] * GIB)
    spec = case["settings"].get("spec")
    speculation = None if spec is None else parse_speculative_config(spec)
    smollm2 = load_model("smollm2-135m")
    draft = None
    if case.get("draft"):
        draft = replace(smollm2, layers=smollm2.layers[: case["draft"]["num_hidden_layers"]])
    flags = VllmFlags(gpu_memory_utilization=0.15, max_model_len=2048, block_size=128)
    found = predict_vllm(smollm2, card, flags, speculation, draft)
    printed = auto["kv_gib"] * GIB
    assert found.rank.available.low - 0.01 * GIB <= printed <= found.rank.available.high + 0.01 * GIB
