"""What a config says about quantised weights: their format, scales included, and which modules are left alone.

Read are ``quantization_config`` (transformers, vLLM, compressed-tensors), ModelOpt's ``hf_quant_config.json``, and the
short forms that catalogues keep.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.specs.huggingface.fields import Fields
from specplan.values.formats import NumberFormat, fp8_blocks, grouped, lookup

MAX_PATTERNS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """Format of quantised weights and the patterns of modules that keep the plain one.

    Attributes
    ----------
    default : NumberFormat or None
        Format of every quantised module; None where the config does not determine it.
    ignored : tuple of str
        Patterns of modules left alone.
    only : tuple of str
        Components that alone are quantised; empty for all linear layers.
    formats : tuple of (str, NumberFormat)
        Formats of components that differ.
    head : bool
        The output head is quantised too.
    """

    default: NumberFormat | None
    ignored: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    formats: tuple[tuple[str, NumberFormat], ...] = field(default=())
    head: bool = False


def _bits(f: Fields, block: Mapping[str, Any], name: str, default: int) -> int:
    bits = f.whole(block.get(name, default), f"quantization_config.{name}")
    if not 2 <= bits <= 8:
        raise InputError(f"{f.where}: quantization_config.{name} must be from 2 to 8, got {bits}")
    return bits


def _group(f: Fields, block: Mapping[str, Any], name: str = "group_size", default: int = 128) -> int:
    value = block.get(name)
    return f.whole(default if value is None else value, f"quantization_config.{name}", -1)


def _names(block: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        value = block.get(name)
        if isinstance(value, list):
            found += [str(item) for item in value[:MAX_PATTERNS]]
    return tuple(found)


def _fp8(f: Fields, block: Mapping[str, Any]) -> Quantization:
    sides = block.get("weight_block_size")
    default = lookup("fp8")
    if isinstance(sides, list) and len(sides) == 2:
        default = fp8_blocks(*(f.whole(side, "quantization_config.weight_block_size") for side in sides))
    formats: tuple[tuple[str, NumberFormat], ...] = ()
    expert = block.get("expert_dtype") or f.config.get("expert_dtype")
    if isinstance(expert, str) and "4" in expert:
        formats = (("experts", lookup("mxfp4")),)
    return Quantization(
        default=default, ignored=_names(block, "modules_to_not_convert", "ignored_layers"), formats=formats
    )


def _awq_or_gptq(f: Fields, block: Mapping[str, Any], kind: str) -> Quantization:
    bits, size = _bits(f, block, "bits" if "bits" in block else "w_bit", 4), _group(f, block)
    if "q_group_size" in block:
        size = _group(f, block, "q_group_size")
    return Quantization(
        default=grouped(bits, kind, size),
        ignored=_names(block, "modules_to_not_convert"),
        head=block.get("lm_head") is True,
    )


def _bitsandbytes(f: Fields, block: Mapping[str, Any]) -> Quantization:
    ignored = _names(block, "llm_int8_skip_modules")
    if block.get("load_in_8bit"):
        return Quantization(default=lookup("int8"), ignored=ignored)
    if block.get("load_in_4bit") or str(block.get("quant_method")) == "bitsandbytes":
        double = block.get("bnb_4bit_use_double_quant", False) is True
        return Quantization(default=lookup("bnb-nf4" if double else "bnb-nf4-single"), ignored=ignored)
    raise UnsupportedError(f"{f.where}: quantization_config says neither load_in_4bit nor load_in_8bit")


def _scheme(f: Fields, weights: Mapping[str, Any], packed: str) -> NumberFormat:
    """Format of one compressed-tensors scheme."""
    bits, kind = f.whole(weights.get("num_bits", 8), "num_bits"), str(weights.get("type", "int"))
    strategy = str(weights.get("strategy") or "tensor")
    size = _group(f, weights, default=-1)
    if kind == "float":
        if bits == 8:
            sides = weights.get("block_structure")
            if strategy == "block" and isinstance(sides, list) and len(sides) == 2:
                return fp8_blocks(*(f.whole(side, "block_structure") for side in sides))
            return lookup("mxfp8") if strategy == "group" and size == 32 else lookup("fp8")
        if bits == 4:
            return lookup("mxfp4" if size == 32 or "mx" in packed else "nvfp4")
        raise UnsupportedError(f"{f.where}: {bits}-bit floating-point weights cannot be counted")
    if bits == 8 and strategy in ("tensor", "channel"):
        return lookup("int8")
    symmetric = weights.get("symmetric", True) is not False
    return grouped(_bits(f, weights, "num_bits", 4), "sym" if symmetric else "awq", size if strategy == "group" else -1)


def _compressed_tensors(f: Fields, block: Mapping[str, Any]) -> Quantization:
    groups = block.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        f.assume("quant_method compressed-tensors without config_groups: bytes are counted at the plain dtype")
        return Quantization(default=None)
    schemes = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            packed = str(group.get("format") or block.get("format") or "")
            schemes.append((_names(group, "targets"), _scheme(f, weights, packed)))
    if not schemes:
        return Quantization(default=None)
    ignored = _names(block, "ignore")
    plain = [fmt for targets, fmt in schemes if "Linear" in targets or not targets]
    if plain or len({fmt for _, fmt in schemes}) == 1:
        default = plain[0] if plain else schemes[0][1]
        if len({fmt for _, fmt in schemes}) > 1:
            f.assume(f"several weight formats: {default.name} is counted for all")
        return Quantization(default=default, ignored=ignored, head=any("lm_head" in t for t, _ in schemes))
    f.assume(f"several weight formats by module name: {schemes[0][1].name} is counted for all")
    return Quantization(default=schemes[0][1], ignored=ignored)


_MODELOPT: Final[dict[str, str]] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8-block128",
    "FP8_PB_REAL": "fp8-block128",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "W4A16_MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "MXFP4": "mxfp4",
    "MXFP8": "mxfp8",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "INT8_SQ": "int8",
    "W4A16_AWQ": "int4-awq-g128",
    "W4A8_AWQ": "int4-awq-g128",
    "INT4_AWQ": "int4-awq-g128",
    "W4A16_GPTQ": "int4-gptq-g128",
}


def _modelopt(f: Fields, block: Mapping[str, Any]) -> Quantization:
    algo = str(block.get("quant_algo") or "").upper()
    ignored = _names(block, "exclude_modules", "ignore", "modules_to_not_convert")
    if not ignored:
        f.assume("the quantised checkpoint's list of excluded modules is not given: all linear layers are counted")
    if algo == "MIXED_PRECISION":
        return _mixed(f, block, ignored)
    name = _MODELOPT.get(algo)
    if name is None:
        raise UnsupportedError(f"{f.where}: quant_algo {algo!r} cannot be counted; known: {', '.join(_MODELOPT)}")
    fmt = lookup(name)
    if "awq" in name or "gptq" in name:
        fmt = grouped(4, name.split("-")[1], _group(f, block))
    return Quantization(default=fmt, ignored=ignored)


def _mixed(f: Fields, block: Mapping[str, Any], ignored: tuple[str, ...]) -> Quantization:
    """Formats listed per module in ``quantized_layers``; each component gets the one most of its modules have."""
    listed = block.get("quantized_layers")
    if not isinstance(listed, dict) or not listed:
        if block.get("quant_method") == "fp8" or block.get("weight_block_size"):
            f.assume("mixed precision without quantized_layers: the block-fp8 part of the config is counted for all")
            return replace(_fp8(f, block), ignored=ignored)
        f.assume("mixed precision without quantized_layers: bytes are counted at the plain dtype")
        return Quantization(default=None)
    votes: dict[str, dict[str, int]] = {}
    for module, entry in list(listed.items())[:MAX_PATTERNS]:
        name = _MODELOPT.get(str((entry or {}).get("quant_algo", "")).upper()) if isinstance(entry, dict) else None
        component = _component(str(module))
        if name is not None and component:
            counted = votes.setdefault(component, {})
            counted[name] = counted.get(name, 0) + 1
    if not votes:
        raise UnsupportedError(f"{f.where}: quantized_layers names no module that is known")
    formats = {component: max(counted, key=lambda n: counted[n]) for component, counted in votes.items()}
    if any(len(counted) > 1 for counted in votes.values()):
        f.assume("mixed precision inside a component: each is counted at the format most of its modules have")
    default = lookup(max(formats.values(), key=list(formats.values()).count))
    differ = tuple((c, lookup(n)) for c, n in formats.items() if lookup(n) != default)
    return Quantization(default=default, only=tuple(formats), formats=differ, ignored=ignored)


def _component(module: str) -> str:
    """Component of the counts to which a module's name belongs; empty if none is known."""
    for words, component in (
        (("shared_expert", "shared_mlp"), "shared_experts"),
        ((".experts",), "experts"),
        (("lm_head",), "head"),
        (("linear_attn", "mamba", ".conv", "in_proj", "out_proj"), "recurrent"),
        (("self_attn", "attention", ".attn", "q_proj", "k_proj", "v_proj", "o_proj"), "attention"),
        (("mlp", "feed_forward", "up_proj", "down_proj"), "mlp"),
    ):
        if any(word in module for word in words):
            return component
    return ""


def read_quantization(f: Fields, config: Mapping[str, Any], beside: Mapping[str, Any] | None) -> Quantization | None:
    """Quantisation that `config`, or ModelOpt's ``hf_quant_config.json`` `beside` it, states; None for plain weights.

    Raises
    ------
    UnsupportedError
        For a method that is not known.
    """
    block: dict[str, Any] = {}
    for source in (beside or {}).get("quantization", beside), config.get("hf_quant"):
        if isinstance(source, dict):
            block |= {k: v for k, v in source.items() if v is not None}
    for name in ("quantization", "compression_config", "quantization_config"):
        if isinstance(config.get(name), dict):
            block |= {k: v for k, v in config[name].items() if v is not None}
    if not block:
        return None
    if block.get("kv_cache_quant_algo"):
        f.assume(
            f"the checkpoint carries scales for {block['kv_cache_quant_algo']} keys and values; pass --kv-cache-dtype"
        )
    method = str(block.get("quant_method") or ("modelopt" if "quant_algo" in block else "")).lower()
    if block.get("quant_algo") and method in ("modelopt", "modelopt_fp4", "modelopt_mixed", "fp8", "nvfp4"):
        return _modelopt(f, block)
    return _by_method(f, block, method)


def _by_method(f: Fields, block: Mapping[str, Any], method: str) -> Quantization:
    match method.replace("-", "_"):
        case "fp8" | "fbgemm_fp8" | "w8a8_fp8" | "deepseek_fp8":
            return _fp8(f, block)
        case "awq" | "awq_marlin" | "gemm":
            return _awq_or_gptq(f, block, "awq")
        case "gptq" | "gptq_marlin" | "auto_round" | "autoround":
            return _awq_or_gptq(f, block, "gptq")
        case "bitsandbytes" | "bnb":
            return _bitsandbytes(f, block)
        case "compressed_tensors" | "compressed_tensor":
            return _compressed_tensors(f, block)
        case "mxfp4" | "gpt_oss_mxfp4":
            ignored = _names(block, "modules_to_not_convert")
            return Quantization(default=lookup("mxfp4"), ignored=ignored, only=("experts",))
        case "mxfp8":
            return Quantization(
                default=lookup("mxfp8"), ignored=_names(block, "modules_to_not_convert", "ignored_layers")
            )
        case "w8a8_int8" | "int8" | "eetq" | "experts_int8":
            only = ("experts",) if method == "experts_int8" else ()
            return Quantization(default=lookup("int8"), ignored=_names(block, "modules_to_not_convert"), only=only)
        case "quark":
            return _quark(f, block)
    known = "fp8, awq, gptq, bitsandbytes, compressed-tensors, mxfp4, mxfp8, modelopt, w8a8_int8, quark"
    raise UnsupportedError(f"{f.where}: quant_method {method!r} cannot be counted; known: {known}")


def _quark(f: Fields, block: Mapping[str, Any]) -> Quantization:
    scheme = block.get("global_quant_config")
    weight = scheme.get("weight") if isinstance(scheme, dict) else None
    if not isinstance(weight, dict):
        f.assume("quant_method quark without global_quant_config: bytes are counted at the plain dtype")
        return Quantization(default=None)
    dtype = str(weight.get("dtype", "")).lower()
    known = {"fp4": "mxfp4", "fp8": "fp8", "int8": "int8", "fp6": "mxfp6"}
    name = next((value for key, value in known.items() if dtype.startswith(key)), None)
    if name is None:
        raise UnsupportedError(f"{f.where}: quark weights of dtype {dtype!r} cannot be counted")
    return Quantization(default=lookup(name), ignored=_names(block, "exclude"))
