"""The referee of formats per module: transformers' modules walked one by one, an engine's rule for each name."""

import fnmatch
import json
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specplan.formulas.parameters import resident_bytes
from specplan.specs.huggingface.config import import_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM  # noqa: E402 - after the check that it is installed
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402 - likewise

pytestmark = pytest.mark.transformers

SMALL: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 4},
    "qwen3": {"num_hidden_layers": 4, "tie_word_embeddings": False},
    "phi": {"num_hidden_layers": 3},
    "starcoder2": {"num_hidden_layers": 3, "tie_word_embeddings": False},
    "qwen3_moe": {"num_hidden_layers": 4, "num_experts": 8, "mlp_only_layers": [1]},
    "mixtral": {"num_hidden_layers": 3},
    "deepseek_v3": {"num_hidden_layers": 5, "n_routed_experts": 16, "n_group": 4, "topk_group": 2},
    "glm4_moe": {"num_hidden_layers": 3, "n_routed_experts": 8},
    "qwen3_next": {"num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": {"num_hidden_layers": 2, "num_local_experts": 4},
}
Bits = Callable[[str, int], float]  # module name, columns -> bits per weight, scales included


def groups(bits: int, size: int, *, zero: int) -> Bits:
    return lambda _name, columns: bits + (16 + zero) / (size if size > 0 else columns)


def flat(bits: float) -> Bits:
    return lambda _name, _columns: bits


def row(_name: str, columns: int) -> float:
    return 8 + 16 / columns


NVFP4, MXFP4, FP8, FP8_BLOCK = flat(4.5), flat(4.25), flat(8), flat(8 + 32 / 128**2)


def excluded(name: str, words: list[str]) -> bool:
    """A module or anything below it."""
    return any(name == w or name.startswith(w + ".") or f".{w}." in f".{name}." for w in words)


# Each case: the config's block, and what its engine does with a module's name (None: plain).
CASES: dict[str, tuple[dict[str, Any], Callable[[str], Bits | None]]] = {
    "modelopt with a head in NVFP4": (
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "exclude_modules": ["model.layers.0.self_attn*", "model.layers.*.mlp.gate", "model.layers.1.mlp.down_proj"],
        },
        lambda n: (
            None if fnmatch.fnmatch(n, "model.layers.0.self_attn*") or n == "model.layers.1.mlp.down_proj" else NVFP4
        ),
    ),
    "modelopt by module": (
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "lm_head": {"quant_algo": "NVFP4"},
                **{f"model.layers.{i}.self_attn.q_proj": {"quant_algo": "FP8"} for i in range(3)},
                **{f"model.layers.2.mlp.experts.{e}.up_proj": {"quant_algo": "NVFP4"} for e in range(4)},
                "model.layers.0.mlp.gate_proj": {"quant_algo": "W4A16_AWQ", "group_size": 64},
            },
        },
        lambda n: (
            NVFP4
            if n == "lm_head" or re.fullmatch(r"model\.layers\.2\.mlp\.experts\.[0-3]\.up_proj", n)
            else FP8
            if re.fullmatch(r"model\.layers\.[0-2]\.self_attn\.q_proj", n)
            else groups(4, 64, zero=4)
            if n == "model.layers.0.mlp.gate_proj"
            else None
        ),
    ),
    "compressed-tensors, class first, names after": (
        {
            "quant_method": "compressed-tensors",
            "ignore": ["lm_head", "re:.*mlp.gate$", "model.layers.1.self_attn.o_proj"],
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
                "group_1": {
                    "targets": ["re:.*down_proj.*", "re:.*layers\\.0\\.mlp.*"],
                    "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
                },
            },
        },
        lambda n: (
            None
            if n == "lm_head" or n == "model.layers.1.self_attn.o_proj"
            else groups(4, 32, zero=0)
            if "down_proj" in n or "layers.0.mlp" in n
            else row
        ),
    ),
    "GPTQ dynamic": (
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 128,
            "lm_head": True,
            "dynamic": {
                "-:model\\.layers\\.1\\..*": {},
                "+:.*\\.[0-1]\\.self_attn\\..*": {"bits": 8, "group_size": 64},
                ".*(?:down|o)_proj.*": {"group_size": 32},
            },
        },
        lambda n: (
            None
            if re.match(r"model\.layers\.1\..*", n)
            else groups(8, 64, zero=8)
            if re.match(r".*\.[0-1]\.self_attn\..*", n)
            else groups(4, 32, zero=4)
            if re.match(r".*(?:down|o)_proj.*", n)
            else groups(4, 128, zero=4)
        ),
    ),
    "AutoRound extra_config": (
        {
            "quant_method": "auto-round",
            "bits": 4,
            "group_size": 128,
            "sym": True,
            "extra_config": {
                "model.layers.0.self_attn.q_proj": {"bits": 16},
                "model.layers.2.mlp.down_proj": {"bits": 8, "group_size": 64},
                ".*layers\\.1\\..*k_proj.*": {"bits": 8},
                "lm_head": {"bits": 4, "group_size": 32},
            },
        },
        lambda n: (
            None
            if n == "model.layers.0.self_attn.q_proj"
            else groups(8, 64, zero=8)
            if n == "model.layers.2.mlp.down_proj"
            else groups(8, 128, zero=8)
            if re.match(r".*layers\.1\..*k_proj.*", n)
            else groups(4, 32, zero=4)
            if n == "lm_head"
            else groups(4, 128, zero=4)
        ),
    ),
    "AWQ by text inside the name": (
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 128,
            "modules_to_not_convert": ["mlp.gate.", "o_pro", "layers.2.self"],
        },
        lambda n: None if n == "lm_head" or "o_pro" in n or "layers.2.self" in n else groups(4, 128, zero=4),
    ),
    "block FP8": (
        {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.layers.0", "self_attn.k_proj", "mlp.gate"],
        },
        lambda n: None if excluded(n, ["lm_head", "model.layers.0", "self_attn.k_proj", "mlp.gate"]) else FP8_BLOCK,
    ),
    "mxfp4": (
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.0.mlp.experts"]},
        lambda n: MXFP4 if ".experts." in n and "layers.0." not in n else None,
    ),
    "torchao by name": (
        {
            "quant_method": "torchao",
            "quant_type": {
                "default": {
                    "_type": "ModuleFqnToConfig",
                    "_data": {
                        "module_fqn_to_config": {
                            "_default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}},
                            "re:model\\.layers\\..+\\.self_attn\\.[qkv]_proj": {
                                "_type": "Float8DynamicActivationFloat8WeightConfig",
                                "_data": {},
                            },
                            "model.layers.1.self_attn.q_proj": None,
                        }
                    },
                }
            },
        },
        lambda n: (
            None
            if n in ("lm_head", "model.layers.1.self_attn.q_proj")
            else row
            if re.fullmatch(r"model\.layers\..+\.self_attn\.[qkv]_proj", n)
            else groups(4, 64, zero=16)
        ),
    ),
    "hqq": (
        {
            "quant_method": "hqq",
            "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}},
            "skip_modules": ["lm_head", "o_proj"],
        },
        lambda n: None if n == "lm_head" or n.endswith("o_proj") else groups(4, 64, zero=16),
    ),
    "quanto": (
        {"quant_method": "quanto", "weights": "int8", "modules_to_not_convert": ["lm_head"]},
        lambda n: None if n == "lm_head" else row,
    ),
    "bitnet": (
        {"quant_method": "bitnet", "modules_to_not_convert": ["lm_head", "v_proj"]},
        lambda n: None if n == "lm_head" or n.endswith("v_proj") else flat(2),
    ),
    "ptpc_fp8": ({"quant_method": "ptpc_fp8"}, lambda n: None if n == "lm_head" else row),
}


def walk(model: Any) -> Iterator[tuple[str, int, int, bool]]:
    """Every parameter: module name, numbers, columns, and whether it is a linear layer's matrix.

    Experts that transformers keeps in one tensor are walked one by one, as checkpoints and engines name them.
    """
    seen = set()
    for name, parameter in model.named_parameters():
        if id(parameter) in seen:
            continue
        seen.add(id(parameter))
        module, _, leaf = name.rpartition(".")
        if ".experts." in name and parameter.dim() == 3:
            n, width = parameter.shape[0], parameter[0].numel()
            # hidden size in, or intermediate size in: the smaller sizes here are all different
            hidden = model.config.hidden_size
            for e in range(n):
                stem = f"{module}.{e}"
                if leaf.startswith("gate_up"):
                    yield f"{stem}.gate_proj", width // 2, hidden, True
                    yield f"{stem}.up_proj", width // 2, hidden, True
                else:
                    yield f"{stem}.{leaf}", width, width // hidden, True
            continue
        linear = isinstance(model.get_submodule(module), torch.nn.Linear) and leaf == "weight"
        yield module, parameter.numel(), parameter.shape[-1], linear


@pytest.fixture(scope="module")
def modules() -> dict[str, tuple[dict[str, Any], list[tuple[str, int, int, bool]]]]:
    found = {}
    for model_type, fields in SMALL.items():
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[model_type](**fields))
        found[model_type] = (json.loads(model.config.to_json_string(use_diff=False)), list(walk(model)))
    return found


def is_router(name: str) -> bool:
    return name.endswith((".gate", ".router", "shared_expert_gate"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("model_type", SMALL)
def test_bytes_are_those_of_the_modules_one_by_one(
    case: str, model_type: str, modules: dict[str, tuple[dict[str, Any], list[tuple[str, int, int, bool]]]]
) -> None:
    block, rule = CASES[case]
    config, walked = modules[model_type]
    bits = 0.0
    for name, numbers, columns, linear in walked:
        chosen = rule(name) if linear and not is_router(name) else None
        bits += numbers * (16 if chosen is None else chosen(name, columns))
    found = import_config({**config, "dtype": "bfloat16", "quantization_config": block}, model_type).model
    assert resident_bytes(found) == pytest.approx(bits / 8, rel=1e-6)
