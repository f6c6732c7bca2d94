"""A pass kernel by kernel, as a table and as a part of a JSON document."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from specplan.decide.pass_detail import KernelRow
from specplan.report.grid import grid


def kernels_document(rows: Sequence[KernelRow]) -> list[dict[str, Any]]:
    """Kernels of a pass, each with the share of its time that the roofline explains."""
    return [{**asdict(r), "share_of_floor": r.floor_s / r.seconds if r.seconds else None} for r in rows]


def print_kernels(rows: Sequence[KernelRow], title: str, console: Console) -> None:
    """Print kernels, the longest first, and their sum."""
    table = grid("kernel", "count", "ms", "of the pass", "floor ms", "share of floor", left=("kernel",))
    whole, floor = sum(r.seconds for r in rows), sum(r.floor_s for r in rows)
    for r in rows:
        share = f"{r.floor_s / r.seconds:.0%}" if r.seconds else ""
        shown = (f"{r.seconds * 1e3:.3f}", f"{r.seconds / whole:.0%}", f"{r.floor_s * 1e3:.3f}", share)
        table.add_row(r.name, str(r.count), *shown)
    table.add_row("sum", "", f"{whole * 1e3:.3f}", "100%", f"{floor * 1e3:.3f}", f"{floor / whole:.0%}")
    console.print(f"\n{title}: modelled, host time aside", highlight=False)
    console.print(table)
