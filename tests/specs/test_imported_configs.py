"""Configs of models served today: each is imported, or refused for a field that it does not hold."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from specplan.errors import SpecplanError, UnsupportedError
from specplan.formulas.kv_cache import kv_bytes_per_token, kv_bytes_stored
from specplan.formulas.parameters import resident_bytes, resident_params, streamed_params
from specplan.specs.catalog import load_model
from specplan.specs.huggingface.config import import_config
from specplan.specs.huggingface.families import FAMILIES, REFUSED
from specplan.specs.huggingface.fields import recorded
from specplan.specs.huggingface.status import architecture_statuses
from specplan.values.formats import lookup
from specplan.values.model import Attention, Experts, LatentAttention, Recurrent

DATA = Path(__file__).parents[1] / "data"
CONFIGS: dict[str, dict[str, Any]] = json.loads((DATA / "model_configs.json").read_text())
ROWS: dict[str, dict[str, Any]] = json.loads((DATA / "published_configs.json").read_text())["models"]

# These extracts leave out what the counts need; the error names it.
INCOMPLETE = {
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "'block_configs' is missing",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "'moe_shared_expert_intermediate_size' is missing",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": "'moe_shared_expert_intermediate_size' is missing",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": "'moe_shared_expert_intermediate_size' is missing",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "'moe_shared_expert_intermediate_size' is missing",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": "'moe_shared_expert_intermediate_size' is missing",
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": "'moe_shared_expert_intermediate_size' is missing",
    "nvidia/NVIDIA-Nemotron-Labs-3-Puzzle-75B-A9B-NVFP4": "block_configs",
    "moonshotai/Kimi-K3": "routed_expert_hidden_size",
    "ibm-granite/granite-3.1-8b-instruct": "'hidden_size' is null",
    "ibm-granite/granite-4.0-h-micro": "is null",
    "draft: EAGLE3 for Llama-3.1-8B-Instruct": "'vocab_size' is null",
}


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_each_config_is_imported_or_refused_for_what_it_lacks(name: str) -> None:
    if name in INCOMPLETE:
        with pytest.raises(SpecplanError) as caught:
            import_config(CONFIGS[name], name)
        assert INCOMPLETE[name] in str(caught.value)
        assert name in str(caught.value)
        return
    model = import_config(CONFIGS[name], name).model
    assert resident_params(model) >= streamed_params(model) > 0


# What publishers and logs say, in billions, rounded as they round (model cards; DeepSeek-V4: 284B-A13B and 1.6T-A49B).
STATED = {
    "deepseek-ai/DeepSeek-V3": (671, 37),
    "deepseek-ai/DeepSeek-V4-Flash": (284, 13),
    "deepseek-ai/DeepSeek-V4-Pro": (1573, 49),
    "zai-org/GLM-5": (744, 41),
    "moonshotai/Kimi-K2-Instruct": (1026, 32),
    "Qwen/Qwen3-235B-A22B-FP8": (235, 22),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (480, 35),
    "Qwen/Qwen3.5-35B-A3B": (35, 3),
    "Qwen/Qwen3.5-397B-A17B": (396, 16),
    "nvidia/Qwen3.5-122B-A10B-NVFP4": (122, 9),
    "MiniMaxAI/MiniMax-M2.5": (229, 10),
    "XiaomiMiMo/MiMo-V2-Flash": (309, 15),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (401, 16),
    "nvidia/Gemma-4-26B-A4B-NVFP4": (25, 4),
    "nvidia/Gemma-4-31B-IT-NVFP4": (31, 31),
    "Qwen/Qwen3-VL-235B-A22B-Instruct": (235, 22),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": (31, 3),
}


@pytest.mark.parametrize("name", sorted(STATED))
def test_totals_and_active_parameters_as_stated(name: str) -> None:
    model = import_config(CONFIGS[name], name).model
    assert (round(resident_params(model) / 1e9), round(streamed_params(model) / 1e9)) == STATED[name]


# "Model loading took ... GiB" of public vLLM start-up logs (one rank): model, ranks, quantisation on the fly, GiB. What
# is printed above the count is the rotary table and, for a few, buffers of the attention backend.
PRINTED = [
    ("meta-llama/Meta-Llama-3-8B", 1, None, 14.96),
    ("meta-llama/Meta-Llama-3-8B", 2, None, 7.48),
    ("Qwen/Qwen2-7B-Instruct", 1, None, 14.2488),
    ("Qwen/Qwen2-7B-Instruct", 2, None, 7.1217),
    ("Qwen/Qwen3-4B", 1, None, 7.5552),
    ("Qwen/Qwen3-14B", 1, None, 27.52),
    ("Qwen/Qwen1.5-MoE-A2.7B", 1, None, 26.67),
    ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", 8, None, 27.72),
    ("google/gemma-7b", 1, None, 15.91),
    ("microsoft/phi-2", 1, None, 5.19),
    ("facebook/opt-2.7b", 4, None, 1.24),
    ("codellama/CodeLlama-7b-hf", 1, None, 12.56),
    ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", 2, "fp8", 33.88),
    ("granite3.1-8b", 1, None, 15.25),
]


@pytest.mark.parametrize(("name", "ranks", "quantisation", "printed"), PRINTED)
def test_weights_as_engines_print_them(name: str, ranks: int, quantisation: str | None, printed: float) -> None:
    model = import_config(CONFIGS[name], name).model if name in CONFIGS else load_model(name)
    if quantisation is not None:
        model = dataclasses.replace(model, quantization=lookup(quantisation))
    implied = resident_bytes(model, ranks) / 2**30
    assert -0.006 < printed - implied < 0.075


@pytest.mark.parametrize("name", sorted(ROWS))
def test_shipped_specs_are_what_their_configs_imply(name: str) -> None:
    imported = import_config(ROWS[name]["config"], name).model
    shipped = load_model(name)
    assert imported.layers == shipped.layers
    assert imported.mtp_layers == shipped.mtp_layers
    assert resident_params(imported) == resident_params(shipped)
    assert resident_bytes(imported) == resident_bytes(shipped)
    published = ROWS[name]["published"]
    assert published in (None, resident_params(imported))


def test_at_least_sixty_published_totals_are_exact() -> None:
    assert sum(row["published"] is not None for row in ROWS.values()) >= 60


def test_windows_and_chunks_by_layer() -> None:
    def windows(name: str) -> list[int | None]:
        return [layer.mixer.window for layer in load_model(name).layers if isinstance(layer.mixer, Attention)]

    assert windows("gemma2-2b") == [4096, None] * 13
    assert windows("gemma3-27b") == ([1024] * 5 + [None]) * 10 + [1024] * 2
    assert windows("gpt-oss-20b") == [128, None] * 12
    assert windows("mistral-7b") == [4096] * 32
    assert windows("mistral-small-24b") == [None] * 40
    assert windows("qwen3-8b") == [None] * 36
    gemma4 = windows("gemma4-31b")
    assert (gemma4.count(1024), gemma4.count(None), gemma4[5], gemma4[-1]) == (50, 10, None, None)
    assert windows("mimo-v2-flash").count(128) == 39
    chunks = [layer.mixer.chunk for layer in load_model("llama4-scout").layers if isinstance(layer.mixer, Attention)]
    assert chunks == [8192, 8192, 8192, None] * 12


def test_cache_and_state_sizes_that_start_up_logs_prove() -> None:
    assert kv_bytes_per_token(load_model("llama3-70b")) == 2 * 80 * 8 * 128 * 2
    assert kv_bytes_per_token(load_model("deepseek-v2-lite")) == 27 * 576 * 2
    assert kv_bytes_per_token(load_model("mistral-small-24b")) == 163_840
    assert kv_bytes_per_token(load_model("granite3.1-8b")) == 163_840
    gemma = [layer.mixer for layer in load_model("gemma4-31b").layers]
    pages = {(m.kv_heads, m.head_dim) for m in gemma if isinstance(m, Attention)}
    assert pages == {(16, 256), (4, 512)}
    # Gated delta nets of Qwen3.6-27B: 48 value heads of 128 x 128 in float32, 3 columns of 10240 channels.
    model = load_model("qwen3.6-27b")
    delta = [layer.mixer for layer in model.layers if isinstance(layer.mixer, Recurrent)]
    assert len(delta) == 48
    assert (delta[0].state_size, delta[0].conv_channels, delta[0].conv_kernel) == (48 * 128 * 128, 10240, 4)
    assert delta[0].state_format is not None
    assert delta[0].state_format.name == "float32"
    assert float(kv_bytes_stored(model, 0)) == 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)


def test_mamba_and_kimi_states() -> None:
    nano = [layer.mixer for layer in load_model("nemotron-3-nano").layers if isinstance(layer.mixer, Recurrent)]
    assert len(nano) == 23
    assert (nano[0].state_size, nano[0].conv_channels, nano[0].heads) == (64 * 64 * 128, 64 * 64 + 2 * 8 * 128, 64)
    assert nano[0].state_format is not None
    kimi = load_model("kimi-linear-48b-a3b").layers
    assert [i for i, layer in enumerate(kimi) if isinstance(layer.mixer, LatentAttention)] == [3, 7, 11, 15, 19, 23, 26]
    kda = next(layer.mixer for layer in kimi if isinstance(layer.mixer, Recurrent))
    assert (kda.kind, kda.state_size, kda.conv_channels) == ("kda", 32 * 128 * 128, 3 * 4096)


def test_dense_layers_before_experts_and_interleaved() -> None:
    def routed(name: str) -> list[bool]:
        return [isinstance(layer.feed_forward, Experts) for layer in load_model(name).layers]

    assert routed("deepseek-v3") == [False] * 3 + [True] * 58
    assert routed("kimi-k2") == [False] + [True] * 60
    assert routed("llama4-maverick") == [False, True] * 24
    assert routed("jamba-v0.1") == [False, True] * 16
    assert all(routed("qwen3-30b-a3b"))


def test_gemma_4_small_shares_caches_and_widens_their_feed_forwards() -> None:
    config = {
        "model_type": "gemma4",
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size": 1536,
            "num_hidden_layers": 30,
            "num_kv_shared_layers": 10,
            "use_double_wide_mlp": True,
        },
    }
    found = import_config(config, "x")
    layers = found.model.layers
    shares = [layer.mixer.shares_kv for layer in layers if isinstance(layer.mixer, Attention)]
    assert shares == [False] * 20 + [True] * 10
    assert found.wrapper == "gemma4"
    assert layers[0].feed_forward != layers[-1].feed_forward
    assert any(w.component == "embedding" for w in found.model.extra)
    assert any("num_attention_heads = 8" in a for a in found.assumptions)


WRAPPED = {
    "llava": {"text_config": {**ROWS["llama2-7b"]["config"]}},
    "internvl_chat": {"llm_config": {**ROWS["qwen2.5-7b"]["config"]}},
    "deepseek_vl_v2": {"language_config": {**ROWS["deepseek-v2-lite"]["config"]}},
    "qwen2_5_omni": {"thinker_config": {"text_config": {**ROWS["qwen2.5-7b"]["config"]}}},
    "mistral3": {"text_config": {**ROWS["mistral-small-24b"]["config"]}},
    "kimi_vl": {"text_config": {**ROWS["deepseek-v2-lite"]["config"], "model_type": "deepseek_v3"}},
}


@pytest.mark.parametrize("wrapper", sorted(WRAPPED))
def test_the_text_config_of_a_multimodal_model_is_found(wrapper: str) -> None:
    found = import_config({"model_type": wrapper, "vision_config": {"hidden_size": 1}, **WRAPPED[wrapper]}, "x")
    inner = WRAPPED[wrapper]
    while "hidden_size" not in inner:
        inner = next(v for v in inner.values() if isinstance(v, dict))
    assert found.wrapper == wrapper
    assert resident_params(found.model) == resident_params(import_config(inner, "x").model)


def test_the_wrappers_flag_and_quantisation_apply_to_its_text() -> None:
    config = {
        "model_type": "llava",
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "quantization_config": {"quant_method": "fp8"},
        "text_config": {k: v for k, v in ROWS["llama2-7b"]["config"].items() if k != "torch_dtype"},
    }
    model = import_config(config, "x").model
    assert model.tied_embeddings
    assert model.weight_format.name == "float16"
    assert model.quantization is not None


def test_searched_layers_of_llama_nemotron() -> None:
    config = {
        **ROWS["llama3.3-70b"]["config"],
        "model_type": "nemotron-nas",
        "num_hidden_layers": 3,
        "num_key_value_heads": None,
        "intermediate_size": None,
        "block_configs": [
            {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 5.25, "no_op": False}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.3125, "no_op": False}},
            {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        ],
    }
    layers = import_config(config, "x").model.layers
    assert [layer.norm_vectors for layer in layers] == [2, 1, 1]
    assert getattr(layers[0].feed_forward, "width", None) == 28672
    assert getattr(layers[1].feed_forward, "width", None) == 7168
    assert layers[2].extra[0].size == 8192 * 8192


def test_unknown_types_are_likened_by_what_reads_them_not_by_their_spelling() -> None:
    with pytest.raises(UnsupportedError, match=r"read as llama, .*\(8,030,261,248 parameters\).*--assume llama$"):
        import_config({**ROWS["llama3-8b"]["config"], "model_type": "llama5"}, "config.json")
    # Whatever its name suggests, MiMo's fields are read by MiMo's rows alone.
    for spelt in ("mimo_v2_5", "llama5", "qwen9", "mimo"):
        config = {**CONFIGS["XiaomiMiMo/MiMo-V2-Flash"], "model_type": spelt, "architectures": ["X"]}
        if spelt == "mimo":  # a row of that name is there, and does not read it
            with pytest.raises(UnsupportedError, match="not understood"):
                import_config(config, "config.json")
            continue
        with pytest.raises(UnsupportedError, match=r"\(308,778,768,832 parameters\)\. .*--assume mimo_v2") as caught:
            import_config(config, "config.json")
        assert str(caught.value).count("parameters)") == 1
    with pytest.raises(UnsupportedError, match="no known type reads every structural field"):
        import_config(
            {**CONFIGS["deepseek-ai/DeepSeek-V3"], "model_type": "x", "architectures": [], "branch_experts": 9}, "x"
        )


def test_an_assumed_type_is_taken_at_its_word() -> None:
    found = import_config({**ROWS["llama3-8b"]["config"], "model_type": "llama5"}, "x", assume="llama")
    assert resident_params(found.model) == 8_030_261_248
    assert found.assumptions[0] == "counted as llama, though it says llama5"
    with pytest.raises(UnsupportedError, match="'lama'"):
        import_config(ROWS["llama3-8b"]["config"], "x", assume="lama")


def test_statuses_are_generated_and_complete() -> None:
    statuses = {s.model_type: s for s in architecture_statuses()}
    assert set(recorded()["causal_lm"]) <= set(statuses)
    assert {t for t, s in statuses.items() if s.status == "exact"} == set(FAMILIES) & set(recorded()["causal_lm"])
    assert all(s.note for s in statuses.values() if s.status == "refused")
    assert "no row in the table" not in {s.note for s in statuses.values()}
    assert not set(FAMILIES) & set(REFUSED)


def test_served_architectures_have_a_row() -> None:
    lists = json.loads((DATA / "served_architectures.json").read_text())
    wrappers = recorded()["wrappers"]
    missing = [t for t in lists["served"] if t not in FAMILIES and wrappers.get(t) not in FAMILIES]
    assert missing == []
    others = [t for t in lists["other_decoders"] if t not in FAMILIES and wrappers.get(t) not in FAMILIES]
    assert others == []


def test_importing_takes_milliseconds() -> None:
    config = CONFIGS["deepseek-ai/DeepSeek-V3"]
    import_config(config, "warm")
    began = time.perf_counter()
    for _ in range(20):
        resident_params(import_config(config, "x").model)
    parse = (time.perf_counter() - began) / 20
    began = time.perf_counter()
    for _ in range(20):
        json.loads((DATA / "model_configs.json").read_text())
    assert parse < 20 * (time.perf_counter() - began) / 20  # a ratio inside one run, not a time
