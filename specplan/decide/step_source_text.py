"""Sources of a step as users spell them.

``name:key=value,...``: ``ngram:coverage=.4,alpha=.8``, ``llama3.2-1b:alpha=.6..0.7..0.8``, ``eagle:alpha=.8/.7/.6``,
``suffix:coverage=.7,alpha=.6,drafted=2.5``. A name that is none of the known sources is a draft model.
"""

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from specplan.decide.step_source import HEADS, MATCHERS, NO_SOURCE, Range, StepSource
from specplan.errors import InputError

_KEYS: Final[Mapping[str, str]] = {
    "alpha": "acceptance per position: .7, .6..0.8, .6..0.7..0.8, or per position .8/.7/.6",
    "hit": "acceptance of the first drafted token",
    "cont": "acceptance of each later one",
    "coverage": "share of steps with a draft",
    "emitted": "measured tokens per step, over all steps",
    "drafted": "mean drafted tokens per drafted step",
    "k": "drafted tokens",
    "nodes": "verified positions of a tree, root included",
    "topk": "branching of a tree",
}


def parse_step_source(text: str) -> StepSource:
    """Read a source as a user spells it; a draft model still has to be loaded into `StepSource.model`.

    Raises
    ------
    InputError
        Naming the source, the key and what it must be.

    Examples
    --------
    >>> source = parse_step_source("ngram:coverage=.4,alpha=.6..0.8")
    >>> source.kind, source.coverage.best, round(source.alpha.best, 3)
    ('ngram', 0.4, 0.7)
    """
    name, options = _split(text)
    kind = name if name in (*MATCHERS, *HEADS, "none") else "model"
    if kind == "none":
        return NO_SOURCE
    unknown = [key for key in options if key not in _KEYS]
    if unknown:
        raise InputError(f"source {text!r}: unknown key {unknown[0]!r}; one of {', '.join(_KEYS)}")
    per_position = options["alpha"].split("/") if "/" in options.get("alpha", "") else []

    def number(key: str, low: float, high: float) -> float | None:
        return _number(text, key, options[key], low, high) if key in options else None

    def interval(key: str, low: float, high: float) -> Range | None:
        return _range(text, key, options[key], low, high) if key in options else None

    def whole(key: str, low: int) -> int | None:
        return _whole(text, key, options[key], low) if key in options else None

    return _checked(
        StepSource(
            text=text,
            name=name,
            kind=kind,
            alpha=None if per_position else interval("alpha", 0, 1),
            hazard=tuple(_number(text, "alpha", part, 0, 1) for part in per_position),
            hit=number("hit", 0, 1),
            continuation=number("cont", 0, 1),
            coverage=interval("coverage", 0, 1) or Range(low=1.0, best=1.0, high=1.0),
            emitted=interval("emitted", 1, np.inf),
            drafted=number("drafted", 0, 1e4),
            kappa=whole("k", 1),
            nodes=whole("nodes", 2),
            topk=whole("topk", 1) or 1,
        )
    )


def _checked(source: StepSource) -> StepSource:
    """The source itself, if its acceptance is given once and its lengths agree."""

    def fail(what: str) -> InputError:
        return InputError(f"source {source.text!r}: {what}")

    if (source.hit is None) != (source.continuation is None):
        raise fail("hit and cont go together")
    given = {"alpha": source.alpha or source.hazard, "hit": source.hit is not None, "emitted": source.emitted}
    named = [name for name, value in given.items() if value]
    if len(named) != 1:
        raise fail(
            "its acceptance must be given once, for nothing is assumed about it: alpha=.7, alpha=.8/.7/.6, "
            "hit=.2,cont=.8, or emitted=2.3" + (f"; given: {' and '.join(named)}" if named else "")
        )
    kappa = source.kappa
    if kappa is None:
        if source.emitted is not None or source.nodes is not None:
            raise fail("emitted=... and nodes=... belong to one draft length; give it as k=...")
        return source
    if source.emitted is not None and source.emitted.high > kappa + 1:
        raise fail(f"emitted {source.emitted.high:g} is more than the {kappa + 1} tokens of a step of k={kappa}")
    if source.nodes is not None and source.nodes < kappa + 1:
        raise fail(f"nodes={source.nodes} cannot hold a root and a path of k={kappa}")
    if source.hazard and kappa > len(source.hazard):
        raise fail(f"k={kappa} needs as many acceptances, alpha gives {len(source.hazard)}")
    return source


def _split(text: str) -> tuple[str, dict[str, str]]:
    # A path may hold colons; options hold an equals sign.
    name, colon, rest = text.rpartition(":")
    if not colon or "=" not in rest:
        name, rest = text, ""
    options: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise InputError(f"source {text!r}: {part!r} is not key=value")
        if key.strip() in options:
            raise InputError(f"source {text!r}: {key.strip()} is given twice")
        options[key.strip()] = value.strip()
    if not name.strip():
        raise InputError(f"source {text!r}: has no name; one of {', '.join((*MATCHERS, *HEADS))}, or a draft model")
    return name.strip(), options


def _number(text: str, key: str, value: str, low: float, high: float) -> float:
    try:
        x = float(value)
    except ValueError:
        raise InputError(f"source {text!r}: {key} {value!r} is not a number") from None
    if not low <= x <= high:  # NaN fails as well
        raise InputError(f"source {text!r}: {key} {value} must lie between {low:g} and {high:g}")
    return x


def _whole(text: str, key: str, value: str, low: int) -> int:
    if not re.fullmatch(r"\d{1,6}", value) or int(value) < low:
        raise InputError(f"source {text!r}: {key} {value!r} must be a whole number of at least {low}")
    return int(value)


def _range(text: str, key: str, value: str, low: float, high: float) -> Range:
    parts = [_number(text, key, p, low, high) for p in value.split("..")]
    if len(parts) > 3 or sorted(parts) != parts:
        raise InputError(f"source {text!r}: {key} {value!r} must be one number, low..high, or low..best..high")
    middle = parts[1] if len(parts) == 3 else (parts[0] + parts[-1]) / 2
    return Range(low=parts[0], best=middle, high=parts[-1])
