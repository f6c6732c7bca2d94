"""Pictures of a served load: the queue over time, latency over rate, throughput against speed per user."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from specplan.queueing.capacity import Capacity
from specplan.queueing.state import SERIES
from specplan.queueing.stream import Served
from specplan.report.drawing import Drawing
from specplan.report.key import Row
from specplan.report.lettering import fitting
from specplan.report.picture import look, style
from specplan.report.sheet import Sheet


def _line(index: int, *, marked: bool = False) -> dict[str, Any]:
    found = look(index)
    marker = {"marker": found.marker, "markersize": 4} if marked else {}
    return {"color": found.colour, "linestyle": found.dash, "linewidth": 1.4, **marker}


def _sheet(
    given: dict[str, Any], headings: Sequence[str], names: Sequence[str], conditions: Sequence[str], **more: Any
) -> Sheet:
    """A page whose lines are named in its key, whatever the legend but none: they run too close for names."""
    drawing = Drawing(**given)
    rows = [
        Row(look=look(i), label=name, texts=(name,), has_marker=len(conditions) == 1) for i, name in enumerate(names)
    ]
    return Sheet(
        drawing=drawing, headings=headings, conditions=conditions, columns=("",),
        rows=rows if drawing.legend != "none" else (), **more,
    )  # fmt: skip


def draw_queue(runs: Sequence[tuple[str, Served]], **given: Any) -> Figure:
    """Running and waiting requests over time, one line of each per source; `given` as `Drawing`."""
    columns = ("waiting", "running")
    with style():
        sheet = _sheet(given, ["Queue over time"], [title for title, _ in runs], [f"requests {c}" for c in columns],
                       ratio=(0.27, 0.27, 0.45), stacked=True)  # fmt: skip
        for panel, column in zip(sheet.panels, columns, strict=True):
            for index, (_, served) in enumerate(runs):
                seconds = np.maximum(served.series[:, 0], 1e-12)
                moment = (np.arange(len(seconds)) + 0.5) * served.series_s
                panel.axes.plot(moment, served.series[:, SERIES.index(column)] / seconds, **_line(index))
            panel.axes.set_ylabel("requests")
            panel.axes.set_ylim(bottom=0, top=max(1.0, panel.axes.get_ylim()[1]))
            panel.axes.set_xlabel("seconds")
        return sheet.done()


def draw_pareto(found: Capacity, **given: Any) -> Figure:
    """Tokens per second and card against tokens per second and user, a line per candidate over the simulated rates."""
    answers = [f for f in found.found if len(f.points) > 1]
    with style():
        sheet = _sheet(
            given, ["Throughput against speed per user"], [_candidate(f) for f in answers], ["simulated rates"]
        )
        axes, width, height = sheet.panels[0].axes, sheet.panels[0].width, sheet.panels[0].height
        for index, answer in enumerate(answers):
            user, card = np.array([(p[1], p[2]) for p in answer.points]).T
            axes.plot(user, card, **_line(index, marked=True))
        axes.set_xlabel(fitting(("tokens per second and user", "tokens/s and user"), 10, width))
        axes.set_ylabel(fitting(("tokens per second and card", "tokens/s and card"), 10, height))
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        return sheet.done()


def draw_rates(found: Capacity, **given: Any) -> Figure:
    """p95 of the time to the first token over the rate of a replica, a line per candidate; `given` as `Drawing`."""
    answers = [f for f in found.found if len(f.points) > 1]
    with style():
        sheet = _sheet(given, ["Latency over rate"], [_candidate(f) for f in answers], ["simulated rates"])
        axes, width, height = sheet.panels[0].axes, sheet.panels[0].width, sheet.panels[0].height
        for index, answer in enumerate(answers):
            rate, ttft = np.array([(p[0], p[3]) for p in answer.points]).T
            axes.plot(rate, ttft * 1e3, **_line(index, marked=True))
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        ticks = [m * 10.0**e for e in range(-3, 10) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        axes.set_yticks(ticks, [f"{t:,g}" for t in ticks])
        axes.minorticks_off()
        axes.set_xlabel(fitting(("requests per second and replica", "requests/s and replica"), 10, width))
        axes.set_ylabel(fitting(("p95 of the time to the first token, ms", "p95 TTFT, ms"), 10, height))
        return sheet.done()


def _candidate(answer: Any) -> str:
    return f"{answer.tp} x {answer.gpu}, {answer.source}"
