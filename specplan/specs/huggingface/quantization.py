"""What a config says about quantised weights: their format, scales included, and which modules are left alone.

Read are ``quantization_config`` (transformers, vLLM, compressed-tensors), ModelOpt's ``hf_quant_config.json``, and the
short forms that catalogues keep.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from specplan.errors import InputError, UnsupportedError
from specplan.specs.huggingface.fields import Fields
from specplan.values.formats import NumberFormat, channelwise, fp8_blocks, grouped, lookup

MAX_PATTERNS: Final = 100_000


Rule = tuple[str, NumberFormat | None]
"""A pattern of module names and the format of the modules it covers; None leaves them plain.

Patterns: ``re:`` an expression matched from the start, ``full:`` one that spans the name, ``in:`` text anywhere in it;
otherwise a module's name (its submodules included), a run of whole words, or a glob.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The formats of a checkpoint's modules: rules by name, the first that matches deciding, and what is left to them.

    Attributes
    ----------
    default : NumberFormat or None
        Format of linear layers that no rule names; None for the plain one.
    rules : tuple of Rule
    only : tuple of str
        Components that alone get the default; empty for all linear layers.
    components : tuple of (str, NumberFormat)
        Components with a default of their own.
    head : bool
        The output head gets the default too.
    every : bool
        Router, embedding and head get it too (MLX).
    ordered : bool
        Each module comes with the group of every input row (GPTQ's ``desc_act``), 32 bits a row.
    """

    default: NumberFormat | None
    rules: tuple[Rule, ...] = ()
    only: tuple[str, ...] = ()
    components: tuple[tuple[str, NumberFormat], ...] = ()
    head: bool = False
    every: bool = False
    ordered: bool = False


def _plain(names: Iterable[str], dialect: str = "") -> tuple[Rule, ...]:
    return tuple((name if name.startswith("re:") else dialect + name, None) for name in names)


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
    expert = block.get("expert_dtype") or f.config.get("expert_dtype")
    mx = isinstance(expert, str) and "4" in expert
    return Quantization(
        default=default,
        rules=_plain(_names(block, "modules_to_not_convert", "ignored_layers")),
        components=(("experts", lookup("mxfp4")),) if mx else (),
    )


def _integers(f: Fields, block: Mapping[str, Any], kind: str, bits: int = 4, size: int = 128) -> NumberFormat | None:
    """Format of an entry with ``bits`` and ``group_size``; None for 16 bits."""
    stated = block.get("bits", block.get("w_bit", bits))
    if f.whole(stated, "quantization_config.bits") == 16:
        return None
    name = next((n for n in ("q_group_size", "group_size") if n in block), "group_size")
    bits, group = _bits(f, {"bits": stated}, "bits", bits), _group(f, block, name, size)
    return grouped(bits, kind, group) if group > 0 else channelwise(f"int{bits}")


def _awq(f: Fields, block: Mapping[str, Any]) -> Quantization:
    return Quantization(
        default=_integers(f, block, "awq"),
        rules=_plain(_names(block, "modules_to_not_convert"), "in:"),
        head=block.get("lm_head") is True,
    )


def _gptq(f: Fields, block: Mapping[str, Any]) -> Quantization:
    """GPTQ: ``dynamic`` maps expressions to other settings (``+:``, or none) or to plain weights (``-:``), in order."""
    default = _integers(f, block, "gptq")
    rules: list[Rule] = []
    dynamic = block.get("dynamic")
    for pattern, entry in list(dynamic.items())[:MAX_PATTERNS] if isinstance(dynamic, dict) else ():
        if pattern.startswith("-:"):
            rules.append(("re:" + pattern[2:], None))
        else:
            own = {**block, **entry} if isinstance(entry, dict) else block
            rules.append(("re:" + pattern.removeprefix("+:"), _integers(f, own, "gptq")))
    listed = block.get("modules_in_block_to_quantize")
    if isinstance(listed, list):
        inside = [str(n) for group in listed for n in (group if isinstance(group, list) else [group])]
        rules += [(name, default) for name in inside]
        default, only = None, True
    else:
        only = False
    rules += _plain(_names(block, "modules_to_not_convert"))
    head = block.get("lm_head") is True and not only
    return Quantization(default=default, rules=tuple(rules), head=head, ordered=block.get("desc_act") is True)


def _auto_round(f: Fields, block: Mapping[str, Any]) -> Quantization:
    """AutoRound: ``extra_config`` by module name or expression; blocks that are not listed stay plain."""
    data = str(block.get("data_type") or "int").lower()

    def one(entry: Mapping[str, Any]) -> NumberFormat | None:
        kind = str(entry.get("data_type") or data).lower()
        if f.whole(entry.get("bits", block.get("bits", 4)), "bits") >= 16:
            return None
        if "fp" in kind:
            bits = f.whole(entry.get("bits", block.get("bits", 4)), "bits")
            return lookup(f"mxfp{bits}" if "mx" in kind else "nvfp4" if bits == 4 else "fp8")
        # Packed as GPTQ or AWQ packs: zero points are stored, symmetric or not.
        return _integers(f, {**block, **entry}, "gptq")

    rules: list[Rule] = []
    extra = block.get("extra_config")
    entries = {k: v for k, v in extra.items() if isinstance(v, dict)} if isinstance(extra, dict) else {}
    for name, entry in list(entries.items())[:MAX_PATTERNS]:
        expression = any(c in name for c in "*^$()[]|\\?")
        rules.append((f"re:{name}" if expression else name, one(entry)))
    rules.sort(key=lambda rule: rule[0].startswith("re:"))  # exact names before expressions
    blocks = block.get("block_name_to_quantize") or block.get("to_quant_block_names")
    return Quantization(default=one({}), rules=tuple(rules), head=False if blocks else block.get("lm_head") is True)


def _bitsandbytes(f: Fields, block: Mapping[str, Any]) -> Quantization:
    rules = _plain(_names(block, "llm_int8_skip_modules"))
    if block.get("load_in_8bit"):
        return Quantization(default=lookup("int8"), rules=rules)
    if block.get("load_in_4bit") or str(block.get("quant_method")) == "bitsandbytes":
        double = block.get("bnb_4bit_use_double_quant", False) is True
        return Quantization(default=lookup("bnb-nf4" if double else "bnb-nf4-single"), rules=rules)
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
            if strategy == "channel":
                return channelwise("fp8")
            return lookup("mxfp8") if strategy == "group" and size == 32 else lookup("fp8")
        if bits == 4:
            return lookup("mxfp4" if size == 32 or "mx" in packed else "nvfp4")
        raise UnsupportedError(f"{f.where}: {bits}-bit floating-point weights cannot be counted")
    if bits == 8 and strategy == "channel":
        return channelwise("int8")
    if bits == 8 and strategy == "tensor":
        return lookup("int8")
    symmetric = weights.get("symmetric", True) is not False
    if strategy != "group" and symmetric:
        return channelwise(f"int{_bits(f, weights, 'num_bits', 4)}")
    return grouped(_bits(f, weights, "num_bits", 4), "sym" if symmetric else "awq", size if strategy == "group" else -1)


def _compressed_tensors(f: Fields, block: Mapping[str, Any]) -> Quantization:
    """compressed-tensors: a module's name decides before its class, whatever the order of the groups."""
    groups = block.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        f.assume("quant_method compressed-tensors without config_groups: bytes are counted at the plain dtype")
        return Quantization(default=None)
    # Names are of single modules: one of a block of modules spares none of them.
    rules: list[Rule] = list(
        _plain(n for n in _names(block, "ignore") if n.rpartition(".")[2] not in _BLOCKS_OF_MODULES)
    )
    default: NumberFormat | None = None
    found = 0
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            continue
        scheme = _scheme(f, weights, str(group.get("format") or block.get("format") or ""))
        found += 1
        for target in _names(group, "targets") or ("Linear",):
            if target in _LINEAR_CLASSES:
                default = default or scheme
            else:
                rules.append((target, scheme))
    return Quantization(default=default if found else None, rules=tuple(rules) if found else ())


_BLOCKS_OF_MODULES: Final = ("linear_attn", "self_attn", "attention", "mlp", "feed_forward", "block_sparse_moe")
_LINEAR_CLASSES: Final = (
    "Linear",
    "LinearBase",
    "ColumnParallelLinear",
    "RowParallelLinear",
    "FusedMoE",
    "RoutedExperts",
)


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


def _algorithm(f: Fields, entry: Mapping[str, Any], default_group: int = 128) -> NumberFormat:
    """Format of a ModelOpt ``quant_algo``."""
    algo = str(entry.get("quant_algo") or "").upper()
    name = _MODELOPT.get(algo)
    if name is None:
        raise UnsupportedError(f"{f.where}: quant_algo {algo!r} cannot be counted; known: {', '.join(_MODELOPT)}")
    if "awq" in name or "gptq" in name:
        return grouped(4, name.split("-")[1], _group(f, entry, default=default_group))
    return channelwise("fp8") if algo == "FP8_PER_CHANNEL_PER_TOKEN" else lookup(name)


def _modelopt(f: Fields, block: Mapping[str, Any]) -> Quantization:
    """ModelOpt: every linear layer but the excluded, the head too where exclusions are listed without it."""
    excluded = _names(block, "exclude_modules", "ignore", "modules_to_not_convert")
    unlisted = not excluded
    if unlisted and "4" in str(block.get("quant_algo") or ""):
        # Of three published 4-bit checkpoints whose starts print both, every one leaves its prediction layers plain.
        f.assume(
            "the quantised checkpoint's list of excluded modules is not given: all linear layers are counted, "
            "prediction layers plain"
        )
        excluded = ("mtp*",)
    elif unlisted:
        f.assume("the quantised checkpoint's list of excluded modules is not given: all linear layers are counted")
    rules = _plain(excluded)
    if str(block.get("quant_algo") or "").upper() != "MIXED_PRECISION":
        return Quantization(default=_algorithm(f, block), rules=rules, head=not unlisted)
    listed = block.get("quantized_layers")
    if not isinstance(listed, dict) or not listed:
        if block.get("quant_method") == "fp8" or block.get("weight_block_size"):
            f.assume("mixed precision without quantized_layers: the block-fp8 part of the config is counted for all")
            return replace(_fp8(f, block), rules=rules)
        f.assume("mixed precision without quantized_layers: bytes are counted at the plain dtype")
        return Quantization(default=None)
    formats = tuple(
        (str(module), _algorithm(f, entry))
        for module, entry in list(listed.items())[:MAX_PATTERNS]
        if isinstance(entry, dict) and entry.get("quant_algo")
    )
    if not formats:
        raise UnsupportedError(f"{f.where}: quantized_layers names no module that is known")
    return Quantization(default=None, rules=(*rules, *formats))


def _mlx(f: Fields, block: Mapping[str, Any]) -> Quantization:
    """MLX: every matrix, embedding and router included; single modules have settings of their own, or false."""

    def one(entry: Mapping[str, Any]) -> NumberFormat:
        mode = str(entry.get("mode") or block.get("mode") or "affine")
        if mode != "affine":
            return lookup(mode)
        bits = _bits(f, {**block, **entry}, "bits", 4)
        return grouped(bits, "affine", _group(f, {**block, **entry}, default=64))

    rules = tuple(
        (name, None if entry is False else one(entry))
        for name, entry in list(block.items())[:MAX_PATTERNS]
        if entry is False or isinstance(entry, dict)
    )
    return Quantization(default=one({}), rules=tuple(rules), every=True)


def _torchao_type(f: Fields, quant: Any, entry: Mapping[str, Any]) -> NumberFormat | None:
    """Format of one torchao config, under its class name or its old short name."""
    if quant is None:
        return None
    name = str(quant).lower().replace("_", "")
    inner = entry.get("_data")
    data: Mapping[str, Any] = inner if isinstance(inner, dict) else entry
    if "int4" in name and "float8" not in name.split("int4")[0]:
        return grouped(4, "affine", _group(f, data, default=128))
    if "float8" in name or "fp8" in name:
        return grouped(4, "affine", _group(f, data, default=128)) if "int4" in name else channelwise("fp8")
    if "int8dynamicactivationint4" in name:
        return grouped(4, "sym", _group(f, data, default=32))
    if "int8" in name:
        return channelwise("int8")
    for key, known in (("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("mx", "mxfp8")):
        if key in name:
            return lookup(known)
    raise UnsupportedError(f"{f.where}: torchao weights of type {str(quant)[:60]!r} cannot be counted")


def _torchao(f: Fields, block: Mapping[str, Any]) -> Quantization:
    quant = block.get("quant_type")
    entry: Mapping[str, Any] = block
    if isinstance(quant, dict):  # {"default": {"_type": ..., "_data": {...}}}
        inner = quant.get("default", quant)
        entry = inner if isinstance(inner, dict) else {}
        quant = entry.get("_type")
    plain = _plain(_names(block, "modules_to_not_convert"))
    data = entry.get("_data")
    by_name = next(
        (data[n] for n in ("module_fqn_to_config", "fqn_to_config") if isinstance(data, dict) and n in data), None
    )
    embedding = block.get("include_input_output_embeddings") is True
    if not isinstance(by_name, dict):
        kwargs = block.get("quant_type_kwargs")
        more = {**entry, **kwargs} if isinstance(kwargs, dict) else entry
        return Quantization(default=_torchao_type(f, quant, more), rules=plain, every=embedding)
    rules = [
        (("full:" + n[3:]) if n.startswith("re:") else n, _torchao_type(f, (c or {}).get("_type"), c or {}))
        for n, c in list(by_name.items())[:MAX_PATTERNS]
        if n != "_default" and (c is None or isinstance(c, dict))
    ]
    rules.sort(key=lambda rule: rule[0].startswith("full:"))
    last = by_name.get("_default")
    default = _torchao_type(f, last.get("_type"), last) if isinstance(last, dict) else None
    return Quantization(default=default, rules=(*plain, *rules))


def _hqq(f: Fields, block: Mapping[str, Any]) -> Quantization:
    """HQQ: a 16-bit scale and zero point per group; settings of single kinds of layers in ``dynamic_config``."""
    config = block.get("quant_config")
    config = config if isinstance(config, dict) else block

    def one(entry: Mapping[str, Any]) -> NumberFormat:
        own = entry.get("weight_quant_params")
        own = own if isinstance(own, dict) else entry
        return grouped(_bits(f, own, "nbits", 4), "affine", _group(f, own, default=64))

    tags = {k: v for k, v in config.items() if "." in k and isinstance(v, dict)}
    rules = (*_plain(_names(block, "skip_modules")), *((tag, one(v)) for tag, v in tags.items()))
    return Quantization(default=None if tags and "weight_quant_params" not in config else one(config), rules=rules)


def _quanto(f: Fields, block: Mapping[str, Any]) -> Quantization:
    kind = str(block.get("weights") or "int8").lower()
    formats = {"float8": channelwise("fp8"), "int8": channelwise("int8"), "int4": grouped(4, "affine", 128),
               "int2": grouped(2, "affine", 128)}  # fmt: skip
    if kind not in formats:
        raise UnsupportedError(f"{f.where}: quanto weights of type {kind!r} cannot be counted")
    return Quantization(default=formats[kind], rules=_plain(_names(block, "modules_to_not_convert")))


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


def _all(fmt: NumberFormat, *only: str) -> Callable[[Fields, Mapping[str, Any]], Quantization]:
    """Reader of a method with one format: every linear layer that is not listed, or only some components."""

    def read(_f: Fields, block: Mapping[str, Any]) -> Quantization:
        return Quantization(
            default=fmt, rules=_plain(_names(block, "modules_to_not_convert", "ignored_layers")), only=only
        )

    return read


def _by_method(f: Fields, block: Mapping[str, Any], method: str) -> Quantization:
    if not method and "group_size" in block and "bits" in block:
        method = "mlx"
    read = _METHODS.get(method.replace("-", "_").removeprefix("intel/"))
    if read is None:
        raise UnsupportedError(
            f"{f.where}: quant_method {method!r} cannot be counted; known: {', '.join(_METHODS)}, modelopt"
        )
    return read(f, block)


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
    channels = str(weight.get("qscheme") or "") == "per_channel" and name in ("fp8", "int8")
    rules: list[Rule] = list(_plain(_names(block, "exclude")))
    layers = block.get("layer_quant_config")
    for pattern, entry in list(layers.items())[:MAX_PATTERNS] if isinstance(layers, dict) else ():
        own = entry.get("weight") if isinstance(entry, dict) else None
        kind = str(own.get("dtype", "")).lower() if isinstance(own, dict) else ""
        rules.append((pattern, next((lookup(v) for k, v in known.items() if kind.startswith(k)), None)))
    return Quantization(default=channelwise(name) if channels else lookup(name), rules=tuple(rules))


_METHODS: Final[dict[str, Callable[[Fields, Mapping[str, Any]], Quantization]]] = {
    **dict.fromkeys(("fp8", "w8a8_fp8", "deepseek_fp8", "finegrained_fp8"), _fp8),
    **dict.fromkeys(("fbgemm_fp8", "ptpc_fp8"), _all(channelwise("fp8"))),
    **dict.fromkeys(("awq", "awq_marlin", "auto_awq", "gemm"), _awq),
    **dict.fromkeys(("gptq", "gptq_marlin", "auto_gptq"), _gptq),
    **dict.fromkeys(("auto_round", "autoround", "inc"), _auto_round),
    **dict.fromkeys(("bitsandbytes", "bnb"), _bitsandbytes),
    **dict.fromkeys(("compressed_tensors", "compressed_tensor"), _compressed_tensors),
    # Engines quantise experts alone with these; other linear layers stay plain.
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4"), _all(lookup("mxfp4"), "experts")),
    "experts_int8": _all(channelwise("int8"), "experts"),
    "mxfp8": _all(lookup("mxfp8")),
    **dict.fromkeys(("w8a8_int8", "int8", "eetq"), _all(channelwise("int8"))),
    "quark": _quark,
    "torchao": _torchao,
    "hqq": _hqq,
    "quanto": _quanto,
    "bitnet": _all(lookup("bitnet")),
    "mlx": _mlx,
}
