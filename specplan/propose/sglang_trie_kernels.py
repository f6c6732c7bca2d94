"""Compiled loops of SGLang's online trie; imported only when a trie is built (needs numba).

The trie is one record array, a cache line and no pointer chase per node::

    nodes[i]   PARENT TOKEN COUNT FIRST PREV NEXT OLDER NEWER VERSION DEGREE RANK_TAIL FLAGS

Node 0 is the root and, in every link, "none". Children of a node hang on FIRST, NEXT, PREV. In recency order (the BFS
rule) the list runs from the last touched child to the first. In frequency order (the PROB rule) it starts with ranked
children, the most frequent ones in order (count descending, token ascending) up to RANK_TAIL; the others follow in any
order. At most `width` are ranked; fewer than that (and than DEGREE) after an eviction, until `fill_ranks`. The root is
never expanded, so its list is always in recency order.

OLDER and NEWER form one list of all nodes by last touch; along it a parent is always newer than its children, so the
oldest node is a leaf. Free nodes hang on OLDER from head[FREE].

A node with more than `NARROW` children is searched through `slots` (node numbers, 0 is empty), which holds every child
of every such node.
"""

from typing import Final

import numpy as np

from specplan.propose.automaton_kernels import I32, I64, Int, slot_of
from specplan.propose.compiled import jit, jit_leaf

PARENT: Final = 0
TOKEN: Final = 1
COUNT: Final = 2
FIRST: Final = 3
PREV: Final = 4
NEXT: Final = 5
OLDER: Final = 6
NEWER: Final = 7
VERSION: Final = 8
DEGREE: Final = 9
RANK_TAIL: Final = 10
FLAGS: Final = 11
NODE_FIELDS: Final = 12
SLOTTED: Final = 1
RANKED: Final = 2
RANKED_SHIFT: Final = 8  # from this bit on, FLAGS holds the number of ranked children

# head: what the trie knows of itself
CAPACITY: Final = 0  # nodes it may hold, root included
USED: Final = 1  # nodes it holds, root included
UNTOUCHED: Final = 2  # first row that was never used
FREE: Final = 3
NEWEST: Final = 4
OLDEST: Final = 5
EPOCH: Final = 6  # resets so far
CLOCK: Final = 7  # insertions so far
EVICTED: Final = 8
N_SLOTTED: Final = 9
HEAD_FIELDS: Final = 10

# params: the rule
WIDTH: Final = 0  # nodes verified per request, root included
DEPTH: Final = 1
MIN_BREADTH: Final = 2
MAX_BREADTH: Final = 3
BY_COUNT: Final = 4  # 1: PROB, 0: BFS
CORPUS_BUDGET: Final = 5
AS_ENGINE: Final = 6  # 1: with the engine's quirks

# request state: EPOCH TOTAL LENGTHS CLOCK, then DEPTH anchors, then their versions
S_EPOCH: Final = 0
S_TOTAL: Final = 1
S_LENGTHS: Final = 2
S_CLOCK: Final = 3
S_ANCHORS: Final = 4

NARROW: Final = 4
COUNT_LIMIT: Final = 2**31 - 1


# ---------------------------------------------------------------------------------------------------- trie: children


@jit_leaf
def child(nodes: I32, slots: I32, parent: Int, token: Int) -> Int:
    """Child of `parent` by `token`, 0 when there is none."""
    node = np.int64(nodes[parent, FIRST])
    if nodes[parent, DEGREE] <= NARROW:
        while node != 0 and nodes[node, TOKEN] != token:
            node = np.int64(nodes[node, NEXT])
        return node
    if nodes[node, TOKEN] == token:
        return node
    at = slot_of(parent, token, slots.shape[0])
    while slots[at] != 0:
        node = np.int64(slots[at])
        if nodes[node, TOKEN] == token and nodes[node, PARENT] == parent:
            return node
        at = (at + 1) & (slots.shape[0] - 1)
    return np.int64(0)


@jit_leaf
def _put_in_slot(nodes: I32, slots: I32, node: Int) -> None:
    at = slot_of(nodes[node, PARENT], nodes[node, TOKEN], slots.shape[0])
    while slots[at] != 0:
        at = (at + 1) & (slots.shape[0] - 1)
    slots[at] = node


@jit_leaf
def _take_from_slot(nodes: I32, slots: I32, node: Int) -> None:
    """Remove by moving later entries back, so that no probe ever meets a gap before its entry."""
    mask = slots.shape[0] - 1
    gap = slot_of(nodes[node, PARENT], nodes[node, TOKEN], slots.shape[0])
    while slots[gap] != node:
        gap = (gap + 1) & mask
    slots[gap] = 0
    at = (gap + 1) & mask
    while slots[at] != 0:
        home = slot_of(nodes[slots[at], PARENT], nodes[slots[at], TOKEN], slots.shape[0])
        if ((at - home) & mask) >= ((at - gap) & mask):
            slots[gap] = slots[at]
            slots[at] = 0
            gap = at
        at = (at + 1) & mask


@jit_leaf
def _link_after(nodes: I32, parent: Int, node: Int, before: Int) -> None:
    """Hang `node` behind its sibling `before`; 0: first."""
    after = nodes[before, NEXT] if before != 0 else nodes[parent, FIRST]
    nodes[node, PREV] = before
    nodes[node, NEXT] = after
    if before != 0:
        nodes[before, NEXT] = node
    else:
        nodes[parent, FIRST] = node
    if after != 0:
        nodes[after, PREV] = node


@jit_leaf
def _unlink(nodes: I32, parent: Int, node: Int) -> None:
    before, after = nodes[node, PREV], nodes[node, NEXT]
    if before != 0:
        nodes[before, NEXT] = after
    else:
        nodes[parent, FIRST] = after
    if after != 0:
        nodes[after, PREV] = before


@jit_leaf
def _outranks(nodes: I32, a: Int, b: Int) -> bool:
    if nodes[a, COUNT] != nodes[b, COUNT]:
        return bool(nodes[a, COUNT] > nodes[b, COUNT])
    return bool(nodes[a, TOKEN] < nodes[b, TOKEN])


@jit_leaf
def n_ranked(nodes: I32, parent: Int) -> Int:
    """Number of children at the head of the list that are known to be the most frequent, in order."""
    return np.int64(nodes[parent, FLAGS] >> RANKED_SHIFT)


@jit_leaf
def _rank(nodes: I32, parent: Int, node: Int, before: Int) -> None:
    """Hang an unlinked node at its rank among the ranked siblings up to `before`."""
    tail = nodes[parent, RANK_TAIL]
    while before != 0 and _outranks(nodes, node, before):
        before = np.int64(nodes[before, PREV])
    _link_after(nodes, parent, node, before)
    if before == tail:
        nodes[parent, RANK_TAIL] = node


@jit_leaf
def _admit(nodes: I32, parent: Int, node: Int, width: Int) -> None:
    """Rank an unlinked node that is at least as frequent as any unranked one; past `width`, the last one drops out."""
    _rank(nodes, parent, node, np.int64(nodes[parent, RANK_TAIL]))
    nodes[node, FLAGS] |= RANKED
    nodes[parent, FLAGS] += 1 << RANKED_SHIFT
    if n_ranked(nodes, parent) > width:
        tail = nodes[parent, RANK_TAIL]
        nodes[tail, FLAGS] &= ~RANKED
        nodes[parent, RANK_TAIL] = nodes[tail, PREV]
        nodes[parent, FLAGS] -= 1 << RANKED_SHIFT


@jit_leaf
def _hang(nodes: I32, parent: Int, node: Int, by_count: Int, width: Int) -> None:
    """Place a new child; DEGREE does not count it yet."""
    if by_count == 0 or parent == 0:
        _link_after(nodes, parent, node, 0)
        return
    tail = np.int64(nodes[parent, RANK_TAIL])
    all_are_ranked = n_ranked(nodes, parent) == nodes[parent, DEGREE] < width
    if all_are_ranked or (tail != 0 and _outranks(nodes, node, tail)):
        _admit(nodes, parent, node, width)
    else:
        _link_after(nodes, parent, node, tail)


@jit_leaf
def _rehang(nodes: I32, parent: Int, node: Int, by_count: Int, width: Int) -> None:
    """Restore the order of the children after `node` was touched or counted."""
    before = np.int64(nodes[node, PREV])
    if before == 0:
        return
    if by_count == 0 or parent == 0:
        _unlink(nodes, parent, node)
        _link_after(nodes, parent, node, 0)
    elif nodes[node, FLAGS] & RANKED:
        if _outranks(nodes, node, before):
            if nodes[parent, RANK_TAIL] == node:
                nodes[parent, RANK_TAIL] = before
            _unlink(nodes, parent, node)
            _rank(nodes, parent, node, before)
    else:
        tail = nodes[parent, RANK_TAIL]
        if tail != 0 and _outranks(nodes, node, tail):
            _unlink(nodes, parent, node)
            _admit(nodes, parent, node, width)


@jit_leaf
def _unhang(nodes: I32, parent: Int, node: Int) -> None:
    """Take a child off. Its rank is not filled before someone asks: that takes a look at all unranked siblings."""
    if nodes[node, FLAGS] & RANKED:
        if nodes[parent, RANK_TAIL] == node:
            nodes[parent, RANK_TAIL] = nodes[node, PREV]
        nodes[parent, FLAGS] -= 1 << RANKED_SHIFT
    _unlink(nodes, parent, node)


@jit_leaf
def fill_ranks(nodes: I32, parent: Int, width: Int) -> None:
    """Rank the most frequent children until `width` are ranked, or all."""
    while n_ranked(nodes, parent) < min(width, nodes[parent, DEGREE]):
        tail = nodes[parent, RANK_TAIL]
        other = np.int64(nodes[tail, NEXT] if tail != 0 else nodes[parent, FIRST])
        best = other
        while other != 0:
            if _outranks(nodes, other, best):
                best = other
            other = np.int64(nodes[other, NEXT])
        _unlink(nodes, parent, best)
        _admit(nodes, parent, best, width)


# ------------------------------------------------------------------------------------------- trie: age and insertion


@jit_leaf
def _make_newest(nodes: I32, head: I64, node: Int) -> None:
    newest = head[NEWEST]
    nodes[node, OLDER] = newest
    nodes[node, NEWER] = 0
    if newest != 0:
        nodes[newest, NEWER] = node
    else:
        head[OLDEST] = node
    head[NEWEST] = node


@jit_leaf
def _forget_age(nodes: I32, head: I64, node: Int) -> None:
    older, newer = nodes[node, OLDER], nodes[node, NEWER]
    if newer != 0:
        nodes[newer, OLDER] = older
    else:
        head[NEWEST] = older
    if older != 0:
        nodes[older, NEWER] = newer
    else:
        head[OLDEST] = newer


@jit_leaf
def _touch_path(nodes: I32, head: I64, path: I64, n: Int) -> None:
    """Make a root path the newest nodes, its first node the newest of all."""
    for d in range(n - 1, -1, -1):
        if head[NEWEST] != path[d]:
            _forget_age(nodes, head, path[d])
            _make_newest(nodes, head, path[d])


@jit_leaf
def evict(nodes: I32, slots: I32, head: I64, n: Int) -> None:
    """Remove the n oldest nodes; each is a leaf when its turn comes."""
    for _ in range(n):
        node = head[OLDEST]
        parent = np.int64(nodes[node, PARENT])
        _forget_age(nodes, head, node)
        nodes[parent, DEGREE] -= 1
        _unhang(nodes, parent, node)
        if nodes[node, FLAGS] & SLOTTED:
            _take_from_slot(nodes, slots, node)
            head[N_SLOTTED] -= 1
        nodes[node, VERSION] += 1
        nodes[node, OLDER] = head[FREE]
        head[FREE] = node
        head[USED] -= 1
        head[EVICTED] += 1


@jit_leaf
def _new_child(nodes: I32, slots: I32, head: I64, parent: Int, token: Int, by_count: Int, width: Int) -> Int:
    node = head[FREE]
    if node != 0:
        head[FREE] = nodes[node, OLDER]
    else:
        node = head[UNTOUCHED]
        head[UNTOUCHED] += 1
        nodes[node, VERSION] = 0
    head[USED] += 1
    nodes[node, PARENT] = parent
    nodes[node, TOKEN] = token
    nodes[node, COUNT] = 1
    nodes[node, FIRST] = 0
    nodes[node, DEGREE] = 0
    nodes[node, RANK_TAIL] = 0
    nodes[node, FLAGS] = 0
    _hang(nodes, parent, node, by_count, width)
    nodes[parent, DEGREE] += 1
    degree = nodes[parent, DEGREE]
    if degree > NARROW + 1:
        nodes[node, FLAGS] |= SLOTTED
        _put_in_slot(nodes, slots, node)
        head[N_SLOTTED] += 1
    elif degree == NARROW + 1:
        sibling = np.int64(nodes[parent, FIRST])
        while sibling != 0:
            if nodes[sibling, FLAGS] & SLOTTED == 0:
                nodes[sibling, FLAGS] |= SLOTTED
                _put_in_slot(nodes, slots, sibling)
                head[N_SLOTTED] += 1
            sibling = np.int64(nodes[sibling, NEXT])
    _make_newest(nodes, head, node)
    return node


@jit_leaf
def _lacks_rows(nodes: I32, head: I64, needed: Int) -> bool:
    return bool(head[UNTOUCHED] + needed > nodes.shape[0] and nodes.shape[0] < head[CAPACITY])


@jit_leaf
def _lacks_slots(slots: I32, head: I64, needed: Int) -> bool:
    """Whether the index could be more than half full after `needed` new nodes, each of which may index its siblings."""
    return bool(2 * (head[N_SLOTTED] + (NARROW + 1) * needed) > slots.shape[0])


@jit
def _with_room(nodes: I32, slots: I32, head: I64, needed: Int) -> tuple[I32, I32]:
    """The arrays with `needed` more rows (as far as the capacity goes) and room in the index for their children."""
    if _lacks_rows(nodes, head, needed):
        rows = min(head[CAPACITY], max(2 * nodes.shape[0], head[UNTOUCHED] + needed))
        bigger = np.empty((rows, NODE_FIELDS), np.int32)
        bigger[: nodes.shape[0]] = nodes
        nodes = bigger
    if _lacks_slots(slots, head, needed):
        fresh = np.zeros(2 * slots.shape[0], np.int32)
        for at in range(slots.shape[0]):
            if slots[at] != 0:
                _put_in_slot(nodes, fresh, slots[at])
        slots = fresh
    return nodes, slots


@jit_leaf
def _insert_window(
    nodes: I32, slots: I32, head: I64, params: I64, tokens: I32, first: Int, length: Int, counted_from: Int, path: I64
) -> None:
    """Walk tokens[first:first + length] from the root: make what is missing, count, touch. The arrays have room."""
    by_count, width = params[BY_COUNT], params[MAX_BREADTH]
    free = head[CAPACITY] - head[USED]
    if free < length:
        known = np.int64(0)
        if params[AS_ENGINE] == 0:
            node = np.int64(0)
            while known < length:
                node = child(nodes, slots, node, np.int64(tokens[first + known]))
                if node == 0:
                    break
                path[known] = node
                known += 1
            # what is there must not make room for what is missing
            _touch_path(nodes, head, path, known)
        evict(nodes, slots, head, max(0, length - known - free))
    parent = np.int64(0)
    for d in range(length):
        token = np.int64(tokens[first + d])
        node = child(nodes, slots, parent, token)
        if node == 0:
            node = _new_child(nodes, slots, head, parent, token, by_count, width)
        else:
            if first + d >= counted_from and nodes[node, COUNT] < COUNT_LIMIT:
                nodes[node, COUNT] += 1
            _rehang(nodes, parent, node, by_count, width)
        path[d] = node
        parent = node
    _touch_path(nodes, head, path, length)


@jit
def insert(
    nodes: I32, slots: I32, head: I64, params: I64, tokens: I32, start: Int, stop: Int, counted_from: Int, path: I64
) -> tuple[I32, I32]:
    """Insert tokens[start:stop]: for every start the window of at most DEPTH tokens, as one root path.

    A node's count rises by one for each window through it whose token there is at `counted_from` or later; windows
    that end before it are skipped. As the engine does, room is made for a window none of whose nodes exist; otherwise
    only for those that are missing. Answers the arrays, grown as needed; `path` is room for DEPTH numbers.
    """
    head[CLOCK] += 1
    for first in range(start, stop):
        length = min(params[DEPTH], stop - first)
        if first + length > counted_from:
            if _lacks_rows(nodes, head, length) or _lacks_slots(slots, head, length):
                nodes, slots = _with_room(nodes, slots, head, length)
            _insert_window(nodes, slots, head, params, tokens, first, length, counted_from, path)
    return nodes, slots


# ------------------------------------------------------------------------------------------------- trie: match states


@jit_leaf
def _walk_from_root(nodes: I32, slots: I32, tokens: I32, start: Int, stop: Int) -> Int:
    node = np.int64(0)
    for i in range(start, stop):
        node = child(nodes, slots, node, np.int64(tokens[i]))
        if node == 0:
            break
    return node


@jit_leaf
def _anchors_hold(nodes: I32, head: I64, state: I64, n_tail: Int, total_len: Int, depth: Int) -> bool:
    appended = total_len - state[S_TOTAL]
    if state[S_EPOCH] != head[EPOCH] or appended < 0 or appended > n_tail:
        return False
    if state[S_LENGTHS] != min(state[S_TOTAL], depth):
        return False
    for d in range(state[S_LENGTHS]):
        node = state[S_ANCHORS + d]
        if node != 0 and nodes[node, VERSION] != state[S_ANCHORS + depth + d]:
            return False
    return True


@jit_leaf
def follow(
    nodes: I32, slots: I32, head: I64, params: I64, state: I64, tokens: I32, start: Int, stop: Int, total_len: Int
) -> None:
    """Bring a request's anchors up to its tail tokens[start:stop]; anchor d is the node of the last d + 1 tokens.

    As the engine does, an anchor that was absent stays absent for its continuations until the state is rebuilt.
    Otherwise the anchors after every call are those of a rebuild: lengths that exist are 1..m, since a path's suffix is
    always the newer of the two, so it suffices to try m + 1.
    """
    depth = params[DEPTH]
    n = stop - start
    lengths = min(n, depth)
    if _anchors_hold(nodes, head, state, n, total_len, depth):
        lengths = state[S_LENGTHS]
        for i in range(stop - (total_len - state[S_TOTAL]), stop):
            token = np.int64(tokens[i])
            lengths = min(lengths + 1, depth)
            for d in range(lengths - 1, 0, -1):
                shorter = state[S_ANCHORS + d - 1]
                state[S_ANCHORS + d] = child(nodes, slots, shorter, token) if shorter != 0 else 0
            state[S_ANCHORS] = child(nodes, slots, 0, token)
        retry = params[AS_ENGINE] == 0 and state[S_CLOCK] != head[CLOCK]
    else:
        for d in range(lengths):
            state[S_ANCHORS + d] = 0
        retry = True
    if retry:
        d = 0
        while d < lengths and state[S_ANCHORS + d] != 0:
            d += 1
        while d < lengths and d < n:
            node = _walk_from_root(nodes, slots, tokens, stop - d - 1, stop)
            if node == 0:
                break
            state[S_ANCHORS + d] = node
            d += 1
    for d in range(lengths):
        state[S_ANCHORS + depth + d] = nodes[state[S_ANCHORS + d], VERSION]
    state[S_EPOCH] = head[EPOCH]
    state[S_TOTAL] = total_len
    state[S_LENGTHS] = lengths
    state[S_CLOCK] = head[CLOCK]
