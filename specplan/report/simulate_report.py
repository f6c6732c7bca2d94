"""`Simulation` as a table, as a JSON document, and as files of single requests and steps."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.markup import escape

from specplan.errors import InputError, MissingExtraError
from specplan.files.writing import whole, write_whole
from specplan.queueing import state as at
from specplan.queueing.answer import SCHEDULERS, Simulation, SourceAnswer
from specplan.queueing.outcome import LATENCIES, STATISTICS, Interval
from specplan.queueing.stream import Served
from specplan.report.grid import grid

FIGURES: Final = (
    "request_rate", "token_rate", "prompt_rate", "goodput", "running", "waiting", "cache_use", "preemptions",
    "accepted_length", "drafted_share", "utilisation", "draft_share", "verify_share", "host_share", "prefill_share",
    "hit_rate", "queue_s",
)  # fmt: skip

PROVENANCE: Final = {
    "latencies": "modelled",
    **dict.fromkeys(FIGURES, "modelled"),
    "blocks": "modelled",
    "acceptance": "assumed",
}


def simulate_document(r: Simulation) -> dict[str, Any]:
    """The document that ``specplan simulate --json`` prints."""
    return {
        "command": "simulate",
        "inputs": {
            "target": r.setting.target.name,
            "gpu": r.setting.on.accelerator.name,
            "engine": r.setting.on.engine.name,
            "engine_version": r.setting.on.engine.version,
            "tensor_parallel_size": r.setting.on.tp,
            "layer": r.layer,
            "load": r.load_text,
            "requests": r.requests,
            "seeds": r.seeds,
            "warmup": r.warmup,
            "limits": asdict(r.limits),
            "targets": [asdict(t) for t in r.targets],
            "replicas": r.routing.replicas,
            "routing": r.routing.by,
        },
        "sources": [_source(a, r) for a in r.answers],
        "provenance": PROVENANCE | {"scheduler": _scheduler(r)},
        "notes": r.notes,
        "assumptions": r.assumptions,
        "not_modeled": r.not_modeled,
    }


def _source(a: SourceAnswer, r: Simulation) -> dict[str, Any]:
    if a.served is None:
        return {"source": a.title, "reason": a.reason}
    figures = {name: _interval(a.figure(name)) for name in FIGURES if name != "goodput" or r.targets}
    return {
        "source": a.title,
        "kappa": a.served.kappa,
        "blocks": a.served.rules.num_blocks,
        "block_size": a.served.rules.block_size,
        "max_num_seqs": a.served.rules.max_num_seqs,
        "max_num_batched_tokens": a.served.rules.max_num_batched_tokens,
        "pool": a.served.pool.basis,
        "counted_requests": a.outcomes[0].counted,
        "latencies_s": {n: {s: _interval(a.latency(n, s)) for s in STATISTICS} for n in LATENCIES},
        **figures,
        "holds": a.holds(r.targets) if r.targets else None,
    }


def _interval(found: Interval) -> dict[str, float]:
    return {"mean": found.mean, "half_95": found.half}


def print_simulation(r: Simulation, console: Console) -> None:
    """Print latencies and rates of every source, and what they rest on."""
    where = f"{r.setting.on.tp} x {escape(r.setting.on.accelerator.name)}"
    if r.routing.replicas > 1:
        where = f"{r.routing.replicas} replicas ({r.routing.by}) of {where}"
    engine = f"{r.setting.on.engine.name} {r.setting.on.engine.version}"
    console.print(f"[bold]{escape(r.setting.target.name)}[/] on {where}, {engine}, step times {escape(r.layer)}")
    seeds = f"{r.seeds} seeds" if r.seeds > 1 else "one seed"
    console.print(f"{escape(r.load_text)}; {r.requests:,} requests, {seeds}, the first {r.warmup:.0%} left out")
    answers = [a for a in r.answers if a.served is not None]
    table = grid("", *map(_heading, answers), left=("",), literal=True)
    for name in LATENCIES:
        for statistic in STATISTICS:
            if name == "itl" and statistic in ("p50", "p90"):
                continue
            cells = [_ms(a.latency(name, statistic)) for a in answers]
            table.add_row(f"{name.upper() if name != 'e2e' else 'end to end'} {statistic}, ms", *cells)
    rows: tuple[tuple[str, str, str], ...] = (
        ("requests/s", "request_rate", "{:,.2f}"),
        ("tokens/s", "token_rate", "{:,.0f}"),
        ("goodput, requests/s", "goodput", "{:,.2f}"),
        ("running", "running", "{:,.1f}"),
        ("waiting", "waiting", "{:,.1f}"),
        ("cache in use", "cache_use", "{:.1%}"),
        ("preemptions", "preemptions", "{:,.0f}"),
        ("tokens per step", "accepted_length", "{:.2f}"),
        ("busy", "utilisation", "{:.1%}"),
        ("of it drafting", "draft_share", "{:.1%}"),
        ("of it the target", "verify_share", "{:.1%}"),
        ("of it the host", "host_share", "{:.1%}"),
        ("with prompts in the step", "prefill_share", "{:.1%}"),
    )
    for label, name, form in rows:
        if name == "goodput" and not r.targets:
            continue
        table.add_row(label, *(_with_half(a.figure(name), form) for a in answers))
    console.print(table)
    for a in r.answers:
        if a.served is None:
            console.print(f"{escape(a.title)}: cannot be served: {escape(a.reason)}")
        else:
            console.print(f"{escape(a.title)}: {a.served.rules.num_blocks:,} blocks of "
                          f"{a.served.rules.block_size}, {escape(a.served.pool.basis)}")  # fmt: skip
    for a in answers:
        if r.targets:
            verdict = "holds" if a.holds(r.targets) else "misses"
            console.print(f"[bold]{escape(a.title)} {verdict}[/] {', '.join(map(str, r.targets))}")
    for note in (*r.notes, f"scheduler {_scheduler(r)}"):
        console.print(f"note: {escape(note)}")
    console.print("[dim]not modelled: " + escape("; ".join(r.not_modeled)) + "[/]")


def _scheduler(r: Simulation) -> str:
    """What the rules of the engine's scheduler rest on."""
    return SCHEDULERS[r.setting.on.engine.family.partition("-")[0]]


def _heading(a: SourceAnswer) -> str:
    kappa = 0 if a.served is None else a.served.kappa
    return escape(a.title) + (f" k {kappa}" if kappa and "k=" not in a.title else "")


def _ms(found: Interval) -> str:
    return _with_half(Interval(mean=found.mean * 1e3, half=found.half * 1e3), "{:,.1f}")


def _with_half(found: Interval, form: str) -> str:
    if np.isnan(found.mean):
        return ""
    text = form.format(found.mean)
    return text if np.isnan(found.half) else f"{text} ± {form.format(found.half)}"


REQUEST_COLUMNS: Final = (
    "source", "request", "arrival_s", "prompt_tokens", "output_tokens", "admitted_s", "first_token_s", "finish_s",
    "ttft_s", "tpot_s", "e2e_s", "preemptions",
)  # fmt: skip


def request_rows(runs: Sequence[tuple[str, Served]]) -> Iterator[tuple[Any, ...]]:
    """A row of `REQUEST_COLUMNS` per request and source."""
    for title, served in runs:
        load = served.requests
        many = np.maximum(served.emitted - 1, 1)
        tpot = np.where(served.emitted > 1, (served.finish - served.first) / many, np.nan)
        columns = (
            load.arrival, load.prompt, served.emitted, served.start, served.first, served.finish,
            served.first - load.arrival, tpot, served.finish - load.arrival, served.preempted,
        )  # fmt: skip
        for i, row in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            yield (title, load.name(i), *row)


def write_requests(path: Path, runs: Sequence[tuple[str, Served]]) -> None:
    """Write one row per request and source as CSV, JSON lines or Parquet, by the suffix.

    Raises
    ------
    InputError
        For another suffix.
    """
    match path.suffix.lower():
        case ".csv":
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(REQUEST_COLUMNS)
            writer.writerows(request_rows(runs))
            write_whole(path, text.getvalue())
        case ".jsonl":
            rows = (dict(zip(REQUEST_COLUMNS, _no_nan(row), strict=True)) for row in request_rows(runs))
            write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))
        case ".parquet":
            try:
                import pyarrow as pa
                from pyarrow.parquet import write_table
            except ModuleNotFoundError:
                raise MissingExtraError("pyarrow", extra="replay") from None
            columns = list(zip(*request_rows(runs), strict=True))
            with whole(path) as fresh:
                write_table(pa.table(dict(zip(REQUEST_COLUMNS, columns, strict=True))), fresh)
        case other:
            raise InputError(f"--per-request {path}: {other or 'no suffix'}; expected .csv, .jsonl or .parquet")


def _no_nan(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if isinstance(v, float) and np.isnan(v) else v for v in row)


def chrome_trace(title: str, served: Served) -> dict[str, Any]:
    """Steps and requests of a logged run as Chrome trace events, which Perfetto opens.

    One track of steps; one of each place among the running requests would hide who waits, so each request has its own:
    waiting, computing its prompt, decoding, and the instants at which it lost its cache.
    """
    begin = float(served.requests.arrival[0])
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"steps, {title}"}},
        {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "requests"}},
    ]

    def us(seconds: float) -> float:
        return round((seconds - begin) * 1e6, 3)

    columns = at.STEP_COLUMNS
    for row in served.steps.tolist():
        step = dict(zip(columns, row, strict=True))
        name = f"{int(step['decodes'])} decode" + (
            f" + {int(step['prefill_tokens'])} prompt" if step["prefills"] else ""
        )
        args = {k: int(v) for k, v in step.items() if k not in ("start", "seconds")}
        events.append({"ph": "X", "pid": 1, "tid": 1, "name": name, "ts": us(step["start"]),
                       "dur": round(step["seconds"] * 1e6, 3), "args": args})  # fmt: skip
        counters = {"running": int(step["running"]), "waiting": int(step["waiting"])}
        events.append({"ph": "C", "pid": 1, "name": "requests", "ts": us(step["start"]), "args": counters})
    load = served.requests
    for i in range(len(load)):
        spans = (("waiting", load.arrival[i], served.start[i]), ("prompt", served.start[i], served.first[i]),
                 ("decode", served.first[i], served.finish[i]))  # fmt: skip
        for name, a, b in spans:
            if b > a:
                events.append({"ph": "X", "pid": 2, "tid": i + 1, "name": name, "ts": us(a),
                               "dur": round(float(b - a) * 1e6, 3), "args": {"request": load.name(i)}})  # fmt: skip
    starts = served.steps[:, 0]
    base = int(served.events[0, 0]) if served.events.size else 0
    for step_number, kind, request, _ in served.events.tolist():
        if kind == at.PREEMPT:
            events.append({"ph": "i", "pid": 2, "tid": request + 1, "s": "t", "name": "preempted",
                           "ts": us(float(starts[min(step_number - base, starts.size - 1)]))})  # fmt: skip
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_chrome_trace(path: Path, runs: Sequence[tuple[str, Served]]) -> None:
    """Write the Chrome trace of the first source."""
    write_whole(path, json.dumps(chrome_trace(*runs[0])))
