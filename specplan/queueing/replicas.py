"""Several engines behind one door: which of them each request goes to, and what all of them together gave."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from specplan.errors import InputError
from specplan.queueing import state as at
from specplan.queueing.compiled import as_indexed
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Drafting, Ints, Lists, Requests
from specplan.queueing.run_loop import DONE, NEVER, run
from specplan.queueing.stream import STEPS_PER_CALL, Progress, Served, initial, numbers_of, serve, served, stuck
from specplan.queueing.time_loop import Times

ROUTINGS: Final = ("round-robin", "least-loaded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How many engines, and how a request finds one.

    Attributes
    ----------
    replicas : int
    by : str
        ``round-robin``, or ``least-loaded``: to the engine with the fewest requests that have not ended, the first of
        equals; it sees ends at once.

    Raises
    ------
    InputError
        For no engine, more than 1,024, or another word.
    """

    replicas: int = 1
    by: str = "round-robin"

    def __post_init__(self) -> None:
        """Refuse what is no routing."""
        if not 1 <= self.replicas <= 1024:
            raise InputError(f"--replicas {self.replicas}: expected 1 to 1024")
        if self.by not in ROUTINGS:
            raise InputError(f"--routing {self.by!r}: one of {', '.join(ROUTINGS)}")


NO_ROUTING: Final = Routing()
"""One engine."""


def serve_replicas(
    requests: Requests,
    rules: EngineRules,
    times: Times,
    drafting: Drafting | None = None,
    *,
    routing: Routing,
    progress: Progress | None = None,
) -> Served:
    """Run a load on several engines of one kind to its end.

    Under a closed load each engine keeps its share of the concurrency.

    Raises
    ------
    InputError
        For a request that the engine would refuse, more engines than requests, or a closed load by least load.

    Examples
    --------
    Three requests of 2 tokens at once, a second per step, one at a time: the third waits for the shorter queue.

    >>> from specplan.queueing.stream import UNIT_STEPS
    >>> load = Requests(arrival=np.zeros(3), prompt=np.array([8, 8, 8]), output=np.array([4, 2, 2]))
    >>> one = EngineRules(num_blocks=8, max_num_seqs=1)
    >>> [serve_replicas(load, one, UNIT_STEPS, routing=Routing(replicas=2, by=by)).finish.tolist() for by in ROUTINGS]
    [[4.0, 2.0, 6.0], [4.0, 2.0, 6.0]]
    """
    n = routing.replicas
    if n == 1:
        return serve(requests, rules, times, drafting, progress=progress)
    if len(requests) < n or 0 < requests.closed < n:
        few = f"{requests.closed} at a time" if requests.closed else f"{len(requests)} requests"
        raise InputError(f"--replicas {n}: more engines than the load's {few}")
    if routing.by == "round-robin":
        parts = [np.arange(first, len(requests), n) for first in range(n)]
        runs = []
        for first, part in enumerate(parts):
            own = None if drafting is None else _drafts(drafting, part)
            runs.append(serve(_part(requests, part, n, first), rules, times, own))
            if progress is not None:
                progress(sum(p.size for p in parts[: first + 1]), len(requests))
        return merged(requests, parts, runs)
    if requests.closed:
        raise InputError("--routing least-loaded needs arrivals: --rate or --trace; a closed load is shared in turn")
    return _least_loaded(requests, rules, times, drafting, n, progress)


def _part(requests: Requests, part: Ints, replicas: int, first: int) -> Requests:
    shared = requests.shared
    return replace(
        requests,
        arrival=requests.arrival[part],
        prompt=requests.prompt[part],
        output=requests.output[part],
        closed=requests.closed and (requests.closed - first + replicas - 1) // replicas,
        shared=None if shared is None else _lists(shared, part),
        names=tuple(requests.name(int(i)) for i in part),
    )


def _drafts(drafting: Drafting, part: Ints) -> Drafting:
    return replace(drafting, drafted=_lists(drafting.drafted, part), accepted=_lists(drafting.accepted, part))


def _lists(lists: Lists, part: Ints) -> Lists:
    return replace(lists, begin=lists.begin[part], count=lists.count[part])


def _least_loaded(
    requests: Requests,
    rules: EngineRules,
    times: Times,
    drafting: Drafting | None,
    replicas: int,
    progress: Progress | None,
) -> Served:
    """Every engine runs up to each arrival, which then goes to the one with the fewest requests."""
    numbers = numbers_of(requests, rules, drafting)
    whole = initial(requests, numbers, drafting)
    arriving, records = whole.when.reshape(-1, at.WHEN), whole.req.reshape(-1, at.REQ)
    engines: list[Any] = []
    for _ in range(replicas):
        fresh: dict[str, Any] = {
            name: getattr(whole, name).copy() for name in ("at", "clock", "slots", "pool", "notes")
        }
        fresh |= {"req": np.zeros_like(whole.req), "when": np.full_like(whole.when, np.nan), "events": whole.events}
        engines.append(as_indexed(whole._replace(**fresh)))
    indexed = as_indexed(times)
    sent: list[list[int]] = [[] for _ in range(replicas)]
    for i, arrival in enumerate(requests.arrival.tolist()):
        loads = []
        for engine, mine in zip(engines, sent, strict=True):
            if mine:
                _advance(engine, numbers, indexed, arrival, requests, mine)
            # What the latest step ends is not known before its end.
            ahead = int(engine.at[at.LAST_GONE]) if engine.clock[at.NOW] > arrival else 0
            loads.append(len(mine) - int(engine.at[at.FINISHED]) + ahead)
        chosen = loads.index(min(loads))
        engine, place = engines[chosen], len(sent[chosen])
        if not place:
            engine.clock[at.NOW] = arrival
        engine.req[place * at.REQ : (place + 1) * at.REQ] = _as(engine.req, records[i])
        engine.when[place * at.WHEN : (place + 1) * at.WHEN] = _as(engine.when, arriving[i])
        sent[chosen].append(i)
        if progress is not None and i % 1000 == 0:
            progress(i, len(requests))
    runs, parts = [], []
    for engine, mine in zip(engines, sent, strict=True):
        if not mine:
            continue
        _advance(engine, numbers._replace(requests=len(mine)), indexed, np.inf, requests, mine)
        rest = {"req": engine.req[: len(mine) * at.REQ], "when": engine.when[: len(mine) * at.WHEN]}
        part = np.array(mine, np.int64)
        runs.append(served(_part(requests, part, 1, 0), engine._replace(**rest), numbers.blocks))
        parts.append(part)
    found = merged(requests, parts, runs)
    return replace(found, replicas=replicas, blocks=numbers.blocks * replicas)


def _as(like: Any, row: Any) -> Any:
    return row.tolist() if isinstance(like, list) else row


def _advance(engine: Any, numbers: at.Rules, times: Any, until: float, requests: Requests, own: Sequence[int]) -> None:
    engine.clock[at.UNTIL] = until
    code = -1
    while code != DONE and engine.clock[at.NOW] < until:
        code = run(engine, numbers, times, STEPS_PER_CALL, 1)
        if code == NEVER:
            raise stuck(requests.name(own[int(engine.at[at.STUCK]) - 1]))


def merged(requests: Requests, parts: Sequence[Ints], runs: Sequence[Served]) -> Served:
    """Runs of parts of one load as one: per request in the load's order, sums over the engines, one series."""

    def whole(name: str) -> Any:
        columns = [getattr(r, name) for r in runs]
        found = np.empty(len(requests), columns[0].dtype)
        for part, column in zip(parts, columns, strict=True):
            found[part] = column
        return found

    arrival = np.empty(len(requests))
    for part, one in zip(parts, runs, strict=True):
        arrival[part] = one.requests.arrival
    finish = whole("finish")
    begin = float(np.nanmin(arrival))
    seconds = {name: sum(r.seconds[name] for r in runs) for name in runs[0].seconds}
    width = max(r.series_s for r in runs)
    series = np.zeros((int((float(finish.max()) - begin) / width) + 1, runs[0].series.shape[1]))
    for r in runs:
        moment = float(r.requests.arrival.min()) - begin + (np.arange(len(r.series)) + 0.5) * r.series_s
        np.add.at(series, np.minimum((moment / width).astype(np.int64), len(series) - 1), r.series)
    return Served(
        requests=replace(requests, arrival=arrival),
        start=whole("start"),
        first=whole("first"),
        last=whole("last"),
        finish=finish,
        emitted=whole("emitted"),
        preempted=whole("preempted"),
        counts={name: sum(r.counts[name] for r in runs) for name in runs[0].counts},
        seconds=seconds | {"span": float(finish.max()) - begin},
        gaps=np.sum([r.gaps for r in runs], axis=0),
        series=series,
        series_s=width,
        blocks=sum(r.blocks for r in runs),
        steps=runs[0].steps[:0],
        events=runs[0].events[:0],
        replicas=len(runs),
    )
