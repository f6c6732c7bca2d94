"""The chapter's numbers beside ours."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from specplan.evidence.chapter import ChapterRow


def chapter_document(rows: Sequence[ChapterRow]) -> dict[str, Any]:
    """The document that ``specplan check-chapter --json`` prints."""
    return {
        "command": "check-chapter",
        "inputs": {},
        "rows": [
            {
                "section": r.section,
                "sentence": r.sentence,
                "printed": r.printed,
                "value": r.value,
                "unit": r.unit,
                "origin": r.origin,
                "passes": r.passes,
            }
            for r in rows
        ],
        "failed": sum(not r.passes for r in rows),
        "assumptions": [],
        "not_modeled": [],
    }


def print_chapter(rows: Sequence[ChapterRow], console: Console) -> None:
    """Print one line per number and a closing count."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("section", style="dim", no_wrap=True)
    table.add_column("number")
    table.add_column("printed", justify="right", no_wrap=True)
    table.add_column("ours", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("origin", style="dim", no_wrap=True)
    table.add_column("", no_wrap=True)
    for r in rows:
        verdict = "[green]pass[/green]" if r.passes else "[bold red]FAIL[/bold red]"
        ours = f"{r.value:,.6g}" if r.value < 1e6 else f"{r.value:,.0f}"
        table.add_row(r.section, r.sentence, r.printed, ours, r.unit, r.origin, verdict)
    console.print(table)
    failed = sum(not r.passes for r in rows)
    console.print(f"{len(rows) - failed} pass, {failed} fail", highlight=False)
