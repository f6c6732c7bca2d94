"""The format of each module: a quantisation's rules by module name, applied to the layers of a model.

Rules are tried in order and the first that matches decides. Regular expressions are read only where they match in
bounded time.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from specplan.formulas.parameters import layer_weights
from specplan.specs.huggingface.fields import Fields
from specplan.specs.huggingface.module_names import Part, layer_parts
from specplan.specs.huggingface.quantization import Quantization, Rule
from specplan.values.formats import NumberFormat, adjusted, mixed, per_row
from specplan.values.model import Layer, Model

MAX_PATTERN_LENGTH: Final = 300
COMPONENTS: Final = ("attention", "recurrent", "mlp", "experts", "shared_experts")

_HARMLESS: Final = re.compile(
    r"(?:[\w\-:/ ]|\\\.|\.[*+]|\.|\\d\+?|\[[\w\-]{1,20}\]\+?|\^|\$|"
    r"\((?:\?[:=!])?(?:[\w|.\\\-]|\[[\w\-]{1,20}\]|\.[*+]|\((?:\?:)?[\w|\-\\.]{0,120}\)){0,200}\)\??|\|)*"
)
_STACK: Final = re.compile(r"^(?:[\w.]*?\.)?(?:layers|h|blocks|blk)\.(\d{1,5})(?:\.(.*))?$")
_MTP: Final = re.compile(r"^(?:model\.)?mtp(?:_layers|\.layers|\.blocks)?(?:\.(\d{1,3}))?(?:\.(.*))?$")
_ELSEWHERE: Final = re.compile(r"(?:^|\.)(?:visual|vision\w*|audio\w*|vit|multi_modal_projector|embed_vision)\b")
_PREFIXES: Final = (
    "model.", "", "model.language_model.", "language_model.model.", "backbone.", "transformer.", "model.decoder.",
    "transformer.encoder.",
)  # fmt: skip


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> re.Pattern[str] | None:
    """Compiled pattern if it is made of words, wildcards, digits and plain choices; None otherwise.

    Only such patterns match in bounded time: no nested repetition, at most four wildcards.
    """
    if (
        len(pattern) > MAX_PATTERN_LENGTH
        or len(re.findall(r"\.[*+]|\+", pattern)) > 4
        or not _HARMLESS.fullmatch(pattern)
    ):
        return None
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _bare(pattern: str) -> str:
    """Pattern without a wrapper's prefix: ``model.layers.0`` and ``language_model.model.layers.0`` agree."""
    for prefix in sorted(_PREFIXES, key=len, reverse=True):
        if prefix and pattern.startswith(prefix):
            return pattern.removeprefix(prefix)
    return pattern


@dataclass(frozen=True, slots=True)
class Place:
    """A layer's place in the checkpoint: its number, and its number among the multi-token prediction layers."""

    index: int
    mtp: int | None = None

    @property
    def stems(self) -> tuple[str, ...]:
        """Names of the layer without wrappers' prefixes."""
        own = (f"layers.{self.index}", f"h.{self.index}", f"blocks.{self.index}")
        return own if self.mtp is None else (*own, f"mtp.layers.{self.mtp}", f"mtp_layers.{self.mtp}", "mtp")


_Entry = tuple[int, NumberFormat | None]
_NOTHING: Final = (1 << 60, None)


class RuleBook:
    """Rules sorted by how they are matched: exact names by layer, words anywhere, globs and expressions."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.by_layer: dict[int, dict[str, _Entry]] = {}
        self.by_mtp: dict[int, dict[str, _Entry]] = {}
        self.words: list[tuple[str, _Entry]] = []
        self.inside: list[tuple[str, _Entry]] = []
        self.globs: list[tuple[str, _Entry]] = []
        self.expressions: list[tuple[Callable[[str], object], _Entry]] = []
        self.unread: list[str] = []
        self.uniform = True  # no pattern but those of `by_layer` and `by_mtp` tells one layer's number from another's
        for order, (pattern, fmt) in enumerate(rules):
            self._add(pattern, (order, fmt))

    def _add(self, pattern: str, entry: _Entry) -> None:
        self.uniform &= re.search(r"\d|\[|\?|\\d(?!\+)", pattern.partition(":")[2] or pattern) is None or (
            bool(_STACK.match(pattern)) and ":" not in pattern
        )
        if pattern.startswith(("re:", "full:")):
            kind, _, text = pattern.partition(":")
            expression = _regex(text)
            if expression is None:
                self.unread.append(pattern)
            else:
                self.expressions.append((expression.match if kind == "re" else expression.fullmatch, entry))
            return
        if pattern.startswith("in:"):
            self.inside.append((pattern[3:], entry))
            return
        if _ELSEWHERE.search(pattern):
            return
        if "*" in pattern.rstrip("*") or any(c in pattern for c in "?["):
            if len(pattern) > MAX_PATTERN_LENGTH or pattern.count("*") > 4:
                self.unread.append(pattern)
            else:
                self.globs.append((_bare(pattern), entry))
            return
        plain = pattern.rstrip("*").removesuffix(".")
        if match := _STACK.match(plain):
            book = self.by_mtp if "mtp" in plain[: match.start(1)] else self.by_layer
            book.setdefault(int(match[1]), {}).setdefault(match[2] or "", entry)
        elif match := _MTP.match(plain):
            for i in range(8) if match[1] is None else (int(match[1]),):
                self.by_mtp.setdefault(i, {}).setdefault(match[2] or "", entry)
        elif plain:
            self.words.append((_bare(plain), entry))

    def names_experts(self, place: Place) -> bool:
        """Whether single experts of the layer are named."""
        return any(re.search(r"experts\.\d", rest) for book in self._books(place) for rest in book)

    def signature(self, place: Place) -> object:
        """What tells the rules of this layer from those of others; equal layers with one signature fare alike."""
        if not self.uniform or any(self._books(place)):
            return place
        return place.mtp is not None

    def _books(self, place: Place) -> Iterator[Mapping[str, _Entry]]:
        yield self.by_layer.get(place.index, {})
        if place.mtp is not None:
            yield self.by_mtp.get(place.mtp, {})

    def _exact(self, place: Place, path: str) -> Iterator[_Entry]:
        steps = path.split(".")
        for book in self._books(place):
            for n in range(len(steps) + 1 if book else 0):
                if (hit := book.get(".".join(steps[:n]))) is not None:
                    yield hit

    def _matches(self, place: Place | None, path: str) -> Iterator[_Entry]:
        if place is not None:
            yield from self._exact(place, path)
        names = [path] if place is None else [f"{stem}.{path}" for stem in place.stems]
        dotted = [f".{name}." for name in names]
        yield from (entry for word, entry in self.words if any(f".{word}." in name for name in dotted))
        yield from (entry for text, entry in self.inside if any(text in name for name in names))
        for glob, entry in self.globs:
            if any(fnmatch.fnmatchcase(n, glob) or fnmatch.fnmatchcase(n, f"{glob}.*") for n in names):
                yield entry
        for match, entry in self.expressions:
            if any(match(prefix + name) for name in names for prefix in _PREFIXES):
                yield entry

    def find(self, place: Place | None, paths: Iterable[str]) -> _Entry:
        """The first rule that covers a module known under any of `paths`; `_NOTHING` where none does."""
        return min((hit for path in paths for hit in self._matches(place, path)), default=_NOTHING, key=lambda h: h[0])


def _average(found: Counter[NumberFormat]) -> NumberFormat:
    """One format, or the mean of those of equal modules (experts of one layer)."""
    if len(found) == 1:
        return next(iter(found))
    return mixed(sum(fmt.bits * n for fmt, n in found.items()) / found.total())


def _formats_of(
    parts: tuple[Part, ...], place: Place, book: RuleBook, q: Quantization, plain: NumberFormat
) -> dict[str, NumberFormat]:
    """Format of every part of a layer."""
    defaults = dict(q.components)
    found: dict[str, NumberFormat] = {}

    def one(part: Part, component: str, expert: int | None) -> NumberFormat:
        if not part.linear and not q.every:
            return plain
        paths = part.paths if expert is None else tuple(p.replace("{e}", str(expert)) for p in part.paths)
        order, fmt = book.find(place, paths)
        if order == _NOTHING[0]:
            by_component = defaults.get(component, q.default if not q.only or component in q.only else None)
            fmt = by_component if component in COMPONENTS or component == "router" else None
        if fmt is None:
            return plain
        fmt = per_row(fmt, part.inputs)
        rows = part.size // part.inputs if q.ordered and part.inputs else 0
        return adjusted(fmt, fmt.bits + 32 / rows) if rows else fmt

    for part in parts:
        component = part.key.partition(".")[0]
        if not part.experts:
            found[part.key] = one(part, component, None)
        elif book.names_experts(place):
            found[part.key] = _average(Counter(one(part, component, e) for e in range(part.experts)))
        else:
            found[part.key] = one(part, component, 0)
    return found


def _by_component(formats: Mapping[str, NumberFormat]) -> dict[str, NumberFormat]:
    """The same by component where all of its weights agree."""
    inside: dict[str, set[NumberFormat]] = {}
    for key, fmt in formats.items():
        inside.setdefault(key.partition(".")[0], set()).add(fmt)
    return {(c if len(inside[c := key.partition(".")[0]]) == 1 else key): fmt for key, fmt in formats.items()}


def apply_quantization(model: Model, q: Quantization, f: Fields) -> Model:
    """`model` with the format of each of its modules, multi-token prediction layers included."""
    if q.default is None and not q.rules:
        return model
    book = RuleBook(q.rules)
    if book.unread:
        f.assume(f"{len(book.unread)} patterns of modules are too involved to read and are passed over")
    return apply_formats(model, q, book)


def apply_formats(model: Model, q: Quantization, book: RuleBook) -> Model:
    """`model` with the formats that the rules of `book`, and else `q`, give."""
    n = len(model.layers)
    places = [Place(i) for i in range(n)] + [Place(n + i, i) for i in range(len(model.mtp_layers))]
    # Equal layers are one object here, so that each is taken apart once and not hashed again and again.
    taken: dict[int, tuple[Layer, tuple[Part, ...]]] = {}
    known: dict[tuple[int, object], dict[str, NumberFormat]] = {}
    each = []
    for layer, place in zip((*model.layers, *model.mtp_layers), places, strict=True):
        if id(layer) not in taken:
            taken[id(layer)] = (layer, layer_parts(layer, model.hidden_size, model.model_type))
        key = (id(layer), book.signature(place))
        if key not in known:
            known[key] = _formats_of(taken[id(layer)][1], place, book, q, model.weight_format)
        each.append(known[key])
    outer = (*q.components, *_outer_formats(model, q, book))
    return with_formats(model, each, q.default, outer, only=q.only)


def with_formats(
    model: Model,
    each: Sequence[Mapping[str, NumberFormat]],
    default: NumberFormat | None,
    outer: tuple[tuple[str, NumberFormat], ...],
    *,
    only: tuple[str, ...] = (),
) -> Model:
    """`model` with formats by layer, said as briefly as they can be.

    Parameters
    ----------
    model : Model
    each : sequence of mapping
        For every layer, multi-token prediction layers last: ``component.weight`` -> format. A weight that is not named
        is plain.
    default : NumberFormat or None
        Format of most quantised weights; the most frequent one if None.
    outer : tuple of (str, NumberFormat)
        Formats outside the layers, or of components in all layers.
    only : tuple of str
        Components that alone are ever quantised.
    """
    plain, n = model.weight_format, len(model.layers)
    if default is None:
        votes = Counter(fmt for formats in each for fmt in formats.values() if fmt != plain)
        default = votes.most_common(1)[0][0] if votes else None
    default = None if default is None else per_row(default, 0)
    seen: dict[str, set[NumberFormat]] = {c: set() for c in COMPONENTS}
    for formats in {id(formats): formats for formats in each}.values():
        for name, fmt in formats.items():
            seen.get(name.partition(".")[0], set()).add(fmt)
    out = tuple(c for c in COMPONENTS if seen[c] == {plain} or (not seen[c] and only and c not in only))
    shared = dict(outer)
    expected = {c: plain if c in out else shared.get(c, default) for c in COMPONENTS}
    known: dict[tuple[int, int], Layer] = {}
    layers = []
    for layer, formats in zip((*model.layers, *model.mtp_layers), each, strict=True):
        key = (id(layer), id(formats))
        if key not in known:
            linear = {f"{w.component}.{w.name}": w for w in layer_weights(layer, model.hidden_size)}
            told = _by_component(formats)
            differ = tuple(
                (name, fmt)
                for name, fmt in told.items()
                if fmt != (expected.get(name.partition(".")[0]) or plain)
                and not (fmt == plain and name in linear and not linear[name].quantizable)
            )
            known[key] = replace(layer, formats=(*layer.formats, *differ)) if differ else layer
        layers.append(known[key])
    return replace(
        model,
        quantization=default,
        unquantized=out,
        formats=(*model.formats, *outer),
        layers=tuple(layers[:n]),
        mtp_layers=tuple(layers[n:]),
    )


def _outer_formats(model: Model, q: Quantization, book: RuleBook) -> Iterator[tuple[str, NumberFormat]]:
    """Formats of head and embedding where they are quantised."""
    inputs = model.embedding_size or model.hidden_size
    for component, paths, reached in (
        (
            "head",
            ("lm_head", "model.lm_head", "output_layer", "embed_out"),
            q.every or (q.head and not model.tied_embeddings),
        ),
        ("embedding", ("embed_tokens", "model.embed_tokens", "word_embeddings", "wte"), q.every),
    ):
        order, fmt = book.find(None, paths)
        if order == _NOTHING[0]:
            fmt = q.default if reached else None
        if fmt is not None:
            yield component, per_row(fmt, inputs)
