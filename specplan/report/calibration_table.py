"""A calibration as tables and as a JSON document."""

from typing import Any, Final

from rich.console import Console

from specplan.report.measured_table import figure_table, print_line
from specplan.timing.calibration import CalibrationReport
from specplan.units import format_bytes, format_gib, format_seconds

_KINDS: Final = {
    "read": "a long vector, reduced",
    "copy": "a long vector, read and written",
    "weights": "one position through matrices",
    "cache": "one query over keys and values",
}


def calibration_document(report: CalibrationReport) -> dict[str, Any]:
    """The document that ``specplan calibrate --json`` prints."""
    r, card = report.readings, report.profile
    own = card.calibration
    return {
        "command": "calibrate",
        "inputs": dict(report.inputs),
        "device": r.device,
        "torch": r.torch_version,
        "date": r.date,
        "threads": r.threads,
        "bandwidth": [
            {
                "kind": b.kind,
                "format": b.format,
                "moved_bytes": b.moved_bytes,
                "best_s": b.best_s,
                "median_s": b.median_s,
                "bytes_per_s": b.rate,
            }
            for b in r.bandwidth
        ],
        "matmul": [
            {
                "format": m.format,
                "rows": m.rows,
                "inner": m.inner,
                "outer": m.outer,
                "best_s": m.best_s,
                "median_s": m.median_s,
                "flops_per_s": m.rate,
            }
            for m in r.matmul
        ],
        "launch": {
            "kernel_s": r.launch.kernel_s,
            "graphed_kernel_s": r.launch.graphed_kernel_s,
            "layer_s": r.launch.layer_s,
        },
        "repeat_apart": r.apart,
        "profile": {
            "name": card.name,
            "bandwidth_bytes_per_s": card.bandwidth,
            "flops_per_s": dict(card.flops),
            "calibration": None
            if own is None
            else {name: getattr(own, name) for name in own.sources} | {"date": own.date, "source": own.source},
        },
        "provenance": {"bandwidth": "measured", "matmul": "measured", "launch": "measured"},
        "assumptions": ["the best of the runs is the device's own; a shared machine only slows a run down"],
        "not_modeled": list(report.not_modeled),
    }


def print_calibration(report: CalibrationReport, console: Console) -> None:
    """What was measured, and what the profile makes of it."""
    r = report.readings
    print_line(r.provenance, console)
    memory = r.memory_torch_bytes
    if memory is not None:
        print_line(f"memory {format_gib(memory)}", console)
    table = figure_table(
        ("bandwidth (measured)", "left"),
        ("format", "left"),
        *((name, "right") for name in ("moved", "best", "median", "GB/s")),
    )
    for b in r.bandwidth:
        moved, best, median = format_bytes(b.moved_bytes), format_seconds(b.best_s), format_seconds(b.median_s)
        table.add_row(f"{b.kind}: {_KINDS[b.kind]}", b.format, moved, best, median, f"{b.rate / 1e9:,.1f}")
    console.print(table)
    formats = list(dict.fromkeys(m.format for m in r.matmul))
    rows = sorted({m.rows for m in r.matmul})
    table = figure_table(("positions M", "right"), *((f"{f} TFLOP/s", "right") for f in formats))
    rate = {(m.rows, m.format): m.rate for m in r.matmul}
    for n in rows:
        table.add_row(str(n), *(f"{rate[n, f] / 1e12:.4g}" if (n, f) in rate else "" for f in formats))
    console.print(table)
    side = r.matmul[0]
    graphed = r.launch.graphed_kernel_s
    in_graph = "" if graphed is None else f", {format_seconds(graphed)} inside a graph"
    print_line(
        f"matmul of M x {side.inner} x {side.outer} (measured); launch: {format_seconds(r.launch.kernel_s)} a kernel"
        f"{in_graph}; {format_seconds(r.launch.layer_s)} a decoder layer of negligible size",
        console,
    )
    for note in report.notes:
        print_line(note, console)
