"""`Capacity` as a table and as a JSON document."""

from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from specplan.queueing.answer import ASSUMPTIONS, NOT_MODELED
from specplan.queueing.capacity import LARGE_GAP, Capacity, Found, inputs
from specplan.report.grid import grid

PROVENANCE: Final = {
    "rate": "modelled: simulated with modelled step times",
    "estimated_rate": "modelled: Little's law at the fixed point of batch and step time",
    "replicas": "derived",
    "cost_per_million": "derived",
    "joules_per_token": "derived: upper bound from board power",
}


def capacity_document(r: Capacity) -> dict[str, Any]:
    """The document that ``specplan capacity --json`` prints."""
    return {
        "command": "capacity",
        "inputs": {"target": r.target, **inputs(r.question)},
        "candidates": [
            {
                **asdict(f),
                "cards": f.cards,
                "gap": f.gap,
                "load": f.load(r.question.load.rate or 0.0),
                "cost_per_million": r.cost_per_million(f),
                "joules_per_token": r.joules_per_token(f),
            }
            for f in r.found
        ],
        "reaches": r.reaches,
        "provenance": PROVENANCE,
        "assumptions": ASSUMPTIONS,
        "not_modeled": (*NOT_MODELED, "routing between replicas: each gets an equal share of the arrivals at random"),
    }


def print_capacity(r: Capacity, console: Console) -> None:
    """Print the candidates, best first, and the answer in one sentence."""
    q = r.question
    load = q.load
    console.print(
        f"[bold]{escape(r.target)}[/], {load.rate:g} requests/s, {load.input.text if load.input else '?'} in, "
        f"{load.output.text if load.output else '?'} out; {', '.join(map(str, q.targets))}"
    )
    names = ["cards", "each", "source", "rate", "estimate", "load", "TTFT p95", "TPOT p95", "binds"]
    priced = any(r.cost_per_million(f) is not None for f in r.found)
    names += ["per M"] if priced else []
    names += ["J/token"] if any(r.joules_per_token(f) is not None for f in r.found) else []
    table = grid(*names, left=("each", "source", "binds"), literal=True)
    for f in r.found:
        if f.replicas:
            table.add_row(*_row(r, f, names))
    console.print(table)
    for f in r.found:
        if not f.replicas:
            console.print(f"{f.tp} x {escape(f.gpu)}, {escape(f.source)}: {escape(f.reason)}")
        elif abs(f.gap) > LARGE_GAP:
            console.print(
                f"{f.tp} x {escape(f.gpu)}, {escape(f.source)}: the estimate of {f.estimated_rate:.3g} requests/s is "
                f"{f.gap:+.0%} off the simulated {f.rate:.3g}"
            )
    if r.reaches:
        best = r.found[0]
        cost = r.cost_per_million(best)
        money = "" if cost is None else f", {cost:.2f} per million output tokens"
        console.print(
            f"[bold]{best.replicas} x {best.tp} x {escape(best.gpu)} with {escape(best.source)}[/]"
            f"{f', k {best.kappa}' if best.kappa else ''}: holds {best.rate:.3g} requests/s each{money}."
        )
    else:
        console.print("[bold]nothing reaches the targets[/]")


def _row(r: Capacity, f: Found, names: list[str]) -> list[str]:
    cost, joules = r.cost_per_million(f), r.joules_per_token(f)
    cells = {
        "cards": str(f.cards),
        "each": f"{f.replicas} x {f.tp} x {f.gpu}",
        "source": f.source,
        "rate": f"{f.rate:.3g}",
        "estimate": f"{f.estimated_rate:.3g}",
        "load": f"{f.load(r.question.load.rate or 0.0):.0%}",
        "TTFT p95": f"{f.ttft_p95_s * 1e3:,.0f} ms",
        "TPOT p95": f"{f.tpot_p95_s * 1e3:,.1f} ms",
        "binds": f.binds,
        "per M": "" if cost is None else f"{cost:,.3f}",
        "J/token": "" if joules is None else f"{joules:,.2f}",
    }
    return [cells[name] for name in names]
