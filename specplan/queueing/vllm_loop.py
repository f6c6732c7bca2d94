"""Steps of vLLM 0.32's V1 scheduler (synchronous), one function per part of a step.

Source: the installed package's scheduler driven without a model; `tools/scheduler_cases.py` holds the loop against
recorded runs of it, step by step.
"""

from specplan.queueing.blocks_loop import grow, keep_full, kept_blocks, list_own
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
    GRANTED,
    HELD,
    IN_CHUNK,
    KEYED,
    NEXT,
    PENDING,
    PREEMPTIONS,
    PROMPT,
    REQ,
    RUN,
    RUNNING,
    SLOT,
    STACKED,
    TOP,
    Ints,
    Rules,
    State,
)


@loop
def _blocks_for(rules: Rules, tokens: int) -> int:
    """Blocks of `tokens` tokens with the lookahead behind them, within the model's length."""
    return (min(tokens + rules.lookahead, rules.max_len) + rules.block - 1) // rules.block


@loop
def preempt_last(at: Ints, req: Ints, slots: Ints, pool: Ints, events: Ints, rules: Rules) -> None:
    """Put the last running request at the front of those that wait; its output stays, its cache and drafts go."""
    at[RUNNING] -= 1
    place = at[RUNNING] * SLOT
    r = slots[place + RUN]
    if rules.prefix:
        list_own(req, pool, rules, r)
    req[r + NEXT] = at[TOP]
    at[TOP] = r
    put_back(at, req, slots, pool, events, rules, r)


@loop
def _admit(s: State, rules: Rules, n: int, token_budget: int, input_budget: int, crowd: bool, prefill: bool) -> int:
    """Let waiting requests in, first come first served; the number of requests in the step."""
    at, req, slots = s.at, s.req, s.slots
    running = n
    while token_budget > 0 and input_budget > rules.draft_slots and at[RUNNING] < rules.max_seqs:
        again = at[STACKED] > 0
        if not again and at[ADMITTED] == at[ARRIVED]:
            break
        r = at[TOP] if again else at[ADMITTED] * REQ
        known = req[r + PROMPT] + req[r + EMITTED]
        hit = idle = 0
        if rules.prefix:
            hit, idle = kept_blocks(req, s.pool, s.ids, rules, r, known)
        cached = hit * rules.block
        tokens = known - cached
        if crowd and 0 < rules.threshold < tokens:
            tokens = rules.threshold
        room = min(token_budget, input_budget - rules.draft_slots)
        tokens = min(tokens, room)
        padding = 0
        may_pad = rules.kappa > 0 and not prefill and running + cached > 0
        if may_pad and known - cached == 1 and cached + 2 + rules.kappa <= rules.max_len:
            if room < 1 + rules.kappa:
                break
            padding = rules.kappa
            tokens = 1 + padding
        whole = (min(known, rules.max_len) + rules.block - 1) // rules.block
        blocks = _blocks_for(rules, cached + tokens)
        if max(whole, blocks) - hit + idle > at[FREE]:
            break
        seat(s, rules, r, hit)
        grow(at, req, s.pool, rules, r, blocks)
        if rules.prefix:
            keep_full(req, s.pool, s.ids, rules, r, min(cached + tokens, known))
        slots[n * SLOT + CHOSEN] = r
        slots[n * SLOT + GRANTED] = tokens
        slots[n * SLOT + CHECKED] = padding
        n += 1
        token_budget -= tokens
        input_budget -= tokens + rules.draft_slots
    return n


@loop
def schedule(s: State, rules: Rules) -> int:
    """Choose what the next step computes; the number of requests in it."""
    at, req, slots, pool = s.at, s.req, s.slots, s.pool
    token_budget = rules.max_tokens
    input_budget = rules.max_tokens
    crowd = at[RUNNING] + at[STACKED] + at[ARRIVED] - at[ADMITTED] > 1
    preempted_before = at[PREEMPTIONS]
    prefill = False
    n = 0
    i = 0
    while i < at[RUNNING] and token_budget > 0 and input_budget > rules.draft_slots:
        r = slots[i * SLOT + RUN]
        known = req[r + PROMPT] + req[r + EMITTED]
        computed = req[r + COMPUTED]
        tokens = known + req[r + PENDING] - computed
        if crowd and 0 < rules.threshold < tokens:
            tokens = rules.threshold
        tokens = min(tokens, token_budget, input_budget - rules.draft_slots, rules.max_len - computed - 1)
        if tokens <= 0:
            i += 1
            continue
        if min(computed + tokens + rules.lookahead, rules.max_len) > req[r + HELD] * rules.block:
            blocks = _blocks_for(rules, computed + tokens)
            while blocks - req[r + HELD] > at[FREE] and i < at[RUNNING]:
                preempt_last(at, req, slots, pool, s.events, rules)
            if i == at[RUNNING]:
                break
            grow(at, req, pool, rules, r, blocks)
        if rules.prefix and min(computed + tokens, known) >= (req[r + KEYED] + 1) * rules.block:
            keep_full(req, pool, s.ids, rules, r, min(computed + tokens, known))
        slots[n * SLOT + CHOSEN] = r
        slots[n * SLOT + GRANTED] = tokens
        slots[n * SLOT + CHECKED] = max(computed + tokens - known, 0)
        prefill = prefill or req[r + IN_CHUNK] > 0
        n += 1
        i += 1
        token_budget -= tokens
        input_budget -= tokens + rules.draft_slots
    if at[PREEMPTIONS] == preempted_before:
        n = _admit(s, rules, n, token_budget, input_budget, crowd, prefill)
    return n
