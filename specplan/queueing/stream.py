"""One run: a load on an engine with given step times, and what each request and each moment got."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from specplan.errors import InfeasibleError, InputError
from specplan.queueing import state as at
from specplan.queueing.blocks_loop import new_pool
from specplan.queueing.compiled import IS_COMPILED, as_indexed
from specplan.queueing.engine import EngineRules
from specplan.queueing.load import Drafting, Floats, Ints, Requests
from specplan.queueing.run_loop import DONE, NEVER, run
from specplan.queueing.time_loop import Times

UNIT_STEPS: Final = Times(
    table=np.zeros(1),
    host_at=0,
    drafted_at=0,
    prompt_at=0,
    attend_at=0,
    draft_at=0,
    octaves=1,
    pair_s=0.0,
    chunk_s=0.0,
    draft_pair_s=0.0,
    unit_s=1.0,
)
"""Every step takes one second: virtual time counts steps."""

STEPS_PER_CALL: Final = 20_000 if IS_COMPILED else 200

Progress = Callable[[int, int], None]
"""Called with the requests that have finished and all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a run gave.

    Attributes
    ----------
    requests : Requests
        The load, with the arrivals of a closed one filled in.
    start, first, last, finish : ndarray, shape (n,)
        Seconds at which a request was first admitted, emitted its first token, its last one, and left.
    emitted, preempted : ndarray of int, shape (n,)
        Tokens; times that it lost its cache.
    counts : mapping of str to int
        Steps, preemptions, emitted, prompted (prompt tokens computed), hits and looked_up (tokens of the prefix cache),
        drafts, drafted, accepted, turns (request-steps that emitted), request_steps.
    seconds : mapping of str to float
        Span (first arrival to last finish), busy (in steps), draft, verify, host, prefill (steps that computed prompt
        tokens), and the integrals in_system, in_batch (requests x seconds) and in_pool (blocks x seconds).
    gaps : ndarray
        Gaps between emissions of a request, counted in bins; see `gap_edges`.
    series : ndarray, shape (rows, 6)
        Columns of `specplan.queueing.state.SERIES`, a row per `series_s` seconds.
    series_s : float
    blocks : int
        Blocks of all pools.
    replicas : int
        Engines that shared the load.
    steps : ndarray, shape (steps, 10)
        Columns of `specplan.queueing.state.STEP_COLUMNS`, if they were asked for.
    events : ndarray of int, shape (events, 4)
        Step, kind, request, value, if they were asked for.
    """

    requests: Requests
    start: Floats
    first: Floats
    last: Floats
    finish: Floats
    emitted: Ints
    preempted: Ints
    counts: Mapping[str, int]
    seconds: Mapping[str, float]
    gaps: Floats
    series: Floats
    series_s: float
    blocks: int
    steps: Floats
    events: Ints
    replicas: int = 1


_COUNTS: Final = {
    "steps": at.STEP,
    "preemptions": at.PREEMPTIONS,
    "emitted": at.EMITTED_SUM,
    "prompted": at.PROMPTED,
    "hits": at.HITS,
    "looked_up": at.LOOKED,
    "drafts": at.DRAFTS,
    "drafted": at.DRAFTED,
    "accepted": at.ACCEPTED,
    "turns": at.TURNS,
    "request_steps": at.REQUEST_STEPS,
}
_SECONDS: Final = {
    "busy": at.BUSY,
    "draft": at.DRAFT_S,
    "verify": at.VERIFY_S,
    "host": at.HOST_S,
    "prefill": at.PREFILL_S,
    "in_system": at.IN_SYSTEM,
    "in_batch": at.IN_BATCH,
    "in_pool": at.IN_POOL,
}


def gap_edges() -> Floats:
    """Middle of each bin of gaps, seconds."""
    return np.asarray(at.GAP_LEAST * at.GAP_RATIO ** (np.arange(at.GAPS) - 0.5))


def serve(
    requests: Requests,
    rules: EngineRules,
    times: Times,
    drafting: Drafting | None = None,
    *,
    log: bool = False,
    progress: Progress | None = None,
) -> Served:
    """Run a load to its end.

    Parameters
    ----------
    requests : Requests
    rules : EngineRules
    times : Times
        Seconds per step.
    drafting : Drafting, optional
        Needed if the rules speculate.
    log : bool
        Keep every step and every event of every request.
    progress : callable, optional
        Called now and then.

    Raises
    ------
    InputError
        For a request that the engine would refuse, or that can never fit.

    Examples
    --------
    Two requests of 3 tokens, one of which arrives a second later, at one second per step:

    >>> load = Requests(arrival=np.array([0.0, 1.0]), prompt=np.array([8, 8]), output=np.array([3, 3]))
    >>> serve(load, EngineRules(num_blocks=8), UNIT_STEPS).finish.tolist()
    [3.0, 4.0]
    """
    numbers = numbers_of(requests, rules, drafting, log=log)
    per_step = (at.EVENTS_PER_SLOT + 1) * numbers.max_seqs + 2
    most_events = STEPS_PER_CALL // 20 * per_step if log else 1
    state = initial(requests, numbers, drafting, steps=STEPS_PER_CALL if log else 0, events=most_events + per_step)
    if times.unit_s > 0:
        state.at[at.STEP] = int(requests.arrival[0])
    state, indexed = as_indexed(state), as_indexed(times)
    steps: list[Floats] = []
    events: list[Ints] = []
    code = -1
    while code not in (DONE, NEVER):
        code = run(state, numbers, indexed, STEPS_PER_CALL, most_events)
        if log:
            rows = state.at[at.STEPS] * len(at.STEP_COLUMNS)
            steps.append(np.array(state.notes[at.STEP_LOG : at.STEP_LOG + rows]).reshape(-1, len(at.STEP_COLUMNS)))
            events.append(np.array(state.events[: 4 * state.at[at.EVENTS]], np.int64).reshape(-1, 4))
            state.at[at.STEPS] = state.at[at.EVENTS] = 0
        if progress is not None:
            progress(int(state.at[at.FINISHED]), len(requests))
    if code == NEVER:
        raise stuck(requests.name(int(state.at[at.STUCK]) - 1))
    return served(requests, state, numbers.blocks, steps, events)


def stuck(name: str) -> InfeasibleError:
    """What to raise of a request that can never run."""
    return InfeasibleError(f"{name} can never run: the step's budget or the pool is too small for it")


def numbers_of(requests: Requests, rules: EngineRules, drafting: Drafting | None, *, log: bool = False) -> at.Rules:
    """An engine's limits for a load, as the loops read them.

    Raises
    ------
    InputError
        For a request that the engine would refuse or that can never fit, or drafts without their acceptance.
    """
    refuse_requests(requests, rules)
    if rules.kappa and drafting is None:
        raise InputError(f"{rules.method} drafts, and the acceptance of its drafts is not given")
    return rules.loop_rules(
        requests=len(requests),
        longest=int((requests.prompt + requests.output).max()),
        paired=drafting is not None and drafting.paired,
        closed=min(requests.closed, len(requests)),
        ids_unit=_ids_unit(requests, rules),
        log=log,
    )


def refuse_requests(requests: Requests, rules: EngineRules) -> None:
    """Raise for the first request that the engine would refuse, or that can never fit."""
    whole = requests.prompt + requests.output
    suspects = {int(np.argmax(whole)), int(np.argmin(requests.prompt)), int(np.argmin(requests.output))}
    most = (rules.usable_blocks * rules.block_size, rules.max_model_len)
    suspects |= set(np.flatnonzero(whole > min(most))[:1].tolist())
    for i in sorted(suspects):
        rules.refuse(int(requests.prompt[i]), int(requests.output[i]), requests.name(i))


def _ids_unit(requests: Requests, rules: EngineRules) -> int:
    if requests.shared is None:
        return 1
    unit, rest = divmod(requests.shared_tokens, rules.block_size)
    if rest or not unit:
        raise InputError(
            f"shared prefixes come in parts of {requests.shared_tokens} tokens, which is no multiple of the block size "
            f"{rules.block_size}"
        )
    if requests.shared.values.size and not 0 <= requests.shared.values.min() <= requests.shared.values.max() < 2**40:
        raise InputError("ids of shared prefixes must lie between 0 and 2^40")
    return unit


def initial(
    requests: Requests, rules: at.Rules, drafting: Drafting | None, *, steps: int = 0, events: int = 1
) -> at.State:
    """An engine before its first step, the load at its door."""
    n = len(requests)
    req = np.zeros((n, at.REQ), np.int64)
    req[:, at.PROMPT] = requests.prompt
    req[:, at.OUTPUT] = requests.output
    draws = np.zeros(1, np.uint8)
    if drafting is not None:
        req[:, at.DRAFT_AT], req[:, at.DRAFT_N] = drafting.drafted.begin, drafting.drafted.count
        req[:, at.ACCEPT_AT] = drafting.drafted.values.size + drafting.accepted.begin
        req[:, at.ACCEPT_N] = drafting.accepted.count
        draws = np.concatenate([drafting.drafted.values, drafting.accepted.values]).astype(np.uint8)
    ids = np.zeros(1, np.int64)
    if requests.shared is not None:
        req[:, at.IDS_AT], req[:, at.IDS_N] = requests.shared.begin, requests.shared.count
        ids = np.append(requests.shared.values, 0)
    when = np.full((n, at.WHEN), np.nan)
    when[:, at.ARRIVAL] = requests.arrival
    slots = np.zeros((rules.max_seqs, at.SLOT), np.int64)
    slots[:, at.FREE_ROW] = np.arange(rules.max_seqs)
    counters = np.zeros(at.N_AT, np.int64)
    counters[[at.TOP, at.OLDEST, at.NEWEST]] = -1
    counters[[at.FREE, at.PLAIN]] = rules.blocks
    clock = np.zeros(at.N_CLOCK)
    clock[at.NOW] = requests.arrival[0]
    clock[at.WIDTH] = 1e-3
    clock[at.TURNAROUND] = requests.turnaround_s
    clock[at.UNTIL] = np.inf
    return at.State(
        at=counters,
        clock=clock,
        req=req.ravel(),
        when=when.ravel(),
        slots=slots.ravel(),
        pool=new_pool(rules),
        draws=draws,
        ids=ids,
        notes=np.zeros(at.STEP_LOG + steps * len(at.STEP_COLUMNS)),
        events=np.zeros(4 * events, np.int64),
    )


def served(
    requests: Requests, state: Any, blocks: int, steps: Sequence[Floats] = (), events: Sequence[Ints] = ()
) -> Served:
    """What a state at the end of its run says."""
    req = np.asarray(state.req).reshape(-1, at.REQ)
    when = np.asarray(state.when).reshape(-1, at.WHEN)
    notes = np.asarray(state.notes)
    clock = state.clock
    width = len(at.SERIES)
    span = float(when[:, at.FINISH].max() - when[0, at.ARRIVAL])
    series_s = float(clock[at.WIDTH])
    series = notes[at.GAPS : at.STEP_LOG].reshape(-1, width)[: int(span / series_s) + 1]
    filled = replace(requests, arrival=when[:, at.ARRIVAL].copy())
    return Served(
        requests=filled,
        start=when[:, at.START].copy(),
        first=when[:, at.FIRST].copy(),
        last=when[:, at.LAST].copy(),
        finish=when[:, at.FINISH].copy(),
        emitted=req[:, at.EMITTED].copy(),
        preempted=req[:, at.TRIES].copy(),
        counts={name: int(state.at[place]) for name, place in _COUNTS.items()},
        seconds={"span": span} | {name: float(clock[place]) for name, place in _SECONDS.items()},
        gaps=notes[: at.GAPS].copy(),
        series=series.copy(),
        series_s=series_s,
        blocks=blocks,
        steps=np.concatenate(steps) if steps else np.zeros((0, len(at.STEP_COLUMNS))),
        events=np.concatenate(events) if events else np.zeros((0, 4), np.int64),
    )
