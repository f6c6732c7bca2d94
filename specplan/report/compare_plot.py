"""Pictures of sources beside each other: throughput against speed per user; measured speedups beside predicted ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from specplan.decide.compare import CompareReport
from specplan.decide.measured_speed import MeasuredSpeed
from specplan.report.drawing import Drawing
from specplan.report.key import Row
from specplan.report.label_placement import Placer
from specplan.report.lettering import fitting, inches
from specplan.report.picture import CLEAR, GRID, INK, LOSE, MUTED, look, style
from specplan.report.sheet import Sheet, shown_rows

_COLUMNS = ("source", "most tokens/s", "at")


def draw_throughput(report: CompareReport, **given: Any) -> Figure:
    """Tokens per second and card against tokens per second and user: a line per source over batch, a panel per context.

    Parameters
    ----------
    report : CompareReport
        Of several batches, or the lines are points.
    **given
        See `specplan.report.drawing.Drawing`.
    """
    drawing = Drawing(**given)
    contexts = list(dict.fromkeys(cell.context_len for cell in report.cells))
    names = list(dict.fromkeys(cell.source for cell in report.cells))
    rows = [_row(report, name, i) for i, name in enumerate(names)]
    unlabelled: list[str] = []
    for _ in range(2):  # in line, the key of the second holds what found no room in the first
        with style():
            sheet = Sheet(
                drawing=drawing,
                headings=["Throughput against speed per user", "Throughput, speed per user"],
                conditions=[_condition(report, context, is_first=i == 0) for i, context in enumerate(contexts)],
                rows=shown_rows(drawing, rows, unlabelled),
                columns=_COLUMNS,
            )
            unlabelled = []
            for panel, context in zip(sheet.panels, contexts, strict=True):
                axes = panel.axes
                axes.set_xlabel(fitting(("tokens per second and user", "tokens/s and user"), 10, panel.width))
                if panel.is_leftmost:
                    axes.set_ylabel(fitting(("tokens per second and card", "tokens/s and card"), 10, panel.height))
                unlabelled += _lines(axes, report, context, names, is_named=drawing.legend != "none")
        if drawing.legend != "inline" or not unlabelled:
            break
    return sheet.done()


def _condition(report: CompareReport, context: int, *, is_first: bool) -> str:
    where = f"{report.target.name} on {report.tensor_parallel_size} x {report.accelerator.name}, "
    return f"{where if is_first else ''}context {context:,}, {report.layer}; numbers: requests offered"


def _row(report: CompareReport, name: str, index: int) -> Row:
    best = max((cell for cell in report.cells if cell.source == name), key=lambda cell: cell.tokens_s_gpu)
    at = f"{best.offered:,} offered, {best.batch:,} running" if best.tokens_s_gpu else "nothing fits"
    return Row(look=look(index), label=name, texts=(name, f"{best.tokens_s_gpu:,.0f} per card", at))


def _lines(axes: Any, report: CompareReport, context: int, names: Sequence[str], *, is_named: bool) -> list[str]:
    """The curves of one context; names that found no room."""
    axes.grid(color=GRID, lw=0.7, zorder=0)
    curves = []
    for name in names:
        cells = [c for c in report.cells if c.source == name and c.context_len == context and c.tokens_s_gpu > 0]
        curves.append(sorted(cells, key=lambda c: c.offered))
    drawn = [
        (i, np.array([(1 / c.per_user_s, c.tokens_s_gpu) for c in cells]), cells)
        for i, cells in enumerate(curves)
        if cells
    ]
    for i, at, _ in drawn:
        lk = look(i)
        axes.plot(at[:, 0], at[:, 1], color=lk.colour, ls=lk.dash, lw=1.6, marker=lk.marker, ms=5, zorder=5)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0, top=1.12 * max((at[:, 1].max() for _, at, _ in drawn), default=1.0))
    placer = Placer(axes)
    for _, at, _ in drawn:
        placer.add_line(at[:, 0], at[:, 1])
        for x, y in at:
            placer.add_marker(float(x), float(y), 6)
    unlabelled = []
    for i, at, _ in drawn if is_named else ():
        x, y = at[len(at) // 2]
        if not placer.label(
            names[i], float(x), float(y), fontsize=9, fontweight="bold", color=look(i).colour, bbox=CLEAR
        ):
            unlabelled.append(names[i])
    for i, at, cells in drawn:
        for (x, y), cell in {0: (at[0], cells[0]), len(cells) - 1: (at[-1], cells[-1])}.values():
            near = ((1, 1), (1, -1), (-1, 1), (-1, -1))
            placer.label(f"{cell.offered:,}", float(x), float(y), directions=near, fontsize=7.5, color=look(i).colour,
                         is_near=True)  # fmt: skip
    return unlabelled


def draw_speeds(speeds: Sequence[MeasuredSpeed], **given: Any) -> Figure:
    """Measured speedup of each source and set of prompts with its interval, beside the one that its parts predict.

    Parameters
    ----------
    speeds : sequence of MeasuredSpeed
        At least one.
    **given
        See `specplan.report.drawing.Drawing`.
    """
    drawing = Drawing(**given)
    labels = [" on ".join(filter(None, (s.measured.source, s.measured.tag))) for s in speeds]
    with style():
        sheet = Sheet(
            drawing=drawing,
            headings=["Measured speedup beside the predicted one", "Speedup, measured and predicted"],
            conditions=["filled: measured, 95% over requests; open: predicted from its parts, timed apart"],
            rows=(),
            columns=(),
            tall=0.3 + 0.5 * len(speeds),
        )
        axes, width = sheet.panels[0].axes, sheet.panels[0].width
        ends = [x for s in speeds for x in (s.speedup, s.predicted_speedup, s.speedup_low, s.speedup_high)]
        found = [float(x) for x in ends if x is not None and np.isfinite(x)]
        low, high = min([*found, 0.9]), max([*found, 1.1])
        axes.set_xlim(low - 0.08 * (high - low), high + 0.08 * (high - low))
        axes.set_ylim(2 * len(speeds) - 0.4, -0.6)
        axes.axvspan(axes.get_xlim()[0], 1.0, facecolor=LOSE, lw=0, zorder=0)
        axes.axvline(1.0, color=INK, lw=1.2, zorder=2)
        for i, (speed, label) in enumerate(zip(speeds, labels, strict=True)):
            colour, y = look(i).colour, 2 * i + 0.65
            if drawing.legend != "none":
                cut = label
                while len(cut) > 4 and inches(cut, 9, is_bold=True) > width - 0.1:
                    cut = cut[:-2].rstrip("…") + "…"
                axes.text(0.01, 2 * i - 0.05, cut, transform=axes.get_yaxis_transform(), fontsize=9, color=colour,
                          fontweight="bold", va="center", zorder=6, bbox=CLEAR)  # fmt: skip
            if speed.speedup_low is not None and speed.speedup_high is not None:
                axes.plot([speed.speedup_low, speed.speedup_high], [y, y], color=colour, lw=2.2, zorder=4)
            axes.plot([speed.speedup], [y], marker=look(i).marker, ms=8, color=colour, mec="white", zorder=6, ls="")
            axes.plot([speed.predicted_speedup], [y], marker=look(i).marker, ms=9, mfc="none", mec=colour, mew=1.6,
                      zorder=5, ls="")  # fmt: skip
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(fitting(("speedup over plain decoding (×)", "speedup (×)"), 10, width))
        axes.tick_params(axis="x", colors=INK)
        axes.grid(axis="x", color=GRID, lw=0.7, zorder=0)
        axes.xaxis.label.set_color(MUTED)
        return sheet.done()
