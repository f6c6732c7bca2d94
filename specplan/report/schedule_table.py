"""`ScheduleReport` as a table, a command to paste, and a JSON document."""

from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from specplan.decide.schedule import ScheduleReport
from specplan.report.cost_report import pool_document
from specplan.report.grid import grid

PROVENANCE: Final[dict[str, str]] = {
    "ranges": "derived",
    "speedup": "derived",
    "fixed_kappa": "derived",
    "acceptance": "assumed",
    "error_band": "measured",
}


def schedule_document(r: ScheduleReport) -> dict[str, Any]:
    """The document that ``specplan schedule --json`` prints."""
    return {
        "command": "schedule",
        "inputs": {
            "target": r.target.name,
            "gpu": r.accelerator.name,
            "source": r.source.title,
            "engine": r.engine,
            "engine_version": r.engine_version,
            "tensor_parallel_size": r.tensor_parallel_size,
            "layer": r.layer,
            "max_batch": r.max_batch,
            "margin": r.margin,
        },
        "schedules": [asdict(s) for s in r.schedules],
        "dynamic": r.dynamic,
        "pool": pool_document(r.pool),
        "configuration": None if r.configuration is None else r.configuration.settings,
        "files": {} if r.configuration is None else r.configuration.files,
        "command_line": None if r.configuration is None else r.configuration.line,
        "error_band": r.error_band,
        "provenance": PROVENANCE,
        "assumptions": r.assumptions,
        "warnings": r.warnings,
        "not_modeled": r.not_modeled,
    }


def print_schedule(r: ScheduleReport, console: Console) -> None:
    """Print the ranges of each context, then the files and the command."""
    band = "" if r.error_band is None else f", error band of a speedup {r.error_band:.0%}"
    console.print(
        f"[bold]{escape(r.target.name)}[/bold] with {escape(r.source.title)} on {r.tensor_parallel_size} x "
        f"{escape(r.accelerator.name)}, "
        f"{r.engine} {r.engine_version}; times: [bold]{r.layer}[/bold]{band}",
        highlight=False,
    )
    table = grid("context", "batches", "k", "speedup (derived)", "mean", "best single k", "its mean")
    for s in r.schedules:
        for i, k in enumerate(s.ranges):
            first = i == 0
            table.add_row(
                f"{s.context_len:,}" if first else "",
                f"{k.first}-{k.last}" if k.first < k.last else str(k.first),
                str(k.kappa),
                f"{k.speedup_first:.2f} to {k.speedup_last:.2f}",
                f"{s.speedup:.2f}" if first else "",
                str(s.fixed_kappa) if first else "",
                f"{s.fixed_speedup:.2f}" if first else "",
            )
    console.print(table)
    if r.configuration is not None:
        for name, text in r.configuration.files.items():
            console.print(f"\n{name}:", highlight=False)
            console.print(text, highlight=False, markup=False, soft_wrap=True)
        console.print()
        console.print(r.configuration.line, highlight=False, markup=False, soft_wrap=True)
        console.print()
    for label, texts in (("warning", r.warnings), ("assumed", r.assumptions), ("not modelled", r.not_modeled)):
        for text in texts:
            style = "yellow" if label == "warning" else "dim"
            console.print(f"{label}: {text}", style=style, highlight=False, markup=False)
