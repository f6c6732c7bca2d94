"""Compiled loops of SGLang's draft trees: growth from trie and corpora, merge, layout, replay (needs numba).

A draft tree is a record array in order of creation, a parent before its children; row 0 is the last context token::

    rows[i]   TOKEN PARENT FIRST LAST NEXT      children of i: FIRST, NEXT, ... in order of creation; 0 is none
"""

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from specplan.propose.automaton_kernels import COUNT as STATE_COUNT
from specplan.propose.automaton_kernels import (
    FROZEN_TARGET,
    FROZEN_TOKEN,
    I32,
    I64,
    LEN,
    LINK,
    START,
    Int,
    advance,
    walk,
)
from specplan.propose.compiled import jit, jit_leaf
from specplan.propose.sglang_trie_kernels import (
    AS_ENGINE,
    BY_COUNT,
    CORPUS_BUDGET,
    DEGREE,
    DEPTH,
    MAX_BREADTH,
    MIN_BREADTH,
    S_ANCHORS,
    S_EPOCH,
    S_LENGTHS,
    WIDTH,
    fill_ranks,
    follow,
    insert,
)
from specplan.propose.sglang_trie_kernels import COUNT as NODE_COUNT
from specplan.propose.sglang_trie_kernels import FIRST as NODE_FIRST
from specplan.propose.sglang_trie_kernels import NEXT as NODE_NEXT
from specplan.propose.sglang_trie_kernels import TOKEN as NODE_TOKEN

F64: TypeAlias = npt.NDArray[np.float64]

TOKEN: Final = 0
PARENT: Final = 1
FIRST: Final = 2
LAST: Final = 3
NEXT: Final = 4


class Corpora(NamedTuple):
    """Joined automata: frozen states, edges and indexes, and per corpus [start, stop) in each."""

    states: I32
    edges: I32
    slots: I32
    bounds: I64


class Source(NamedTuple):
    """Where continuations come from: the trie's nodes or one automaton's states and edges; and how they are ranked."""

    in_trie: bool
    by_count: Int
    nodes: I32
    states: I32
    edges: I32


class Work(NamedTuple):
    """Working memory of one draft: a tree and a second one to merge, with chances, and the growth's queue or heap."""

    rows: I32
    chances: F64
    other_rows: I32
    other_chances: F64
    entries: I64
    reals: F64
    heap: I64
    found: I64
    image: I64
    order: I64


@jit
def work_for(params: I64, n_corpora: Int) -> Work:
    """Working memory for trees of WIDTH rows."""
    width, breadth = params[WIDTH], params[MAX_BREADTH]
    # growth from one anchor: MAX_BREADTH entries for the anchor and for each of the WIDTH - 1 rows it can pass through
    most = breadth * width + width
    return Work(
        np.empty((width, 5), np.int32),
        np.empty(width, np.float64),
        np.empty((width, 5), np.int32),
        np.empty(width, np.float64),
        np.empty((most, 3), np.int64),
        np.empty(most, np.float64),
        np.empty(most, np.int64),
        np.empty((breadth, 3), np.int64),
        np.empty(width, np.int64),
        np.empty(n_corpora, np.int64),
    )


# --------------------------------------------------------------------------------------------------------------- trees


@jit_leaf
def _child(rows: I32, parent: Int, token: Int) -> Int:
    row = np.int64(rows[parent, FIRST])
    while row != 0 and rows[row, TOKEN] != token:
        row = np.int64(rows[row, NEXT])
    return row


@jit_leaf
def _set_row(rows: I32, chances: F64, row: Int, parent: Int, token: Int, chance: float) -> None:
    rows[row, TOKEN] = token
    rows[row, PARENT] = parent
    rows[row, FIRST] = 0
    rows[row, LAST] = 0
    rows[row, NEXT] = 0
    chances[row] = chance


@jit_leaf
def _plant(rows: I32, chances: F64, token: Int) -> None:
    _set_row(rows, chances, 0, -1, token, 1.0)


@jit_leaf
def _add(rows: I32, chances: F64, row: Int, parent: Int, token: Int, chance: float) -> None:
    """Make `row` the last child of `parent`; the caller counts the rows."""
    _set_row(rows, chances, row, parent, token, chance)
    last = rows[parent, LAST]
    if last == 0:
        rows[parent, FIRST] = row
    else:
        rows[last, NEXT] = row
    rows[parent, LAST] = row


# -------------------------------------------------------------------------------------------------------------- growth


@jit_leaf
def _continuations(source: Source, at: Int, k: Int, found: I64) -> Int:
    """The first k continuations of a trie node or automaton state in its order, as rows (token, place, count)."""
    n = 0
    if source.in_trie:
        nodes = source.nodes
        if source.by_count == 1:
            fill_ranks(nodes, at, k)
        node = nodes[at, NODE_FIRST]
        while node != 0 and n < k:
            found[n, 0] = nodes[node, NODE_TOKEN]
            found[n, 1] = node
            found[n, 2] = nodes[node, NODE_COUNT]
            n += 1
            node = nodes[node, NODE_NEXT]
        return n
    states, edges = source.states, source.edges
    for e in range(states[at, START], min(states[at + 1, START], states[at, START] + k)):
        target = edges[e, FROZEN_TARGET]
        found[n, 0] = edges[e, FROZEN_TOKEN]
        found[n, 1] = target
        found[n, 2] = states[target, STATE_COUNT]
        n += 1
    return n


@jit_leaf
def _grow_by_recency(
    source: Source, params: I64, anchor: Int, matched: Int, limit: Int, rows: I32, chances: F64, size: Int, work: Work
) -> Int:
    """Grow the tree breadth-first from one anchor up to `limit` rows; answers the rows.

    The breadth starts between MIN and MAX, wider for a shorter match, and shrinks by the same step per level.
    """
    queue, breadths, found = work.entries, work.reals, work.found
    deepest = max(1, params[DEPTH] - 1)
    scale = np.float64(params[MAX_BREADTH] - params[MIN_BREADTH]) / np.float64(deepest)
    queue[0, 0], queue[0, 1] = 0, anchor
    breadths[0] = np.float64(deepest - matched) * scale + np.float64(params[MIN_BREADTH])
    front, back = 0, 1
    while front < back and size < limit:
        parent, at, breadth = queue[front, 0], queue[front, 1], breadths[front]
        front += 1
        for i in range(_continuations(source, at, max(1, int(breadth)), found)):
            if size >= limit:
                break
            row = _child(rows, parent, found[i, 0])
            if row == 0:
                row = np.int64(size)
                _add(rows, chances, row, parent, found[i, 0], 0.0)
                size += 1
            queue[back, 0], queue[back, 1] = row, found[i, 1]
            breadths[back] = breadth - scale
            back += 1
    return size


@jit_leaf
def _is_below(chances: F64, as_engine: Int, a: Int, b: Int) -> bool:
    """Whether entry a is less urgent than b; entries are numbered as they come, and first come is first served."""
    if chances[a] != chances[b] or as_engine == 1:
        return bool(chances[a] < chances[b])
    return bool(a > b)


@jit_leaf
def _sift_up(heap: I64, chances: F64, as_engine: Int, hole: Int, entry: Int) -> None:
    while hole > 0:
        parent = (hole - 1) // 2
        if not _is_below(chances, as_engine, heap[parent], entry):
            break
        heap[hole] = heap[parent]
        hole = parent
    heap[hole] = entry


@jit_leaf
def _pop(heap: I64, chances: F64, as_engine: Int, n: Int) -> Int:
    """Most urgent of n entries; the hole sinks to a leaf and the last entry rises from there.

    That is the usual priority queue of C++ libraries, so equal chances come out in the engine's order.
    """
    top, entry = heap[0], heap[n - 1]
    n -= 1
    hole = 0
    while 2 * hole + 2 < n:
        lower = 2 * hole + 2
        if _is_below(chances, as_engine, heap[lower], heap[lower - 1]):
            lower -= 1
        heap[hole] = heap[lower]
        hole = lower
    if 2 * hole + 2 == n:
        heap[hole] = heap[n - 1]
        hole = n - 1
    if n > 0:
        _sift_up(heap, chances, as_engine, hole, entry)
    return top


@jit_leaf
def _grow_by_count(
    source: Source, params: I64, anchor: Int, limit: Int, rows: I32, chances: F64, size: Int, work: Work
) -> Int:
    """Grow the tree best-first from one anchor up to `limit` rows; answers the rows.

    A continuation's chance is its share among the MAX_BREADTH most frequent ones times its parent's chance.
    """
    entries, urgency, heap, found = work.entries, work.reals, work.heap, work.found
    waiting, made = 0, 0
    parent, at, chance = np.int64(0), np.int64(anchor), 1.0
    while size < limit:
        n = _continuations(source, at, params[MAX_BREADTH], found)
        if n == 1 and waiting == 0:
            token, at = found[0, 0], found[0, 1]
        else:
            total = 0.0
            for i in range(n):
                total += np.float64(found[i, 2])
            for i in range(n):
                entries[made, 0], entries[made, 1], entries[made, 2] = parent, found[i, 0], found[i, 1]
                urgency[made] = np.float64(found[i, 2]) / total * chance
                _sift_up(heap, urgency, params[AS_ENGINE], waiting, made)
                waiting += 1
                made += 1
            if waiting == 0:
                break
            entry = _pop(heap, urgency, params[AS_ENGINE], waiting)
            waiting -= 1
            parent, token, at = entries[entry, 0], entries[entry, 1], entries[entry, 2]
            chance = float(urgency[entry])
        row = _child(rows, parent, token)
        if row == 0:
            row = np.int64(size)
            _add(rows, chances, row, parent, token, chance)
            size += 1
        parent = row
    return size


@jit_leaf
def _grow(
    source: Source, params: I64, anchor: Int, matched: Int, limit: Int, rows: I32, chances: F64, size: Int, work: Work
) -> Int:
    if params[BY_COUNT] == 1:
        return _grow_by_count(source, params, anchor, limit, rows, chances, size, work)
    return _grow_by_recency(source, params, anchor, matched, limit, rows, chances, size, work)


@jit_leaf
def _grow_from_trie(
    nodes: I32, corpora: Corpora, params: I64, state: I64, limit: Int, rows: I32, chances: F64, size: Int, work: Work
) -> Int:
    """Grow from the anchors of a match state, longest first, leaves left out."""
    source = Source(True, params[BY_COUNT], nodes, corpora.states, corpora.edges)
    for d in range(state[S_LENGTHS] - 1, -1, -1):
        if size >= limit:
            break
        anchor = state[S_ANCHORS + d]
        if anchor != 0 and nodes[anchor, DEGREE] > 0:
            size = _grow(source, params, anchor, d + 1, limit, rows, chances, size, work)
    return size


@jit_leaf
def _part(corpora: Corpora, c: Int) -> tuple[I32, I32, I32]:
    """States, edges and index of corpus c."""
    s0, s1, e0, e1, h0, h1 = corpora.bounds[c]
    return corpora.states[s0:s1], corpora.edges[e0:e1], corpora.slots[h0:h1]


@jit_leaf
def _grow_from_corpus(
    nodes: I32, corpora: Corpora, c: Int, params: I64, place: I64,
    limit: Int, rows: I32, chances: F64, size: Int, work: Work,
) -> Int:  # fmt: skip
    """Grow from the suffixes of a corpus match, longest first, one per class of end positions."""
    states, edges, _ = _part(corpora, c)
    source = Source(False, params[BY_COUNT], nodes, states, edges)
    anchor, matched = place[0], place[1]
    while anchor > 0 and size < limit:
        if states[anchor + 1, START] > states[anchor, START]:
            size = _grow(source, params, anchor, matched, limit, rows, chances, size, work)
        anchor = np.int64(states[anchor, LINK])
        matched = min(matched, np.int64(states[anchor, LEN]))
    return size


@jit_leaf
def _merge(rows: I32, chances: F64, size: Int, own: Int, work: Work) -> Int:
    """Add the paths of the other tree's `own` rows; the path that is token 0 alone is left out, as padding would be."""
    other, other_chances, image = work.other_rows, work.other_chances, work.image
    image[0] = 0
    for i in range(1, own):
        parent, token = np.int64(other[i, PARENT]), np.int64(other[i, TOKEN])
        if parent == 0 and token == 0 and other[i, FIRST] == 0:
            continue
        row = _child(rows, image[parent], token)
        if row == 0:
            row = np.int64(size)
            _add(rows, chances, row, image[parent], token, other_chances[i])
            size += 1
        image[i] = row
    return size


@jit_leaf
def _draft_as_engine(
    nodes: I32, corpora: Corpora, params: I64, state: I64, places: I64, last_token: Int, width: Int, work: Work
) -> Int:
    """S corpora get the floor of an S-th of their budget each, the trie the rest; each grows alone, then all merge."""
    n_corpora = corpora.bounds.shape[0]
    share = min(params[CORPUS_BUDGET], width - 1) // n_corpora if n_corpora > 0 else 0
    _plant(work.rows, work.chances, last_token)
    if share == 0:
        return _grow_from_trie(nodes, corpora, params, state, width, work.rows, work.chances, 1, work)
    _plant(work.other_rows, work.other_chances, last_token)
    limit = width - share * n_corpora
    own = _grow_from_trie(nodes, corpora, params, state, limit, work.other_rows, work.other_chances, 1, work)
    size = _merge(work.rows, work.chances, 1, own, work)
    for c in range(n_corpora):
        _plant(work.other_rows, work.other_chances, last_token)
        own = _grow_from_corpus(
            nodes, corpora, c, params, places[c], share + 1, work.other_rows, work.other_chances, 1, work
        )
        size = _merge(work.rows, work.chances, size, own, work)
    return size


@jit_leaf
def _draft_shared(
    nodes: I32, corpora: Corpora, params: I64, state: I64, places: I64, last_token: Int, width: Int, work: Work
) -> Int:
    """One tree: the corpora, longest match first, up to their budget; the trie; the corpora again for what is left."""
    n_corpora = corpora.bounds.shape[0]
    _plant(work.rows, work.chances, last_token)
    size = np.int64(1)
    order = work.order
    for c in range(n_corpora):
        turn = c
        while turn > 0 and places[order[turn - 1], 1] < places[c, 1]:
            order[turn] = order[turn - 1]
            turn -= 1
        order[turn] = c
    budget_left = min(params[CORPUS_BUDGET], width - 1)
    for turn in range(n_corpora):
        others = n_corpora - turn
        limit = size + (budget_left + others - 1) // others
        grown = _grow_from_corpus(
            nodes, corpora, order[turn], params, places[order[turn]], limit, work.rows, work.chances, size, work
        )
        budget_left -= grown - size
        size = grown
    size = _grow_from_trie(nodes, corpora, params, state, width, work.rows, work.chances, size, work)
    for turn in range(n_corpora):
        size = _grow_from_corpus(
            nodes, corpora, order[turn], params, places[order[turn]], width, work.rows, work.chances, size, work
        )
    return size


@jit_leaf
def draft(
    nodes: I32, corpora: Corpora, params: I64, state: I64, places: I64, last_token: Int, width: Int, work: Work
) -> Int:
    """Build one draft tree of at most `width` rows into the work's first tree; answers its rows, root included."""
    if params[AS_ENGINE] == 1:
        return _draft_as_engine(nodes, corpora, params, state, places, last_token, width, work)
    return _draft_shared(nodes, corpora, params, state, places, last_token, width, work)


# -------------------------------------------------------------------------------------------------------- one step


@jit_leaf
def _locate(corpora: Corpora, tokens: I32, start: Int, stop: Int, places: I64) -> None:
    """In each corpus, class and length of the longest suffix of tokens[start:stop] that occurs."""
    for c in range(corpora.bounds.shape[0]):
        states, edges, slots = _part(corpora, c)
        places[c, 0], places[c, 1] = walk(states, edges, slots, tokens, start, stop)


@jit_leaf
def _relocate(corpora: Corpora, tokens: I32, start: Int, stop: Int, depth: Int, places: I64) -> None:
    """The same after tokens[start:stop] more."""
    for c in range(corpora.bounds.shape[0]):
        states, edges, slots = _part(corpora, c)
        for i in range(start, stop):
            places[c, 0], places[c, 1] = advance(
                states, edges, slots, places[c, 0], places[c, 1], np.int64(tokens[i]), depth
            )


@jit_leaf
def longest_match(nodes: I32, corpora: Corpora, state: I64, places: I64) -> Int:
    """Length of the longest suffix with a continuation, in the trie or in any corpus."""
    best = np.int64(0)
    for d in range(state[S_LENGTHS] - 1, -1, -1):
        anchor = state[S_ANCHORS + d]
        if anchor != 0 and nodes[anchor, DEGREE] > 0:
            best = np.int64(d + 1)
            break
    for c in range(corpora.bounds.shape[0]):
        states, _, _ = _part(corpora, c)
        at, matched = places[c, 0], places[c, 1]
        while at > 0 and states[at + 1, START] == states[at, START]:
            at = np.int64(states[at, LINK])
            matched = min(matched, np.int64(states[at, LEN]))
        best = max(best, matched)
    return best


@jit_leaf
def lay_out(size: Int, pad: Int, work: Work, tokens: I32, parents: I32, chances: F64) -> None:
    """Number the rows level by level from the root; the rest is padding: the token `pad` under the root."""
    rows, order = work.rows, work.image
    order[0] = 0
    parents[0] = -1
    done = 1
    for i in range(size):
        row = order[i]
        tokens[i] = rows[row, TOKEN]
        chances[i] = work.chances[row]
        child = rows[row, FIRST]
        while child != 0:
            order[done] = child
            parents[done] = i
            done += 1
            child = rows[child, NEXT]
    for i in range(size, tokens.shape[0]):
        tokens[i] = pad
        parents[i] = 0
        chances[i] = 0.0


@jit_leaf
def _match_all(
    nodes: I32, slots: I32, head: I64, params: I64, request_states: I64, which: I64,
    tokens: I32, offsets: I64, totals: I64, widths: I64, corpora: Corpora, work: Work, places: I64,
    out_tokens: I32, out_parents: I32, out_chances: F64, out_sizes: I64, out_lengths: I64,
) -> None:  # fmt: skip
    pad = 0 if params[AS_ENGINE] == 1 else -1
    for b in range(which.shape[0]):
        state = request_states[which[b]]
        start, stop = offsets[b], offsets[b + 1]
        follow(nodes, slots, head, params, state, tokens, start, stop, totals[b])
        _locate(corpora, tokens, max(start, stop - params[DEPTH]), stop, places)
        size = draft(nodes, corpora, params, state, places, np.int64(tokens[stop - 1]), widths[b], work)
        out_sizes[b] = size
        out_lengths[b] = longest_match(nodes, corpora, state, places)
        lay_out(size, pad, work, out_tokens[b], out_parents[b], out_chances[b])


@jit
def match_batch(
    nodes: I32, slots: I32, head: I64, params: I64, request_states: I64, which: I64,
    tokens: I32, offsets: I64, totals: I64, widths: I64,
    states: I32, edges: I32, corpus_slots: I32, bounds: I64,
    out_tokens: I32, out_parents: I32, out_chances: F64, out_sizes: I64, out_lengths: I64,
) -> None:  # fmt: skip
    """Follow and draft for a batch; row b of the outputs is request b, laid out level by level."""
    corpora, work = Corpora(states, edges, corpus_slots, bounds), work_for(params, bounds.shape[0])
    places = np.zeros((bounds.shape[0], 2), np.int64)
    _match_all(
        nodes, slots, head, params, request_states, which, tokens, offsets, totals, widths, corpora, work, places,
        out_tokens, out_parents, out_chances, out_sizes, out_lengths,
    )  # fmt: skip


@jit
def link_batch(parents: I32, masks: npt.NDArray[np.uint8], links: I32) -> None:
    """Masks (B, N, N) and links (B, 3, N: first child, next sibling, depth) of laid-out trees."""
    n = parents.shape[1]
    for b in range(parents.shape[0]):
        for i in range(n):
            links[b, 0, i] = -1
            links[b, 1, i] = -1
            parent = parents[b, i]
            if parent < 0:
                masks[b, i] = 0
                links[b, 2, i] = 0
            else:
                masks[b, i] = masks[b, parent]
                links[b, 2, i] = links[b, 2, parent] + 1
            masks[b, i, i] = 1
        # from the last row back, a parent's first child so far is the next sibling of the one before it
        for i in range(n - 1, 0, -1):
            parent = parents[b, i]
            links[b, 1, i] = links[b, 0, parent]
            links[b, 0, parent] = i


# -------------------------------------------------------------------------------------------------------------- replay


@jit_leaf
def accepted_in(rows: I32, size: Int, params: I64, tokens: I32, at: Int, stop: Int) -> Int:
    """Length of the longest root path that equals tokens[at:stop].

    As the engine does, padding counts: a pad is a leaf with token 0 under the root.
    """
    accepted = 0
    row = np.int64(0)
    while at + accepted < stop:
        row = _child(rows, row, np.int64(tokens[at + accepted]))
        if row == 0:
            break
        accepted += 1
    if accepted == 0 and params[AS_ENGINE] == 1 and size < params[WIDTH] and at < stop and tokens[at] == 0:
        return 1
    return accepted


@jit_leaf
def ends_in_leaf(rows: I32, size: Int, params: I64, tokens: I32, at: Int, accepted: Int) -> bool:
    """Whether nothing hangs under the last of the accepted nodes; padding hangs under the root and is a leaf itself."""
    row = np.int64(0)
    for i in range(accepted):
        row = _child(rows, row, np.int64(tokens[at + i]))
        if row == 0:  # an accepted pad
            return True
    padded = params[AS_ENGINE] == 1 and size < params[WIDTH]
    return rows[row, FIRST] == 0 and not (row == 0 and padded)


@jit
def _feed(
    nodes: I32, slots: I32, head: I64, params: I64, tokens: I32, start: Int, at: Int, end: Int, path: I64
) -> tuple[I32, I32]:
    """Insert after a step that took a request from `at` to `end`: as the engine the matched tail, else what is new."""
    if params[AS_ENGINE] == 1:
        first = max(start, at - params[DEPTH])
        return insert(nodes, slots, head, params, tokens, first, at, first, path)
    return insert(nodes, slots, head, params, tokens, max(start, at - params[DEPTH] + 1), end, at, path)


@jit
def replay(
    nodes: I32, slots: I32, head: I64, params: I64, tokens: I32, starts: I64, prompts: I64,
    states: I32, edges: I32, corpus_slots: I32, bounds: I64, concurrency: Int, index_prompts: bool, out: I32,
) -> tuple[I32, I32, Int]:  # fmt: skip
    """Serve recorded requests: match, verify against the record, feed; answers the trie and the number of steps.

    Rows of `out`: request, context_len, drafted, accepted, emitted, match_len, ends in a leaf. Up to `concurrency`
    requests run at once, in order of arrival; all of a step's matches come before all of its insertions.
    """
    corpora, work = Corpora(states, edges, corpus_slots, bounds), work_for(params, bounds.shape[0])
    depth = params[DEPTH]
    path = np.empty(depth, np.int64)
    request_states = np.zeros((concurrency, S_ANCHORS + 2 * depth), np.int64)
    places = np.zeros((concurrency, bounds.shape[0], 2), np.int64)
    # running requests, in order: which, how far, emitted by this step, row of its state; rows past `running` are free
    request, position, emitted, row_of = np.zeros((4, concurrency), np.int64)
    row_of[:] = np.arange(concurrency)
    running, arriving, step = 0, 0, 0
    while True:
        while running < concurrency and arriving < prompts.shape[0]:
            start, stop = starts[arriving], starts[arriving + 1]
            at = start + prompts[arriving] + 1  # the prefill emits the first token
            if index_prompts:
                nodes, slots = insert(nodes, slots, head, params, tokens, start, at - 1, start, path)
            if params[AS_ENGINE] == 0 and at <= stop:
                nodes, slots = _feed(nodes, slots, head, params, tokens, start, at - 1, at, path)
            if at < stop:
                row = row_of[running]
                request_states[row, S_EPOCH] = -1
                _locate(corpora, tokens, max(start, at - depth), at, places[row])
                request[running], position[running] = arriving, at
                running += 1
            arriving += 1
        if running == 0:
            return nodes, slots, step
        for b in range(running):
            r, at, state, place = request[b], position[b], request_states[row_of[b]], places[row_of[b]]
            start, stop = starts[r], starts[r + 1]
            follow(nodes, slots, head, params, state, tokens, max(start, at - depth), at, at - start)
            size = draft(nodes, corpora, params, state, place, np.int64(tokens[at - 1]), params[WIDTH], work)
            accepted = accepted_in(work.rows, size, params, tokens, at, stop)
            emitted[b] = min(accepted + 1, stop - at)
            out[step, 0] = r
            out[step, 1] = at - start
            out[step, 2] = size - 1
            out[step, 3] = accepted
            out[step, 4] = emitted[b]
            out[step, 5] = longest_match(nodes, corpora, state, place)
            out[step, 6] = ends_in_leaf(work.rows, size, params, tokens, at, accepted)
            step += 1
            _relocate(corpora, tokens, at, at + emitted[b], depth, place)
        left = 0
        for b in range(running):
            r, at = request[b], position[b]
            nodes, slots = _feed(nodes, slots, head, params, tokens, starts[r], at, at + emitted[b], path)
            if at + emitted[b] < starts[r + 1]:
                request[left], position[left] = r, at + emitted[b]
                row_of[left], row_of[b] = row_of[b], row_of[left]
                left += 1
        running = left
