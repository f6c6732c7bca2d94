"""Formats of quantised checkpoints: bits with their scales, and what stays plain."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplan.errors import InputError, UnsupportedError
from specplan.formulas.parameters import format_of, params_by_component, resident_bytes, resident_params, weights
from specplan.specs.catalog import load_model
from specplan.specs.huggingface.config import import_config
from specplan.values.formats import FORMATS, GGUF_FORMATS, fp8_blocks, grouped, lookup, mixed
from specplan.values.model import Model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MOE: dict[str, Any] = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "head_dim": 128,
}


def quantised(block: dict[str, Any], base: dict[str, Any] = LLAMA, **more: Any) -> Model:
    return import_config({**base, "quantization_config": block, **more}, "x").model


def bits_of(model: Model) -> dict[str, set[str]]:
    """Formats by ``component.name``, over all layers."""
    found: dict[str, set[str]] = {}
    for weight, _ in weights(model):
        found.setdefault(f"{weight.component}.{weight.name}", set()).add(format_of(weight, model).name)
    return found


@pytest.mark.parametrize(
    ("block", "name", "bits"),
    [
        ({"quant_method": "fp8"}, "fp8", 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block128", 8 + 32 / 16384),
        ({"quant_method": "fp8", "weight_block_size": [64, 128]}, "fp8-block64x128", 8 + 32 / 8192),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "int4-awq-g128", 4 + 20 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4-awq-g64", 4 + 20 / 64),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, "int4-gptq-g128", 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, "int8-gptq-g32", 8 + 24 / 32),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb-nf4-single", 4.5),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            "bnb-nf4",
            4 + 8 / 64 + 32 / 16384,
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "fp8", 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4", 4.5),
        ({"quant_algo": "NVFP4", "group_size": 16}, "nvfp4", 4.5),
        ({"quant_algo": "W4A16_AWQ", "group_size": 64}, "int4-awq-g64", 4 + 20 / 64),
        ({"quant_method": "mxfp8"}, "mxfp8", 8.25),
        ({"quant_method": "w8a8_int8"}, "int8", 8),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, "mxfp4", 4.25),
    ],
)
def test_bits_per_weight_include_scales(block: dict[str, Any], name: str, bits: float) -> None:
    model = quantised(block)
    assert model.quantization is not None
    assert (model.quantization.name, model.quantization.bits) == (name, bits)
    counts = params_by_component(model)
    linear = counts["attention"] + counts["mlp"]
    plain = resident_params(model) - linear
    # A scale per row (fp8 by channel, int8) adds 2 bytes per row: under half a thousandth here.
    by_row = any("-channel-k" in fmt.name for layer in model.layers for _, fmt in layer.formats)
    assert resident_bytes(model) == pytest.approx(linear * bits / 8 + plain * 2, rel=5e-4 if by_row else 1e-9)
    assert (resident_bytes(model) > linear * bits / 8 + plain * 2 + 1) == by_row


@pytest.mark.parametrize(
    ("weights_of", "name"),
    [
        ({"num_bits": 8, "type": "float", "strategy": "channel"}, "fp8"),
        ({"num_bits": 8, "type": "float", "strategy": "tensor"}, "fp8"),
        ({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}, "fp8-block128"),
        ({"num_bits": 8, "type": "int", "strategy": "channel"}, "int8"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}, "int4-sym-g128"),
        ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}, "int4-awq-g32"),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, "nvfp4"),
        ({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}, "mxfp4"),
        ({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}, "mxfp8"),
    ],
)
def test_compressed_tensors_schemes(weights_of: dict[str, Any], name: str) -> None:
    block = {
        "quant_method": "compressed-tensors",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights_of}},
    }
    model = quantised(block)
    assert model.quantization is not None
    assert model.quantization.name == name


def test_modules_left_alone_by_name_glob_and_expression() -> None:
    for pattern in (
        ["self_attn"],
        [f"model.layers.{i}.self_attn" for i in range(32)],
        ["model.layers.*.self_attn*"],
        ["re:.*self_attn.*"],
        ["re:model\\.layers\\.\\d+\\.self_attn\\.(q|k|v|o)_proj"],
        [f"language_model.model.layers.{i}.self_attn.{p}_proj" for i in range(32) for p in "qkvo"],
    ):
        model = quantised({"quant_method": "fp8", "modules_to_not_convert": pattern})
        assert "attention" in model.unquantized, pattern
        found = bits_of(model)
        assert found["attention.q_proj"] == {"bfloat16"}, pattern
        assert found["mlp.mlp"] == {"fp8"}, pattern


def test_single_layers_and_single_projections_left_alone() -> None:
    block = {"quant_method": "fp8", "ignored_layers": ["model.layers.0", "model.layers.31.mlp.down_proj", "o_proj"]}
    model = quantised(block)
    assert len(set(model.layers)) == 3
    found = bits_of(model)
    assert found["attention.o_proj"] == {"bfloat16"}
    assert found["attention.q_proj"] == {"bfloat16", "fp8"}
    first, last = dict(model.layers[0].formats), dict(model.layers[31].formats)
    assert first.keys() == {"attention", "mlp"}
    assert last.keys() == {"attention.o_proj", "mlp.down_proj"}
    assert dict(model.layers[5].formats).keys() == {"attention.o_proj"}


def test_mxfp4_quantises_experts_alone_and_mixed_precision_follows_its_list() -> None:
    oss = load_model("gpt-oss-20b")
    found = bits_of(oss)
    assert found["experts.mlp"] == {"mxfp4"}
    assert {name for name, fmts in found.items() if fmts == {"bfloat16"}} >= {
        "attention.q_proj",
        "router.router",
        "head.lm_head",
    }
    assert resident_bytes(oss) / 2**30 == pytest.approx(12.8, abs=0.15)  # published files: 13.76 GB

    names = [f"model.layers.{i}.mlp.experts.{e}" for i in range(32) for e in range(8)]
    listed = {f"{n}.{leaf}_proj": {"quant_algo": "NVFP4"} for n in names for leaf in ("gate", "up", "down")}
    listed |= {f"model.layers.{i}.self_attn.q_proj": {"quant_algo": "FP8"} for i in range(32)}
    model = quantised({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}, MOE)
    found = bits_of(model)
    assert found["experts.mlp"] == {"nvfp4"}
    assert found["attention.q_proj"] == {"fp8"}
    assert found["router.router"] == found["head.lm_head"] == found["attention.k_proj"] == {"bfloat16"}
    listed = {f"model.layers.3.mlp.experts.{e}.up_proj": {"quant_algo": "NVFP4"} for e in range(4)}
    listed["lm_head"] = {"quant_algo": "NVFP4"}
    found = bits_of(
        quantised({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": listed}, MOE)
    )
    assert found["experts.up_proj"] == {"mixed-10.25"}  # half of one layer's experts
    assert found["experts.mlp"] == found["experts.down_proj"] == {"bfloat16"}
    assert found["head.lm_head"] == {"nvfp4"}


def test_fp4_experts_of_an_fp8_checkpoint() -> None:
    model = quantised({"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": "fp4"}, MOE)
    found = bits_of(model)
    assert found["experts.mlp"] == {"mxfp4"}
    assert found["attention.q_proj"] == {"fp8-block128"}


def test_a_quantised_head_is_quantised() -> None:
    model = quantised({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True})
    assert bits_of(model)["head.lm_head"] == {"int4-gptq-g128"}


def test_what_is_not_stated_is_said() -> None:
    for block in (
        {"quant_method": "compressed-tensors"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_algo": "NVFP4"},
    ):
        assert import_config({**LLAMA, "quantization_config": block}, "x").assumptions, block


def test_modelopt_file_beside_the_config() -> None:
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    found = import_config(LLAMA, "x", beside=beside)
    assert found.model.quantization == lookup("fp8")
    assert any("--kv-cache-dtype" in a for a in found.assumptions)


@pytest.mark.parametrize(
    "block",
    [
        {"quant_method": "spqr"},
        {"quant_method": "modelopt", "quant_algo": "FP3"},
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "uint9"}}},
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {"num_bits": 6, "type": "float"}}},
        },
    ],
)
def test_unknown_formats_are_refused_by_name(block: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="cannot be counted"):
        quantised(block)


def test_hostile_patterns_take_no_time() -> None:
    evil = ["re:(a+)+$" + "a" * 40, "re:" + "(.*)*" * 20, "re:" + ".*" * 50, "*" * 200, "re:[", "re:(?=x)"]
    found = import_config({**LLAMA, "quantization_config": {"quant_method": "fp8", "ignored_layers": evil}}, "x")
    assert any("passed over" in a for a in found.assumptions)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.text(max_size=6) | st.just("fp8"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {
            "quant_method": st.sampled_from(
                ["fp8", "awq", "gptq", "bitsandbytes", "compressed-tensors", "modelopt", "quark", "x"]
            )
        },
        optional=dict.fromkeys(
            (
                *(
                    "weight_block_size",
                    "bits",
                    "group_size",
                    "config_groups",
                    "ignore",
                    "quant_algo",
                    "quantized_layers",
                ),
                *("modules_to_not_convert", "load_in_4bit", "global_quant_config", "expert_dtype", "lm_head"),
            ),
            json_values,
        ),
    )
)
def test_fuzzed_quantisation_is_counted_or_refused(block: dict[str, Any]) -> None:
    try:
        model = quantised(block)
    except (InputError, UnsupportedError) as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is fine, but both are checked
        return
    assert 0 < resident_bytes(model) <= resident_params(model) * 2.01


@pytest.mark.parametrize("fmt", [*FORMATS, *GGUF_FORMATS, grouped(4, "awq", 64), fp8_blocks(64, 64), mixed(4.85)])
def test_every_format_answers_to_its_names(fmt: Any) -> None:
    assert lookup(fmt.name) == fmt
    for alias in fmt.aliases:
        assert lookup(alias) == fmt
    assert 1 <= fmt.bits <= 64


def test_formats_of_the_fact_sheet() -> None:
    assert lookup("gptq").bytes == pytest.approx(0.5195, abs=1e-4)
    assert lookup("nvfp4").bytes == 0.5625
    assert lookup("mxfp4").bytes == 0.53125
    assert lookup("fp8-block").bytes == 1 + 4 / 16384


def test_unknown_formats_list_the_known() -> None:
    with pytest.raises(InputError, match="bfloat16"):
        lookup("bf17")
