"""Speedup against draft length, batch, coverage or context as a picture: a line per source, the best one marked."""

import math
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from specplan.decide.sweep import AXES, PLAIN, Curve, Sweep
from specplan.report.drawing import Drawing
from specplan.report.key import Row
from specplan.report.label_placement import Placer
from specplan.report.lettering import fitting
from specplan.report.picture import CLEAR, GRID, HATCH, INK, LOSE, MUTED, look, style
from specplan.report.sheet import Panel, Sheet, shown_rows
from specplan.report.source_words import acceptance_text, cost_text, name_text

BAND: Final = 0.07
"""Share of the height at the top in which the best source of each region is named."""


def draw_sweep(sweep: Sweep, **given: Any) -> Figure:
    """One picture of a sweep.

    Parameters
    ----------
    sweep : Sweep
    **given
        See `specplan.report.drawing.Drawing`.
    """
    drawing = Drawing(**given)
    rows = [_row(sweep, curve, i) for i, curve in enumerate(sweep.curves)]
    unlabelled: list[str] = []
    for _ in range(2):  # in line, the key of the second holds what found no room in the first
        with style():
            sheet = Sheet(
                drawing=drawing,
                headings=[f"Speedup over {AXES[sweep.kind].partition(' (')[0]}", "Speedup"],
                conditions=[_held(sweep)],
                rows=shown_rows(drawing, rows, unlabelled),
                columns=_COLUMNS,
                ratio=(0.50, 0.50, 0.75),
            )
            unlabelled = _draw(sheet.panels[0], sweep, is_named=drawing.legend != "none")
        if drawing.legend != "inline" or not unlabelled:
            break
    return sheet.done()


_COLUMNS: Final = ("source", "c", "α", "best")


def _row(sweep: Sweep, curve: Curve, index: int) -> Row:
    s = curve.source
    name = name_text(s, kappa=s.kappa) if sweep.kind == "kappa" else name_text(s)
    if curve.is_flat:
        best = f"{curve.best_speedup:.2f}× everywhere"
    else:
        best = f"{curve.best_speedup:.2f}× at {_peak_text(sweep, curve)}"
    if curve.runs_to is not None and sweep.kind == "batch":
        best += f", {curve.runs_to:,.0f} fit"
    return Row(
        look=look(index),
        label=s.label,
        texts=(name, cost_text(s), acceptance_text(s), best),
        has_marker=sweep.kind == "kappa",
    )


def _held(sweep: Sweep) -> str:
    parts = [f"{name} {value:,.0f}" for name, value in sweep.held.items() if not (name == "context" and value == 0)]
    if any(c.runs_to is not None and c.runs_to < sweep.x[-1] for c in sweep.curves):
        parts.append("faint: requests wait for the cache")
    parts.append("ring: best of its line")
    return ", ".join([*parts, *(["band on top: best source there"] if _has_one_target(sweep) else [])])


def _has_one_target(sweep: Sweep) -> bool:
    """Whether all sources draft for one target: only then is one of them the best."""
    return len({curve.source.target for curve in sweep.curves} - {""}) < 2


def _draw(panel: Panel, sweep: Sweep, *, is_named: bool) -> list[str]:
    """Draw the curves; the sources whose names found no room."""
    axes, is_one = panel.axes, _has_one_target(sweep)
    low, high = _limits(sweep)
    axes.set_ylim(low, high)
    _x_axis(panel, sweep)
    axes.axhspan(low, 1.0, facecolor=LOSE, hatch="///", edgecolor=HATCH, lw=0, zorder=0)
    axes.axhline(1.0, color=INK, lw=1.6, zorder=3)
    axes.set_ylabel(fitting(("speedup over plain decoding (×)", "speedup (×)"), 10, panel.height))
    axes.grid(axis="y", color=GRID, lw=0.7, zorder=0)
    placer = Placer(axes)
    placer.add_line(sweep.x[[0, -1]], [1.0, 1.0])
    for i, curve in enumerate(sweep.curves):
        lk = look(i)
        runs = sweep.x <= (math.inf if curve.runs_to is None else curve.runs_to)
        waits = slice(max(int(runs.sum()) - 1, 0), None)
        axes.plot(sweep.x[waits], curve.speedup[waits], color=lk.colour, ls=lk.dash, lw=0.8, alpha=0.6, zorder=5)
        axes.plot(sweep.x[runs], curve.speedup[runs], color=lk.colour, ls=lk.dash, lw=1.8, zorder=5)
        if curve.runs_to is not None and sweep.x[0] < curve.runs_to < sweep.x[-1]:
            axes.axvspan(curve.runs_to, float(sweep.x[-1]), facecolor=lk.colour, alpha=0.06, lw=0, zorder=1)
        if sweep.kind == "kappa":  # only whole numbers can be had
            axes.plot(sweep.x, curve.speedup, ls="", marker=lk.marker, ms=4, color=lk.colour, zorder=5, clip_on=False)
        placer.add_line(sweep.x, curve.speedup)
        if not curve.is_flat:
            axes.plot(
                [curve.best_x],
                [curve.best_speedup],
                marker="o",
                ms=9,
                mfc="none",
                mec=lk.colour,
                mew=1.8,
                zorder=7,
                clip_on=False,
            )
            placer.add_marker(curve.best_x, curve.best_speedup, 10)
    if is_one:
        _best_band(axes, placer, sweep, high)
        for x in [region.low for region in sweep.regions[1:]]:
            axes.axvline(x, color=MUTED, lw=0.8, ls=(0, (2, 2)), zorder=2, ymax=1 - BAND)
    _ridge(axes, placer, sweep, low, high)
    named = [_line_name(placer, sweep, curve, i) for i, curve in enumerate(sweep.curves)] if is_named else []
    _plain_name(placer, low)
    return [curve.source.label for curve, is_there in zip(sweep.curves, named, strict=False) if not is_there]


def _limits(sweep: Sweep) -> tuple[float, float]:
    speeds = np.concatenate([curve.speedup for curve in sweep.curves])
    low, high = float(np.nanmin(speeds)), max(float(np.nanmax(speeds)), 1.05)
    bottom = max(0.0, min(low, 0.9) - 0.05 * (high - low))
    return bottom, bottom + (high - bottom) * 1.08 / (1 - BAND)


def _x_axis(panel: Panel, sweep: Sweep) -> None:
    axes, x, most = panel.axes, sweep.x, max(3, int(panel.width / 0.42))
    axes.set_xlabel(fitting((AXES[sweep.kind], AXES[sweep.kind].partition(" (")[0]), 10, panel.width))
    if sweep.kind in ("batch", "context") and x[0] > 0 and x[-1] / x[0] >= 8:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(
            FixedLocator(_thinned((2.0 ** np.arange(np.ceil(np.log2(x[0])), np.log2(x[-1]) + 1e-9)).tolist(), most))
        )
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _count(v)))
    elif sweep.kind == "kappa":
        axes.set_xticks(_thinned(np.arange(x[0], x[-1] + 1).tolist(), min(most, 17)))
    axes.set_xlim(float(x[0]), float(x[-1]))


def _thinned(ticks: list[float], most: int) -> list[float]:
    """Every tick, or every second, third, ... of them, the first included, so that no more than `most` are left."""
    return ticks[:: -(-len(ticks) // most)]


def _count(value: float) -> str:
    """Tokens as engines write them: 512, 4k, 128k."""
    return f"{value / 1024:.3g}k" if value >= 1024 else f"{value:g}"


def _best_band(axes: Axes, placer: Placer, sweep: Sweep, high: float) -> None:
    """Name the best source over each stretch of the axis; a name that does not fit is left to the colour."""
    to_axes = axes.transAxes.inverted()
    for region in sweep.regions:
        ends = to_axes.transform(axes.transData.transform([(region.low, high), (region.high, high)]))[:, 0]
        is_plain = region.winner == PLAIN
        lk = look(max(region.winner, 0))
        axes.axvspan(
            region.low,
            region.high,
            ymin=1 - BAND,
            ymax=1,
            facecolor=LOSE if is_plain else lk.colour,
            edgecolor="white",
            lw=1.2,
            zorder=6,
        )
        span = axes.transAxes.transform([(ends[0], 0), (ends[1], 0)])[:, 0]
        curve = None if is_plain else sweep.curves[region.winner]
        names = ("plain decoding", "plain") if curve is None else (curve.source.label, curve.source.name)
        for name, size in ((names[0], 9.0), (names[1], 9.0), (names[1], 7.0)):
            drawn = axes.text(
                float(ends.mean()),
                1 - BAND / 2,
                name,
                transform=axes.transAxes,
                ha="center",
                va="center",
                fontsize=size,
                fontweight="bold",
                color=INK if is_plain else "white",
                zorder=8,
            )
            if drawn.get_window_extent(placer.renderer).width <= span[1] - span[0] - 6:
                break
            drawn.remove()
    placer.add_box(axes.transAxes.transform([(0, 1 - BAND), (1, 1.2)]))


def _ridge(axes: Axes, placer: Placer, sweep: Sweep, low: float, high: float) -> None:
    if sweep.ridge is None or not sweep.x[0] < sweep.ridge.x < sweep.x[-1]:
        return
    x = sweep.ridge.x
    axes.axvline(x, color=INK, lw=1.1, ls=(0, (5, 3)), zorder=4, ymax=1 - BAND)
    placer.add_line([x, x], [low, high])
    who = "" if sweep.ridge.source is None else f" of {sweep.curves[sweep.ridge.source].source.name}"
    symbol = "κ" if sweep.kind == "kappa" else "B"
    for text in (
        f"verified positions{who}\ncross the ridge ({sweep.ridge.ridge:.0f}) at {symbol} = {x:.1f}",
        f"ridge ({sweep.ridge.ridge:.0f})\nat {symbol} = {x:.1f}",
    ):
        y, ways = low + 0.06 * (high - low), ((1, 1), (-1, 1))
        if placer.label(text, x, y, directions=ways, fontsize=8.5, color=INK, bbox=CLEAR):
            return


def _line_name(placer: Placer, sweep: Sweep, curve: Curve, index: int) -> bool:
    """Name a line where it is farthest from the others; whether there was room."""
    others = [c.speedup for c in sweep.curves if c is not curve]
    known = ~np.isnan(curve.speedup)
    inner = known & (np.arange(sweep.x.size) >= sweep.x.size // 8) & (np.arange(sweep.x.size) <= sweep.x.size * 7 // 8)
    where = np.flatnonzero(inner if inner.any() else known)
    gaps = np.min([np.abs(o - curve.speedup)[where] for o in others], axis=0) if others else curve.speedup[where]
    at = int(where[int(np.argmax(np.nan_to_num(gaps, nan=np.inf)))])
    return any(
        placer.label(
            text, float(sweep.x[at]), float(curve.speedup[at]), fontsize=9, fontweight="bold",
            color=look(index).colour, bbox=CLEAR,
        )
        for text in (curve.source.label, curve.source.name)
    )  # fmt: skip


def _peak_text(sweep: Sweep, curve: Curve) -> str:
    if sweep.kind == "kappa":
        return f"κ = {curve.best_x:.0f}"
    if sweep.kind == "coverage":
        return f"γ = {curve.best_x:.2f}"
    return f"batch {curve.best_x:g}" if sweep.kind == "batch" else f"context {_count(curve.best_x)}"


def _plain_name(placer: Placer, low: float) -> None:
    """Say what the hatched side means, where there is room."""
    if low >= 0.97:
        return
    share = (1.0 - low) / (placer.axes.get_ylim()[1] - low)
    edge = np.array([[0.0, share], [1.0, share]])
    for text in ("slower than plain decoding", "slower"):
        words = {"ha": "center", "va": "center", "fontsize": 9, "style": "italic", "color": MUTED, "bbox": CLEAR}
        if placer.add_text_within(text, edge, 0.0, is_above=False, **words):
            return
