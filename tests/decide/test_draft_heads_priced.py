"""Draft heads cost the same bytes in every command: their own matrices once, and their target's head where they borrow.

Once the joining projection of a head was taken for its output head, two of Medusa's three heads were lost, and Medusa
and MLP speculators weighed nothing in the pool.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specplan.cli.app import main
from specplan.decide.compare import compare
from specplan.decide.cost import cost
from specplan.errors import InputError
from specplan.formulas.emitted import expected_emitted
from specplan.formulas.parameters import borrowed_head, outer_weights, resident_bytes, resident_params, streamed_bytes
from specplan.formulas.step import pass_load, pass_shape
from specplan.memory.rank_weights import WeightSettings, rank_weight_bytes
from specplan.memory.sglang import SglangFlags, predict_sglang
from specplan.memory.speculative import parse_speculative_config, sglang_speculation
from specplan.memory.vllm import VllmFlags, predict_vllm
from specplan.propose.spelling import read_source
from specplan.specs.catalog import load_model
from specplan.specs.hardware import load_accelerator
from specplan.specs.huggingface.config import import_config
from specplan.values.formats import lookup
from specplan.values.model import Model

H100, TARGET = load_accelerator("h100-sxm"), load_model("llama3.1-8b")
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 1,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "eagle": {**LLAMA, "architectures": ["EagleLlamaForCausalLM"]},
    "eagle3": {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000},
    "dflash": {
        **LLAMA, "architectures": ["DFlashDraftModel"], "num_hidden_layers": 5, "head_dim": 128,
        "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 30]},
    },
    "medusa": {
        "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": 4096, "num_heads": 3,
        "num_hidden_layers": 1, "vocab_size": 128256,
    },
    "mlp_speculator": {
        "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "emb_dim": 4096,
        "inner_dim": 4096, "n_predict": 3, "vocab_size": 128256, "tie_weights": False,
    },
}  # fmt: skip
METHODS = list(CONFIGS)
HEAD = 128256 * 4096


def head(method: str) -> Model:
    return import_config(CONFIGS[method], method).model


@pytest.mark.parametrize("method", METHODS)
def test_a_rank_holds_every_matrix_of_a_head(method: str) -> None:
    model = head(method)
    held = rank_weight_bytes(model, WeightSettings(rotary_tables=False))
    extra = sum(held.get(name, 0.0) for name in ("vocab_padding", "allocator"))
    assert sum(held.values()) - extra == resident_bytes(model) == 2 * resident_params(model)


def test_a_joining_projection_is_whole_on_every_rank() -> None:
    one, two = (rank_weight_bytes(head("eagle"), WeightSettings(tp=tp))["head"] for tp in (1, 2))
    assert one == two == 2 * 2 * 4096 * 4096


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tp", [1, 2])
def test_a_pass_streams_the_same_bytes_in_cost_and_in_the_step_model(method: str, tp: int) -> None:
    model = head(method)
    borrows = method in ("eagle", "dflash")
    assert (borrowed_head(model, TARGET) is not None) == borrows
    want = streamed_bytes(model, 1, tp) + (2 * HEAD / tp if borrows else 0)
    report = cost(TARGET, H100, draft=model, tp=tp)
    assert report.draft is not None
    assert report.draft.streamed_bytes_per_rank == want
    load = pass_load(pass_shape(model, tp, head_of=TARGET), batch=1)
    assert float(load.weight_bytes) == pytest.approx(want, rel=1e-12)


def test_a_borrowed_head_has_the_format_of_its_target() -> None:
    target = replace(TARGET, formats=(("head", lookup("fp8")),))
    report = cost(target, H100, draft=head("eagle"))
    assert report.draft is not None
    assert report.draft.streamed_bytes_per_rank == streamed_bytes(head("eagle")) + HEAD
    shape = pass_shape(head("eagle"), head_of=target)
    assert (shape.head_bits, shape.head_bytes) == (8, HEAD)


@pytest.mark.parametrize("method", ["dflash", "medusa"])
def test_a_head_that_drafts_a_block_pays_for_one_pass_per_step(method: str) -> None:
    report = cost(TARGET, H100, draft=head(method), kappa=5, alpha=0.7)
    assert report.speedup == pytest.approx(float(expected_emitted(0.7, 5)) / (1 + report.c))
    assert any("one pass" in line for line in report.assumptions)


def test_medusa_drafts_no_more_tokens_than_it_has_heads() -> None:
    source = replace(read_source("x:alpha=.9"), model=head("medusa"))
    report = compare(TARGET, H100, [source])
    assert report.cells[1].kappa == 3
    with pytest.raises(InputError, match="3 Medusa heads"):
        compare(TARGET, H100, [replace(source, kappa=4)])


@pytest.mark.parametrize("method", ["medusa", "mlp_speculator"])
def test_heads_without_a_cache_still_weigh(method: str) -> None:
    config = json.dumps({"method": method, "model": "x", "num_speculative_tokens": 3})
    flags = VllmFlags(tp=2)
    found = predict_vllm(TARGET, H100, flags, parse_speculative_config(config, tp=2), head(method))
    plain = predict_vllm(TARGET, H100, flags)
    own = sum(found.rank.draft_weights.values())
    # vLLM runs an MLP speculator on one rank unless told otherwise.
    least = 2 * resident_params(head(method)) / (2 if method == "medusa" else 1)
    assert least <= own <= 1.01 * least
    assert found.rank.weights.best == plain.rank.weights.best + own
    assert found.bytes_per_token == plain.bytes_per_token


@pytest.mark.parametrize("method", ["eagle", "eagle3", "dflash", "medusa"])
def test_behind_pipeline_stages_a_head_keeps_an_embedding_of_its_own(method: str) -> None:
    config = parse_speculative_config({"method": method, "model": "x", "num_speculative_tokens": 3})
    one, two = (predict_vllm(TARGET, H100, VllmFlags(pp=pp), config, head(method)) for pp in (1, 2))
    assert "embedding" not in one.ranks[0].draft_weights
    assert two.ranks[0].draft_weights == {}
    # Medusa reads hidden states alone.
    assert two.ranks[1].draft_weights.get("embedding", 0) == (0 if method == "medusa" else 2 * HEAD)


def test_sglang_allocates_the_tables_that_an_eagle_head_will_share() -> None:
    found = {
        name: sum(predict_sglang(TARGET, H100, SglangFlags(), sglang_speculation(name, "x"), head(method))
                  .rank.draft_weights.values())
        for name, method in (("EAGLE", "eagle"), ("EAGLE3", "eagle3"))
    }  # fmt: skip
    assert found["EAGLE"] == pytest.approx(2 * (resident_params(head("eagle")) + 2 * HEAD), rel=0.04)  # rotary table
    assert found["EAGLE3"] == pytest.approx(2 * (resident_params(head("eagle3")) + HEAD), rel=0.04)


def test_sglang_refuses_a_standalone_draft_of_another_vocabulary() -> None:
    with pytest.raises(InputError, match="151936 entries"):
        predict_sglang(TARGET, H100, SglangFlags(), sglang_speculation("STANDALONE", "x"), load_model("qwen3-0.6b"))


def test_every_head_is_told_from_its_projections() -> None:
    names = {w.name for method in METHODS for w in outer_weights(head(method)) if w.component == "head"}
    assert names == {"lm_head", "heads", "fc", "blocks", "block_biases"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_blocks_runs_a_head_that_draft_names_by_its_method(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str, engine: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[method]))
    with pytest.raises(SystemExit) as stop:
        main(["blocks", "llama3.1-8b", "--draft", str(tmp_path), "--engine", engine, "--json"])
    if engine == "sglang" and method in ("medusa", "mlp_speculator"):
        assert stop.value.code == 2
        return
    name = {"vllm": method, "sglang": method.upper()}[engine]
    assert json.loads(capsys.readouterr().out)["inputs"]["draft"].endswith(f"({name})")
