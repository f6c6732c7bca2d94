"""Pictures of a served load: the queue over time, latency over rate, throughput against speed per user."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from specplan.report.picture import look, new_figure, style
from specplan.simulate.capacity import Capacity
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


def draw_pareto(found: Capacity) -> Figure:
    """Tokens per second and card against tokens per second and user, a line per candidate over the simulated rates."""
    with style():
        figure = new_figure(9.0, 5.2)
        axes = figure.add_axes((0.09, 0.11, 0.87, 0.79))
        for index, answer in enumerate(f for f in found.found if len(f.points) > 1):
            user, card = np.array([(p[1], p[2]) for p in answer.points]).T
            label = f"{answer.tp} x {answer.gpu}, {answer.source}"
            axes.plot(user, card, label=label, **_line(index, marked=True))
        axes.set_xlabel("tokens per second and user")
        axes.set_ylabel("tokens per second and card")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8)
        heading = "Throughput against speed per user"
        figure.text(0.09, 0.95, heading, fontsize=12.5, fontweight="bold", va="center")
    return figure


def draw_rates(found: Capacity) -> Figure:
    """p95 of the time to the first token over the rate of a replica, a line per candidate."""
    with style():
        figure = new_figure(9.0, 5.2)
        axes = figure.add_axes((0.09, 0.11, 0.87, 0.79))
        for index, answer in enumerate(f for f in found.found if len(f.points) > 1):
            rate, ttft = np.array([(p[0], p[3]) for p in answer.points]).T
            label = f"{answer.tp} x {answer.gpu}, {answer.source}"
            axes.plot(rate, ttft * 1e3, label=label, **_line(index, marked=True))
        axes.set_yscale("log")
        axes.set_xlabel("requests per second and replica")
        axes.set_ylabel("p95 of the time to the first token, ms")
        axes.legend(frameon=False, fontsize=8)
        figure.text(0.09, 0.95, "Latency over rate", fontsize=12.5, fontweight="bold", va="center")
    return figure
