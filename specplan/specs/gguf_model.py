"""A GGUF file becomes a model: sizes from its metadata, formats from the types of its tensors, checked against both."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.files.ranges import Ranges
from specplan.files.text import is_url
from specplan.formulas.parameters import layer_weights, resident_bytes, resident_params
from specplan.specs.gguf import GgufHeader, parse_gguf, read_gguf
from specplan.specs.huggingface.config import Imported, import_config
from specplan.specs.huggingface.module_formats import with_formats
from specplan.specs.safetensors import MAX_SHARDS
from specplan.values.formats import NumberFormat, lookup, mixed
from specplan.values.model import Access, Model

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

# Names in `blk.N.` -> the weights they hold; vectors (norms, biases, sinks) are told by their last word.
_WEIGHTS: Final[dict[str, tuple[str, ...]]] = {
    "attn_q": ("attention.q_proj",),
    "attn_k": ("attention.k_proj",),
    "attn_v": ("attention.v_proj",),
    "attn_qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attn_output": ("attention.o_proj",),
    "attn_q_a": ("attention.q_a_proj",),
    "attn_q_b": ("attention.q_b_proj",),
    "attn_kv_a_mqa": ("attention.kv_a_proj",),
    "attn_kv_b": ("attention.kv_b_proj",),
    "attn_k_b": ("attention.kv_b_proj",),
    "attn_v_b": ("attention.kv_b_proj",),
    "ffn_gate_inp": ("router.router",),
    "ffn_gate_inp_shexp": ("shared_experts.shared_gate",),
    **{
        f"ffn_{name}{suffix}": (f"{component}.{name}_proj",)
        for name in ("gate", "up", "down")
        for suffix, component in (("", "mlp"), ("_exps", "experts"), ("_shexp", "shared_experts"))
    },
}
_OUTSIDE: Final = {"token_embd.weight": "embedding", "output.weight": "head"}
_BLOCK: Final = re.compile(r"blk\.(\d{1,5})\.(\w+)(?:\.(weight|bias))?")


def gguf_config(header: GgufHeader, where: str) -> dict[str, Any]:
    """The fields of a Hugging Face config that a header states.

    Raises
    ------
    UnsupportedError
        For an architecture that cannot be counted.
    InputError
        Without an embedding.
    """
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
    if "kv_lora_rank" not in found:  # elsewhere the rotated part of a head, which changes no count
        found.pop("qk_rope_head_dim", None)
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


def _layer_formats(model: Model, header: GgufHeader, where: str) -> list[dict[str, NumberFormat]]:
    """Format of every weight of every layer; equal layers share one mapping."""
    stored: list[dict[str, dict[str, tuple[int, float]]]] = [{} for _ in model.layers]
    vectors: set[str] = set()
    for tensor in header.tensors:
        match = _BLOCK.fullmatch(tensor.name)
        if match is None or int(match[1]) >= len(stored):
            if tensor.name not in _OUTSIDE:
                vectors.add(tensor.dtype)
            continue
        keys = _WEIGHTS.get(match[2], ()) if match[3] != "bias" else ()
        if not keys:
            vectors.add(tensor.dtype)
        here = stored[int(match[1])]
        for key in keys:
            n, size = here.setdefault(key, {}).get(tensor.dtype, (0, 0.0))
            here[key][tensor.dtype] = (n + tensor.size, size + tensor.n_bytes)
    if len(vectors) > 1:
        raise UnsupportedError(f"{where}: vectors of several types ({', '.join(sorted(vectors))}) cannot be counted")
    plain = lookup(next(iter(vectors), "f32").lower())
    shared: dict[tuple[tuple[str, NumberFormat], ...], dict[str, NumberFormat]] = {}
    out = []
    for layer, found in zip(model.layers, stored, strict=True):
        formats = {key: _one(types) for key, types in found.items()}
        if "mlp.up_proj" in formats:  # gate and up in one tensor
            formats.setdefault("mlp.gate_proj", formats["mlp.up_proj"])
        formats |= {
            f"{w.component}.{w.name}": plain
            for w in layer_weights(layer, model.hidden_size)
            if w.access is Access.ELEMENTWISE
        }
        out.append(shared.setdefault(tuple(formats.items()), formats))
    return out


def _one(types: Mapping[str, tuple[int, float]]) -> NumberFormat:
    """The type's own name, or a mean where one weight is stored in parts of different types."""
    if len(types) == 1:
        return lookup(next(iter(types)).lower())
    return mixed(8 * sum(size for _, size in types.values()) / sum(n for n, _ in types.values()))


def import_gguf(path: Path | str) -> Imported:
    """Model in a GGUF file or at its address, each weight in the type of its tensor; exact in parameters and bytes.

    Only headers are read, of an address by byte ranges; the other parts of a file that is split are read beside it.

    Raises
    ------
    InputError, UnsupportedError
        When the file is broken, its architecture is not known, or its tensors and metadata disagree.
    """
    where = str(path)
    header = _header(where)
    count = header.metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        header = replace(header, tensors=tuple(t for part in _parts(where, count) for t in _header(part).tensors))
    return gguf_model(header, where, _PART.sub("", Path(where).name).removesuffix(".gguf"))


_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")


def _header(where: str) -> GgufHeader:
    return parse_gguf(Ranges(where), where) if is_url(where) else read_gguf(Path(where))


def _parts(where: str, count: int) -> list[str]:
    """All parts of a split file, by the name of one."""
    match = _PART.search(where)
    if match is None or int(match[2]) != count or count > MAX_SHARDS:
        raise InputError(f"{where}: is part of {count} files, and its name is not NAME-00001-of-{count:05}.gguf")
    return [_PART.sub(f"-{i:05}-of-{count:05}", where) for i in range(1, count + 1)]


def gguf_model(header: GgufHeader, where: str, name: str) -> Imported:
    """Model that a GGUF `header` describes."""
    found = import_config(gguf_config(header, where), where, name=name)
    model = found.model
    tensors = [t for t in header.tensors if t.name != "rope_freqs.weight"]
    stored, implied = sum(t.size for t in tensors), resident_params(model)
    if stored != implied:
        raise UnsupportedError(
            f"{where}: its tensors hold {stored:,} parameters, its metadata implies {implied:,}; "
            f"convert it from a config.json, or write a spec by hand"
        )
    outer = {_OUTSIDE[t.name]: lookup(t.dtype.lower()) for t in tensors if t.name in _OUTSIDE}
    if model.tied_embeddings and "embedding" in outer:
        outer = {"head": outer["embedding"]}
    each = _layer_formats(model, header, where)
    last = next((lookup(t.dtype.lower()) for t in tensors if t.name == "output_norm.weight"), lookup("f32"))
    model = with_formats(model, each, None, (*outer.items(), ("norms", last)))
    n_bytes = sum(t.n_bytes for t in tensors)
    if abs(resident_bytes(model) - n_bytes) > 0.5:
        raise UnsupportedError(
            f"{where}: its tensors take {n_bytes:,} bytes, their types by weight imply {resident_bytes(model):,.0f}"
        )
    return replace(found, model=replace(model, evidence=f"headers of {len(header.tensors):,} tensors"))
