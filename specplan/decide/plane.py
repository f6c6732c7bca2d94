"""The (alpha, c) plane at one draft length: contours of equal speedup, and each source as a point or a line on it.

A source whose acceptance is free is a line at its derived c. A source with an acceptance is a point; the contour
through it, followed to c = 0, ends at its alpha-dagger. A source that differs from the plane in draft length, coverage
or verify cost is placed where a source of the plane's kind would be worth the same, next to its raw acceptance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from specplan.decide.pricing import Setting
from specplan.decide.source import Placed, longest, source_speedup
from specplan.errors import InputError
from specplan.formulas.draft_length import best_kappa
from specplan.formulas.emitted import FloatArray, checked_kappa
from specplan.formulas.indifference import break_even_alpha, contour_alpha, contour_c
from specplan.formulas.speedup import ridge_batch, speedup

Scale = Literal["linear", "log"]

LEVELS: Final = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0)
"""Speedups that may be drawn as contours; those that the plane holds are, up to `MOST_LEVELS`."""
MOST_LEVELS: Final = 8
CURVE_POINTS: Final = 601

ASSUMPTIONS: Final = (
    "contours: every position is accepted with the same conditional probability alpha",
    "drafting and verifying take turns: their times add up",
)
NOT_MODELED: Final = ("the draft's memory, which shortens the batch",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contour:
    """All (alpha, c) of one speedup; where the plane has none, c is NaN."""

    speedup: float
    alpha: FloatArray
    c: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A source of known c whose acceptance is free.

    Attributes
    ----------
    source : Placed
    break_even : float
        alpha at speedup 1, NaN where even alpha 1 loses.
    reaches : tuple of (float, float)
        Each contour's speedup, and the alpha at which the line crosses it (NaN where it does not).
    """

    source: Placed
    break_even: float
    reaches: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A source with an acceptance.

    Attributes
    ----------
    source : Placed
    speedup : float
    alpha : float
        Where it stands on the plane: the alpha at which a source of the plane's draft length and verify factor, with a
        draft in every step and this c, has this speedup. NaN where the plane has no such alpha.
    is_exact : bool
        Whether that is its own acceptance.
    alpha_dagger : float
        Where its indifference curve meets c = 0; NaN where there is no such alpha (see `untied`).
    best_kappa : int
        Draft length of highest speedup for (alpha, c) at the plane's verify factor of 1, at most 64.
    curve : Contour or None
        The indifference curve from the point to c = 0.
    """

    source: Placed
    speedup: float
    alpha: float
    is_exact: bool
    alpha_dagger: float
    best_kappa: int
    curve: Contour | None

    @property
    def untied(self) -> str:
        """Why there is no alpha-dagger: it loses to plain decoding, or beats every free draft of the plane's length."""
        return "loses" if self.speedup < 1 else "beyond κ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One plane, ready to be drawn or written.

    `grid` holds the speedup of every cell, rows along `c`, columns along `alpha`.
    """

    kappa: int
    verify: float
    batch: int
    context_len: int
    ridge: float | None
    ridge_batch: float | None
    scale: Scale
    alpha: FloatArray
    c: FloatArray
    grid: FloatArray
    contours: tuple[Contour, ...]
    lines: tuple[Line, ...]
    points: tuple[Point, ...]
    title: str = ""
    assumptions: tuple[str, ...] = ASSUMPTIONS
    not_modeled: tuple[str, ...] = NOT_MODELED


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One target (or none) with its sources: what a picture is drawn from.

    Attributes
    ----------
    title : str
        The target's name, or empty.
    verify : float
        Verify factor of a chain of the plane's draft length on this target.
    ridge : float or None
        Positions at the ridge.
    placed : tuple of (Placed, Setting)
    assumptions, not_modeled : tuple of str
        Of the prices.
    """

    title: str
    verify: float
    ridge: float | None
    placed: tuple[tuple[Placed, Setting], ...]
    assumptions: tuple[str, ...] = ()
    not_modeled: tuple[str, ...] = ()


def planes_of(
    scenes: Sequence[Scene],
    *,
    kappa: int,
    batch: int = 1,
    context_len: int = 0,
    levels: Sequence[float] | None = None,
    c_max: float | None = None,
    scale: Scale = "linear",
    cells: int = 101,
) -> tuple[Plane, ...]:
    """One plane for all scenes whose contours agree (equal verify factors), in the order of the scenes."""
    groups: dict[float, list[Scene]] = {}
    for scene in scenes:
        groups.setdefault(float(f"{scene.verify:.9g}"), []).append(scene)
    out = []
    for group in groups.values():
        sources: list[Placed] = []
        for scene in group:
            sources += [source for source, _ in scene.placed if source not in sources]
        names = [scene.title for scene in group if scene.title]
        drawn = plane(
            sources,
            kappa=kappa,
            verify=group[0].verify,
            batch=batch,
            context_len=context_len,
            ridge=group[0].ridge,
            levels=levels,
            c_max=c_max,
            scale=scale,
            cells=cells,
            title=", ".join(names) if len(groups) > 1 else "",
        )
        priced_by = dict.fromkeys(line for scene in group for line in scene.assumptions)
        left_out = dict.fromkeys(line for scene in group for line in scene.not_modeled)
        out.append(replace(drawn, assumptions=(*ASSUMPTIONS, *priced_by), not_modeled=(*left_out, *NOT_MODELED)))
    return tuple(out)


def plane(
    sources: Sequence[Placed],
    *,
    kappa: int,
    verify: float = 1.0,
    batch: int = 1,
    context_len: int = 0,
    ridge: float | None = None,
    levels: Sequence[float] | None = None,
    c_max: float | None = None,
    scale: Scale = "linear",
    cells: int = 101,
    title: str = "",
) -> Plane:
    """Lay out the plane at draft length `kappa`.

    Parameters
    ----------
    sources : sequence of Placed
        Drawn as lines where their acceptance is free, else as points.
    kappa : int
        Draft length of the contours, at least 1.
    verify : float
        Verify factor of the contours (1 is the chapter's closed form); above 1 every contour moves down and right.
    batch, context_len, ridge
        What the verify factor was derived from, for the record.
    levels : sequence of float, optional
        Speedups of the contours; chosen to fit the plane if None.
    c_max : float, optional
        Upper end of the c axis; chosen to hold every source if None.
    scale : {"linear", "log"}
        Spacing of the c axis.
    cells : int
        Grid cells along each axis.

    Examples
    --------
    >>> from specplan.decide.source import placed
    >>> from specplan.propose.spelling import read_source
    >>> draft = placed(read_source("1b:k=3,c=.164664,alpha=.7"))
    >>> drawn = plane([draft], kappa=3)
    >>> round(drawn.points[0].speedup, 4), round(drawn.points[0].alpha_dagger, 4)
    (1.6955, 0.4304)
    """
    k = int(checked_kappa(kappa))
    if k < 1:
        raise InputError(f"kappa {k}: the plane needs a draft length of at least 1")
    if cells < 2:
        raise InputError(f"a plane needs at least 2 cells along each axis, got {cells}")
    top = _c_top(sources, c_max)
    c = _c_axis(sources, top, scale, cells)
    alpha = np.linspace(0.0, 1.0, cells)
    grid = speedup(alpha[None, :], k, c[:, None], verify)
    chosen = _levels(levels, float(grid.min()), float(grid.max()))
    dense = np.linspace(0.0, 1.0, CURVE_POINTS)
    return Plane(
        kappa=k,
        verify=verify,
        batch=batch,
        context_len=context_len,
        ridge=ridge,
        ridge_batch=None if ridge is None else float(ridge_batch(k, ridge)),
        scale=scale,
        alpha=alpha,
        c=c,
        grid=grid,
        contours=tuple(_contour(s, dense, k, verify, top) for s in chosen),
        lines=tuple(_line(s, k, verify, chosen) for s in sources if not s.source.has_acceptance),
        points=tuple(_point(s, k, verify) for s in sources if s.source.has_acceptance),
        title=title,
    )


def _c_top(sources: Sequence[Placed], c_max: float | None) -> float:
    highest = max((s.c for s in sources), default=0.0)
    if c_max is None:
        return max(0.05, min(1.35 * highest, max(1.0, 1.1 * highest))) if highest > 0 else 0.3
    if not 0 < c_max < np.inf:
        raise InputError(f"c-max {c_max:g} must be finite and above 0")
    if c_max < highest:
        raise InputError(f"c-max {c_max:g} would cut off a source at c {highest:.4g}")
    return float(c_max)


def _c_axis(sources: Sequence[Placed], top: float, scale: Scale, cells: int) -> FloatArray:
    """C of the grid rows; a log axis starts with a row at 0, where free sources live."""
    if scale == "linear":
        return np.linspace(0.0, top, cells)
    positive = [s.c for s in sources if s.c > 0]
    bottom = min(min(positive, default=top) / 5, top / 30)
    return np.concatenate([[0.0], np.geomspace(bottom, top, cells - 1)])


def _levels(levels: Sequence[float] | None, low: float, high: float) -> tuple[float, ...]:
    if levels is not None:
        for level in levels:
            if not 0 < level < np.inf:
                raise InputError(f"contour {level:g}: a speedup must be finite and above 0")
        return tuple(sorted({1.0, *map(float, levels)}))
    inside = [s for s in LEVELS if low * 1.02 < s < high * 0.97 or s == 1.0]
    while len(inside) > MOST_LEVELS:
        # drop the level that stands closest to a neighbour, never 1
        gaps = [(inside[i + 1] / inside[i - 1], i) for i in range(1, len(inside) - 1) if inside[i] != 1.0]
        inside.pop(min(gaps)[1])
    return tuple(inside)


def _contour(s: float, alpha: FloatArray, kappa: int, verify: float, top: float) -> Contour:
    """C over alpha, with the exact crossing of c = 0 and of the top edge among its points."""
    ends = np.array([contour_alpha(0.0, s, kappa, verify), contour_alpha(top, s, kappa, verify)])
    x = np.unique(np.concatenate([alpha, ends[~np.isnan(ends)]]))
    return Contour(speedup=s, alpha=x, c=contour_c(x, s, kappa, verify))


def _line(source: Placed, kappa: int, verify: float, levels: tuple[float, ...]) -> Line:
    return Line(
        source=source,
        break_even=float(break_even_alpha(kappa, source.c, verify)),
        reaches=tuple((s, float(contour_alpha(source.c, s, kappa, verify))) for s in levels),
    )


def _point(source: Placed, kappa: int, verify: float) -> Point:
    s = float(source_speedup(source))
    is_exact = (
        source.alpha is not None
        and (source.kappa, source.coverage, source.verify, source.overhead) == (kappa, 1.0, verify, 0.0)
        and source.nodes is None
        and source.source.emitted is None
    )
    placed = float(source.alpha) if is_exact and source.alpha is not None else np.nan
    if not is_exact:
        placed = float(contour_alpha(source.c, s, kappa, verify))
    dagger = float(contour_alpha(0.0, s, kappa, verify))
    curve = None
    if not np.isnan(dagger) and not np.isnan(placed):
        x = np.linspace(dagger, placed, 200)
        curve = Contour(speedup=s, alpha=x, c=np.nan_to_num(contour_c(x, s, kappa, verify), nan=0.0))
    return Point(
        source=source,
        speedup=s,
        alpha=placed,
        is_exact=is_exact,
        alpha_dagger=dagger,
        best_kappa=0 if np.isnan(placed) else int(best_kappa(placed, source.c, longest(source.source, 64))),
        curve=curve,
    )
