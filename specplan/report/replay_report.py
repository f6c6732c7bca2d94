"""A replay for people and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rich.console import Console

from specplan.decide.drift import Drift, WindowCounts
from specplan.decide.measured import MeasuredSource
from specplan.decide.measured_point import MeasuredPoint
from specplan.report.measured_document import drift_entry, envelope, measured_entry, point_entry
from specplan.report.measured_table import (
    print_decision,
    print_drift,
    print_line,
    print_measured,
    print_point_table,
    print_points,
    print_positions,
)

GRID_ROWS: Final = 10
"""Rows that are shown of a grid."""


class ReplayedSource(Protocol):
    """What a replay says of one source."""

    @property
    def spelling(self) -> str:
        """Every option of the source."""
        ...

    @property
    def measured(self) -> MeasuredSource:
        """Over all requests."""
        ...

    @property
    def tags(self) -> tuple[MeasuredSource, ...]:
        """Per tag."""
        ...

    @property
    def point(self) -> MeasuredPoint | None:
        """On named hardware."""
        ...

    @property
    def windows(self) -> Sequence[WindowCounts]:
        """Over the course of the trace."""
        ...

    @property
    def drift(self) -> Drift | None:
        """The deepest fall."""
        ...

    @property
    def host_s_per_step(self) -> float:
        """Seconds of the matcher per step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFacts:
    """What a replay says of the trace as a whole.

    Attributes
    ----------
    requests, tokens, broken : int
        Requests and tokens read; lines that could not be used.
    first_broken : tuple of str
        The first of those.
    best_by_tokens, best_by_time : str or None
        Best source by tokens per step and by modelled time, where a grid was searched.
    notes : tuple of str
        What a reader must know of the trace.
    """

    requests: int
    tokens: int
    broken: int
    first_broken: tuple[str, ...]
    best_by_tokens: str | None = None
    best_by_time: str | None = None
    notes: tuple[str, ...] = ()


def replay_document(inputs: dict[str, Any], sources: Sequence[ReplayedSource], facts: ReplayFacts) -> dict[str, Any]:
    """The document that ``specplan replay --json`` prints."""
    entries = []
    for r in sources:
        entry = measured_entry(r.measured)
        entry["spelling"] = r.spelling
        entry["tags"] = [measured_entry(m) for m in r.tags]
        entry["host_s_per_step"] = r.host_s_per_step
        entry["point"] = None if r.point is None else point_entry(r.point)
        entry["drift"] = drift_entry(r.drift)
        entry["accepted_per_step_series"] = [w.accepted_per_step for w in r.windows]
        entry["series_first_request"] = [w.first for w in r.windows]
        entries.append(entry)
    document = envelope("replay", inputs, entries)
    document["requests"] = facts.requests
    document["tokens"] = facts.tokens
    document["broken_lines"] = facts.broken
    document["first_broken"] = facts.first_broken
    document["notes"] = facts.notes
    if facts.best_by_tokens is not None:
        document["best_by_tokens_per_step"] = facts.best_by_tokens
        document["best_by_modelled_time"] = facts.best_by_time
    return document


def print_replay(
    sources: Sequence[ReplayedSource], facts: ReplayFacts, console: Console, *, timing: bool = False
) -> None:
    """Tables for people: of some sources everything, of a grid the best rows."""
    print_line(f"{facts.requests:,} requests, {facts.tokens:,} tokens replayed", console)
    if facts.best_by_tokens is None:
        _print_sources(sources, console)
    else:
        _print_grid(sources, facts, console)
    if timing:
        times = ", ".join(f"{r.measured.source} {1e6 * r.host_s_per_step:.2f} us" for r in sources)
        print_line(f"host time per step of specplan's own matchers (measured, not the engine's): {times}", console)
    for note in facts.notes:
        print_line(f"note: {note}", console)
    if facts.broken:
        print_line(f"{facts.broken:,} broken lines were skipped; the first:", console)
        for line in facts.first_broken[:5]:
            print_line(f"  {line}", console)


def _print_sources(sources: Sequence[ReplayedSource], console: Console) -> None:
    print_measured([m for r in sources for m in (r.measured, *r.tags)], console)
    print_positions([r.measured for r in sources], console)
    print_points([r.point for r in sources if r.point is not None], console)
    for r in sources:
        print_drift(r.measured.source, [w.accepted_per_step for w in r.windows], r.drift, console)


def _print_grid(sources: Sequence[ReplayedSource], facts: ReplayFacts, console: Console) -> None:
    ranked = sorted(sources, key=lambda r: -(r.measured.tokens_per_step or 0.0))[:GRID_ROWS]
    print_measured([r.measured for r in ranked], console)
    if len(sources) > len(ranked):
        print_line(f"the best {len(ranked)} of {len(sources)} by tokens per step; --json has all", console)
    placed = [r.point for r in sources if r.point is not None]
    if placed:
        fastest = sorted(placed, key=lambda p: -p.speedup)
        print_point_table(fastest[:GRID_ROWS], console)
        print_decision(fastest[0], console)
    print_line(f"best of {len(sources)} by tokens per step (measured): {facts.best_by_tokens}", console)
    if facts.best_by_time is not None:
        print_line(f"best of {len(sources)} by time (modelled): {facts.best_by_time}", console)
