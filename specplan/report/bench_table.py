"""Measured passes as tables, as the JSON document, and as the table of step times that other commands read."""

from typing import Any, Final

from rich.console import Console

from specplan.report.measured_table import figure_table, print_line
from specplan.timing.bench_result import BenchedModel, BenchReport, BenchRow, measured_rows
from specplan.units import format_bytes, format_gib

PROVENANCE: Final = {
    "seconds": "measured",
    "floor_s": "derived",
    "floor_fraction": "derived floor over measured time",
    "calibrated_s": "derived from measured rates",
    "v": "measured",
    "v_derived": "derived",
    "c": "measured",
    "c_derived": "derived",
    "predicted_bytes": "exact",
    "measured_bytes": "measured",
}


def table_document(report: BenchReport, benched: BenchedModel) -> dict[str, Any]:
    """Step times of one model, as ``--measured NAME=FILE`` reads them."""
    return {
        "command": "bench",
        "inputs": dict(report.inputs),
        "model": benched.model.name,
        "layers": len(benched.model.layers),
        "layers_of_model": benched.layers_of_model,
        "rows": measured_rows(benched.passes),
        "skipped": list(benched.skipped),
        "provenance": {"seconds": "measured"},
        "assumptions": list(report.assumptions),
        "not_modeled": list(report.not_modeled),
    }


def _row_entry(row: BenchRow) -> dict[str, Any]:
    p = row.reading
    return {
        "batch": p.batch,
        "width": p.width,
        "context": p.context_len,
        "positions": p.positions,
        "seconds": p.seconds,
        "spread": p.spread,
        "floor_s": row.floor_s,
        "floor_fraction": row.floor_fraction,
        "calibrated_s": row.calibrated_s,
        "v": row.v,
        "v_derived": row.v_derived,
        "c": row.c,
        "c_derived": row.c_derived,
    }


def _model_entry(benched: BenchedModel) -> dict[str, Any]:
    return {
        "name": benched.model.name,
        "layers": len(benched.model.layers),
        "layers_of_model": benched.layers_of_model,
        "memory": [
            {
                "what": m.what,
                "batch": m.batch,
                "tokens": m.tokens,
                "predicted_bytes": m.predicted_bytes,
                "measured_bytes": m.measured_bytes,
            }
            for m in benched.memory
        ],
        "peak_bytes": benched.peak_bytes,
        "skipped": list(benched.skipped),
    }


def bench_document(report: BenchReport) -> dict[str, Any]:
    """The document that ``specplan bench --json`` prints."""
    card = report.accelerator
    return {
        "command": "bench",
        "inputs": dict(report.inputs),
        "card": {"name": card.name, "bandwidth_bytes_per_s": card.bandwidth, "flops_per_s": dict(card.flops)},
        "ridge_positions": report.ridge,
        "target": _model_entry(report.target) | {"rows": [_row_entry(row) for row in report.rows]},
        "draft": None
        if report.draft is None
        else _model_entry(report.draft) | {"rows": measured_rows(report.draft.passes)},
        "provenance": PROVENANCE,
        "assumptions": list(report.assumptions),
        "not_modeled": list(report.not_modeled),
    }


def _figure(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def print_bench(report: BenchReport, console: Console) -> None:
    """Passes with floor, v and c; the ridge stands between the rows that it parts; memory below."""
    card = report.accelerator
    print_line(f"{report.target.title} on {card.name} ({card.bandwidth / 1e9:,.0f} GB/s)", console)
    has_draft = report.draft is not None
    names = ["batch", "width", "positions", "context", "ms", "spread", "floor ms", "of floor", "calibrated ms"]
    names += ["v", "v derived", *(("c", "c derived") if has_draft else ())]
    table = figure_table(*((name, "right") for name in names), ("", "left"))
    for row in report.rows:
        p = row.reading
        cells = [str(n) for n in (p.batch, p.width, p.positions, p.context_len)]
        cells += [f"{1e3 * p.seconds:.3f}", f"{p.spread:.0%}", f"{1e3 * row.floor_s:.3f}", f"{row.floor_fraction:.0%}"]
        cells += ["" if row.calibrated_s is None else f"{1e3 * row.calibrated_s:.3f}"]
        cells += [_figure(row.v), _figure(row.v_derived)]
        if has_draft:
            cells += [_figure(row.c), _figure(row.c_derived)]
        table.add_row(*cells, "past the ridge" if p.positions > report.ridge else "")
    console.print(table)
    console.print(
        "ms, spread, v and c measured; floor, derived v and c from shapes and peaks; calibrated: one position per row "
        f"at the profile's measured rates; the ridge is at {report.ridge:,.0f} positions (derived)",
        style="dim",
        highlight=False,
    )
    _print_memory(report, console)
    for benched in report.models:
        if benched.is_truncated:
            print_line(
                f"{benched.model.name}: {len(benched.model.layers)} of {benched.layers_of_model} layers were run; "
                "every figure is the truncated model's",
                console,
            )
        for text in benched.skipped:
            print_line(f"{benched.model.name}, not measured: {text}", console)


def _print_memory(report: BenchReport, console: Console) -> None:
    table = figure_table(
        ("memory", "left"), ("of", "left"), *((n, "right") for n in ("predicted", "measured", "measured/predicted"))
    )
    for benched in report.models:
        for m in benched.memory:
            of = "" if m.what == "weights" else f"{m.batch} x {m.tokens:,} tokens"
            sizes = (format_bytes(m.predicted_bytes), format_bytes(m.measured_bytes))
            table.add_row(benched.model.name, f"{m.what} {of}".strip(), *sizes, f"{m.ratio:.4f}")
    console.print()
    console.print(table)
    for benched in report.models:
        if benched.peak_bytes is not None:
            print_line(f"{benched.model.name}: at most {format_gib(benched.peak_bytes)} at a time (measured)", console)
