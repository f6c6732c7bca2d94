"""`CostReport` as a JSON document and as a table that a person reads in ten seconds."""

from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from specplan.decide.cost import CostReport, ModelCost, fits_line
from specplan.decide.engine_cost import EngineCost
from specplan.memory.plain import PlainPool
from specplan.memory.pool import Pool
from specplan.report.json_document import whole
from specplan.units import format_bytes, format_count, format_gib, format_seconds

PROVENANCE: Final[dict[str, str]] = {
    "streamed_params": "exact",
    "gathered_params": "exact",
    "resident_params": "exact",
    "streamed_bytes_per_rank": "derived",
    "decode_floor_s": "derived",
    "kv_bytes_per_token": "exact",
    "c": "derived",
    "alpha_break_even": "derived",
    "alpha": "assumed",
    "expected_emitted": "derived",
    "speedup": "derived",
    "alpha_dagger": "derived",
    "pool": "derived",
    "pool_with_draft": "derived",
    "engine": "modelled",
    "verified_positions": "exact",
    "ridge_positions": "derived",
    "workspace_bytes": "assumed",
    "gpu_memory_utilization": "assumed",
}
"""Where each figure comes from: exact (counted), derived (from datasheet and shapes), measured, or assumed (given)."""


def _model(m: ModelCost) -> dict[str, Any]:
    return {
        "name": m.name,
        "source": m.source,
        "weight_format": m.weight_format,
        "kv_format": m.kv_format,
        "streamed_params": m.streamed_params,
        "gathered_params": m.gathered_params,
        "elementwise_params": m.elementwise_params,
        "resident_params": m.resident_params,
        "published_params": m.published_params,
        "components": m.components,
        "streamed_bytes_per_rank": whole(m.streamed_bytes_per_rank),
        "resident_bytes_per_rank": whole(m.resident_bytes_per_rank),
        "kv_read_bytes_per_rank": whole(m.kv_read_bytes_per_rank),
        "decode_floor_s": m.decode_floor_s,
        "tokens_per_s": m.tokens_per_s,
        "kv_bytes_per_token": whole(m.kv_bytes_per_token),
        "kv_bytes_per_token_per_rank": whole(m.kv_bytes_per_token_per_rank),
    }


def _pool(p: PlainPool) -> dict[str, Any]:
    return {
        "weights_bytes_per_rank": whole(p.weights_bytes_per_rank),
        "kv_bytes_per_rank": whole(p.kv_bytes_per_rank),
        "shortfall_bytes": whole(p.shortfall_bytes),
        "bytes_per_sequence_per_rank": whole(p.bytes_per_sequence_per_rank),
        "tokens": p.tokens,
        "sequences": p.sequences,
    }


def pool_document(p: Pool) -> dict[str, Any]:
    """An engine's pool, as every command writes it."""
    return {
        "basis": p.basis,
        "length": p.length,
        "slots": p.slots,
        "tokens": p.tokens,
        "requests": p.requests,
        "bytes_per_rank": whole(p.bytes_per_rank),
        "binding": p.binding,
        "longest": p.longest,
    }


def _engine(e: EngineCost) -> dict[str, Any]:
    return {
        "layer": None if e.plain_s is None else "modelled",
        "context": e.context_len,
        "plain_s": e.plain_s,
        "c": e.c,
        "verify_factor": e.verify,
        "alpha_break_even": e.alpha_break_even,
        "speedup": e.speedup,
        "speedup_low": e.speedup_low,
        "speedup_high": e.speedup_high,
        "notes": e.notes,
        "pool": pool_document(e.pool),
        "pool_with_draft": None if e.pool_with_draft is None else pool_document(e.pool_with_draft),
    }


def cost_document(r: CostReport) -> dict[str, Any]:
    """The document that ``specplan cost --json`` prints; keys that need a draft or an alpha are absent without one."""
    document: dict[str, Any] = {
        "command": "cost",
        "inputs": {
            "target": r.target.name,
            "draft": None if r.draft is None else r.draft.name,
            "gpu": r.accelerator.name,
            "tensor_parallel_size": r.tensor_parallel_size,
            "num_speculative_tokens": r.num_speculative_tokens,
            "alpha": r.alpha,
            "batch": r.batch,
            "context": r.context_len,
            "max_model_len": r.max_model_len,
            "gpu_memory_utilization": r.gpu_memory_utilization,
            "memory_source": r.memory_source,
            "memory_bytes": r.memory_bytes,
            "workspace_bytes": r.workspace_bytes,
            "bandwidth_bytes_per_s": r.accelerator.bandwidth,
        },
        "target": _model(r.target),
        "draft": None if r.draft is None else _model(r.draft),
        "c": r.c,
        "verify_factor": r.verify_factor,
        "alpha_break_even": r.alpha_break_even,
    }
    if r.alpha is not None:
        document |= {"expected_emitted": r.expected_emitted, "speedup": r.speedup, "alpha_dagger": r.alpha_dagger}
    document |= {
        "pool": _pool(r.pool),
        "pool_with_draft": None if r.pool_with_draft is None else _pool(r.pool_with_draft),
        "engine": None if r.engine is None else _engine(r.engine),
        "tokens_lost_fraction": r.tokens_lost_fraction,
        "sequences_lost_fraction": r.sequences_lost_fraction,
        "verified_positions": r.verified_positions,
        "ridge_positions": r.ridge_positions,
        "provenance": PROVENANCE,
        "assumptions": r.assumptions,
        "warnings": r.warnings,
        "not_modeled": r.not_modeled,
    }
    return document


def _model_rows(table: Table, r: CostReport) -> None:
    models = [m for m in (r.target, r.draft) if m is not None]

    def row(label: str, mark: str, cells: list[str]) -> None:
        table.add_row(label, *cells, *[""] * (2 - len(cells)), mark)

    row("streamed parameters", "exact", [format_count(m.streamed_params) for m in models])
    row("resident parameters", "exact", [format_count(m.resident_params) for m in models])
    row("weight format", "", [escape(m.weight_format) for m in models])
    row("streamed per rank and pass", "derived", [f"{m.streamed_bytes_per_rank / 1e9:.3f} GB" for m in models])
    row("weights held per rank", "derived", [format_gib(m.resident_bytes_per_rank) for m in models])
    row("floor of one pass", "derived", [format_seconds(m.decode_floor_s) for m in models])
    row("tokens/s at the floor", "derived", [f"{m.tokens_per_s:,.1f}" for m in models])
    row("KV per token, one copy", "exact", [format_bytes(m.kv_bytes_per_token) for m in models])
    row("KV format", "", [m.kv_format for m in models])


def _answer_rows(table: Table, r: CostReport) -> None:
    kappa = r.num_speculative_tokens
    if r.c is not None:
        table.add_row("c, one draft pass / one target pass", f"{r.c:.6f}", "", "derived")
        if r.verify_factor != 1:
            table.add_row("verify pass / plain pass (experts)", f"{r.verify_factor:.3f}", "", "derived")
        even = "never" if r.alpha_break_even is None else f"{r.alpha_break_even:.4f}"
        table.add_row(f"alpha to break even at kappa {kappa}", even, "", "derived")
    if r.alpha is not None:
        table.add_row("alpha (given)", f"{r.alpha:g}", "", "assumed")
        table.add_row(f"E, tokens per step at kappa {kappa}", f"{r.expected_emitted:.4f}", "", "derived")
    if r.speedup is not None:
        table.add_row("speedup", f"{r.speedup:.4f}x", "", "derived")
        tie = "none (worse than any free draft)" if r.alpha_dagger is None else f"{r.alpha_dagger:.4f}"
        table.add_row("alpha-dagger, a free draft ties at", tie, "", "derived")
    ridge = "unknown" if r.ridge_positions is None else f"{r.ridge_positions:.0f}"
    table.add_row("verified positions / ridge", f"{r.verified_positions} / {ridge}", "", "derived")


def _pool_rows(table: Table, r: CostReport) -> None:
    pools = [p for p in (r.pool, r.pool_with_draft) if p is not None]

    def row(label: str, cells: list[str], mark: str = "derived") -> None:
        table.add_row(label, *cells, *[""] * (2 - len(cells)), mark)

    row("KV pool per rank, plain subtraction", [format_gib(p.kv_bytes_per_rank) for p in pools])
    row("tokens in the pool", [f"{p.tokens:,}" for p in pools])
    row(f"whole sequences at {r.max_model_len:,}", [f"{p.sequences:,}" for p in pools])
    tokens, sequences = r.tokens_lost_fraction, r.sequences_lost_fraction
    if tokens is not None:
        row("lost to the draft: tokens", ["", f"{tokens:.1%}"])
    if sequences is not None:
        row("lost to the draft: sequences", ["", f"{sequences:.1%}"])


def _engine_rows(table: Table, r: CostReport) -> None:
    e = r.engine
    if e is None:
        return
    kappa = r.num_speculative_tokens
    if e.plain_s is not None:
        table.add_row("plain step", format_seconds(e.plain_s), "", "modelled")
    if e.c is not None and e.verify is not None:
        table.add_row("c, drafting a token / a plain step", "", f"{e.c:.4f}", "modelled")
        table.add_row("v, verify step / a plain step", "", f"{e.verify:.4f}", "modelled")
        even = "never" if e.alpha_break_even is None else f"{e.alpha_break_even:.4f}"
        table.add_row(f"alpha to break even at kappa {kappa}", "", even, "modelled")
    if e.speedup is not None:
        ends = f"{e.speedup:.2f}x ({e.speedup_low:.2f}-{e.speedup_high:.2f})"
        table.add_row("speedup, with its error band", "", ends, "modelled")
    held = [p for p in (e.pool, e.pool_with_draft) if p is not None]
    mark = "derived" if held[0].prediction is None else "modelled"
    cells = [f"{p.requests:,}" for p in held]
    table.add_row(f"requests of {held[0].length:,} (see blocks)", *cells, *[""] * (2 - len(cells)), mark)


def print_cost(r: CostReport, console: Console) -> None:
    """Print the report: three short tables, then what is assumed, warned of and left out."""
    tp, card = r.tensor_parallel_size, r.accelerator
    at = f"batch {r.batch}, context {r.context_len:,}" if r.context_len else f"batch {r.batch}"
    console.print(
        f"[bold]{escape(r.target.name)}[/bold]"
        + (f" with draft [bold]{escape(r.draft.name)}[/bold]" if r.draft else "")
        + f" on {tp} x {escape(card.name)} ({card.bandwidth / 1e9:,.0f} GB/s), {at}",
        highlight=False,
    )
    second = r.draft.name if r.draft else ""
    _print_table(console, ("", r.target.name, second, "figure is"), r, _model_rows)
    _print_table(console, ("speculation", "", "", "figure is"), r, _answer_rows)
    title = f"memory: {r.gpu_memory_utilization:g} of {format_gib(r.memory_bytes)} ({r.memory_source})"
    _print_table(console, (title, "target alone", "with draft" if r.draft else "", "figure is"), r, _pool_rows)
    if r.engine is not None:
        name = r.engine.pool.basis.partition(":")[0].removeprefix("blocks of ")
        at = f"{name}, batch {r.batch}, context {r.engine.context_len:,}"
        heads = (at, "target alone", "with draft" if r.draft else "", "figure is")
        _print_table(console, heads, r, _engine_rows)
    for pool, who in ((r.pool, r.target.name), (r.pool_with_draft, "with the draft, it")):
        line = None if pool is None else fits_line(pool)
        if line:
            console.print(f"{who} {line}", style="bold red", markup=False, highlight=False)
    for label, lines in (("warning", r.warnings), ("assumed", r.assumptions), ("not modelled", r.not_modeled)):
        for line in lines:
            style = "yellow" if label == "warning" else "dim"
            console.print(f"{label}: {line}", style=style, markup=False, highlight=False)


def _print_table(console: Console, heads: tuple[str, str, str, str], r: CostReport, fill: Any) -> None:
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(heads[0], no_wrap=True, min_width=36)
    table.add_column(escape(heads[1]), justify="right", min_width=14, overflow="fold")
    table.add_column(escape(heads[2]), justify="right", min_width=14, overflow="fold")
    table.add_column(heads[3], style="dim")
    fill(table, r)
    console.print()
    console.print(table)
