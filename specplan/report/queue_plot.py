"""Pictures of a served load: the queue over time, latency over rate, throughput against speed per user."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from specplan.report.picture import MUTED, look, new_figure, style
from specplan.simulate.state import SERIES
from specplan.simulate.stream import Served


def _line(index: int, *, marked: bool = False) -> dict[str, Any]:
    found = look(index)
    marker = {"marker": found.marker, "markersize": 4} if marked else {}
    return {"color": found.colour, "linestyle": found.dash, "linewidth": 1.4, **marker}


def draw_queue(runs: Sequence[tuple[str, Served]]) -> Figure:
    """Running and waiting requests over time, one line of each per source."""
    with style():
        figure = new_figure(9.0, 5.6)
        axes = [figure.add_axes((0.09, bottom, 0.87, 0.37)) for bottom in (0.53, 0.10)]
        for index, (title, served) in enumerate(runs):
            seconds = np.maximum(served.series[:, 0], 1e-12)
            moment = (np.arange(len(seconds)) + 0.5) * served.series_s
            for one, column in zip(axes, ("waiting", "running"), strict=True):
                values = served.series[:, SERIES.index(column)] / seconds
                one.plot(moment, values, **_line(index), label=title)
        for one, column in zip(axes, ("waiting", "running"), strict=True):
            one.set_ylabel(f"requests {column}")
            one.set_ylim(bottom=0)
        axes[1].set_xlabel("seconds")
        axes[0].legend(frameon=False, fontsize=9)
        figure.text(0.09, 0.955, "Queue over time", fontsize=12.5, fontweight="bold", va="center")
    return figure


def draw_rates(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], *, latency: str, bound_s: float | None
) -> Figure:
    """A latency over the arrival rate, a line per source; `bound_s` is the target, if any."""
    with style():
        figure = new_figure(9.0, 5.0)
        axes = figure.add_axes((0.09, 0.12, 0.87, 0.78))
        for index, (title, points) in enumerate(curves):
            x, y = np.array(sorted(points)).T
            axes.plot(x, y * 1e3, **_line(index, marked=True), label=title)
        if bound_s is not None:
            axes.axhline(bound_s * 1e3, color=MUTED, linewidth=1, linestyle="--")
        axes.set_yscale("log")
        axes.set_xlabel("requests per second")
        axes.set_ylabel(f"{latency}, ms")
        axes.legend(frameon=False, fontsize=9)
    return figure


def draw_pareto(curves: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> Figure:
    """Tokens per second and card against tokens per second and user, a line per source."""
    with style():
        figure = new_figure(9.0, 5.0)
        axes = figure.add_axes((0.09, 0.12, 0.87, 0.78))
        for index, (title, points) in enumerate(curves):
            x, y = np.array(sorted(points)).T
            axes.plot(x, y, **_line(index, marked=True), label=title)
        axes.set_xlabel("tokens per second and user")
        axes.set_ylabel("tokens per second and card")
        axes.legend(frameon=False, fontsize=9)
    return figure
