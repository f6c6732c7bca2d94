"""Planes and sweeps as tables, as JSON documents, and as arrays in CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.markup import escape

from specplan.decide.plane import ASSUMPTIONS, NOT_MODELED, Contour, Line, Plane, Point, Scene
from specplan.decide.source import Placed
from specplan.decide.sweep import AXES, PLAIN, Curve, Sweep
from specplan.files.writing import write_whole
from specplan.report import json_document
from specplan.report.grid import grid

_NAMES: Final = ("source", "α free, to be reached")

PROVENANCE: Final[dict[str, str]] = {
    "contours": "exact",
    "speedup": "derived",
    "alpha_dagger": "derived",
    "alpha_break_even": "derived",
    "verify_factor": "derived",
    "c": "as each source says (c_origin)",
    "alpha": "as each source says (alpha_origin)",
}


def write_data(path: Path, document: dict[str, Any], rows: Iterable[Sequence[Any]]) -> None:
    """Write a document, or its rows as CSV, by the file's suffix."""
    if path.suffix.lower() == ".json":
        write_whole(path, json_document.render(document) + "\n")
        return
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    write_whole(path, buffer.getvalue())


def source_document(s: Placed) -> dict[str, Any]:
    """One source; what is not known of it is null."""
    a = s.source.alpha
    return {
        "source": s.name,
        "target": s.target or None,
        "num_speculative_tokens": s.kappa,
        "c": s.c,
        "c_origin": s.c_origin,
        "alpha": s.alpha,
        "alpha_low": None if a is None or not a.is_range else a.low,
        "alpha_high": None if a is None or not a.is_range else a.high,
        "alpha_origin": s.source.alpha_origin if s.source.has_acceptance else None,
        "hazard": s.source.hazard or None,
        "hit": s.source.hit,
        "continuation": s.source.continuation,
        "tokens_per_drafted_step": None if s.source.emitted is None else float(s.emitted()),
        "coverage": s.coverage,
        "verify_factor": s.verify,
        "verify_origin": s.verify_origin,
        "overhead": s.overhead,
        "nodes": s.nodes,
    }


def _contour(c: Contour) -> dict[str, Any]:
    inside = ~np.isnan(c.c)
    return {"speedup": c.speedup, "alpha": c.alpha[inside], "c": c.c[inside]}


def _line(line: Line) -> dict[str, Any]:
    reaches = [{"speedup": s, "alpha": a} for s, a in line.reaches]
    return source_document(line.source) | {"alpha_break_even": line.break_even, "reaches": reaches}


def _point(point: Point) -> dict[str, Any]:
    return source_document(point.source) | {
        "speedup": point.speedup,
        "alpha_on_plane": point.alpha,
        "is_exact": point.is_exact,
        "alpha_dagger": point.alpha_dagger,
        "best_num_speculative_tokens": point.best_kappa,
        "indifference": None if point.curve is None else _contour(point.curve),
    }


def plane_document(planes: Sequence[Plane], *, with_grid: bool) -> dict[str, Any]:
    """The document of ``specplan plane``; the grid of speedups (rows along c) only where it was asked for."""
    first = planes[0]
    drawn = []
    for plane in planes:
        one: dict[str, Any] = {
            "title": plane.title or None,
            "verify_factor": plane.verify,
            "ridge_positions": plane.ridge,
            "ridge_batch": plane.ridge_batch,
            "contours": [_contour(c) for c in plane.contours],
            "lines": [_line(line) for line in plane.lines],
            "points": [_point(point) for point in plane.points],
        }
        if with_grid:
            one["grid"] = {"alpha": plane.alpha, "c": plane.c, "speedup": plane.grid}
        drawn.append(one)
    return {
        "command": "plane",
        "inputs": {"num_speculative_tokens": first.kappa, "batch": first.batch, "context": first.context_len},
        "planes": drawn,
        "provenance": PROVENANCE,
        "assumptions": tuple(dict.fromkeys(line for plane in planes for line in plane.assumptions)),
        "not_modeled": tuple(dict.fromkeys(line for plane in planes for line in plane.not_modeled)),
    }


def print_notes(document: dict[str, Any], console: Console) -> None:
    """Print what a document assumes and leaves out."""
    for label, key in (("assumed", "assumptions"), ("not modelled", "not_modeled")):
        for line in document[key]:
            console.print(f"[dim]{label}: {escape(line)}[/dim]", highlight=False)


def plane_rows(planes: Sequence[Plane]) -> Iterable[Sequence[Any]]:
    """Long rows: what, plane, name, speedup, alpha, c; then the grid, cell by cell."""
    yield ("what", "plane", "name", "speedup", "alpha", "c")
    for i, plane in enumerate(planes):
        for contour in plane.contours:
            yield from _xy("contour", i, "", contour)
        for line in plane.lines:
            for level, alpha in line.reaches:
                if not np.isnan(alpha):
                    yield ("line", i, line.source.label, level, alpha, line.source.c)
        for point in plane.points:
            s = point.source
            if s.alpha is not None:
                yield ("acceptance", i, s.label, point.speedup, s.alpha, s.c)
            yield ("point", i, s.label, point.speedup, _blank(point.alpha), s.c)
            if not np.isnan(point.alpha_dagger):
                yield ("alpha-dagger", i, s.label, point.speedup, point.alpha_dagger, 0.0)
            if point.curve is not None:
                yield from _xy("indifference", i, s.label, point.curve)
        for c, row in zip(plane.c.tolist(), plane.grid.tolist(), strict=True):
            for alpha, value in zip(plane.alpha.tolist(), row, strict=True):
                yield ("grid", i, "", value, alpha, c)


def _xy(what: str, plane: int, name: str, contour: Contour) -> Iterable[Sequence[Any]]:
    for alpha, c in zip(contour.alpha.tolist(), contour.c.tolist(), strict=True):
        if not np.isnan(c):
            yield (what, plane, name, contour.speedup, alpha, c)


def _blank(value: float) -> float | str:
    return "" if np.isnan(value) else value


def sweep_document(sweep: Sweep, scenes: Sequence[Scene] = ()) -> dict[str, Any]:
    """The document of ``specplan plane --kind``: curves over one axis, and who is best where."""
    return {
        "command": "plane",
        "inputs": {"kind": sweep.kind, **sweep.held},
        "axis": {"name": sweep.kind, "meaning": AXES[sweep.kind], "values": sweep.x},
        "curves": [
            source_document(c.source)
            | {
                "speedup": c.speedup,
                "c_along": c.c,
                "verify_along": c.verify,
                "best_at": c.best_x,
                "best_speedup": c.best_speedup,
                "runs_to": c.runs_to,
                "plain_runs_to": c.plain_runs_to,
            }
            for c in sweep.curves
        ],
        "best": [{"low": r.low, "high": r.high, "source": _winner(sweep, r.winner)} for r in sweep.regions],
        "ridge": None if sweep.ridge is None else {"at": sweep.ridge.x, "positions": sweep.ridge.ridge},
        "provenance": PROVENANCE,
        "assumptions": (ASSUMPTIONS[-1], *dict.fromkeys(line for scene in scenes for line in scene.assumptions)),
        "not_modeled": (
            *dict.fromkeys(line for scene in scenes for line in scene.not_modeled),
            *(() if all(c.runs_to is not None for c in sweep.curves) else NOT_MODELED),
        ),
    }


def _winner(sweep: Sweep, index: int) -> str | None:
    return None if index == PLAIN else sweep.curves[index].source.label


def sweep_rows(sweep: Sweep) -> Iterable[Sequence[Any]]:
    """One row for each source and value of the axis."""
    yield (sweep.kind, "name", "speedup", "c", "verify_factor", "best")
    for i, curve in enumerate(sweep.curves):
        for j, x in enumerate(sweep.x.tolist()):
            s = float(curve.speedup[j])
            yield (
                x,
                curve.source.label,
                _blank(s),
                float(curve.c[j]),
                float(curve.verify[j]),
                int(sweep.winner[j] == i),
            )


def print_planes(planes: Sequence[Plane], console: Console) -> None:
    """Print each source's place on the plane; then what is assumed and left out."""
    for plane in planes:
        head = f"{escape(plane.title)}: " if plane.title else ""
        console.print(
            f"[bold]{head}plane at kappa {plane.kappa}[/bold], verify pass {plane.verify:.4g} x plain pass"
            + (
                ""
                if plane.ridge_batch is None
                else f", ridge {plane.ridge:.0f} crossed at batch {plane.ridge_batch:.0f}"
            ),
            highlight=False,
        )
        if plane.lines:
            table = grid("α free, to be reached", "c", "break-even", *(f"{s:g}x" for s in _shown(plane)), left=_NAMES)
            for line in plane.lines:
                reached = dict(line.reaches)
                cells = [_number(reached.get(s, np.nan), 4, "never") for s in _shown(plane)]
                even = _number(line.break_even, 4, "never")
                table.add_row(line.source.label, _marked(line.source.c, line.source.c_origin), even, *cells)
            console.print(table)
        if plane.points:
            table = grid("source", "κ", "steps", "c", "α", "speedup", "α†", left=_NAMES, wrap=("source",), literal=True)
            table.padding = (0, 1, 0, 0)
            for point in plane.points:
                table.add_row(*_point_cells(point))
            console.print(table)
    print_notes(plane_document(planes, with_grid=False), console)


def _shown(plane: Plane) -> list[float]:
    """Up to two speedups above 1.25 that the table has room for."""
    return [c.speedup for c in plane.contours if c.speedup > 1.25][:2]


def _marked(value: float, origin: str) -> str:
    return f"{value:.6g} {origin}"


def _point_cells(point: Point) -> list[str]:
    s = point.source
    acceptance = "" if s.alpha is None else f"{s.alpha:.4g}"
    of = s.source
    if of.hit is not None:
        acceptance = f"{of.hit:.3g}, then {of.continuation:.3g}"
    elif of.hazard and s.alpha is None:
        acceptance = "/".join(f"{h:.3g}" for h in of.hazard[: s.kappa])
    elif of.emitted is not None and s.alpha is None:
        acceptance = f"E {float(s.emitted()):.4g}"
    return [
        s.label,
        str(s.kappa),
        f"{s.coverage:.0%}",
        "0 (no weights)" if s.is_weightless else _marked(s.c, s.c_origin),
        f"{acceptance} {of.alpha_origin}",
        f"{point.speedup:.4f}x",
        _number(point.alpha_dagger, 4, point.untied),
    ]


def _number(value: float, digits: int, otherwise: str) -> str:
    return otherwise if np.isnan(value) else f"{value:.{digits}f}"


def print_sweep(sweep: Sweep, console: Console) -> None:
    """Print each source's best point, and which source is best where."""
    table = grid(f"over {sweep.kind}", "best at", "speedup", "at the ends", left=(f"over {sweep.kind}",), literal=True)
    for curve in sweep.curves:
        table.add_row(
            curve.source.label,
            _x(sweep, curve.best_x),
            f"{curve.best_speedup:.4f}x",
            f"{_end(curve, 0)} ... {_end(curve, -1)}",
        )
    console.print(table)
    for curve in sweep.curves:
        if curve.runs_to is not None and curve.plain_runs_to is not None and curve.runs_to < sweep.x[-1]:
            beside, alone = (
                f"{_x(sweep, at) if at else 'no ' + sweep.kind}" for at in (curve.runs_to, curve.plain_runs_to)
            )
            seats = f"all requests run up to {sweep.kind} {beside} beside it, {alone} without; beyond that some wait"
            console.print(f"{escape(curve.source.label)}: {seats}", highlight=False)
    best = grid("best", "from", "to", left=("best",), literal=True)
    for region in sweep.regions:
        best.add_row(_winner(sweep, region.winner) or "plain decoding", _x(sweep, region.low), _x(sweep, region.high))
    console.print(best)
    if sweep.ridge is not None:
        console.print(
            f"verified positions cross the ridge of {sweep.ridge.ridge:.0f} at {sweep.kind} {sweep.ridge.x:.1f}",
            highlight=False,
        )


def _end(curve: Curve, index: int) -> str:
    known = curve.speedup[~np.isnan(curve.speedup)]
    return f"{known[index]:.4f}x"


def _x(sweep: Sweep, value: float) -> str:
    return f"{value:.3f}" if sweep.kind == "coverage" else f"{value:,.6g}"
