"""Best draft lengths as tables and as JSON documents."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.markup import escape

from specplan.decide.plane import Scene
from specplan.decide.source import Placed
from specplan.decide.tune import TuneCurve, TuneTable
from specplan.report.grid import grid
from specplan.report.plane_report import source_document

ASSUMPTIONS: Final = ("drafting and verifying take turns: their times add up",)
NOT_MODELED: Final = ("acceptance that changes with the draft length (a measured hazard shows it: alpha=.8/.7/.6)",)
PROVENANCE: Final = {"speedup": "derived", "loss": "derived", "best": "derived", "c": "as c_origin says"}


def table_document(found: TuneTable) -> dict[str, Any]:
    """The document of ``specplan tune`` without a source: the best length over a grid."""
    return {
        "command": "tune",
        "inputs": {"alpha": found.alpha, "c": found.c, "kappa_max": found.kappa_max},
        "best": found.best,
        "speedup": found.speedup,
        "compared": found.compared,
        "loss": found.loss,
        "provenance": PROVENANCE,
        "assumptions": ("constant acceptance", "verification costs a plain pass", *ASSUMPTIONS),
        "not_modeled": NOT_MODELED,
    }


def curves_document(
    curves: Sequence[TuneCurve], scene: Scene, *, kappa_max: int, batch: int, context_len: int
) -> dict[str, Any]:
    """The document of ``specplan tune`` with sources: each one's curve over kappa."""
    return {
        "command": "tune",
        "inputs": {"kappa_max": kappa_max, "batch": batch, "context": context_len},
        "sources": [
            {key: value for key, value in source_document(c.source).items() if key != "num_speculative_tokens"}
            | {
                "best": c.best,
                "best_speedup": float(c.speedup[c.best]),
                "last_paying": c.last_paying,
                "is_capped": c.is_capped,
                "within_2_percent": c.tolerance,
                "kappa": c.kappa,
                "speedup": c.speedup,
                "loss": c.loss,
                "c_along": c.c,
                "verify_along": c.verify,
            }
            for c in curves
        ],
        "provenance": PROVENANCE,
        "assumptions": (*ASSUMPTIONS, *scene.assumptions),
        "not_modeled": (*scene.not_modeled, *NOT_MODELED),
    }


def add_free(
    document: dict[str, Any],
    sources: Sequence[Placed],
    alpha: Sequence[float],
    tables: Sequence[Sequence[TuneCurve]],
) -> None:
    """Add to a document the sources whose acceptance is free: the best length for each alpha."""
    document["inputs"]["alpha"] = alpha
    document["sources"] += [
        source_document(source)
        | {
            "best": [c.best for c in curves],
            "speedup": [float(c.speedup[c.best]) for c in curves],
            "last_paying": [c.last_paying for c in curves],
        }
        for source, curves in zip(sources, tables, strict=True)
    ]


def _length(best: int, kappa_max: int) -> str:
    return "-" if best == 0 else f">={best}" if best == kappa_max else str(best)


def print_table(found: TuneTable, console: Console) -> None:
    """Print best length and speedup over the grid, then what each compared length loses."""
    console.print("[bold]best kappa (speedup)[/bold]; rows alpha, columns c; - where none pays", highlight=False)
    table = grid("alpha", *(f"c {c:g}" for c in found.c), literal=True)
    for i, alpha in enumerate(found.alpha):
        cells = [
            f"{_length(int(k), found.kappa_max)} ({s:.2f}x)"
            for k, s in zip(found.best[i], found.speedup[i], strict=True)
        ]
        table.add_row(f"{alpha:g}", *cells)
    console.print(table)
    if found.compared:
        console.print(
            "\n[bold]percent of the speedup that a fixed kappa loses[/bold]; kappa "
            + ", ".join(map(str, found.compared)),
            highlight=False,
        )
        lost = grid("alpha", *(f"c {c:g}" for c in found.c), literal=True)
        for i, alpha in enumerate(found.alpha):
            lost.add_row(
                f"{alpha:g}", *(" ".join(f"{100 * x:.0f}" for x in found.loss[i, j]) for j in range(found.c.size))
            )
        console.print(lost)


def print_curve(curve: TuneCurve, console: Console, *, compared: Sequence[int] = ()) -> None:
    """Print one source over its draft length: the neighbourhood of the best, and the lengths to compare."""
    s = curve.source
    console.print(f"[bold]{escape(s.label)}[/bold]: {_verdict(curve)}", highlight=False)
    shown = sorted(
        {
            k
            for k in (*range(curve.best - 3, curve.best + 4), *compared, 1, int(curve.kappa[-1]))
            if 0 < k < curve.kappa.size
        }
    )
    table = grid("kappa", "speedup", "lost", "c", "verify pass", "", literal=True)
    for k in shown:
        mark = "best" if k == curve.best else "one more token loses from here" if k == curve.last_paying else ""
        table.add_row(
            str(k),
            f"{curve.speedup[k]:.4f}x",
            f"{100 * curve.loss[k]:.1f}%",
            f"{curve.c[k]:.6g}",
            f"{curve.verify[k]:.4g}",
            mark,
        )
    console.print(table)


def _verdict(curve: TuneCurve) -> str:
    if curve.best == 0:
        return f"no draft length up to {curve.kappa[-1]} pays; do not speculate with it"
    low, high = curve.tolerance
    capped = ", the longest considered" if curve.is_capped else ""
    return f"best kappa {curve.best}{capped}, {curve.speedup[curve.best]:.4f}x; within 2% from {low} to {high}"


def print_free(
    sources: Sequence[Placed],
    alpha: Sequence[float],
    tables: Sequence[Sequence[TuneCurve]],
    console: Console,
    *,
    kappa_max: int,
) -> None:
    """Print the best length of sources of free acceptance for each alpha."""
    console.print("[bold]best kappa (speedup)[/bold] for each alpha; - where none pays", highlight=False)
    table = grid("alpha", *(s.label for s in sources), literal=True)
    table.add_row("c", *(f"{s.c:.6g} {s.c_origin}" for s in sources))
    for i, a in enumerate(alpha):
        row = [curves[i] for curves in tables]
        table.add_row(f"{a:g}", *(f"{_length(c.best, kappa_max)} ({np.max(c.speedup):.2f}x)" for c in row))
    console.print(table)
