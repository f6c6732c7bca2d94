"""Measured rows beside predictions, as a table and as a part of the JSON document."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from specplan.evidence.published_rows import RowResult, RowSummary
from specplan.report.grid import grid

_LEFT: Final = ("rows", "engine", "use", "row", "band rests on")


def rows_document(results: Sequence[RowResult], found: Sequence[RowSummary]) -> dict[str, Any]:
    """What ``specplan validate --json`` prints of measured rows; speedups are ratios, steps seconds."""
    return {
        "summaries": [asdict(s) for s in found],
        "rows": [
            {**asdict(r), "error": r.error, "peer_error": r.peer_error, "inside": r.inside, "right": r.right}
            for r in results
        ],
        "provenance": {"published": "measured", "predicted": "modelled"},
    }


def _figure(r: RowResult, value: float) -> str:
    return f"{value * 1e3:,.2f} ms" if r.kind == "plain_step" else f"{value:.2f}"


def _signed(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def print_rows(results: Sequence[RowResult], found: Sequence[RowSummary], console: Console, *, figures: bool) -> None:
    """Print errors by kind and engine; with `figures` each row before them."""
    if figures:
        table = grid(
            "row", "use", "predicted", "measured", "error", "peer", "band", "band rests on", left=_LEFT, wrap=("row",)
        )
        for r in results:
            ends = f"{_figure(r, r.predicted * r.band.low)} to {_figure(r, r.predicted * r.band.high)}"
            shown = (_figure(r, r.predicted), _figure(r, r.published), f"{r.error:+.1%}", _signed(r.peer_error), ends)
            table.add_row(escape(r.label), r.use, *shown, r.band.basis)
        console.print(table)
        console.print()
    table = grid(
        "rows", "engine", "use", "count", "median", "p90", "signed", "in band", "right side", "peer", left=_LEFT
    )
    for s in found:
        right = "" if s.right is None else f"{s.right:.0%}"
        errors = (f"{s.median_error:.1%}", f"{s.p90_error:.1%}", f"{s.median_signed_error:+.1%}")
        table.add_row(s.kind.replace("_", " "), s.engine, s.use, str(s.count), *errors, f"{s.inside:.0%}", right,
                      "" if s.peer_error is None else f"{s.peer_error:.1%} ({s.peer_count})")  # fmt: skip
    console.print(
        "measured speedups and plain steps (measured by others) against predictions (modelled); peer: AISimulate's "
        "median on as many of the rows as it can predict",
        highlight=False,
    )
    console.print(table)
