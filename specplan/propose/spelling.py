"""How draft sources are spelled: ``NAME:key=value,...``, one spelling for every command.

``ngram:min=2,max=5,k=3``, ``ngram:coverage=.4,alpha=.8``, ``llama3.2-1b:alpha=.6..0.7..0.8``, ``eagle:alpha=.8/.7/.6``,
``mine:c=.05,alpha=.8``, ``draft:drop=12-15,k=3``. A name that is no method is a model, or with c a draft of one's own.
"""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, Final, get_type_hints

from specplan.errors import InputError
from specplan.propose.rules import NgramSource, OwnSource, SglangNgramSource, SuffixSource, TokenSource
from specplan.units import read_number, read_whole
from specplan.values.draft_methods import METHODS as DRAFT_METHODS
from specplan.values.source import CONFIDENCE, FREE, METHODS, NO_SOURCE, Range, Source

MAX_GRID: Final = 10_000
"""Most combinations of one grid."""

KEYS: Final[Mapping[str, str]] = {
    "alpha": "acceptance per position: .7, .6..0.8, .6..0.7..0.8, or per position .8/.7/.6",
    "hit": "acceptance of the first drafted token",
    "cont": "acceptance of each later one",
    "emitted": "measured tokens per step, over all steps",
    "coverage": "share of steps with a draft",
    "drafted": "mean drafted tokens per drafted step",
    "k": "drafted tokens",
    "nodes": "positions of a tree that is verified whole in every step, root included",
    "topk": "branching of a tree",
    "c": "draft step over target step",
    "verify": "verify pass over plain pass",
    "overhead": "what every step pays, in plain passes",
    "adaptive": "how much is verified is decided per step; adaptive=0..1 says what the confidence explains",
    "name": "what it is called",
}
"""What may be said of any source; a matcher also takes its rule's words, ``draft`` those of `DRAFT_KEYS`."""
DRAFT_KEYS: Final = ("drop", "first", "model", "sample")
SPELLING: Final = f"NAME:key=value,... with keys {', '.join(KEYS)}"

_RULES: Final[Mapping[str, type[NgramSource] | type[SuffixSource] | type[SglangNgramSource]]] = {
    "ngram": NgramSource,
    "ngram-host": NgramSource,
    "ngram-gpu": NgramSource,
    "suffix": SuffixSource,
    "sglang-ngram": SglangNgramSource,
}
_RUNNERS: Final = {"vllm-v1": "ngram-host", "vllm-v2": "ngram", "vllm-ngram-gpu": "ngram-gpu"}
"""vLLM's runner of each n-gram rule that names one."""
_OWN: Final = re.compile(r"([A-Za-z_][\w.]*:[A-Za-z_]\w*)(?::(.*))?")
"""A proposer of the user's own, ``package.module:Class``."""
_ALIASES: Final = {alias: m.name for m in DRAFT_METHODS.values() if m.by in ("matcher", "head") for alias in m.aliases}
_NOT_SOURCES: Final = {
    "lookahead": "lookahead decoding (Jacobi) is not priced here; matchers are ngram and suffix",
    "draft_model": "a method; name the model that drafts, such as llama3.2-1b:alpha=.7",
}
"""Methods that people name and that are no source, and what to write."""


_PLUGGABLE: Final = re.compile(r"[A-Za-z][\w-]*")


def plugged(name: str) -> str:
    """``package.module:Class`` of a proposer that an installed package offers under a name; empty without one.

    Packages offer them as entry points of the group ``specplan.proposers``.

    >>> plugged("nobody-offers-this")
    ''
    """
    from importlib.metadata import entry_points

    return next((point.value for point in entry_points(group="specplan.proposers", name=name)), "")


def split_source(text: str, confidence: float = CONFIDENCE) -> tuple[str, dict[str, str]]:
    """Name and options of a spelled source, not yet understood.

    Raises
    ------
    InputError
        Without a name, for an option without ``=``, or for one that is given twice.

    Examples
    --------
    >>> split_source("./models/a:b/config.json:alpha=.7")
    ('./models/a:b/config.json', {'alpha': '.7'})
    """
    head, _, rest = text.partition(":")
    name = head.strip()
    if name.lower() not in (*METHODS, *_ALIASES, *FREE):
        if (own := _OWN.fullmatch(text.strip())) is not None:
            name, rest = own[1], own[2] or ""
        else:  # a path may hold colons; options hold an equals sign
            head, _, rest = text.rpartition(":")
            name, rest = (head.strip(), rest) if "=" in rest else (text.strip(), "")
    options: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key == "adaptive" and not equals:
            equals, value = "=", repr(confidence)
        if not equals or not value:
            raise InputError(f"source {text!r}: {part!r} is not key=value; write for example ngram:min=2,max=5,k=3")
        if key in options:
            raise InputError(f"source {text!r}: {key} is given twice")
        options[key] = value
    if (why := _NOT_SOURCES.get(name.lower().replace("-", "_"))) is not None:
        raise InputError(f"source {text!r}: {why}")
    if not name:
        raise InputError(f"source {text!r}: has no name; write {SPELLING}")
    if _PLUGGABLE.fullmatch(name) and name.lower() not in (*METHODS, *_ALIASES, *FREE) and (place := plugged(name)):
        return place, {"name": name, **options}
    known = name.lower() if name.lower() in (*METHODS, *FREE) else name
    return _ALIASES.get(name.lower(), known), options


def read_source(text: str, kappa: int | None = None) -> Source:
    """The source that a spelling stands for; its model, if it has one, is still to be loaded.

    Parameters
    ----------
    text : str
    kappa : int, optional
        Draft length where the spelling gives none.

    Raises
    ------
    InputError
        Naming the text, the key and what it must be.

    Examples
    --------
    >>> source = read_source("ngram:min=2,coverage=.4,alpha=.6..0.8")
    >>> source.kind, dict(source.options), source.coverage.best, round(source.alpha.best, 3), source.kappa
    ('ngram', {'min': '2'}, 0.4, 0.7, None)
    >>> read_source("ngram:n=3")
    Traceback (most recent call last):
    specplan.errors.InputError: source 'ngram:n=3': unknown key 'n'; ngram takes alpha, hit, cont, ...
    """
    name, options = split_source(text)
    if name == "none" and not options:
        return NO_SOURCE
    kind = name if name in METHODS else "free" if name in FREE else "proposer" if _OWN.fullmatch(name) else "model"
    own = [f.name for f in fields(_RULES[kind]) if f.name != "k"] if kind in _RULES else []
    own += DRAFT_KEYS if kind in ("draft", "model") else ("len",) if kind == "proposer" else ()
    for key in options:
        if key not in KEYS and key not in own:
            near = get_close_matches(key, (*KEYS, *own), n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(f"source {text!r}: unknown key {key!r}; {hint}{name} takes {', '.join((*KEYS, *own))}")
    if name == "ngram" and "rule" in options:
        kind = _RUNNERS.get(options["rule"], "ngram-host")
    source = Source(
        name=name,
        kind=kind,
        text=text.strip(),
        options={key: value for key, value in options.items() if key in own},
        **_figures(text, options, kappa),
    )
    if kind in _RULES:
        rule_of(source)  # so that what cannot be is refused here
    return source


def _figures(text: str, options: Mapping[str, str], kappa: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"kappa": kappa, "label": options.get("name", "")}
    for key, value in options.items():
        where = f"source {text!r}: {key}"
        match key:
            case "alpha":
                found |= read_acceptance(value, where)
            case "coverage" | "emitted":
                found[key] = _range(value, where)
            case "cont":
                found["continuation"] = read_number(value, where)
            case "k" | "nodes" | "topk":
                found["kappa" if key == "k" else key] = read_whole(value, where)
            case "budget":
                found["nodes"] = read_whole(value, where)
            case _ if key in KEYS and key != "name":
                found[key] = read_number(value, where)
    given = [key for key in ("alpha", "hit", "emitted") if key in options]
    if len(given) > 1:
        raise InputError(f"source {text!r}: its acceptance is given twice, as {' and as '.join(given)}")
    return found


def read_acceptance(text: str, where: str) -> dict[str, Any]:
    """Fields of `Source` of an acceptance: one number, a number with its interval, or one per position.

    >>> read_acceptance(".6..0.7..0.8", "alpha"), read_acceptance(".8/.7", "alpha")
    ({'alpha': Range(low=0.6, best=0.7, high=0.8)}, {'hazard': (0.8, 0.7)})
    """
    if "/" in text:
        return {"hazard": tuple(read_number(part, where, 0.0, 1.0) for part in text.split("/"))}
    return {"alpha": _range(text, where, 1.0)}


def with_acceptance(source: Source, text: str, where: str) -> Source:
    """The source with an acceptance that is written beside it.

    >>> with_acceptance(read_source("eagle"), ".8/.7", "--alpha").hazard
    (0.8, 0.7)
    """
    if source.has_acceptance:
        raise source.wrong(f"its acceptance is given twice, there and as {where} {text}")
    return replace(
        source, text=f"{source.text}{',' if '=' in source.text else ':'}alpha={text}", **read_acceptance(text, where)
    )


def restated(source: Source, keys: str) -> Source:
    """The source with some figures stated anew, as ``alpha=.7,k=3``.

    >>> restated(read_source("mine:c=.05"), "alpha=.8,k=4").kappa
    4
    """
    known = CONFIDENCE if source.confidence is None else source.confidence
    options = split_source(f"{source.name}:{keys}", known)[1]
    if unknown := [key for key in options if key not in KEYS]:
        raise source.wrong(f"unknown key {unknown[0]!r}; a measured source takes {', '.join(KEYS)}")
    figures = _figures(source.title, options, source.kappa)
    acceptance = {"alpha": None, "hazard": (), "hit": None, "continuation": None, "emitted": None}
    said = figures.keys() & acceptance.keys()
    return replace(
        source,
        **(acceptance if said else {}) | figures | {"label": options.get("name", source.label)},
        alpha_origin="assumed" if said else source.alpha_origin,
        c_origin="assumed" if "c" in options else source.c_origin,
        verify_origin="assumed" if "verify" in options else source.verify_origin,
    )


def _range(text: str, where: str, high: float = math.inf) -> Range:
    ends = [read_number(part, where, 0.0, high) for part in text.split("..")]
    if len(ends) > 3 or sorted(ends) != ends:
        raise InputError(f"{where} {text!r} must be one number, low..high, or low..best..high")
    return Range(low=ends[0], best=ends[1] if len(ends) == 3 else (ends[0] + ends[-1]) / 2, high=ends[-1])


def rule_of(source: Source) -> TokenSource:
    """The rule of a matcher, as its options and draft length say; what they leave out is the engine's default.

    Raises
    ------
    InputError
        For a source that needs more than token ids, or an option that makes no sense.

    Examples
    --------
    >>> rule_of(read_source("ngram:min=2,max=5,alpha=.7"))
    NgramSource(min=2, max=5, k=3, rule='vllm-v1', len=None)
    """
    if source.kind == "proposer":
        length = {} if source.kappa is None else {"k": source.kappa}
        return OwnSource(kind=source.name, **length, **_typed(OwnSource, source.options or {}, source.text))
    rule = _RULES.get(source.kind)
    if rule is None:
        near = get_close_matches(source.name, _RULES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise source.wrong(f"{source.name!r} is no token-level source; {hint}known: {', '.join(_RULES)}")
    values = _typed(rule, source.options or {}, source.text)
    if rule is SglangNgramSource and source.nodes is not None:
        values["budget"] = source.nodes
    elif source.kappa is not None and rule is not SglangNgramSource:
        values["k"] = source.kappa
    if source.kind == "ngram-gpu":
        values.setdefault("rule", "vllm-ngram-gpu")
    return rule(**values)


def parse_source(text: str) -> TokenSource:
    """The matcher's rule that a spelling stands for.

    >>> parse_source("suffix:factor=2").short
    'suffix:factor=2'
    """
    return rule_of(read_source(text))


def grid_of(text: str) -> dict[TokenSource, str]:
    """Rules of a spelling whose options may hold several values: ``|`` between them, ``a..b`` for whole numbers.

    Combinations that make no sense (min above max) are left out.

    Returns
    -------
    dict of TokenSource to str
        Each rule with its spelling by the options that were given.

    Examples
    --------
    >>> list(grid_of("ngram:min=2|6,max=5,k=3..4").values())
    ['ngram:min=2,max=5,k=3', 'ngram:min=2,max=5,k=4']
    """
    name, options = split_source(text)
    choices = [
        [one for piece in value.split("|") for one in _expanded(text, key, piece)] for key, value in options.items()
    ]
    if (size := math.prod(map(len, choices))) > MAX_GRID:
        raise InputError(f"--grid {text}: {size} combinations; at most {MAX_GRID} are tried")
    found: dict[TokenSource, str] = {}
    problem: InputError | None = None
    for values in itertools.product(*choices):
        named = ",".join(f"{key}={value}" for key, value in zip(options, values, strict=True))
        spelled = f"{name}:{named}" if named else name
        try:
            found.setdefault(parse_source(spelled), spelled)
        except InputError as error:
            problem = error
    if not found and problem is not None:
        raise problem
    return found


def _typed(rule: type[TokenSource], options: Mapping[str, str], text: str) -> dict[str, Any]:
    """Options as the rule's fields hold them."""
    hints = {name: str(hint) for name, hint in get_type_hints(rule).items()}
    found: dict[str, Any] = {}
    for key, value in options.items():
        if "str" in hints[key]:
            found[key] = value
        elif "float" in hints[key]:
            found[key] = read_number(value, f"source {text!r}: {key}")
        elif re.fullmatch(r"-?\d[\d_]*", value) is None:
            raise InputError(f"source {text!r}: {key} {value!r} must be a whole number")
        else:
            found[key] = int(value)
    return found


def _expanded(text: str, key: str, piece: str) -> list[str]:
    if (span := re.fullmatch(r"(\d+)\.\.(\d+)", piece.strip())) is None:
        return [piece.strip()]
    low, high = int(span[1]), int(span[2])
    if not low <= high <= low + 1000:
        raise InputError(f"--source {text}: {key}={piece} must rise, over at most 1000 values")
    return [str(n) for n in range(low, high + 1)]
