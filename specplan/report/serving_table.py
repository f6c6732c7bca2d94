"""Measured servers under load beside their simulation, as a table and as a JSON document."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from specplan.evidence.validate_serving import ServingRow
from specplan.report.grid import grid


def _summaries(rows: Sequence[ServingRow]) -> list[dict[str, Any]]:
    """Errors by source and measure; the first row of a shape is 1 by construction and does not count."""
    found = []
    for source, measure in dict.fromkeys((r.source, r.measure) for r in rows):
        errors = np.array([r.error for r in rows if (r.source, r.measure) == (source, measure)])
        counted = errors[1:] if measure.startswith("growth") else errors
        if counted.size:
            found.append({
                "source": source, "measure": measure, "count": int(counted.size),
                "median_error": float(np.median(np.abs(counted))), "largest_error": float(np.abs(counted).max()),
                "median_signed_error": float(np.median(counted)),
            })  # fmt: skip
    return found


def serving_document(rows: Sequence[ServingRow], source: str) -> dict[str, Any]:
    """The document that ``specplan validate serving --json`` prints."""
    return {
        "command": "validate",
        "inputs": {"tables": ["serving"], "rows": source},
        "summaries": _summaries(rows),
        "rows": [{**asdict(r), "error": r.error} for r in rows],
        "provenance": {"measured": "measured", "simulated": "modelled"},
        "assumptions": ["prompts and outputs have the stated mean lengths, each request the same"],
        "not_modeled": ["what a client adds: HTTP, tokenising"],
    }


def print_serving(rows: Sequence[ServingRow], console: Console) -> None:
    """Print each row, then the errors by source."""
    table = grid("server", "use", "figure", "simulated", "measured", "error", left=("server", "use", "figure"),
                 wrap=("server",))  # fmt: skip
    for r in rows:
        table.add_row(escape(r.label), r.use, r.measure, f"{r.simulated:,.4g}", f"{r.measured:,.4g}", f"{r.error:+.1%}")
    console.print(table)
    for note in dict.fromkeys(r.note for r in rows if r.note):
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)
    console.print()
    table = grid("source", "figure", "count", "median", "largest", "signed", left=("source", "figure"))
    for s in _summaries(rows):
        errors = (f"{s['median_error']:.1%}", f"{s['largest_error']:.1%}", f"{s['median_signed_error']:+.1%}")
        table.add_row(escape(s["source"]), s["measure"], str(s["count"]), *errors)
    console.print("closed loads measured by others (measured) against their simulation (modelled)", highlight=False)
    console.print(table)
