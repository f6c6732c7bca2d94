"""Recorded start-ups beside their predictions: each figure under its start, then the errors of each check."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console

from specplan.evidence.startup_checks import StartupRow
from specplan.evidence.validate_startup import EXPLAIN_BEYOND, CheckSummary
from specplan.report.grid import grid
from specplan.units import GIB


def startup_document(
    rows: Sequence[StartupRow], summaries: Sequence[CheckSummary], source: str = "shipped"
) -> dict[str, Any]:
    """The document that ``specplan validate startup --json`` prints."""
    return {
        "command": "validate",
        "inputs": {"tables": ["startup"], "rows": source},
        "summaries": [asdict(s) for s in summaries],
        "rows": [asdict(r) for r in rows],
        "provenance": {"printed": "measured", "predicted": "derived"},
        "assumptions": [
            "each row's note says what was inferred from the printed numbers",
            f"rows beyond {EXPLAIN_BEYOND:.0%} say why",
        ],
        "not_modeled": [
            "vLLM before 0.8",
            "DeepSeek-V4's packed cache",
            "the peak of vision encoders other than Qwen's",
        ],
    }


def print_startup(rows: Sequence[StartupRow], summaries: Sequence[CheckSummary], console: Console) -> None:
    """Print every start with its figures, then count, median, 90th percentile and largest error of each check."""
    for (row_id, engine, version, model), found in groupby(rows, key=lambda r: (r.id, r.engine, r.version, r.model)):
        figures = list(found)
        console.print(f"{row_id} {engine} {version}, {model}", highlight=False, soft_wrap=True, markup=False)
        for row in figures:
            if row.error is not None:
                printed, predicted = _figure(row, row.printed), _figure(row, row.predicted)
                line = f"  {row.check:<26}{printed:>14} printed {predicted:>14} predicted {row.error:>+8.2%}"
                console.print(line, highlight=False, soft_wrap=True, markup=False)
        for note in dict.fromkeys(row.note for row in figures if row.note):
            console.print(f"  {note}", style="dim", highlight=False, soft_wrap=True, markup=False)
    table = grid("errors of", "figures", "median", "90th", "largest", "row", "enclosed", left=("errors of", "row"))
    for s in summaries:
        cells = (f"{s.median:.2%}", f"{s.p90:.2%}", f"{s.largest:.2%}")
        which = f"{s.set_name}{', fitted' if s.fitted else ''}: {s.check}"
        table.add_row(which, str(s.rows), *cells, s.worst, f"{s.enclosed} of {s.bounded}" if s.bounded else "")
    console.print("\nabsolute errors of predicted (derived) against printed figures (measured)", highlight=False)
    console.print(table)
    chosen = {row.id for row in rows if row.hand_set}
    if chosen:
        console.print(f"{len(chosen)} starts have a setting that a person chose: {', '.join(sorted(chosen))}",
                      highlight=False, soft_wrap=True)  # fmt: skip
    unpredicted = len({row.id for row in rows}) - len({row.id for row in rows if row.error is not None})
    console.print(f"{unpredicted} starts are not predicted; each says why", highlight=False)


def _figure(row: StartupRow, value: float | None) -> str:
    if value is None:
        return "-"
    if row.check == "weights" or (row.check == "draft delta" and value > 1 << 20):
        return f"{value / GIB:,.2f} GiB"
    return f"{value:.4f}" if row.check == "draft delta" else f"{value:,.0f}"
