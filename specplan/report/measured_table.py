"""Measured sources as tables for people."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from specplan.decide.drift import Drift
from specplan.decide.measured import Alpha, MeasuredSource
from specplan.decide.measured_point import MeasuredPoint
from specplan.report.grid import LiteralTable
from specplan.report.measured_document import wasted
from specplan.units import format_seconds


def figure_table(*columns: tuple[str, str]) -> Table:
    """Borderless table, its cells no markup, of the given columns (name, justification); long texts fold."""
    table = LiteralTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, justify in columns:
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    return table


def print_line(text: str, console: Console) -> None:
    """A line as it stands: names of sources are no markup."""
    console.print(text, markup=False, highlight=False)


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def alpha_text(alpha: Alpha) -> str:
    """Alpha with its interval.

    >>> alpha_text(Alpha(value=0.7, low=0.65, high=0.75, basis="requests"))
    '0.700 [0.650, 0.750]'
    >>> alpha_text(Alpha(low=0.4, high=0.6, basis="bounds"))
    '0.400 to 0.600'
    """
    if alpha.value is None:
        return "-" if alpha.low is None or alpha.high is None else f"{alpha.low:.3f} to {alpha.high:.3f}"
    if alpha.low is None or alpha.high is None:
        return f"{alpha.value:.3f}"
    return f"{alpha.value:.3f} [{alpha.low:.3f}, {alpha.high:.3f}]"


def print_measured(sources: Sequence[MeasuredSource], console: Console) -> None:
    """One row per source and tag."""
    tagged = any(m.tag for m in sources)
    columns = [("source", "left")] + ([("tag", "left")] if tagged else [])
    columns += [(name, "right") for name in ("steps", "coverage", "drafted", "accepted", "wasted")]
    columns += [("alpha [95 %]", "left")]
    columns += [(name, "right") for name in ("E", "E drafted", "accepted/drafted")]
    table = figure_table(*columns)
    for m in sources:
        t = m.tally
        table.add_row(
            m.source,
            *([m.tag or "(all)"] if tagged else []),
            _count(None if t is None else t.steps),
            _number(m.coverage),
            _count(None if t is None else t.drafted_tokens),
            _count(None if t is None else t.accepted_tokens),
            _count(wasted(m)),
            alpha_text(m.alpha),
            _number(m.tokens_per_step),
            _number(m.tokens_per_drafted_step),
            _number(m.accepted_per_drafted),
        )
    console.print(table)
    console.print(
        "measured: alpha is accepted/tested, conditional per position, interval over requests; E is tokens per step, "
        "over all steps and over those with a draft; accepted/drafted is not alpha",
        style="dim",
    )
    for basis, note in (
        ("bounds", "alpha is not identified by these counts: they allow the range shown (derived)"),
        ("positions", "no counts of several requests: the interval takes positions as independent and is too narrow"),
        ("mean", "alpha is the constant that gives the measured mean (derived), without an interval"),
    ):
        if any(m.alpha.basis == basis for m in sources):
            console.print(note, style="dim")


def print_positions(sources: Sequence[MeasuredSource], console: Console, most: int = 12) -> None:
    """Conditional acceptance by position; the first positions only."""
    known = [m for m in sources if m.position_rates_conditional and not m.tag]
    if not known:
        return
    n = min(most, max(len(m.position_rates_conditional or ()) for m in known))
    table = figure_table(("alpha by position (measured)", "left"), *((str(i + 1), "right") for i in range(n)))
    for m in known:
        rates = m.position_rates_conditional or ()
        table.add_row(m.source, *(_number(rates[i], 2) if i < len(rates) else "" for i in range(n)))
    console.print(table)


def print_points(points: Sequence[MeasuredPoint], console: Console) -> None:
    """Where the sources lie, and one sentence each."""
    if points:
        print_point_table(points, console)
        for point in points:
            print_decision(point, console)


def print_point_table(points: Sequence[MeasuredPoint], console: Console) -> None:
    """Cost, break-even and speedup of sources on one target and card."""
    place = points[0].place
    table = figure_table(
        ("source", "left"),
        *((n, "right") for n in ("c", "alpha", "break-even", "step cost", "speedup", "best k", "then", "tokens/s")),
    )
    for p in points:
        table.add_row(
            p.measured.source,
            f"{p.c:.4f}",
            _number(p.measured.alpha.value),
            _number(p.alpha_break_even),
            _number(p.step_cost),
            "impossible" if p.impossible else f"{p.speedup:.3f}x",
            "-" if p.best_kappa is None else str(p.best_kappa),
            "-" if p.best_speedup is None else f"{p.best_speedup:.3f}x",
            f"{p.tokens_per_s:,.0f}",
        )
    console.print()
    console.print(
        f"{place.pair.target.name} on {place.pair.accelerator.name}, tp {place.pair.tp}, batch {place.batch}, context "
        f"{place.context_len}: times derived ({place.pair.layer}), acceptance measured, c {points[0].c_origin}",
        style="dim",
        markup=False,
    )
    console.print(table)


def print_decision(point: MeasuredPoint, console: Console) -> None:
    """The decision in one sentence, and expected beside observed."""
    print_line(point.sentence, console)
    if point.place.observed_step_s is not None:
        console.print(
            f"  step: {format_seconds(point.expected_step_s)} expected (derived), "
            f"{format_seconds(point.place.observed_step_s)} observed (measured)",
            style="dim",
        )
    if point.expected_emitted is not None and point.measured.tokens_per_step is not None:
        console.print(
            f"  tokens per step: {point.expected_emitted:.3f} if alpha were constant (derived), "
            f"{point.measured.tokens_per_step:.3f} observed (measured)",
            style="dim",
        )


_BARS = " ▁▂▃▄▅▆▇█"


def spark(values: Sequence[float]) -> str:
    """Values as bars from zero to the largest.

    >>> spark([0.0, 0.5, 1.0])
    ' ▄█'
    """
    top = max((v for v in values if not math.isnan(v)), default=0.0)
    if top <= 0:
        return " " * len(values)
    return "".join(" " if math.isnan(v) else _BARS[round(v / top * 8)] for v in values)


def print_drift(name: str, values: Sequence[float], found: Drift | None, console: Console) -> None:
    """Accepted tokens per step over the course of a trace."""
    if found is None:
        return
    print_line(f"{name}  accepted per step over the trace: [{spark(values)}]", console)
    if found.at_request is not None:
        console.print(
            f"  fell by {found.fall:.0%} from {found.baseline:.3f} at request {found.at_request} "
            f"({found.sigmas:.1f} standard errors)"
        )
