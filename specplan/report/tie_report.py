"""A tie between two sources as a table and as a JSON document."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.markup import escape

from specplan.decide.source import Placed
from specplan.decide.tie import Tie
from specplan.report.grid import grid
from specplan.report.plane_report import source_document
from specplan.report.source_words import acceptance_text, cost_text, name_text

ASSUMPTIONS: Final = ("drafting and verifying take turns: their times add up", "all else of the source stays as given")
NOT_MODELED: Final = ("the memory that a draft model takes and a matcher does not",)


def tie_document(
    found: Tie,
    coverage: Sequence[float],
    alpha: Sequence[float],
    prices: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
) -> dict[str, Any]:
    """The document of ``specplan tie``.

    `alpha` is what the challenger needs at each `coverage`; `prices` what the costs assume and leave out.
    """
    return {
        "command": "tie",
        "inputs": {"a": source_document(found.incumbent), "b": source_document(found.challenger)},
        "speedup": found.speedup,
        "b_speedup": found.challenger_speedup,
        "needed_tokens_per_drafted_step": found.needed_emitted,
        "is_reachable": found.is_reachable,
        "answers": {
            a.quantity.replace(" ", "_"): {"value": a.value, "given": a.given, "why": a.why or None}
            for a in found.answers
        },
        "alpha_by_coverage": [{"coverage": g, "alpha": a} for g, a in zip(coverage, alpha, strict=True)],
        "provenance": {"speedup": "derived", "answers": "derived"},
        "assumptions": (*ASSUMPTIONS, *prices[0]),
        "not_modeled": (*prices[1], *NOT_MODELED),
    }


def _described(s: Placed) -> str:
    acceptance = f", α {acceptance_text(s)}" if s.source.has_acceptance else ", α free"
    return f"{name_text(s)}, c {cost_text(s)}{acceptance}, verify {s.verify:.4g} {s.verify_origin}"


def print_tie(found: Tie, coverage: Sequence[float], alpha: Sequence[float], console: Console) -> None:
    """Print the speedup to equal, then each quantity that would do it alone."""
    console.print(f"[bold]to equal[/bold] {escape(_described(found.incumbent))}: {found.speedup:.4f}x", highlight=False)
    known = "" if found.challenger_speedup is None else f": {found.challenger_speedup:.4f}x now"
    console.print(f"[bold]must reach[/bold] {escape(_described(found.challenger))}{known}", highlight=False)
    table = grid("any one of", "needed", "given", "figure is", left=("any one of", "figure is"), literal=True)
    table.add_row("E, tokens per drafted step", _number(found.needed_emitted), "", "derived")
    for a in found.answers:
        digits = 0 if a.quantity == "kappa" else 4
        table.add_row(
            a.quantity,
            _number(a.value, digits),
            "" if a.given is None else f"{a.given:.{digits}f}",
            "derived",
        )
    console.print(table)
    for a in found.answers:
        if a.why:
            console.print(f"{a.quantity}: {a.why}", highlight=False, markup=False)
    pairs = [f"{a:.3f} at {g:.0%}" for g, a in zip(coverage, alpha, strict=True) if not np.isnan(a)]
    if pairs:
        console.print(f"α needed by coverage: {', '.join(pairs)}", highlight=False)
    if not found.is_reachable:
        console.print("[bold red]out of reach: no single quantity makes up the difference[/bold red]")


def _number(value: float, digits: int = 4) -> str:
    return "none" if np.isnan(value) else f"{value:.{digits}f}"
