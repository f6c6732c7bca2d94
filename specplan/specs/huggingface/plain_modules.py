"""Modules that a quantised checkpoint leaves plain: their patterns, and the formats that follow.

Patterns are matched against the decoder's module names; regular expressions are read only where they match in bounded
time.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from specplan.formulas.parameters import layer_weights
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.quantization import Quantization
from specplan.values.formats import NumberFormat
from specplan.values.model import (
    Attention,
    CompressedAttention,
    DenseMLP,
    Experts,
    LatentAttention,
    Layer,
    Model,
    Recurrent,
)

MAX_PATTERN_LENGTH: Final = 300

_LEAVES: Final[dict[str, tuple[str, ...]]] = {
    "attention.q_proj": ("q_proj",),
    "attention.k_proj": ("k_proj",),
    "attention.v_proj": ("v_proj",),
    "attention.o_proj": ("o_proj",),
    "attention.q_a_proj": ("q_a_proj",),
    "attention.q_b_proj": ("q_b_proj",),
    "attention.kv_a_proj": ("kv_a_proj_with_mqa",),
    "attention.kv_b_proj": ("kv_b_proj",),
    "attention.indexer": ("indexer.wq_b", "indexer.wk", "indexer.weights_proj"),
    "attention.gate_proj": ("g_proj", "gate_proj"),
    "recurrent.in_proj": ("in_proj",),
    "recurrent.qkvz_proj": ("in_proj_qkvz", "in_proj_qkv", "in_proj_z"),
    "recurrent.ba_proj": ("in_proj_ba", "in_proj_b", "in_proj_a"),
    "recurrent.out_proj": ("out_proj", "o_proj"),
}
_UP_DOWN: Final = ("gate_proj", "up_proj", "down_proj")


def _module_paths(layer: Layer) -> dict[str, tuple[str, ...]]:
    """Weights of a layer as ``component.name``, with the module names under which checkpoints keep them."""
    paths: dict[str, tuple[str, ...]] = {}
    parents: tuple[str, ...]
    match layer.mixer:
        case Attention() | LatentAttention() | CompressedAttention():
            prefix, parents = "attention.", ("self_attn", "mixer", "attention")
        case Recurrent():
            prefix, parents = "recurrent.", ("linear_attn", "mamba", "mixer", "conv", "self_attn")
        case None:
            prefix, parents = "", ()
    for key, leaves in _LEAVES.items():
        if prefix and key.startswith(prefix):
            paths[key] = tuple(f"{parent}.{leaf}" for parent in parents for leaf in leaves)
    match layer.feed_forward:
        case DenseMLP():
            paths["mlp.mlp"] = tuple(f"{p}.{leaf}" for p in ("mlp", "feed_forward", "mixer") for leaf in _UP_DOWN)
        case Experts():
            experts = ("mlp.experts", "block_sparse_moe.experts", "feed_forward.experts", "mixer.experts")
            shared = ("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert", "mixer.shared_experts")
            paths["experts.mlp"] = tuple(f"{p}.0.{leaf}" for p in experts for leaf in _UP_DOWN)
            paths["shared_experts.mlp"] = tuple(f"{p}.{leaf}" for p in shared for leaf in _UP_DOWN)
        case None:
            pass
    return paths


_HARMLESS: Final = re.compile(r"(?:[\w\-:/ ]|\\\.|\.\*|\.|\\d\+?|\[0-9\]\+?|\^|\$|\((?:\?:)?[\w|.\\\-]{0,120}\)|\|)*")
_PREFIXES: Final = ("model.language_model.", "language_model.model.", "model.", "language_model.", "")


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> re.Pattern[str] | None:
    """Compiled pattern if it is made of words, wildcards, digits and plain choices; None otherwise.

    Only such patterns match in bounded time: no nested repetition, at most four wildcards.
    """
    if len(pattern) > MAX_PATTERN_LENGTH or pattern.count(".*") > 4 or not _HARMLESS.fullmatch(pattern):
        return None
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _bare(pattern: str) -> str:
    """Pattern without a wrapper's prefix: ``model.layers.0`` and ``language_model.model.layers.0`` agree."""
    for prefix in _PREFIXES[:-1]:
        if pattern.startswith(prefix):
            return pattern.removeprefix(prefix)
    return pattern


@dataclass(frozen=True, slots=True)
class _Ignored:
    """Patterns sorted by how they are matched: those of one layer, plain ones of all, globs and expressions."""

    per_layer: Mapping[int, tuple[str, ...]]
    plain: tuple[str, ...]
    globs: tuple[str, ...]
    expressions: tuple[re.Pattern[str], ...]
    unread: tuple[str, ...]

    def covers(self, layer: int, path: str) -> bool:
        """Whether the module `path` of `layer` is left alone."""
        dotted = f".{path}."
        if any(rest == "" or f".{rest}." in dotted for rest in self.per_layer.get(layer, ())):
            return True
        if any(f".{word}." in dotted for word in self.plain):
            return True
        name = f"layers.{layer}.{path}"
        if any(fnmatch.fnmatchcase(name, glob) or fnmatch.fnmatchcase(name, f"{glob}.*") for glob in self.globs):
            return True
        return any(expression.match(prefix + name) for expression in self.expressions for prefix in _PREFIXES)


def _sorted_patterns(patterns: Iterable[str]) -> _Ignored:
    per_layer: dict[int, list[str]] = {}
    plain: list[str] = []
    globs: list[str] = []
    expressions: list[re.Pattern[str]] = []
    unread: list[str] = []
    for pattern in dict.fromkeys(patterns):
        if pattern.startswith("re:"):
            expression = _regex(pattern[3:])
            if expression is None:
                unread.append(pattern)
            else:
                expressions.append(expression)
            continue
        bare = _bare(pattern)
        if match := re.match(r"layers\.(\d{1,5})(?:\.(.*))?$", bare):
            per_layer.setdefault(int(match[1]), []).append((match[2] or "").removesuffix("*").removesuffix("."))
        elif any(c in bare for c in "*?["):
            if len(bare) > MAX_PATTERN_LENGTH or bare.count("*") > 4:
                unread.append(pattern)
            else:
                globs.append(bare)
        else:
            plain.append(bare)
    return _Ignored(
        per_layer={i: tuple(rest) for i, rest in per_layer.items()},
        plain=tuple(plain),
        globs=tuple(globs),
        expressions=tuple(expressions),
        unread=tuple(unread),
    )


def _kept_formats(
    layer: Layer, hidden: int, kept: frozenset[str], plain: NumberFormat
) -> tuple[tuple[str, NumberFormat], ...]:
    """Formats of a layer whose weights `kept` stay plain: whole components by one name where all of one are kept."""
    by_component: dict[str, list[str]] = {}
    for weight in layer_weights(layer, hidden):
        if weight.quantizable:
            by_component.setdefault(weight.component, []).append(f"{weight.component}.{weight.name}")
    names: list[str] = []
    for component, keys in by_component.items():
        inside = [key for key in keys if key in kept]
        names += [component] if len(inside) == len(keys) else inside
    return tuple((name, plain) for name in names)


def apply_quantization(model: Model, q: Quantization, f: Fields) -> Model:
    """`model` with the formats of its quantised weights, and with the modules left alone at its plain format."""
    if q.default is None:
        return model
    ignored = _sorted_patterns(q.ignored)
    if ignored.unread:
        f.assume(f"{len(ignored.unread)} patterns of excluded modules are too involved to read and are passed over")
    components = ("attention", "recurrent", "mlp", "experts", "shared_experts")
    unquantized = {c for c in components if q.only and c not in q.only}
    # Equal layers are one object here, so that each is examined once and not hashed again and again.
    distinct: dict[int, tuple[Layer, dict[str, tuple[str, ...]]]] = {}
    known: dict[tuple[int, frozenset[str]], Layer] = {}
    layers = []
    for i, layer in enumerate(model.layers):
        if id(layer) not in distinct:
            paths = {k: v for k, v in _module_paths(layer).items() if k.partition(".")[0] not in unquantized}
            distinct[id(layer)] = (layer, paths)
        paths = distinct[id(layer)][1]
        kept = frozenset(k for k, names in paths.items() if q.ignored and any(ignored.covers(i, n) for n in names))
        if (id(layer), kept) not in known:
            formats = _kept_formats(layer, model.hidden_size, kept, model.weight_format)
            known[id(layer), kept] = replace(layer, formats=(*layer.formats, *formats)) if formats else layer
        layers.append(known[id(layer), kept])
    # A component that is plain in every layer is said once, for the model.
    plain = [{name for name, fmt in layer.formats if fmt == model.weight_format} for layer in known.values()]
    common = set.intersection(*plain) & set(components) if plain else set()
    layers = [replace(x, formats=tuple(e for e in x.formats if e[0] not in common)) if common else x for x in layers]
    return replace(
        model,
        quantization=q.default,
        unquantized=tuple(c for c in components if c in unquantized | common),
        formats=(*q.formats, ("head", q.default)) if q.head else q.formats,
        layers=tuple(layers),
    )
