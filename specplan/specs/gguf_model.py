"""A GGUF file becomes a model: sizes from its metadata, formats from the types of its tensors, checked against both."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.formulas.parameters import params_by_component, resident_params
from specplan.specs.checkpoint import sizes_by_component
from specplan.specs.gguf import GgufHeader, read_gguf
from specplan.specs.huggingface.config import Imported, import_config
from specplan.values.formats import lookup, mixed

# general.architecture -> Hugging Face model_type.
_TYPES: Final[dict[str, str]] = {
    "llama": "llama",
    "mistral3": "ministral3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "granite": "granite",
    "command-r": "cohere",
    "cohere2": "cohere2",
    "olmo2": "olmo2",
    "smollm3": "smollm3",
    "starcoder2": "starcoder2",
    "gpt-oss": "gpt_oss",
    "glm4": "glm4",
    "seed_oss": "seed_oss",
    "deepseek2": "deepseek_v2",
}

_COMPONENTS: Final[dict[str, str]] = {
    r"^token_embd\.weight$": "embedding",
    r"^output\.weight$": "head",
    r"norm|rope_freqs": "norms",
    r"\.ffn_gate_inp_shexp": "shared_experts",
    r"\.ffn_gate_inp": "router",
    r"\.ffn_\w+_exps": "experts",
    r"\.ffn_\w+_shexp": "shared_experts",
    r"\.ffn_": "mlp",
    r"\.attn_": "attention",
    r"\.ssm_": "recurrent",
}


def _config(header: GgufHeader, where: str) -> dict[str, Any]:
    meta = header.metadata
    arch = meta.get("general.architecture")
    if not isinstance(arch, str) or arch not in _TYPES:
        raise UnsupportedError(f"{where}: GGUF architecture {arch!r} cannot be counted; known: {', '.join(_TYPES)}")
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    table = shapes.get("token_embd.weight")
    if table is None or len(table) != 2:
        raise InputError(f"{where}: holds no token_embd.weight, so it is no language model")
    found: dict[str, Any] = {
        "model_type": _TYPES[arch],
        "vocab_size": table[1],
        "tie_word_embeddings": "output.weight" not in shapes,
        "dtype": "float16",
    }
    names = {
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "sliding_window": "attention.sliding_window",
        "num_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "n_shared_experts": "expert_shared_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "kv_lora_rank": "attention.kv_lora_rank",
        "q_lora_rank": "attention.q_lora_rank",
        "qk_rope_head_dim": "rope.dimension_count",
        "v_head_dim": "attention.value_length_mla",
    }
    for name, key in names.items():
        value = meta.get(f"{arch}.{key}")
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if value is not None and value is not False:
            found[name] = value
    return found | _adjusted(found, meta, arch, shapes)


def _adjusted(
    found: Mapping[str, Any], meta: Mapping[str, Any], arch: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Fields that GGUF spells in ways of its own."""
    more: dict[str, Any] = {}
    count = found.get("num_experts")
    if count and arch == "llama":
        more["model_type"] = "mixtral"
    if count and arch in ("llama", "gpt-oss"):
        more["num_local_experts"] = count
        width = found.get("moe_intermediate_size")
        if width:
            more["intermediate_size"] = width
    if arch == "deepseek2":
        more["n_routed_experts"] = count
        key = meta.get(f"{arch}.attention.key_length_mla") or meta.get(f"{arch}.attention.key_length")
        if isinstance(key, int) and isinstance(found.get("qk_rope_head_dim"), int):
            more["qk_nope_head_dim"] = key - found["qk_rope_head_dim"]
        more.setdefault("v_head_dim", found.get("v_head_dim") or meta.get(f"{arch}.attention.value_length"))
    if any(name.endswith("attn_q.bias") for name in shapes):
        more["attention_bias"] = True
        more["qkv_bias"] = True
    return {k: v for k, v in more.items() if v is not None}


def import_gguf(path: Path) -> Imported:
    """Model in a GGUF file, its formats averaged per component; exact in parameters and bytes.

    Raises
    ------
    InputError, UnsupportedError
        When the file is broken, its architecture is not known, or its tensors and metadata disagree.
    """
    header = read_gguf(path)
    where = str(path)
    found = import_config(_config(header, where), where, name=path.stem)
    model = found.model
    sizes = sizes_by_component((t for t in header.tensors if t.name != "rope_freqs.weight"), _COMPONENTS)
    stored = sum(numbers for numbers, _ in sizes.values())
    implied = resident_params(model)
    if stored != implied:
        raise UnsupportedError(
            f"{where}: its tensors hold {stored:,} parameters, its metadata implies {implied:,}; "
            f"convert it from a config.json, or write a spec by hand"
        )
    if model.tied_embeddings and "embedding" in sizes:
        sizes["head"] = sizes.pop("embedding")
    counted = params_by_component(model)
    formats = tuple(
        (component, mixed(8 * n_bytes / numbers)) for component, (numbers, n_bytes) in sizes.items() if numbers
    )
    wrong = next((c for c, (numbers, _) in sizes.items() if counted.get(c, 0) != numbers), None)
    if wrong is not None:
        raise UnsupportedError(f"{where}: component {wrong!r} differs between tensors and metadata")
    return replace(found, model=replace(model, formats=formats, weight_format=lookup("float16")))
