"""Blocks of the cache: taken, kept under their content, found again, evicted; places as in `specplan.queueing.state`.

Source: vLLM 0.32's block pool, as driven without a model. Without prefix caching only numbers of blocks are kept.
Here `at`, `req` and `pool` are the arrays of those names, `r` is a request, `b` and `block` are blocks.
"""

import numpy as np

from specplan.queueing.compiled import loop
from specplan.queueing.state import (
    BLK,
    FREE,
    HELD,
    HOLDERS,
    IDS_AT,
    IDS_N,
    KEY,
    KEYED,
    NEWER,
    NEWEST,
    OLDER,
    OLDEST,
    PLAIN,
    REQ,
    ROW,
    TWIN,
    UNLISTED,
    Ints,
    Rules,
)

_OWN = 2**24
_SPREAD = 40503


@loop
def _content_key(req: Ints, ids: Ints, unit: int, r: int, j: int) -> int:
    """Name of the content of block `j` of request `r`: even where its prefix ids share it, odd where it is its own."""
    at = j // unit
    if at < req[r + IDS_N]:
        shared: int = (ids[req[r + IDS_AT] + at] * unit + j % unit) * 2 + 2
        return shared
    return (r // REQ * _OWN + j) * 2 + 1


@loop
def _home(key: int, size: int) -> int:
    mixed = key * _SPREAD
    return (mixed ^ (mixed >> 17)) & (size - 1)


@loop
def _place(pool: Ints, table: int, size: int, key: int) -> int:
    """Where `key` stands in the table, or the gap where it would stand; its block stands `size` further."""
    i = _home(key, size)
    while pool[table + i] != 0 and pool[table + i] != key:
        i = (i + 1) & (size - 1)
    return table + i


@loop
def _keep(pool: Ints, table: int, size: int, b: int, key: int) -> None:
    """Note that block `b` holds the content; of blocks with equal content the first noted is found."""
    pool[b + KEY] = key
    pool[b + TWIN] = -1
    place = _place(pool, table, size, key)
    if pool[place] == 0:
        pool[place] = key
        pool[place + size] = b
        return
    last = pool[place + size]
    while pool[last + TWIN] >= 0:
        last = pool[last + TWIN]
    pool[last + TWIN] = b


@loop
def _forget(pool: Ints, table: int, size: int, b: int) -> None:
    """Drop the content of block `b`."""
    if pool[b + TWIN] == UNLISTED:
        pool[b + KEY] = 0
        return
    place = _place(pool, table, size, pool[b + KEY])
    pool[b + KEY] = 0
    before = pool[place + size]
    if before != b:
        while pool[before + TWIN] != b:
            before = pool[before + TWIN]
        pool[before + TWIN] = pool[b + TWIN]
        return
    if pool[b + TWIN] >= 0:
        pool[place + size] = pool[b + TWIN]
        return
    # The gap is closed by whatever stands behind it and may stand there.
    gap = i = place - table
    while True:
        i = (i + 1) & (size - 1)
        if pool[table + i] == 0:
            break
        if ((i - _home(pool[table + i], size)) & (size - 1)) >= ((i - gap) & (size - 1)):
            pool[table + gap] = pool[table + i]
            pool[table + size + gap] = pool[table + size + i]
            gap = i
    pool[table + gap] = 0


@loop
def _unqueue(at: Ints, pool: Ints, b: int) -> None:
    """Take a free block with content out of the queue of eviction."""
    before, after = pool[b + OLDER], pool[b + NEWER]
    if before >= 0:
        pool[before + NEWER] = after
    else:
        at[OLDEST] = after
    if after >= 0:
        pool[after + OLDER] = before
    else:
        at[NEWEST] = before


@loop
def _enqueue(at: Ints, pool: Ints, b: int) -> None:
    """Put a block with content at the end of the queue of eviction."""
    newest = at[NEWEST]
    pool[b + OLDER] = newest
    pool[b + NEWER] = -1
    if newest >= 0:
        pool[newest + NEWER] = b
    else:
        at[OLDEST] = b
    at[NEWEST] = b


@loop
def grow(at: Ints, req: Ints, pool: Ints, rules: Rules, r: int, blocks: int) -> None:
    """Let request `r` hold `blocks` blocks in all; the caller has seen that they are free.

    Plain blocks are taken first, then the oldest with content, which is forgotten.
    """
    held = req[r + HELD]
    if blocks <= held:
        return
    at[FREE] -= blocks - held
    req[r + HELD] = blocks
    if rules.prefix == 0:
        return
    row = rules.owned_at + req[r + ROW] * rules.row_blocks
    for j in range(held, blocks):
        if at[PLAIN] > 0:
            at[PLAIN] -= 1
            b = pool[rules.plain_at + at[PLAIN]]
        else:
            b = at[OLDEST]
            _unqueue(at, pool, b)
            _forget(pool, rules.table_at, rules.table_size, b)
        pool[b + HOLDERS] = 1
        pool[row + j] = b


@loop
def keep_full(req: Ints, pool: Ints, ids: Ints, rules: Rules, r: int, tokens: int) -> None:
    """Note the content of the blocks that the first `tokens` tokens of request `r` fill.

    What no other request can hit stays out of the table until `list_own`: most requests never look for it.
    """
    full = tokens // rules.block
    row = rules.owned_at + req[r + ROW] * rules.row_blocks
    for j in range(req[r + KEYED], full):
        key = _content_key(req, ids, rules.ids_unit, r, j)
        b = pool[row + j]
        if key % 2 == 0:
            _keep(pool, rules.table_at, rules.table_size, b, key)
        else:
            pool[b + KEY] = key
            pool[b + TWIN] = UNLISTED
    req[r + KEYED] = max(req[r + KEYED], full)


@loop
def list_own(req: Ints, pool: Ints, rules: Rules, r: int) -> None:
    """Enter the contents that only request `r` can find again into the table, since it will look for them."""
    row = rules.owned_at + req[r + ROW] * rules.row_blocks
    for j in range(req[r + KEYED]):
        b = pool[row + j]
        if pool[b + TWIN] == UNLISTED:
            _keep(pool, rules.table_at, rules.table_size, b, pool[b + KEY])


@loop
def release(at: Ints, req: Ints, pool: Ints, rules: Rules, r: int) -> None:
    """Free all blocks of request `r`, the last first; content stays until its block is taken."""
    held = req[r + HELD]
    req[r + HELD] = 0
    req[r + KEYED] = 0
    if rules.prefix == 0:
        at[FREE] += held
        return
    row = rules.owned_at + req[r + ROW] * rules.row_blocks
    for j in range(held - 1, -1, -1):
        b = pool[row + j]
        pool[b + HOLDERS] -= 1
        if pool[b + HOLDERS] > 0:
            continue
        at[FREE] += 1
        if pool[b + KEY] == 0:
            pool[rules.plain_at + at[PLAIN]] = b
            at[PLAIN] += 1
        else:
            _enqueue(at, pool, b)


@loop
def kept_blocks(req: Ints, pool: Ints, ids: Ints, rules: Rules, r: int, tokens: int) -> tuple[int, int]:
    """Blocks at the head of request `r` whose content is in the pool, and how many of them nobody holds.

    Whole blocks, at most all but the request's last token; engines with heads give the last one back.
    """
    found = 0
    idle = 0
    last_idle = 0
    most = (tokens - 1) // rules.block
    while found < most:
        place = _place(pool, rules.table_at, rules.table_size, _content_key(req, ids, rules.ids_unit, r, found))
        if pool[place] == 0:
            break
        last_idle = 1 if pool[pool[place + rules.table_size] + HOLDERS] == 0 else 0
        idle += last_idle
        found += 1
    if rules.drop_hit > 0 and found > 0:
        return found - 1, idle - last_idle
    return found, idle


@loop
def hold_kept(at: Ints, req: Ints, pool: Ints, ids: Ints, rules: Rules, r: int, blocks: int) -> None:
    """Let request `r`, which holds nothing, hold the kept blocks at its head."""
    row = rules.owned_at + req[r + ROW] * rules.row_blocks
    for j in range(blocks):
        place = _place(pool, rules.table_at, rules.table_size, _content_key(req, ids, rules.ids_unit, r, j))
        b = pool[place + rules.table_size]
        if pool[b + HOLDERS] == 0:
            _unqueue(at, pool, b)
            at[FREE] -= 1
        pool[b + HOLDERS] += 1
        pool[row + j] = b
    req[r + HELD] = blocks
    req[r + KEYED] = blocks


def new_pool(rules: Rules) -> Ints:
    """Contents of `State.pool` before the first step: all blocks plain and free."""
    if not rules.prefix:
        return np.zeros(1, np.int64)
    pool = np.zeros(rules.owned_at + rules.max_seqs * rules.row_blocks, np.int64)
    pool[rules.plain_at : rules.table_at] = BLK * np.arange(rules.blocks - 1, -1, -1)
    return pool
