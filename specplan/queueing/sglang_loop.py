"""Steps of SGLang 0.5's scheduler, first come first served, one function per part of a step.

A step computes prompts or decodes, never both. Prompts go first, while the tokens that the running requests are
expected to ask for still fit; that expectation is a share of what they may ask for, which falls with every decoding
step and is estimated anew when requests must be put back.

Source: facts of sgl-project/sglang 0.5.9's admission and retraction. Nobody drove its scheduler without a model here,
so no recorded run holds this loop. Not modelled: chunks mixed with decodes, priorities, the overlap of scheduling with
the step before, longest-prefix order, slots that drafting takes and gives back within a step.
"""

from typing import Final

from specplan.queueing.blocks_loop import grow, keep_full, kept_blocks
from specplan.queueing.compiled import loop
from specplan.queueing.seats_loop import put_back, seat
from specplan.queueing.state import (
    ADMITTED,
    ARRIVED,
    CHECKED,
    CHOSEN,
    COMPUTED,
    EMITTED,
    FREE,
    FULL,
    GRANTED,
    HELD,
    IN_CHUNK,
    NEXT,
    OUTPUT,
    PENDING,
    PROMPT,
    RATIO,
    REQ,
    RUN,
    RUNNING,
    SLOT,
    STACKED,
    STAMP,
    TAIL,
    TOP,
    Rules,
    State,
)

CLIP: Final = 4096
"""Tokens that a request is expected to ask for at most."""
FIRST_RATIO: Final = 0.7
"""Share of what running requests may ask for that is kept free at first."""
LEAST_RATIO: Final = 0.14 * FIRST_RATIO
DECAY: Final = (FIRST_RATIO - LEAST_RATIO) / 600
"""Fall of the share per decoding step."""
HEADROOM: Final = 20
"""Decoding steps of all requests for which retraction makes room."""
MAX_PREFILL_TOKENS: Final = 16384


@loop
def _left(s: State, r: int) -> int:
    """Tokens that a request may still ask for, as far as admission counts them."""
    return int(min(s.req[r + OUTPUT] - s.req[r + EMITTED], CLIP))


@loop
def _compute(s: State, rules: Rules, n: int, r: int, tokens: int, drafts: int) -> None:
    """Give a running request its blocks and its place in the step."""
    at, req, slots = s.at, s.req, s.slots
    upto = req[r + COMPUTED] + tokens
    grow(at, req, s.pool, rules, r, (min(upto, rules.max_len) + rules.block - 1) // rules.block)
    if rules.prefix:
        keep_full(req, s.pool, s.ids, rules, r, min(upto, req[r + PROMPT] + req[r + EMITTED]))
    slots[n * SLOT + CHOSEN] = r
    slots[n * SLOT + GRANTED] = tokens
    slots[n * SLOT + CHECKED] = drafts


@loop
def _paged(rules: Rules, tokens: int) -> int:
    return (tokens + rules.block - 1) // rules.block * rules.block


@loop
def _chunked(s: State) -> int:
    """The request whose prompt was cut in the last step, -1 if there is none."""
    for i in range(s.at[RUNNING]):
        r = s.slots[i * SLOT + RUN]
        if s.req[r + IN_CHUNK] > 0:
            return int(r)
    return -1


@loop
def _reserved(s: State, chunked: int) -> float:
    """Tokens that running requests are expected to ask for yet."""
    tokens = 0
    for i in range(s.at[RUNNING]):
        r = s.slots[i * SLOT + RUN]
        if r != chunked:
            tokens += _left(s, r)
    return tokens * float(s.clock[RATIO])


@loop
def _admit(s: State, rules: Rules, n: int, inputs: int, chunk: int, reserved: float) -> int:
    """Let waiting requests in while they fit; the number of requests in the step."""
    at, req = s.at, s.req
    while at[STACKED] + at[ARRIVED] - at[ADMITTED] > 0 and inputs > 0 and chunk > 0:
        if at[FREE] * rules.block - reserved <= 0 or at[RUNNING] >= rules.max_seqs:
            at[FULL] = 1
            break
        again = at[STACKED] > 0 and req[at[TOP] + STAMP] <= at[ADMITTED]
        r = at[TOP] if again else at[ADMITTED] * REQ
        known = req[r + PROMPT] + req[r + EMITTED]
        hit = idle = 0
        if rules.prefix:
            hit, idle = kept_blocks(req, s.pool, s.ids, rules, r, known)
        tokens = known - hit * rules.block
        if tokens + _left(s, r) >= (at[FREE] - idle) * rules.block - reserved:
            at[FULL] = 1
            break
        if n > 0 and _paged(rules, tokens) >= inputs:
            break
        whole = _paged(rules, tokens) <= chunk
        if not whole:
            tokens = chunk // rules.block * rules.block
            if tokens <= 0:
                break
        seat(s, rules, r, hit)
        _compute(s, rules, n, r, tokens, 0)
        n += 1
        inputs -= _paged(rules, tokens)
        chunk -= _paged(rules, tokens)
        if whole:
            reserved += _left(s, r)
    return n


@loop
def _prompts(s: State, rules: Rules) -> int:
    """Prompts of the next step; the number of requests in it."""
    at, req = s.at, s.req
    chunked = _chunked(s)
    if chunked < 0 and (at[FULL] > 0 or at[STACKED] + at[ARRIVED] == at[ADMITTED]):
        return 0
    reserved = _reserved(s, chunked)
    n = done = 0
    if chunked >= 0:
        left = req[chunked + PROMPT] + req[chunked + EMITTED] - req[chunked + COMPUTED]
        free = at[FREE] * rules.block
        room = min(rules.max_tokens, int(free - reserved))
        tokens = min(left, room if room > 0 else min(rules.max_tokens, free))
        if tokens <= 0:
            return 0
        _compute(s, rules, n, chunked, tokens, 0)
        if tokens < left:
            return 1
        n, done = 1, _paged(rules, tokens)
        reserved += _left(s, chunked)
    return _admit(s, rules, n, MAX_PREFILL_TOKENS - done, rules.max_tokens - done, reserved)


@loop
def _needed(s: State, rules: Rules, r: int) -> int:
    """Blocks that a request's decoding step needs beyond those that it holds."""
    req = s.req
    if req[r + IN_CHUNK] > 0:
        return 0
    upto = min(req[r + PROMPT] + req[r + EMITTED] + req[r + PENDING], rules.max_len)
    return int(max((upto + rules.block - 1) // rules.block - req[r + HELD], 0))


@loop
def _retract(s: State, rules: Rules) -> None:
    """Put back requests, those with the fewest tokens first, until the rest has room for some steps."""
    at, req, slots = s.at, s.req, s.slots
    first = True
    while at[RUNNING] > 1 and (first or at[FREE] * rules.block < at[RUNNING] * HEADROOM):
        first = False
        chosen = 0
        for i in range(1, at[RUNNING]):
            a, b = slots[i * SLOT + RUN], slots[chosen * SLOT + RUN]
            fewer = req[a + EMITTED] < req[b + EMITTED]
            if fewer or (req[a + EMITTED] == req[b + EMITTED] and req[a + PROMPT] >= req[b + PROMPT]):
                chosen = i
        r = slots[chosen * SLOT + RUN]
        at[RUNNING] -= 1
        for i in range(chosen, at[RUNNING]):
            slots[i * SLOT + RUN] = slots[(i + 1) * SLOT + RUN]
        req[r + STAMP] = at[ARRIVED]  # behind all that wait, before all that come
        if at[STACKED] == 0:
            at[TOP] = r
        else:
            req[at[TAIL] + NEXT] = r
        at[TAIL] = r
        put_back(at, req, slots, s.pool, s.events, rules, r)
    emitted = asked = 0
    for i in range(at[RUNNING]):
        r = slots[i * SLOT + RUN]
        emitted += req[r + EMITTED]
        asked += req[r + OUTPUT]
    s.clock[RATIO] = min(1.0, (emitted + HEADROOM * at[RUNNING]) / asked)
    at[FULL] = 0


@loop
def schedule_sglang(s: State, rules: Rules) -> int:
    """Choose what the next step computes; the number of requests in it."""
    at, req, slots = s.at, s.req, s.slots
    if at[RUNNING] == 0:
        s.clock[RATIO] = FIRST_RATIO
        at[FULL] = 0
    n = _prompts(s, rules)
    if n > 0 or at[RUNNING] == 0:
        return n
    needed = 0
    for i in range(at[RUNNING]):
        needed += _needed(s, rules, slots[i * SLOT + RUN])
    if needed > at[FREE]:
        _retract(s, rules)
    else:
        s.clock[RATIO] = max(s.clock[RATIO] - DECAY, LEAST_RATIO)
    for i in range(at[RUNNING]):
        r = slots[i * SLOT + RUN]
        known = req[r + PROMPT] + req[r + EMITTED]
        tokens = min(known + req[r + PENDING], rules.max_len - 1) - req[r + COMPUTED]
        if req[r + IN_CHUNK] > 0 or tokens <= 0:
            continue
        _compute(s, rules, n, r, tokens, max(req[r + COMPUTED] + tokens - known, 0))
        n += 1
    return n
