"""Adaptive verification on recorded requests, for people and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from specplan.decide.classes import ClassPlan
from specplan.report.grid import grid

Interval = tuple[float, float, float]


def _span(x: Interval) -> str:
    return f"{x[1]:.3f} ({x[0]:.3f}-{x[2]:.3f})"


def print_adaptive(sources: Sequence[Any], console: Console, *, where: str) -> None:
    """Sources of `specplan.traces.adaptive`: a row per batch with verified positions, tokens per step, and ratios."""
    console.print(f"\nadaptive verification {where}", highlight=False, markup=False)
    table = grid(
        "source", "batch", "verified", "of", "E", "E whole", "adaptive / plain", "whole / plain", "adaptive / whole",
        left=("source",), wrap=("source",), literal=True,
    )  # fmt: skip
    for s in sources:
        for r in s.rows:
            table.add_row(
                s.label,
                f"{r.batch:,}",
                f"{r.adaptive.verified / r.adaptive.request_steps:.2f}",
                f"{r.adaptive.drafted / r.adaptive.request_steps:.2f}",
                f"{r.adaptive.tokens_per_step:.3f}",
                f"{r.whole.tokens_per_step:.3f}",
                _span(r.speedup),
                _span(r.speedup_whole),
                _span(r.gain),
            )
    console.print(table)
    for s in sources:
        if s.note:
            console.print(f"{s.label}: {s.note}", highlight=False, markup=False)
    console.print(
        "verified: drafted positions per step and request, of those drafted; E: tokens per step. Acceptance is "
        "measured on the record, step times are modelled; in brackets the least and largest of six orders of arrival; "
        "requests are drawn again where the batch outnumbers them",
        style="dim",
        highlight=False,
    )


def adaptive_entries(sources: Sequence[Any]) -> list[dict[str, Any]]:
    """The part of the document of ``specplan replay --adaptive``."""
    return [
        {
            "source": s.label,
            "note": s.note or None,
            "rows": [
                asdict(r)
                | {f"{name}_tokens_per_s": getattr(r, name).tokens_per_s for name in ("plain", "whole", "adaptive")}
                for r in s.rows
            ],
        }
        for s in sources
    ]


def print_classes(plans: Sequence[tuple[str, Sequence[ClassPlan]]], console: Console) -> None:
    """Draft length of each class of requests by batch, beside one length for all."""
    table = grid("source", "class", "batch", "share", "k", "E", "speedup", "of the batch", "one k for all",
                 left=("source", "class"), wrap=("source",), literal=True)  # fmt: skip
    for name, rows in plans:
        for plan in rows:
            for i, r in enumerate(plan.rows):
                whole = (f"{plan.speedup:.3f}", f"{plan.one_speedup:.3f} (k {plan.one_kappa})") if i == 0 else ("", "")
                table.add_row(
                    name, r.tag or "(no tag)", f"{plan.batch:,}", f"{r.share:.0%}", str(r.kappa),
                    f"{r.tokens_per_step:.3f}", f"{r.speedup:.3f}", *whole,
                )  # fmt: skip
    console.print("\ndraft length by class of requests, all in one batch", highlight=False, markup=False)
    console.print(table)
    console.print(
        "k: drafted tokens that a class should verify, 0 where it should not speculate; share: of the recorded steps. "
        "Acceptance by position and class is measured on the record, step times are modelled",
        style="dim",
        highlight=False,
    )


def class_entries(plans: Sequence[tuple[str, Sequence[ClassPlan]]]) -> list[dict[str, Any]]:
    """The same as a part of the document of ``specplan replay --adaptive``."""
    return [{"source": name, "batches": [asdict(plan) for plan in rows]} for name, rows in plans]
