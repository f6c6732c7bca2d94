"""Parts of a trace, and what is counted in one: the unit that processes and clusters work on.

A batch is some lines of a file, or some requests that are parsed already. Sources without a shared store are replayed
batch by batch, in any process. Sources with one see all requests of their replica in order of arrival, in one task.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from specplan.files.lines import BrokenLine, BrokenLog
from specplan.propose.rules import TokenSource
from specplan.records.step import StepRecord
from specplan.records.tally import Tally
from specplan.traces.counts import IntArray, counts_per_request, records_of, tallies_by_tag
from specplan.traces.read import TraceReader
from specplan.traces.requests import RecordedRequest
from specplan.traces.serve import driven, steps_of, verified_width

BATCH_BYTES: Final = 4 * 2**20
BATCH_REQUESTS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A part of a trace, in order.

    Attributes
    ----------
    index : int
        Number of the batch.
    path : str
        File.
    lines : tuple of (int, bytes)
        Numbered lines of JSON, to be parsed where the batch is worked on.
    requests : tuple of RecordedRequest
        Requests that are parsed already (Parquet, documents, logs).
    """

    index: int
    path: str
    lines: tuple[tuple[int, bytes], ...] = ()
    requests: tuple[RecordedRequest, ...] = ()


def batches(reader: TraceReader, paths: Iterable[Path]) -> Iterator[Batch]:
    """Batches of the files in order; what is broken before parsing goes to the reader's log."""
    index = 0
    for path in paths:
        for lines, requests in reader.chunks(path, BATCH_BYTES, BATCH_REQUESTS):
            yield Batch(index=index, path=str(path), lines=tuple(lines), requests=tuple(requests))
            index += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What one source did on the requests of one batch or replica.

    Attributes
    ----------
    tags : mapping of str to Tally
    counts : ndarray, shape (n, 7)
        Per request; columns of `specplan.traces.counts.COLUMNS`.
    seconds : float
        Time in the source's loop, compilation and parsing left out.
    records : tuple
        Step records by request, if they were asked for.
    """

    tags: dict[str, Tally]
    counts: IntArray
    seconds: float
    records: tuple[tuple[str, tuple[StepRecord, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What was counted in one batch."""

    index: int
    ids: tuple[str, ...]
    tags: tuple[str, ...]
    tokens: int
    broken: int
    first_broken: tuple[BrokenLine, ...]
    counted: tuple[Counted, ...]
    requests: tuple[RecordedRequest, ...]
    step_orders: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """How a batch is worked on.

    Attributes
    ----------
    reader : TraceReader
    sources : tuple of TokenSource
        Sources without a shared store.
    keep_requests : bool
        Hand the parsed requests back, for sources with a shared store.
    want_records : bool
        Hand single steps back.
    """

    reader: TraceReader
    sources: tuple[TokenSource, ...]
    keep_requests: bool
    want_records: bool

    def __call__(self, batch: Batch) -> BatchResult:
        """Parse and replay one batch."""
        log = BrokenLog(fatal=self.reader.broken.fatal, remedy=self.reader.broken.remedy)
        reader = replace(self.reader, broken=log, step_orders=0)
        requests = batch.requests or tuple(reader.parse(Path(batch.path), batch.lines))
        names = [f"{batch.index}.{place}:{r.id}" for place, r in enumerate(requests)]
        return BatchResult(
            index=batch.index,
            ids=tuple(r.id for r in requests),
            tags=tuple(r.tag for r in requests),
            tokens=int(sum(r.prompt.size + r.response.size for r in requests)),
            broken=log.count,
            first_broken=tuple(log.first),
            counted=tuple(_count(source, requests, names, 1, None, self.want_records) for source in self.sources),
            requests=tuple(requests) if self.keep_requests else (),
            step_orders=reader.step_orders,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTask:
    """One source with a shared store over the requests of one replica, in order of arrival.

    Attributes
    ----------
    source : TokenSource
    requests : tuple of RecordedRequest
    names : tuple of str
        Unique names for records.
    concurrency : int
        Requests that run at a time.
    order : tuple of tuple of int, or None
        The engine's own order of steps, in place of `concurrency`.
    want_records : bool
    """

    source: TokenSource
    requests: tuple[RecordedRequest, ...]
    names: tuple[str, ...]
    concurrency: int
    order: tuple[tuple[int, ...], ...] | None
    want_records: bool


def run_replica(task: ReplicaTask) -> Counted:
    """Replay one replica."""
    return _count(task.source, task.requests, task.names, task.concurrency, task.order, task.want_records)


def _count(
    source: TokenSource,
    requests: Sequence[RecordedRequest],
    names: Sequence[str],
    concurrency: int,
    order: Sequence[Sequence[int]] | None,
    want_records: bool,
) -> Counted:
    _compile(source)
    width = verified_width(source)
    start = time.perf_counter()
    if order is None:
        steps = steps_of(source, requests, concurrency=concurrency)
    else:
        steps = driven(source, requests, order=order)
    seconds = time.perf_counter() - start
    return Counted(
        tags=tallies_by_tag(steps, requests, width),
        counts=counts_per_request(steps, len(requests), width),
        seconds=seconds,
        records=tuple((name, tuple(rows)) for name, rows in records_of(steps, requests, names, source.spelling, width))
        if want_records
        else (),
    )


_TINY: Final = RecordedRequest(
    id="", tag="", prompt=np.array([1, 2, 3, 1, 2], np.int32), response=np.array([3, 1, 2, 3], np.int32)
)
_compiled: set[str] = set()


def _compile(source: TokenSource) -> None:
    """Compile a source's loop, or load it from numba's cache, so that its time is not the replay's."""
    if source.kind not in _compiled:
        steps_of(source, [_TINY])
        _compiled.add(source.kind)
