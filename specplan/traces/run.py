"""Replay of a whole trace through any number of sources: batches, replicas, checkpoints, results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from specplan.errors import InputError
from specplan.files.lines import BrokenLog
from specplan.propose.rules import TokenSource
from specplan.records.files import StepWriter, refuse_overwrite
from specplan.records.tally import EMPTY, Tally
from specplan.runners import Here, Runner
from specplan.traces.checkpoint import Checkpoint
from specplan.traces.counts import COLUMNS, IntArray, Series, Window
from specplan.traces.read import TraceReader, read_step_order
from specplan.traces.requests import RecordedRequest
from specplan.traces.rows import RequestRows
from specplan.traces.shards import BatchResult, BatchTask, Counted, ReplicaTask, batches, run_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What is replayed, and how the engine served it.

    Attributes
    ----------
    paths : tuple of Path
    sources : tuple of TokenSource
    labels : tuple of str
        What the sources are called in reports, such as the user's own spellings; empty for their short spellings.
    concurrency : int
        Requests that run at a time; matters for sources with a shared store.
    order : str
        ``arrival`` (as in the files), ``recorded`` (the trace's own ``step_order``), or ``shuffle:SEED``.
    replicas : int
        Engines that share the requests in turn, each with its own store.
    window : int
        Requests of the smallest window of the drift series.
    """

    paths: tuple[Path, ...]
    sources: tuple[TokenSource, ...]
    labels: tuple[str, ...] = ()
    concurrency: int = 1
    order: str = "arrival"
    replicas: int = 1
    window: int = 16

    def __post_init__(self) -> None:
        if not self.sources:
            raise InputError("no source to replay; give --source, for example ngram:min=2,max=5,k=3")
        for name, value in (("--concurrency", self.concurrency), ("--replicas", self.replicas)):
            if not 1 <= value <= 2**20:
                raise InputError(f"{name} {value}: expected a whole number of at least 1")
        if self.window < 1:
            raise InputError(f"--window {self.window}: expected a whole number of at least 1")
        if self.order == "recorded" and (len(self.paths) != 1 or self.replicas != 1):
            raise InputError("--order recorded needs one file, and one replica")
        if self.labels and len(self.labels) != len(self.sources):
            raise InputError(f"{len(self.labels)} labels for {len(self.sources)} sources")
        self.seed()

    def label(self, source: TokenSource) -> str:
        """What a source is called."""
        return self.labels[self.sources.index(source)] if self.labels else source.short

    def seed(self) -> int | None:
        """Seed of a shuffled order."""
        kind, _, seed = self.order.partition(":")
        if self.order in ("arrival", "recorded"):
            return None
        if kind != "shuffle" or not seed.isdigit():
            raise InputError(f"--order {self.order}: expected arrival, recorded or shuffle:SEED")
        return int(seed)

    def inputs(self) -> dict[str, Any]:
        """What results depend on."""
        return {
            "files": [str(p) for p in self.paths],
            "sources": [s.spelling for s in self.sources],
            "concurrency": self.concurrency,
            "order": self.order,
            "replicas": self.replicas,
        }


@dataclass(slots=True, kw_only=True)
class SourceResult:
    """What one source did over the trace.

    `held` collects counts of replicas until all `missing` ones are in, since the series goes by order of arrival.
    """

    source: TokenSource
    tags: dict[str, Tally] = field(default_factory=dict)
    series: Series = field(default_factory=Series)
    seconds: float = 0.0
    held: IntArray | None = None
    missing: int = 0

    def add(self, counted: Counted) -> None:
        """Add a batch or replica."""
        for tag, tally in counted.tags.items():
            self.tags[tag] = self.tags.get(tag, EMPTY) + tally
        self.seconds += counted.seconds

    @property
    def total(self) -> Tally:
        """Over all tags."""
        total = EMPTY
        for tally in self.tags.values():
            total += tally
        return total

    @property
    def windows(self) -> tuple[Window, ...]:
        """Counts over the course of the trace."""
        return self.series.windows()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """A finished replay.

    Attributes
    ----------
    plan : ReplayPlan
    sources : tuple of SourceResult
        In the order of the plan.
    requests, tokens : int
        What was read.
    broken : BrokenLog
        What could not be used.
    notes : tuple of str
        What a reader must know of the trace.
    """

    plan: ReplayPlan
    sources: tuple[SourceResult, ...]
    requests: int
    tokens: int
    broken: BrokenLog
    notes: tuple[str, ...] = ()


Progress = Callable[[str, int, int], None]


def run(
    plan: ReplayPlan,
    reader: TraceReader,
    *,
    runner: Runner | None = None,
    checkpoint: Path | None = None,
    per_request: Path | None = None,
    records: Path | None = None,
    progress: Progress = lambda *_: None,
) -> ReplayResult:
    """Replay a trace.

    Parameters
    ----------
    plan : ReplayPlan
    reader : TraceReader
        Collects what is broken.
    runner : Runner or None
        Where batches and replicas run; None is this process. The counts do not depend on it.
    checkpoint : Path or None
        File that finished parts are noted in; a run with the same inputs takes up where it ended.
    per_request : Path or None
        File for one JSON line per request and source.
    records : Path or None
        File for the single steps, as `specplan.records.StepWriter` writes them.
    progress : callable
        Told what is worked on, how much is done, and of how much (0: unknown; requests are estimated from bytes).

    Raises
    ------
    InputError
        If the trace holds no request, or a file cannot be read.
    """
    refuse_overwrite((checkpoint, per_request, records), plan.paths)
    work = runner or Here()
    alone = tuple(s for s in plan.sources if not s.shares_store)
    shared = tuple(s for s in plan.sources if s.shares_store)
    results = {s: SourceResult(source=s, series=Series(size=plan.window)) for s in plan.sources}
    with ExitStack() as stack:
        inputs = plan.inputs() | reader.inputs()
        saved = stack.enter_context(Checkpoint(checkpoint, inputs, plan.paths))
        rows = stack.enter_context(RequestRows(per_request))
        steps = None
        if records is not None:
            steps = stack.enter_context(StepWriter(records, inputs, resume=checkpoint is not None))
        task = BatchTask(reader=reader, sources=alone, keep_requests=bool(shared), want_records=steps is not None)
        arrived: list[RecordedRequest] = []
        names: list[str] = []
        n_requests = n_tokens = 0
        for result in _batch_results(plan, reader, task, work, saved, progress):
            reader.broken.extend(result.broken, list(result.first_broken))
            reader.step_orders += result.step_orders
            n_requests, n_tokens = n_requests + len(result.ids), n_tokens + result.tokens
            arrived.extend(result.requests)
            names.extend(f"{result.index}.{place}:{name}" for place, name in enumerate(result.ids))
            for source, counted in zip(alone, result.counted, strict=True):
                results[source].add(counted)
                results[source].series.add(counted.counts)
                rows.write(source, result.ids, result.tags, counted.counts)
                _write_steps(steps, source, counted)
            if not shared:
                names.clear()
        if n_requests == 0:
            first = f"; the first problem: {reader.broken.first[0]}" if reader.broken.first else ""
            raise InputError(f"no request in {', '.join(map(str, plan.paths[:3]))} could be used{first}")
        if plan.order == "recorded" and reader.broken.count:
            raise InputError(f"--order recorded needs every request of the trace; {reader.broken.first[0]}")
        for source, members, counted in _replica_results(
            plan, shared, arrived, names, work, saved, steps is not None, progress
        ):
            results[source].add(counted)
            rows.write(source, [arrived[i].id for i in members], [arrived[i].tag for i in members], counted.counts)
            _write_steps(steps, source, counted)
            _note_counts(results[source], members, counted.counts, plan.replicas, n_requests)
    return ReplayResult(
        plan=plan,
        sources=tuple(results[s] for s in plan.sources),
        requests=n_requests,
        tokens=n_tokens,
        broken=reader.broken,
        notes=(_OTHER_ORDER,) if shared and reader.step_orders and plan.order != "recorded" else (),
    )


_OTHER_ORDER: Final = (
    "the trace has the order in which its engine ran the requests (step_order), and a source shares a store between "
    "requests: --order recorded replays that order"
)


def _batch_results(
    plan: ReplayPlan, reader: TraceReader, task: BatchTask, work: Runner, saved: Checkpoint, progress: Progress
) -> Iterator[BatchResult]:
    """Results of all batches in order; finished ones come from the checkpoint, unless their requests are needed."""
    held: dict[int, BatchResult] = {}
    sizes: dict[int, int] = {}
    whole = sum(_plain_bytes(path) for path in plan.paths)
    read = requests = 0

    def open_ones() -> Iterator[Any]:
        for batch in batches(reader, plan.paths):
            sizes[batch.index] = sum(len(line) for _, line in batch.lines)
            known = None if task.keep_requests or task.want_records else saved.batch(batch.index)
            if known is None:
                yield batch
            else:
                held[batch.index] = known

    following = 0
    for result in work.map(task, open_ones()):
        while following in held:
            yield held.pop(following)
            following += 1
        saved.note_batch(result)
        read, requests = read + sizes.pop(result.index, 0), requests + len(result.ids)
        progress("requests", requests, round(requests * max(whole / read, 1.0)) if read and whole else 0)
        yield result
        following += 1
    while following in held:
        yield held.pop(following)
        following += 1


def _plain_bytes(path: Path) -> int:
    """Bytes of a file of lines; 0 of a compressed one, whose lines are longer than the file."""
    return path.stat().st_size if path.suffix in (".jsonl", ".json") else 0


def _replica_results(
    plan: ReplayPlan,
    shared: Sequence[TokenSource],
    arrived: list[RecordedRequest],
    names: list[str],
    work: Runner,
    saved: Checkpoint,
    want_records: bool,
    progress: Progress,
) -> Iterator[tuple[TokenSource, IntArray, Counted]]:
    """Results of each source with a shared store on each replica's requests."""
    if not shared:
        return
    order = np.arange(len(arrived))
    if (seed := plan.seed()) is not None:
        np.random.default_rng(seed).shuffle(order)
    recorded = None
    if plan.order == "recorded":
        recorded = tuple(tuple(step) for step in read_step_order(plan.paths[0]))
    jobs = [(source, replica) for source in shared for replica in range(plan.replicas)]
    members = {replica: order[replica :: plan.replicas] for replica in range(plan.replicas)}
    known = {job: saved.replica(job[0].spelling, job[1]) for job in jobs if not want_records}
    tasks = (
        ReplicaTask(
            source=source,
            requests=tuple(arrived[i] for i in members[replica]),
            names=tuple(names[i] for i in members[replica]),
            concurrency=plan.concurrency,
            order=recorded,
            want_records=want_records,
        )
        for source, replica in jobs
        if known.get((source, replica)) is None
    )
    fresh = iter(work.map(run_replica, tasks))
    for done, (source, replica) in enumerate(jobs):
        progress("sources with a shared store", done, len(jobs))
        counted = known.get((source, replica))
        if counted is None:
            counted = next(fresh)
            saved.note_replica(source.spelling, replica, counted)
        yield source, members[replica], counted


def _note_counts(result: SourceResult, members: IntArray, counts: IntArray, replicas: int, n_requests: int) -> None:
    """Put a replica's counts where its requests stand in the order of arrival; the series is filled by the last one."""
    if replicas == 1 and np.array_equal(members, np.arange(n_requests)):
        result.series.add(counts)
        return
    held = result.held
    if held is None:
        held = result.held = np.zeros((n_requests, len(COLUMNS)), np.int64)
        result.missing = replicas
    held[members] = counts
    result.missing -= 1
    if result.missing == 0:
        result.series.add(held)
        result.held = None


def _write_steps(writer: StepWriter | None, source: TokenSource, counted: Counted) -> None:
    if writer is None:
        return
    for name, rows in counted.records:
        if (source.spelling, name) not in writer.done:
            writer.write(rows)
            writer.finish(source.spelling, name)
