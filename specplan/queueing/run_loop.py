"""Virtual time: requests arrive, a step is scheduled, takes its time, and its tokens are emitted at its end."""

from typing import Final

from specplan.queueing.blocks_loop import release
from specplan.queueing.compiled import loop
from specplan.queueing.notes_loop import gap_bin, note, note_series
from specplan.queueing.sglang_loop import schedule_sglang
from specplan.queueing.state import (
    ACCEPT_AT,
    ACCEPT_N,
    ACCEPTED,
    ADMITTED,
    ARRIVAL,
    ARRIVED,
    BUSY,
    CHECK,
    CHECKED,
    CHOSEN,
    COMPUTED,
    DRAFT_AT,
    DRAFT_N,
    DRAFT_S,
    DRAFTED,
    DRAFTS,
    DRAWN,
    EMIT,
    EMITTED,
    EMITTED_SUM,
    END,
    EVENTS,
    FINISH,
    FINISHED,
    FIRST,
    FREE,
    FREE_ROW,
    FULL,
    GRANTED,
    HOST_S,
    IN_BATCH,
    IN_CHUNK,
    IN_POOL,
    IN_SYSTEM,
    LAST,
    LAST_GONE,
    LEFT,
    NOW,
    OUTPUT,
    PENDING,
    PREEMPTIONS,
    PREFILL_S,
    PROMPT,
    PROMPTED,
    REQ,
    REQUEST_STEPS,
    ROW,
    RUN,
    RUNNING,
    SCHEDULED,
    SLOT,
    STACKED,
    STEP,
    STEP_COLUMNS,
    STEP_LOG,
    STEPS,
    STUCK,
    TOP,
    TURNAROUND,
    TURNS,
    UNTIL,
    VERIFIED,
    VERIFY_S,
    WHEN,
    Floats,
    Ints,
    Rules,
    State,
)
from specplan.queueing.time_loop import Times, drafting_s, target_s
from specplan.queueing.vllm_loop import schedule

DONE: Final = 0
PAUSED: Final = 1
NEVER: Final = 2

_STEP_COLUMNS = len(STEP_COLUMNS)


@loop
def _arrive(at: Ints, clock: Floats, when: Floats, requests: int) -> None:
    """Let in who has arrived since; the time that each was in the system before now is added here."""
    now = clock[NOW]
    while at[ARRIVED] < requests:
        arrival = when[at[ARRIVED] * WHEN + ARRIVAL]
        if not arrival <= now:
            break
        clock[IN_SYSTEM] += now - arrival
        at[ARRIVED] += 1


@loop
def _complete(s: State, rules: Rules, n: int, end: float, seconds: float) -> tuple[int, int]:
    """Apply what the step's n requests computed: tokens emitted, requests that ended."""
    at, req, when, slots = s.at, s.req, s.when, s.slots
    emitted = gone = regular = 0
    regular_bin = gap_bin(seconds)
    start = s.clock[NOW]
    for i in range(n):
        place = i * SLOT
        r = slots[place + CHOSEN]
        drafts = slots[place + CHECKED]
        req[r + COMPUTED] += slots[place + GRANTED]
        known = req[r + PROMPT] + req[r + EMITTED]
        is_padding = rules.paired > 0 and req[r + PENDING] == 0  # no token that could be accepted
        req[r + PENDING] = 0
        if req[r + COMPUTED] < known:
            req[r + IN_CHUNK] = 1
            if rules.kappa > 0 and not rules.paired:
                req[r + DRAWN] += 1
            continue
        req[r + IN_CHUNK] = 0
        tokens = 1
        if drafts > 0:
            turn = (req[r + DRAWN] - 1) % req[r + DRAFT_N] if rules.paired else req[r + VERIFIED] % req[r + ACCEPT_N]
            taken = 0 if is_padding else min(int(s.draws[req[r + ACCEPT_AT] + turn]), drafts)
            req[r + VERIFIED] += 1
            req[r + COMPUTED] -= drafts - taken
            tokens += taken
            at[DRAFTS] += 1
            at[DRAFTED] += drafts
            at[ACCEPTED] += taken
        tokens = min(tokens, req[r + OUTPUT] - req[r + EMITTED], rules.max_len - known)
        w = r // REQ * WHEN
        if req[r + EMITTED] == 0:
            when[w + FIRST] = end
        elif when[w + LAST] == start:
            regular += 1
        else:
            s.notes[gap_bin(end - when[w + LAST])] += 1
        when[w + LAST] = end
        req[r + EMITTED] += tokens
        emitted += tokens
        at[TURNS] += 1
        if rules.log:
            note(at, s.events, EMIT, r, tokens)
        if req[r + EMITTED] >= req[r + OUTPUT] or known + tokens >= rules.max_len:
            when[w + FINISH] = end
            gone += 1
            release(at, req, s.pool, rules, r)
            if rules.log:
                note(at, s.events, END, r, 0)
        elif rules.kappa > 0:
            req[r + PENDING] = s.draws[req[r + DRAFT_AT] + req[r + DRAWN] % req[r + DRAFT_N]]
            req[r + DRAWN] += 1
    s.notes[regular_bin] += regular
    at[EMITTED_SUM] += emitted
    return emitted, gone


@loop
def _leave(s: State, rules: Rules, gone: int, end: float) -> None:
    """Close the ranks of the running requests, and under a closed load let the following ones come."""
    at, req, when, slots = s.at, s.req, s.when, s.slots
    kept = 0
    free = at[RUNNING] - gone
    for i in range(at[RUNNING]):
        r = slots[i * SLOT + RUN]
        if when[r // REQ * WHEN + FINISH] >= 0.0:  # NaN until it ends
            slots[free * SLOT + FREE_ROW] = req[r + ROW]
            free += 1
        else:
            slots[kept * SLOT + RUN] = r
            kept += 1
    at[RUNNING] = kept
    at[FULL] = 0
    for _ in range(gone):
        following = rules.closed + at[FINISHED]
        at[FINISHED] += 1
        if rules.closed > 0 and following < rules.requests:
            when[following * WHEN + ARRIVAL] = end + s.clock[TURNAROUND]


@loop
def _weigh(s: State, rules: Rules, t: Times, n: int) -> tuple[int, int, int, int, float, float, float]:
    """Prompt chunks and their tokens, decodes and their positions, seconds of drafting, verifying and host work."""
    req, slots = s.req, s.slots
    chunks = prompted = decodes = positions = context = ends = end_context = 0
    pairs = 0.0
    for i in range(n):
        place = i * SLOT
        r = slots[place + CHOSEN]
        tokens = slots[place + GRANTED]
        before = req[r + COMPUTED]
        if tokens - slots[place + CHECKED] > 1 or req[r + IN_CHUNK] > 0:
            chunks += 1
            prompted += tokens
            pairs += tokens * (before + 0.5 * (tokens + 1))
            if before + tokens >= req[r + PROMPT] + req[r + EMITTED]:
                ends += 1
                end_context += before + tokens
        else:
            decodes += 1
            positions += tokens
            context += before
    draft = host = 0.0
    verify = t.unit_s
    if t.unit_s <= 0.0:
        verify = target_s(t, prompted + positions, decodes, context, pairs, chunks)
        host = t.table[t.host_at + n]
        if rules.kappa > 0:
            draft = drafting_s(t, decodes + ends, context + end_context, prompted, pairs)
            host += t.table[t.drafted_at + n]
    return chunks, prompted, decodes, positions, draft, verify, host


@loop
def _note_plan(at: Ints, slots: Ints, events: Ints, n: int) -> None:
    for i in range(n):
        place = i * SLOT
        note(at, events, SCHEDULED, slots[place + CHOSEN], slots[place + GRANTED])
        if slots[place + CHECKED] > 0:
            note(at, events, CHECK, slots[place + CHOSEN], slots[place + CHECKED])
    note(at, events, LEFT, 0, at[FREE])


@loop
def run(s: State, rules: Rules, t: Times, most_steps: int, most_events: int) -> int:
    """Up to `most_steps` steps before ``clock[UNTIL]``.

    `DONE` when every request has finished, `NEVER` when one cannot run, else `PAUSED`.
    """
    at, clock, when, notes = s.at, s.clock, s.when, s.notes
    begin = when[ARRIVAL]
    for _ in range(most_steps):
        if at[EVENTS] > most_events or clock[NOW] >= clock[UNTIL]:
            return PAUSED
        _arrive(at, clock, when, rules.requests)
        if at[ARRIVED] == at[FINISHED]:
            if at[FINISHED] == rules.requests:
                return DONE
            following = when[at[ARRIVED] * WHEN + ARRIVAL]
            if not following < clock[UNTIL]:  # or NaN: it has not been sent here yet
                clock[NOW] = clock[UNTIL]
                return PAUSED
            clock[NOW] = following
            if t.unit_s > 0.0:
                at[STEP] = int(clock[NOW])
            continue
        preempted_before = at[PREEMPTIONS]
        n = schedule_sglang(s, rules) if rules.sglang else schedule(s, rules)
        running, free = at[RUNNING], at[FREE]
        waiting = at[STACKED] + at[ARRIVED] - at[ADMITTED]
        if n == 0 and running == 0 and at[PREEMPTIONS] == preempted_before:
            at[STUCK] = 1 + (at[TOP] // REQ if at[STACKED] > 0 else at[ADMITTED])
            return NEVER
        if rules.log:
            _note_plan(at, s.slots, s.events, n)
        chunks, prompted, decodes, positions, draft, verify, host = _weigh(s, rules, t, n)
        seconds = draft + verify + host
        start = clock[NOW]
        end = start + seconds
        clock[BUSY] += seconds
        clock[DRAFT_S] += draft
        clock[VERIFY_S] += verify
        clock[HOST_S] += host
        if chunks > 0:
            clock[PREFILL_S] += seconds
        clock[IN_SYSTEM] += (running + waiting) * seconds
        clock[IN_BATCH] += running * seconds
        clock[IN_POOL] += (rules.blocks - free) * seconds
        at[PROMPTED] += prompted
        at[REQUEST_STEPS] += n
        emitted, gone = _complete(s, rules, n, end, seconds)
        at[LAST_GONE] = gone
        if gone > 0:
            _leave(s, rules, gone, end)
        note_series(clock, notes, start - begin, seconds, running, waiting, rules.blocks - free, emitted, prompted)
        if rules.log:
            row = STEP_LOG + at[STEPS] * _STEP_COLUMNS
            notes[row] = start
            notes[row + 1] = seconds
            notes[row + 2] = chunks
            notes[row + 3] = prompted
            notes[row + 4] = decodes
            notes[row + 5] = positions
            notes[row + 6] = running
            notes[row + 7] = waiting
            notes[row + 8] = free
            notes[row + 9] = emitted
            at[STEPS] += 1
        clock[NOW] = end
        at[STEP] += 1
    return PAUSED
