"""A request starts to run, or is put back: what every scheduler does then."""

from specplan.queueing.blocks_loop import hold_kept, release
from specplan.queueing.compiled import loop
from specplan.queueing.notes_loop import note
from specplan.queueing.state import (
    ADMIT,
    ADMITTED,
    COMPUTED,
    EMITTED,
    FREE_ROW,
    HITS,
    LOOKED,
    NEXT,
    NOW,
    PENDING,
    PREEMPT,
    PREEMPTIONS,
    PROMPT,
    REQ,
    RESUME,
    ROW,
    RUN,
    RUNNING,
    SLOT,
    STACKED,
    START,
    TOP,
    TRIES,
    WHEN,
    Ints,
    Rules,
    State,
)


@loop
def seat(s: State, rules: Rules, r: int, hit: int) -> None:
    """Let the request at the front of those that wait run, with the `hit` kept blocks at its head."""
    at, req, slots = s.at, s.req, s.slots
    again = req[r + TRIES] > 0
    cached = hit * rules.block
    if again:
        at[TOP] = req[r + NEXT]
        at[STACKED] -= 1
    else:
        at[ADMITTED] += 1
        s.when[r // REQ * WHEN + START] = s.clock[NOW]
    place = at[RUNNING] * SLOT
    req[r + ROW] = slots[place + FREE_ROW]
    slots[place + RUN] = r
    at[RUNNING] += 1
    if rules.prefix:
        hold_kept(at, req, s.pool, s.ids, rules, r, hit)
        at[HITS] += cached
        at[LOOKED] += req[r + PROMPT] + req[r + EMITTED]
    req[r + COMPUTED] = cached
    if rules.log:
        note(at, s.events, RESUME if again else ADMIT, r, cached)


@loop
def put_back(at: Ints, req: Ints, slots: Ints, pool: Ints, events: Ints, rules: Rules, r: int) -> None:
    """Free what a request holds that left the running ones; its output stays, its cache and drafts go."""
    release(at, req, pool, rules, r)
    slots[at[RUNNING] * SLOT + FREE_ROW] = req[r + ROW]
    req[r + COMPUTED] = 0
    req[r + PENDING] = 0
    req[r + TRIES] += 1
    at[STACKED] += 1
    at[PREEMPTIONS] += 1
    if rules.log:
        note(at, events, PREEMPT, r, 0)
