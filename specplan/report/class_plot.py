"""Draft length by class of requests over batch as a picture: a panel per source, a line per class."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from specplan.decide.classes import ClassPlan
from specplan.report.picture import MUTED, look, new_figure, style


def draw_classes(plans: Sequence[tuple[str, Sequence[ClassPlan]]], *, title: str = "") -> Figure:
    """One panel per source: the draft length of each class of requests where all share a batch.

    Parameters
    ----------
    plans : sequence of (str, sequence of ClassPlan)
        Sources by name, each with at least one batch.
    title : str
        Heading.
    """
    head, panel, under, left, right = 0.8, 1.7, 0.85, 0.75, 2.2
    width, height = 8.0, head + panel * len(plans) + under
    with style():
        figure = new_figure(width, height)
        figure.text(left / width, 1 - 0.24 / height, title, fontsize=12.5, fontweight="bold", va="center")
        held = "drafted tokens that each class should verify in one batch of all; 0: it should not speculate"
        figure.text(left / width, 1 - 0.52 / height, held, fontsize=9, color=MUTED, va="center")
        for i, (name, rows) in enumerate(plans):
            bottom = under + panel * (len(plans) - 1 - i) + 0.18
            axes = figure.add_axes(
                (left / width, bottom / height, (width - left - right) / width, (panel - 0.55) / height)
            )
            batches = [row.batch for row in rows]
            for j, tag in enumerate(r.tag for r in rows[0].rows):
                lk, lengths = look(j), [row.rows[j].kappa for row in rows]
                label = f"{tag or '(no tag)'}, {rows[0].rows[j].share:.0%} of steps"
                axes.plot(
                    batches, lengths, color=lk.colour, ls=lk.dash, marker=lk.marker, lw=1.8, label=label, clip_on=False
                )
            axes.set_title(name, loc="left", fontsize=10)
            axes.set_ylim(0, max(1, *(r.kappa for row in rows for r in row.rows)) * 1.08)
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_locator(FixedLocator(batches))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
            axes.set_ylabel("draft length κ")
            axes.grid(axis="y", color="#e4e4e4", lw=0.7, zorder=0)
            axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.05), frameon=False, fontsize=9)
        axes.set_xlabel("batch B (requests that run at a time)")
    return figure
