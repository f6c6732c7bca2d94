"""What was read from engines, for people and as JSON: each figure with its translation."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from rich.console import Console

from specplan.decide.change import Break, changes
from specplan.decide.measured import MeasuredSource
from specplan.decide.measured_point import MeasuredPoint
from specplan.report.measured_document import envelope, measured_entry, point_entry
from specplan.report.measured_table import (
    figure_table,
    print_line,
    print_measured,
    print_points,
    print_positions,
)


class EngineFigure(Protocol):
    """One figure of an engine and its translation."""

    @property
    def name(self) -> str:
        """As the engine spells it."""
        ...

    @property
    def value(self) -> float | tuple[float, ...]:
        """As the engine gave it."""
        ...

    @property
    def meaning(self) -> str:
        """The engine's definition."""
        ...

    @property
    def ours(self) -> str:
        """What it is here."""
        ...

    @property
    def kind(self) -> str:
        """Measured or derived."""
        ...


class EngineSpeed(Protocol):
    """Speeds that a benchmark measured from outside."""

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens per second."""
        ...

    @property
    def token_s(self) -> float | None:
        """Seconds per output token."""
        ...

    @property
    def chunk_s(self) -> float | None:
        """Seconds between answers of a stream."""
        ...

    @property
    def first_s(self) -> float | None:
        """Seconds to the first token."""
        ...

    @property
    def concurrency(self) -> float | None:
        """Requests in flight."""
        ...


class EngineObservation(Protocol):
    """What was read from one engine."""

    @property
    def engine(self) -> str:
        """Engine."""
        ...

    @property
    def origin(self) -> str:
        """File or URL."""
        ...

    @property
    def translations(self) -> Sequence[EngineFigure]:
        """Its figures."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of its series."""
        ...

    @property
    def step_s(self) -> float | None:
        """Mean seconds per step."""
        ...

    @property
    def speed(self) -> EngineSpeed | None:
        """Speeds of a benchmark."""
        ...

    @property
    def window_s(self) -> float | None:
        """Seconds between scrapes."""
        ...

    @property
    def mean_batch(self) -> float | None:
        """Requests per engine iteration."""
        ...


class IngestedSource(Protocol):
    """An observation, summarised and placed."""

    @property
    def seen(self) -> EngineObservation:
        """The observation."""
        ...

    @property
    def measured(self) -> MeasuredSource:
        """Its summary."""
        ...

    @property
    def point(self) -> MeasuredPoint | None:
        """Its place."""
        ...

    @property
    def earlier(self) -> MeasuredSource | None:
        """The same at an earlier time."""
        ...

    @property
    def found_break(self) -> Break | None:
        """Change of level within a dated log."""
        ...


def ingest_document(inputs: dict[str, Any], found: Sequence[IngestedSource]) -> dict[str, Any]:
    """The document that ``specplan ingest --json`` prints."""
    entries = []
    for item in found:
        seen = item.seen
        entry = measured_entry(item.measured)
        entry["engine"], entry["origin"], entry["labels"] = seen.engine, seen.origin, dict(seen.labels)
        entry["observed_step_s"], entry["window_s"], entry["mean_batch"] = seen.step_s, seen.window_s, seen.mean_batch
        entry["accepted_tokens_per_s"] = rate(item)
        entry["changes"] = (
            None
            if item.earlier is None
            else [asdict(c) | {"direction": c.direction} for c in changes(item.earlier, item.measured)]
        )
        b = item.found_break
        entry["break"] = None if b is None else asdict(b)
        s = seen.speed
        entry["speed"] = (
            None
            if s is None
            else {n: getattr(s, n) for n in ("tokens_per_s", "token_s", "chunk_s", "first_s", "concurrency")}
        )
        entry["translations"] = [
            {"name": t.name, "value": t.value, "meaning": t.meaning, "ours": t.ours, "kind": t.kind}
            for t in seen.translations
        ]
        entry["point"] = None if item.point is None else point_entry(item.point)
        entries.append(entry)
    return envelope("ingest", inputs, entries)


def rate(item: IngestedSource) -> float | None:
    """Accepted tokens per second in the window between two scrapes."""
    tally = item.measured.tally
    if tally is None or tally.accepted_tokens is None or not item.seen.window_s:
        return None
    return tally.accepted_tokens / item.seen.window_s


def _value(value: float | tuple[float, ...]) -> str:
    if isinstance(value, tuple):
        shown = ", ".join(f"{v:.4g}" for v in value[:8])
        return shown + (", ..." if len(value) > 8 else "")
    return f"{value:,.10g}"


def print_ingest(found: Sequence[IngestedSource], console: Console) -> None:
    """Translations of each engine, the common table, and the decision."""
    for item in found:
        seen = item.seen
        print_line(f"{seen.engine}: {item.measured.source} ({seen.origin})", console)
        table = figure_table(("engine's figure", "left"), ("value", "right"), ("means", "left"), ("here", "left"))
        for t in seen.translations:
            table.add_row(t.name, _value(t.value), t.meaning, f"{t.ours} ({t.kind})")
        console.print(table)
        for note in item.measured.notes:
            print_line(f"note: {note}", console)
        if (per_second := rate(item)) is not None:
            print_line(f"{per_second:,.1f} accepted tokens/s over {item.seen.window_s:,.1f} s", console)
        _print_changes(item, console)
        console.print()
    _print_speeds(found, console)
    print_measured([item.measured for item in found], console)
    print_positions([item.measured for item in found], console)
    for item in found:
        print_points([item.point] if item.point is not None else [], console)


def _print_changes(item: IngestedSource, console: Console) -> None:
    """What fell or rose since before, and where a dated log breaks."""
    if item.earlier is not None:
        for change in changes(item.earlier, item.measured):
            print_line(change.sentence, console)
    if item.found_break is not None:
        print_line(item.found_break.sentence, console)


def _print_speeds(found: Sequence[IngestedSource], console: Console) -> None:
    """Speeds of benchmarks beside one another, each over the first."""
    rows = [(i.measured.source, i.seen.speed) for i in found if i.seen.speed is not None]
    rows = [(name, s) for name, s in rows if s is not None and (s.tokens_per_s or s.token_s or s.chunk_s)]
    if not rows:
        return
    table = figure_table(
        ("measured from outside", "left"),
        *((n, "right") for n in ("tokens/s", "ratio", "ms per token", "ms per chunk", "ms to first", "in flight")),
    )
    base = next((s.tokens_per_s for _, s in rows if s is not None and s.tokens_per_s), None)
    for name, s in rows:
        if s is None:
            continue
        ratio = s.tokens_per_s / base if s.tokens_per_s and base else None
        times = (s.token_s, s.chunk_s, s.first_s)
        table.add_row(
            name,
            "-" if s.tokens_per_s is None else f"{s.tokens_per_s:,.1f}",
            "-" if ratio is None else f"{ratio:.3f}x",
            *("-" if t is None else f"{1e3 * t:,.2f}" for t in times),
            "-" if s.concurrency is None else f"{s.concurrency:,.1f}",
        )
    console.print(table)
