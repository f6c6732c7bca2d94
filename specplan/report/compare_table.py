"""`CompareReport` as tables and as a JSON document."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from specplan.decide.compare import Capacity, CompareReport
from specplan.decide.offered import Cell, Need
from specplan.decide.sensitivity import Swing
from specplan.report.grid import grid
from specplan.units import format_seconds

_Column = tuple[str, Callable[[Cell], str]]

PROVENANCE: Final[dict[str, str]] = {
    "acceptance": "assumed",
    "coverage": "assumed",
    "emitted": "derived",
    "plain_s": "derived",
    "draft_s": "derived",
    "verify_s": "derived",
    "host_s": "measured",
    "step_s": "derived",
    "speedup": "derived",
    "ratio": "derived",
    "tokens_s_request": "derived",
    "tokens_s_gpu": "derived",
    "sequences": "modelled",
    "throughput_ratio": "derived",
    "fit": "modelled",
    "needs": "derived",
    "crossover_batch": "derived",
    "cost_per_million": "derived",
    "joules_per_token": "derived",
    "error_band": "measured",
}
"""Where each figure comes from. ``derived`` from counted loads and the rates of the named layer."""


def compare_document(r: CompareReport) -> dict[str, Any]:
    """The document that ``specplan compare --json`` prints."""
    return {
        "command": "compare",
        "inputs": {
            "target": r.target.name,
            "gpu": r.accelerator.name,
            "engine": r.engine,
            "engine_version": r.engine_version,
            "tensor_parallel_size": r.tensor_parallel_size,
            "layer": r.layer,
            "sources": [s.title for s in r.sources],
            "batch": list(dict.fromkeys(c.offered for c in r.cells)),
            "context": list(dict.fromkeys(c.context_len for c in r.cells)),
        },
        "layer": r.layer,
        "error_band": r.error_band,
        "cells": [asdict(c) for c in r.cells],
        "capacities": [asdict(c) for c in r.capacities],
        "needs": [asdict(n) for n in r.needs],
        "answers": r.sentences,
        "sensitivity_of": r.sensitivity_of,
        "sensitivity": [asdict(s) for s in r.sensitivity],
        "pays": r.pays,
        "fits": r.fits,
        "provenance": PROVENANCE,
        "assumptions": r.assumptions,
        "warnings": r.warnings,
        "not_modeled": r.not_modeled,
    }


_LEFT: Final = ("source", "verdict", "bound by", "input")
_STYLES: Final = {"pays": "green", "does not pay": "red", "does not fit": "red", "uncertain": "yellow"}


_EVERYWHERE: Final = ("batch", "source", "k", "ms/token", "tok/s GPU", "ratio", "verdict")
_KEYS: Final = ("batch", "source")
_FROM_110: Final = ("run", "tokens/step", "step", "speedup", "bound by")
"""Columns that a terminal of 80 shows, and those that one of 110 adds; the others need 150."""


def _columns(r: CompareReport) -> list[_Column]:
    columns: list[_Column] = [
        ("batch", lambda c: str(c.offered) + ("" if c.fits else "*")),
        ("run", lambda c: str(c.batch)),
        ("source", lambda c: escape(c.source)),
        ("k", lambda c: str(c.kappa) if c.kappa else ""),
        ("tokens/step", _emitted),
        ("draft", lambda c: _ms(c.draft_s)),
        ("verify", lambda c: _ms(c.verify_s)),
        ("step", lambda c: _ms(c.step_s)),
        ("ms/token", _per_token_of_bounds if r.layer == "roofline" else lambda c: _ms(c.per_token_s)),
        ("tok/s req", lambda c: f"{c.tokens_s_request:,.0f}"),
        ("tok/s GPU", lambda c: f"{c.tokens_s_gpu:,.0f}"),
        ("speedup", lambda c: f"{c.speedup:.2f}"),
        ("ratio", _ratio),
        ("verdict", lambda c: f"[{_STYLES[c.verdict]}]{c.verdict}[/]" if c.verdict else ""),
        ("bound by", lambda c: c.binding),
        ("J/token", lambda c: "?" if c.joules_per_token is None else f"{c.joules_per_token:,.2f}"),
    ]
    if any(c.cost_per_million is not None for c in r.cells):
        columns.append(("per M", lambda c: "" if c.cost_per_million is None else f"{c.cost_per_million:,.2f}"))
    return columns


def _tables(columns: Sequence[_Column], width: int) -> list[list[_Column]]:
    """The columns of each table: where they have no room side by side, what decides first, then what explains it."""
    if width >= 150:
        return [list(columns)]
    first = [c for c in columns if c[0] in (*_EVERYWHERE, "per M") or (width >= 110 and c[0] in _FROM_110)]
    return [first, [c for c in columns if c[0] in _KEYS or c not in first]]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds else ""


def _per_token_of_bounds(c: Cell) -> str:
    return f"{c.per_token_low_s * 1e3:.2f}-{c.per_token_high_s * 1e3:.2f}"


def _emitted(c: Cell) -> str:
    ends = f" ({c.emitted_low:.2f}-{c.emitted_high:.2f})" if c.emitted_low < c.emitted_high else ""
    return f"{c.emitted:.2f}{ends}"


def _ratio(c: Cell) -> str:
    if not c.verdict:
        return f"{c.ratio:.2f}"
    return f"{c.ratio:.2f} ({c.ratio_low:.2f}-{c.ratio_high:.2f})"


def print_compare(r: CompareReport, console: Console, *, verdict: bool = False) -> None:
    """Print one table per context, the capacities, what moves the answer, the assumptions, and the verdict if asked."""
    where = f"{r.tensor_parallel_size} x {escape(r.accelerator.name)}, {r.engine} {r.engine_version}"
    head = f"[bold]{escape(r.target.name)}[/bold] on {where}"
    band = "" if r.error_band is None else f", error band of a speedup {r.error_band:.0%}"
    console.print(f"{head}; times: [bold]{r.layer}[/bold]{band}", highlight=False)
    columns = _columns(r)
    if getattr(console, "form", "table") != "table":  # a table that is pasted has no heading
        columns.insert(0, ("context", lambda c: f"{c.context_len:,}"))
    for context in dict.fromkeys(c.context_len for c in r.cells):
        console.print(
            f"\ncontext {context:,}: derived, acceptance as given; ratio: tokens/s over plain decoding at its own fit",
            highlight=False,
        )
        for shown in _tables(columns, console.width):
            table = grid(*(name for name, _ in shown), left=_LEFT, wrap=("source",))
            for batch in dict.fromkeys(c.offered for c in r.cells):
                for cell in (c for c in r.cells if (c.context_len, c.offered) == (context, batch)):
                    table.add_row(*(show(cell) for _, show in shown))
            console.print(table)
    console.print()
    _print_capacities(r.capacities, console)
    if r.needs:
        console.print()
        _print_needs(r.needs, console)
    if r.sensitivity:
        console.print()
        _print_sensitivity(r.sensitivity, r.sensitivity_of, console)
    lines = (("warning", r.warnings), ("assumed", r.assumptions), ("not modelled", r.not_modeled))
    for label, texts in lines:
        for text in texts:
            style = "yellow" if label == "warning" else "dim"
            console.print(f"{label}: {text}", style=style, highlight=False, markup=False)
    if verdict:
        console.print(_verdict(r), style="bold", highlight=False, markup=False)
    for line in r.sentences:
        console.print(line, style="bold", highlight=False, markup=False)


def _verdict(r: CompareReport) -> str:
    paid = {(c.offered, c.context_len) for c in r.cells if c.verdict == "pays"}
    unpaid = dict.fromkeys((c.offered, c.context_len) for c in r.cells if (c.offered, c.context_len) not in paid)
    if not r.fits:
        return "verdict: no, it does not fit"
    if not unpaid:
        return "verdict: yes, some source pays at every batch and context"
    where = "; ".join(f"batch {b}, context {t:,}" for b, t in unpaid)
    return f"verdict: no, no source is sure to pay at {where}"


def _print_needs(needs: tuple[Need, ...], console: Console) -> None:
    console.print(
        "what sources of unknown acceptance must reach (derived; nothing is assumed about it)", highlight=False
    )
    table = grid("batch", "context", "source", "k", "run", "alpha", "coverage", "published alpha", left=_LEFT)
    for n in needs:
        alpha = "does not fit" if n.fit < 1 else "not even 1" if n.alpha is None else f"{n.alpha:.3f}"
        known = "" if n.published is None else f"{n.published[0]:.2f}-{n.published[1]:.2f}"
        coverage = "" if n.coverage is None else f"{n.coverage:.0%}"
        table.add_row(
            str(n.load), f"{n.context_len:,}", escape(n.source), str(n.kappa), str(n.running), alpha, coverage, known
        )
    console.print(table)
    for name, published in dict.fromkeys((n.source, n.published) for n in needs):
        if published is not None:
            text = f"published, {name}: other models and texts than yours: {published[2]}"
            console.print(text, style="dim", highlight=False, markup=False)
    for name, command in dict.fromkeys((n.source, n.measure) for n in needs):
        console.print(f"measure {name}: {command}", highlight=False, markup=False)


def _print_capacities(capacities: tuple[Capacity, ...], console: Console) -> None:
    heads = ("context", "source", "fit", "lost", "tok/s GPU", "ratio", "pays at", "stops at")
    table = grid(*heads, left=_LEFT, wrap=("source",))
    for c in capacities:
        ranges = ", ".join(f"{a}-{z}" if a < z else str(a) for a, z in c.pays_batches)
        table.add_row(
            f"{c.context_len:,}",
            escape(c.source),
            str(c.sequences),
            str(c.sequences_lost) if c.sequences_lost else "",
            f"{c.tokens_s_gpu:,.0f}",
            "" if c.throughput_ratio != c.throughput_ratio else f"{c.throughput_ratio:.2f}",
            ranges if c.source != "none" else "",
            "" if c.crossover_batch is None else str(c.crossover_batch),
        )
    console.print("requests that fit the cache, and the throughput at that concurrency", highlight=False)
    console.print(table)


def _print_sensitivity(swings: tuple[Swing, ...], about: str, console: Console) -> None:
    console.print(f"what moves the speedup of {about}", highlight=False, markup=False)
    table = grid("input", "low", "best", "high", "speedup at low", "at high", left=_LEFT)
    for s in swings:
        show = format_seconds if s.name.endswith("_s") else "{:,.3g}".format
        table.add_row(s.name, show(s.low), show(s.best), show(s.high), f"{s.speedup_low:.3f}", f"{s.speedup_high:.3f}")
    console.print(table)
