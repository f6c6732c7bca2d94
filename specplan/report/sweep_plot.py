"""Speedup against draft length, batch, coverage or context as a picture: a line per source, the best one marked."""

import math
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from specplan.decide.sweep import AXES, PLAIN, Curve, Sweep
from specplan.report.key import Row, draw_key, key_height
from specplan.report.label_placement import Placer
from specplan.report.picture import CLEAR, INK, LOSE, MUTED, look, new_figure, style
from specplan.report.source_words import acceptance_text, cost_text, name_text

BAND: Final = 0.07
"""Share of the height at the top in which the best source of each region is named."""


def draw_sweep(sweep: Sweep, *, title: str = "", width: float | None = None) -> Figure:
    """One picture of a sweep.

    Parameters
    ----------
    sweep : Sweep
    title : str
        Heading; says what is drawn if empty.
    width : float, optional
        Inches; 9 if None.
    """
    width = 9.0 if width is None else width
    rows = [_row(sweep, curve, i) for i, curve in enumerate(sweep.curves)]
    key = key_height(rows, ())
    body, head, left, right = width * 0.50, 0.66, 0.75, 0.3
    under = 0.56 + key
    height = body + head + under
    with style():
        figure = new_figure(width, height)
        axes = figure.add_axes((left / width, under / height, (width - left - right) / width, body / height))
        _draw(axes, sweep)
        heading = title or f"Speedup over {AXES[sweep.kind].partition(' (')[0]}"
        figure.text(left / width, 1 - 0.24 / height, heading, fontsize=12.5, fontweight="bold", va="center")
        size = min(9.0, 1.35 * width)
        figure.text(left / width, (under + body + 0.13) / height, _held(sweep), fontsize=size, color=MUTED)
        draw_key(figure, _COLUMNS, rows, (), left)
    return figure


_COLUMNS: Final = (("source", 0.45), ("c", 3.40), ("α", 4.62), ("best", 6.42))


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
        texts=(name, cost_text(s), acceptance_text(s), best),
        has_marker=sweep.kind == "kappa",
    )


def _held(sweep: Sweep) -> str:
    parts = [f"{name} {value:,.0f}" for name, value in sweep.held.items() if not (name == "context" and value == 0)]
    if any(c.runs_to is not None and c.runs_to < sweep.x[-1] for c in sweep.curves):
        parts.append("faint: requests wait for the cache")
    return ", ".join([*parts, "ring: best of its line", "band on top: best source there"])


def _draw(axes: Axes, sweep: Sweep) -> None:
    low, high = _limits(sweep)
    axes.set_ylim(low, high)
    _x_axis(axes, sweep)
    axes.axhspan(low, 1.0, facecolor=LOSE, hatch="///", edgecolor="#d8d1c6", lw=0, zorder=0)
    axes.axhline(1.0, color=INK, lw=1.6, zorder=3)
    axes.set_ylabel("speedup over plain decoding (×)")
    axes.grid(axis="y", color="#e4e4e4", lw=0.7, zorder=0)
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
    _best_band(axes, placer, sweep, high)
    _ridge(axes, placer, sweep, low, high)
    for i, curve in enumerate(sweep.curves):
        _line_name(placer, sweep, curve, i)
    for x in _inner_edges(sweep):
        axes.axvline(x, color=MUTED, lw=0.8, ls=(0, (2, 2)), zorder=2, ymax=1 - BAND)
    _plain_name(placer, low)


def _limits(sweep: Sweep) -> tuple[float, float]:
    speeds = np.concatenate([curve.speedup for curve in sweep.curves])
    low, high = float(np.nanmin(speeds)), max(float(np.nanmax(speeds)), 1.05)
    bottom = max(0.0, min(low, 0.9) - 0.05 * (high - low))
    return bottom, bottom + (high - bottom) * 1.08 / (1 - BAND)


def _x_axis(axes: Axes, sweep: Sweep) -> None:
    x = sweep.x
    axes.set_xlabel(AXES[sweep.kind])
    if sweep.kind in ("batch", "context") and x[0] > 0 and x[-1] / x[0] >= 8:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(
            FixedLocator(list(2.0 ** np.arange(np.ceil(np.log2(x[0])), np.log2(x[-1]) + 1e-9)))
        )
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: _count(v)))
    elif sweep.kind == "kappa":
        step = max(1, int(np.ceil((x[-1] - x[0]) / 16)))
        axes.set_xticks(np.arange(x[0], x[-1] + 1, step))
    axes.set_xlim(float(x[0]), float(x[-1]))


def _count(value: float) -> str:
    """Tokens as engines write them: 512, 4k, 128k."""
    return f"{value / 1024:.3g}k" if value >= 1024 else f"{value:g}"


def _inner_edges(sweep: Sweep) -> list[float]:
    return [region.low for region in sweep.regions[1:]]


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
    placer.label(
        f"verified positions{who}\ncross the ridge ({sweep.ridge.ridge:.0f}) at {symbol} = {x:.1f}",
        x,
        low + 0.06 * (high - low),
        directions=((1, 1), (-1, 1)),
        fontsize=8.5,
        color=INK,
        bbox=CLEAR,
    )


def _line_name(placer: Placer, sweep: Sweep, curve: Curve, index: int) -> None:
    """Name a line where it is farthest from the others."""
    others = [c.speedup for c in sweep.curves if c is not curve]
    known = ~np.isnan(curve.speedup)
    inner = known & (np.arange(sweep.x.size) >= sweep.x.size // 8) & (np.arange(sweep.x.size) <= sweep.x.size * 7 // 8)
    where = np.flatnonzero(inner if inner.any() else known)
    gaps = np.min([np.abs(o - curve.speedup)[where] for o in others], axis=0) if others else curve.speedup[where]
    at = int(where[int(np.argmax(np.nan_to_num(gaps, nan=np.inf)))])
    placer.label(
        curve.source.label,
        float(sweep.x[at]),
        float(curve.speedup[at]),
        fontsize=9,
        fontweight="bold",
        color=look(index).colour,
        bbox=CLEAR,
    )


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
    y = 0.5 * (1.0 - low) / (placer.axes.get_ylim()[1] - low)
    for x, ha in ((0.99, "right"), (0.7, "left"), (0.4, "left"), (0.02, "left")):
        if placer.add_text(
            x,
            y,
            "slower than plain decoding",
            transform=placer.axes.transAxes,
            ha=ha,
            va="center",
            fontsize=9,
            style="italic",
            color=MUTED,
            bbox=CLEAR,
        ):
            return
