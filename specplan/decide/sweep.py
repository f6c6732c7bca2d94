"""Speedup of each source against draft length, batch, coverage or context, and which source is best where."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from specplan.decide.pricing import Pair, Setting, adaptive_curve, plain_step_s, priced
from specplan.decide.source import Placed, longest, source_speedup
from specplan.decide.step_setting import Setting as Served
from specplan.decide.step_setting import pool_of
from specplan.decide.tune import LONGEST
from specplan.errors import InfeasibleError, InputError
from specplan.formulas.emitted import FloatArray, IntArray
from specplan.formulas.speedup import ridge_batch
from specplan.values.source import NO_SOURCE

Kind = Literal["kappa", "batch", "coverage", "context"]

AXES: Final[dict[str, str]] = {
    "kappa": "draft length κ (drafted tokens per step)",
    "batch": "batch B (requests that are there at a time)",
    "coverage": "coverage γ (share of steps with a draft)",
    "context": "context (cached tokens per request)",
}
PLAIN: Final = -1
"""Winner where no source beats plain decoding."""
COVERAGE_POINTS: Final = 201
CONTEXT_END: Final = 131072
"""Where the axis of context ends by default, unless a model's does before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Speedup of one source over the axis, its peak, and c and the verify factor on the way.

    Over batch and context, where models and card are known, each runs what its pool holds, the rest waits, and the
    speedup is the ratio of tokens per second: `runs_to` and `plain_runs_to` are the largest x up to which all that is
    offered runs, beside the source and alone. It is NaN where the target alone does not fit.
    """

    source: Placed
    speedup: FloatArray
    c: FloatArray
    verify: FloatArray
    best_x: float
    best_speedup: float
    is_flat: bool
    runs_to: float | None = None
    plain_runs_to: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A stretch of the axis on which one source is best (`PLAIN`: plain decoding)."""

    low: float
    high: float
    winner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where B(kappa+1) verified positions cross the ridge, for the widest source of a sweep over batch.

    `source` is that source's index, None where the axis is kappa (there all chains are equally wide).
    """

    x: float
    ridge: float
    source: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Curves of all sources over one axis.

    Attributes
    ----------
    kind : str
    x : ndarray
    curves : tuple of Curve
    winner : ndarray of int
        Index of the best curve at each x, `PLAIN` where none is above 1.
    regions : tuple of Region
        The same as stretches; their ends lie where two neighbours tie, interpolated between grid points.
    ridge : Crossing or None
        Where verification stops being hidden, over batch and kappa.
    held : mapping of str to number
        What was held fixed.
    """

    kind: Kind
    x: FloatArray
    curves: tuple[Curve, ...]
    winner: IntArray
    regions: tuple[Region, ...]
    ridge: Crossing | None
    held: dict[str, float]


def sweep(
    kind: Kind,
    sources: Sequence[tuple[Placed, Setting]],
    *,
    xs: Sequence[float],
    batch: int = 1,
    context_len: int = 0,
) -> Sweep:
    """Speedup of each source over `xs`, other things equal.

    Parameters
    ----------
    kind : {"kappa", "batch", "coverage", "context"}
        The axis. Over kappa, batch and context c and the verify factor are derived anew at each x where the source's
        setting names models or a ridge. Over coverage only sources without weights vary; others draft in every step.
    sources : sequence of (Placed, Setting)
        Each with an acceptance.
    xs : sequence of float
        Whole numbers, except for coverage.
    batch, context_len : int
        Held fixed where they are not the axis.

    Raises
    ------
    InputError
        For a source without acceptance, or one that cannot be moved along the axis.

    Examples
    --------
    >>> from specplan.decide.source import placed
    >>> from specplan.propose.spelling import read_source
    >>> dense, sparse = (placed(read_source(text)) for text in ("1b:c=.164664,alpha=.7", "ngram:alpha=.8"))
    >>> found = sweep("coverage", [(dense, Setting()), (sparse, Setting())], xs=default_axis("coverage"))
    >>> round(found.regions[0].high, 3)
    0.356
    """
    if not sources:
        raise InputError(f"--kind {kind} needs sources: --draft with --alpha, --source or --points")
    x = np.asarray(xs, dtype=np.float64)
    if x.size < 2 or np.any(np.diff(x) <= 0):
        raise InputError(f"the {kind} axis needs at least two rising values")
    for source, _ in sources:
        if not source.source.has_acceptance:
            raise InputError(f"source {source.label!r} has no acceptance: give --alpha (or NAME:alpha=...) to draw it")
    over = _OVER[kind]
    curves = tuple(over(source, setting, x, batch, context_len) for source, setting in sources)
    speeds = np.stack([c.speedup for c in curves])
    if kind == "context":
        held = ~np.isnan(speeds).all(axis=0)  # the axis ends where the target alone no longer fits
        x, speeds = x[held], speeds[:, held]
        curves = tuple(replace(c, speedup=c.speedup[held], c=c.c[held], verify=c.verify[held]) for c in curves)
    best = np.where(np.isnan(speeds), -np.inf, speeds)
    # the first of equals, so that a rounding does not split a region
    top = best.max(axis=0)
    winner = np.where(top > 1.0 + 1e-12, np.argmax(best >= top * (1 - 1e-12), axis=0), PLAIN)
    fixed = {"batch": float(batch), "context": float(context_len)}
    fixed.pop(kind, None)
    return Sweep(
        kind=kind,
        x=x,
        curves=curves,
        winner=winner,
        regions=_regions(x, speeds, winner, is_whole=kind == "kappa"),
        ridge=_ridge(kind, sources, batch),
        held=fixed,
    )


def axis_named(text: str) -> Kind:
    """The axis of that name.

    >>> axis_named("width")
    Traceback (most recent call last):
    specplan.errors.InputError: --kind 'width': one of plane, kappa, batch, coverage, context
    """
    for kind in get_args(Kind):
        if text == kind:
            return cast(Kind, kind)
    raise InputError(f"--kind {text!r}: one of plane, {', '.join(get_args(Kind))}")


def default_axis(kind: Kind, top: int | None = None) -> tuple[float, ...]:
    """Values of an axis up to `top`: all draft lengths and small batches, doublings in steps beyond.

    >>> default_axis("kappa", 4)
    (1.0, 2.0, 3.0, 4.0)
    >>> default_axis("batch")[-1], default_axis("context")[0]
    (256.0, 256.0)
    """
    if top is not None and top < 2:
        raise InputError(f"--max {top}: the {kind} axis must reach at least 2")
    if top is not None and kind == "kappa" and top > LONGEST:
        raise InputError(f"--max {top}: the kappa axis ends at {LONGEST} at most")
    match kind:
        case "kappa":
            return tuple(float(k) for k in range(1, (top or 16) + 1))
        case "batch":
            high = top or 256
            fine = np.unique(np.round(np.geomspace(1, high, 129)))
            return tuple(float(b) for b in np.unique(np.concatenate([np.arange(1, min(high, 32) + 1), fine])))
        case "context":
            high = top or CONTEXT_END
            return tuple(float(n) for n in np.unique(np.round(np.geomspace(min(256, high / 2), high, 73))))
        case "coverage":
            return tuple(float(g) for g in np.linspace(0.0, 1.0, COVERAGE_POINTS))


Over = Callable[[Placed, Setting, FloatArray, int, int], Curve]


def _curve(source: Placed, x: FloatArray, s: FloatArray, c: FloatArray, v: FloatArray) -> Curve:
    top = int(np.nanargmax(s))
    return Curve(
        source=source,
        speedup=s,
        c=c,
        verify=v,
        best_x=float(x[top]),
        best_speedup=float(s[top]),
        is_flat=bool(np.ptp(s[~np.isnan(s)]) == 0.0),
    )


def _over_kappa(source: Placed, setting: Setting, x: FloatArray, batch: int, context_len: int) -> Curve:
    ks = x.astype(np.int64)
    if source.source.adaptive is not None:
        ks = np.minimum(ks, longest(source.source, int(ks.max())))
        return _curve(source, x, *adaptive_curve(source, setting, batch=batch, context_len=context_len, kappa=ks))
    known = ks <= longest(source.source, int(ks.max()))  # no longer path is drafted
    s, c, v = np.full((3, x.size), np.nan)
    pairs = [priced(replace(source, kappa=int(k)), setting, batch=batch, context_len=context_len) for k in ks[known]]
    c[known], v[known] = np.array(pairs).T
    s[known] = source_speedup(source, kappa=ks[known], c=c[known], verify=v[known])
    return _curve(source, x, s, c, v)


def _over_coverage(source: Placed, _: Setting, x: FloatArray, __: int, ___: int) -> Curve:
    if source.source.adaptive is not None:
        raise source.source.wrong("adaptive verification is drawn over batch, context or kappa")
    s = source_speedup(source, coverage=x) if source.is_weightless else np.full(x.size, float(source_speedup(source)))
    return _curve(source, x, s, np.full(x.size, source.c), np.full(x.size, source.verify))


def _over_context(source: Placed, setting: Setting, x: FloatArray, batch: int, _: int) -> Curve:
    if setting.pair is None:
        return _over_loads(source, setting, x, [(batch, int(n)) for n in x])
    seats = np.array([_seats(source, setting.pair, int(n)) for n in x])
    runs_to = [float(x[held >= batch].max(initial=0.0)) for held in seats.T]
    return _over_seats(source, setting, setting.pair, x, (np.full(x.size, batch), x.astype(np.int64)), seats, runs_to)


def _over_batch(source: Placed, setting: Setting, x: FloatArray, _: int, context_len: int) -> Curve:
    if setting.pair is None:
        return _over_loads(source, setting, x, [(int(b), context_len) for b in x])
    seats = np.array([_seats(source, setting.pair, context_len)])
    return _over_seats(source, setting, setting.pair, x, (x, np.full(x.size, context_len)), seats, seats[0].tolist())


def _over_seats(
    source: Placed,
    setting: Setting,
    pair: Pair,
    x: FloatArray,
    offered: tuple[npt.NDArray[Any], npt.NDArray[np.int64]],
    seats: IntArray,
    runs_to: Sequence[float],
) -> Curve:
    """Each runs what fits of the offered batch at its context, the rest waits."""
    batch, context = offered
    fit, plain_fit = seats.T
    if not plain_fit.any():
        binding = pool_of(_where(pair), NO_SOURCE, int(context.min())).binding
        raise InfeasibleError(f"{pair.target.name} on {pair.tp} x {pair.accelerator.name} does not fit: {binding}")
    runs, alone = np.minimum(batch, fit), np.minimum(batch, plain_fit)
    at = np.maximum(runs, 1)  # times of a step of none are those of one
    found = _over_loads(source, setting, x, [(int(b), int(n)) for b, n in zip(at, context, strict=True)])
    plain_s, beside_s = (plain_step_s(pair, np.maximum(b, 1), context) for b in (alone, at))
    waits = plain_s / beside_s * runs / np.where(alone > 0, alone, np.nan)
    curve = _curve(source, x, found.speedup * waits, found.c, found.verify)
    return replace(curve, runs_to=runs_to[0], plain_runs_to=runs_to[1])


def _over_loads(source: Placed, setting: Setting, x: FloatArray, loads: Sequence[tuple[int, int]]) -> Curve:
    if source.source.adaptive is not None:
        b, n = np.array(loads).T
        parts = adaptive_curve(source, setting, batch=b, context_len=n, kappa=np.full(b.shape, source.kappa))
        return _curve(source, x, *parts)
    pairs = [priced(source, setting, batch=b, context_len=n) for b, n in loads]
    c, v = (np.array(column) for column in zip(*pairs, strict=True))
    source.emitted()  # an error about acceptance comes before one about arrays
    return _curve(source, x, source_speedup(source, c=c, verify=v), c, v)


_OVER: Final[dict[Kind, Over]] = {
    "kappa": _over_kappa,
    "coverage": _over_coverage,
    "batch": _over_batch,
    "context": _over_context,
}


def _seats(source: Placed, pair: Pair, context_len: int) -> tuple[int, int]:
    """Requests that the engine's pool holds beside the source, and of the target alone."""
    where = _where(pair)
    drafts = source.source if pair.draft is None else replace(source.source, model=pair.draft)
    return pool_of(where, drafts, context_len, source.kappa).requests, pool_of(where, NO_SOURCE, context_len).requests


def _where(pair: Pair) -> Served:
    return Served(target=pair.target, on=pair.machine, kv_format=pair.kv_format)


def _regions(x: FloatArray, speeds: FloatArray, winner: IntArray, *, is_whole: bool) -> tuple[Region, ...]:
    """Stretches of one winner; between two grid points the edge is where both tie, or midway on a whole-number axis."""

    def value(who: int, i: int) -> float:
        return 1.0 if who == PLAIN else float(np.nan_to_num(speeds[who, i], nan=-np.inf))

    edges, owners = [float(x[0])], [int(winner[0])]
    for i in range(1, x.size):
        old, new = int(winner[i - 1]), int(winner[i])
        if old == new:
            continue
        before, after = value(old, i - 1) - value(new, i - 1), value(new, i) - value(old, i)
        tied = not is_whole and np.isfinite(before + after) and before + after > 0
        share = before / (before + after) if tied else 0.5
        edges.append(float(x[i - 1] + share * (x[i] - x[i - 1])))
        owners.append(new)
    edges.append(float(x[-1]))
    return tuple(Region(low=edges[i], high=edges[i + 1], winner=w) for i, w in enumerate(owners))


def _ridge(kind: Kind, sources: Sequence[tuple[Placed, Setting]], batch: int) -> Crossing | None:
    known = [(i, source, setting.ridge) for i, (source, setting) in enumerate(sources) if setting.ridge is not None]
    if not known or kind not in ("kappa", "batch"):
        return None
    if kind == "kappa":
        ridge = min(r for _, _, r in known)
        return Crossing(x=ridge / batch - 1, ridge=ridge, source=None)
    index, source, ridge = min(known, key=lambda entry: entry[2] / entry[1].positions)
    return Crossing(x=float(ridge_batch(source.positions - 1, ridge)), ridge=ridge, source=index)
