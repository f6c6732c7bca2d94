"""Published tables against predictions, as tables and as a JSON document."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from specplan.evidence.validate import Comparison, TableReport
from specplan.report.grid import grid

_LEFT: Final = ("quantity", "rows", "row")


def validate_document(reports: Sequence[TableReport]) -> dict[str, Any]:
    """The document that ``specplan validate --json`` prints."""
    return {
        "command": "validate",
        "inputs": {"tables": [r.name for r in reports]},
        "tables": [
            {
                "name": r.name,
                "title": r.title,
                "source": r.source,
                "note": r.note,
                "summaries": [{**asdict(s), "holds": s.holds} for s in r.summaries],
                "rows": [{**asdict(c), "error": c.error} for c in r.comparisons],
                "assumptions": r.notes,
            }
            for r in reports
        ],
        "holds": holds(reports),
        "provenance": {"published": "measured", "predicted": "derived"},
        "assumptions": ["constants were fitted on the rows marked fit; rows marked test were not used"],
        "not_modeled": [],
    }


def holds(reports: Sequence[TableReport]) -> bool:
    """Whether every median lies within its limit."""
    return all(s.holds for r in reports for s in r.summaries)


def _figure(c: Comparison, value: float) -> str:
    return f"{value * 1e3:,.3f} ms" if c.unit == "s" else f"{value:.3f}"


def print_validate(reports: Sequence[TableReport], console: Console, *, rows: bool) -> None:
    """Print medians per table and quantity; with `rows` each predicted and published figure before them."""
    if rows:
        for r in reports:
            console.print(f"\n[bold]{r.name}[/bold] {escape(f'{r.title}. {r.source}')}", highlight=False)
            table = grid("row", "quantity", "rows", "predicted", "published", "error", left=_LEFT, wrap=("row",))
            for c in r.comparisons:
                figures = (_figure(c, c.predicted), _figure(c, c.published), f"{c.error:+.1%}")
                table.add_row(escape(c.label), c.quantity, c.use, *figures)
            console.print(table)
        console.print()
    table = grid("quantity", "rows", "count", "median", "signed", "worst", "limit", "", left=_LEFT)
    for r in reports:
        table.add_row(f"[bold]{r.name}[/bold]")
        for s in r.summaries:
            table.add_row(
                f"  {s.quantity}",
                s.use,
                str(s.count),
                f"{s.median_error:.1%}",
                f"{s.median_signed_error:+.1%}",
                f"{s.worst_error:+.1%}",
                "" if s.limit is None else f"{s.limit:.0%}",
                "" if s.limit is None else "[green]holds[/]" if s.holds else "[red]missed[/]",
            )
    console.print("errors of predictions (derived) against published figures (measured by others)", highlight=False)
    console.print(table)
    console.print(
        "fit: used to fit constants; test: not used; median: of absolute errors", style="dim", highlight=False
    )
    for r in reports:
        for text in (*([r.note] if r.note else []), *(r.notes if rows else ())):
            console.print(f"{r.name}: {text}", style="dim", highlight=False, markup=False)
