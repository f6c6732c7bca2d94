"""Compiled loops of the suffix automaton; imported only when an automaton is built (needs numba).

Two forms. While it grows, the automaton is two record arrays and a hash index::

    building  states[s]  LINK LEN FIRST DEGREE      edges[e]  FROM TOKEN TARGET NEXT   edges of s: FIRST, NEXT, ...
    frozen    states[s]  LINK LEN COUNT END START   edges[e]  TOKEN TARGET             edges of s: [START, next START)

A state with at most `SCAN` (building) or `FROZEN_SCAN` (frozen) edges is searched by a scan; a wider one through
`slots`, an open-addressing table of edge numbers plus one (0 is empty) that holds every edge of every wide state.
"""

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from specplan.propose.compiled import jit, jit_leaf

I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
Int: TypeAlias = Any
"""A machine integer, typed by numba."""
LINK: Final = 0
LEN: Final = 1
FIRST: Final = 2
DEGREE: Final = 3  # number of edges; a clone carries CLONE besides
COUNT: Final = 2
END: Final = 3
START: Final = 4
CLONE: Final = 1 << 30

FROM: Final = 0
TOKEN: Final = 1
TARGET: Final = 2
NEXT: Final = 3
FROZEN_TOKEN: Final = 0
FROZEN_TARGET: Final = 1

N_STATES: Final = 0
N_EDGES: Final = 1
LAST: Final = 2
N_TOKENS: Final = 3
N_SLOTTED: Final = 4

SCAN: Final = 4
FROZEN_SCAN: Final = 8
SEPARATOR: Final = -(2**31)


@jit_leaf
def slot_of(owner: Int, token: Int, n_slots: Int) -> Int:
    """First slot to look at for an edge of `owner` by `token`; n_slots is a power of two."""
    key = (np.uint64(np.uint32(owner)) << np.uint64(32)) | np.uint64(np.uint32(token))
    key *= np.uint64(0x9E3779B97F4A7C15)
    key ^= key >> np.uint64(29)
    key *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((key >> np.uint64(32)) & np.uint64(n_slots - 1))


@jit
def _grown(array: I32, rows: Int) -> I32:
    bigger = np.empty((rows, array.shape[1]), np.int32)
    bigger[: array.shape[0]] = array
    return bigger


@jit_leaf
def _find(states: I32, edges: I32, slots: I32, state: Int, token: Int) -> Int:
    """Number of the edge of `state` by `token`, or -1 (building form)."""
    edge = states[state, FIRST]
    for _ in range(SCAN):
        if edge < 0:
            return -1
        if edges[edge, TOKEN] == token:
            return edge
        edge = edges[edge, NEXT]
    if edge < 0:
        return -1
    at = slot_of(state, token, slots.shape[0])
    while slots[at] != 0:
        edge = slots[at] - 1
        if edges[edge, TOKEN] == token and edges[edge, FROM] == state:
            return edge
        at = (at + 1) & (slots.shape[0] - 1)
    return -1


@jit_leaf
def _index(edges: I32, slots: I32, edge: Int) -> None:
    at = slot_of(edges[edge, FROM], edges[edge, TOKEN], slots.shape[0])
    while slots[at] != 0:
        at = (at + 1) & (slots.shape[0] - 1)
    slots[at] = edge + 1


@jit
def _reindexed(edges: I32, slots: I32) -> I32:
    """The table at twice its size."""
    bigger = np.zeros(slots.shape[0] * 2, np.int32)
    for at in range(slots.shape[0]):
        if slots[at] != 0:
            _index(edges, bigger, slots[at] - 1)
    return bigger


@jit
def _connect(states: I32, edges: I32, slots: I32, head: I64, state: Int, token: Int, target: Int) -> tuple[I32, I32]:
    """Add the edge state -token-> target, which must not be there; answers the arrays, grown where they were full."""
    edge = head[N_EDGES]
    if edge == edges.shape[0]:
        edges = _grown(edges, edge + edge // 2)
    head[N_EDGES] = edge + 1
    edges[edge, FROM] = state
    edges[edge, TOKEN] = token
    edges[edge, TARGET] = target
    edges[edge, NEXT] = states[state, FIRST]
    states[state, FIRST] = edge
    states[state, DEGREE] += 1
    degree = states[state, DEGREE] & (CLONE - 1)
    if degree > SCAN:
        added = 1 if degree > SCAN + 1 else degree
        if 2 * (head[N_SLOTTED] + added) > slots.shape[0]:
            slots = _reindexed(edges, slots)
        head[N_SLOTTED] += added
        for _ in range(added):
            _index(edges, slots, edge)
            edge = edges[edge, NEXT]
    return edges, slots


@jit_leaf
def _new_state(states: I32, head: I64, length: Int, degree: Int) -> Int:
    state = head[N_STATES]
    head[N_STATES] = state + 1
    states[state, LINK] = -1
    states[state, LEN] = length
    states[state, FIRST] = -1
    states[state, DEGREE] = degree
    return state


@jit
def append(states: I32, edges: I32, slots: I32, head: I64, tokens: I32) -> tuple[I32, I32, I32]:
    """Extend the automaton by tokens, one after the other (Blumer et al. 1985); answers the arrays, grown as needed."""
    for i in range(tokens.shape[0]):
        token = tokens[i]
        if head[N_STATES] + 2 > states.shape[0]:
            states = _grown(states, states.shape[0] + states.shape[0] // 2)
        last = head[LAST]
        new = _new_state(states, head, states[last, LEN] + 1, 0)
        state = last
        edge = np.int64(-1)
        while state >= 0:
            edge = _find(states, edges, slots, state, token)
            if edge >= 0:
                break
            edges, slots = _connect(states, edges, slots, head, state, token, new)
            state = states[state, LINK]
        if state < 0:
            states[new, LINK] = 0
        else:
            target = np.int64(edges[edge, TARGET])
            if states[target, LEN] == states[state, LEN] + 1:
                states[new, LINK] = target
            else:
                clone = _new_state(states, head, states[state, LEN] + 1, CLONE)
                copied = np.int64(states[target, FIRST])
                while copied >= 0:
                    copied_token, copied_target = edges[copied, TOKEN], edges[copied, TARGET]
                    edges, slots = _connect(states, edges, slots, head, clone, copied_token, copied_target)
                    copied = np.int64(edges[copied, NEXT])
                states[clone, LINK] = states[target, LINK]
                states[target, LINK] = clone
                states[new, LINK] = clone
                while state >= 0:
                    edge = _find(states, edges, slots, state, token)
                    if edge < 0 or edges[edge, TARGET] != target:
                        break
                    edges[edge, TARGET] = clone
                    state = states[state, LINK]
        head[LAST] = new
        head[N_TOKENS] += 1
    return states, edges, slots


@jit
def _rank_edges(states: I32, keys: I64, targets: I32, n: Int, rank: Int) -> None:
    """Sort n gathered edges: larger COUNT or END of the target first, then the smaller token."""
    for i in range(n):
        # token in the low half, so that one number orders both
        keys[i] = ((np.int64(2**31 - 1) - states[targets[i], rank]) << np.int64(32)) | (keys[i] + np.int64(2**31))
    if n > 24:
        order = np.argsort(keys[:n])
        keys[:n] = keys[:n][order]
        targets[:n] = targets[:n][order]
        return
    for i in range(1, n):
        key, target = keys[i], targets[i]
        j = i
        while j > 0 and keys[j - 1] > key:
            keys[j], targets[j] = keys[j - 1], targets[j - 1]
            j -= 1
        keys[j], targets[j] = key, target


@jit
def _propagate(states: I32, head: I64) -> I32:
    """Frozen states: counts and last ends, taken up the suffix links from the longest strings to the shortest."""
    n = head[N_STATES]
    frozen = np.empty((n + 1, 5), np.int32)
    # position of the next state of each length in `order`: a counting sort by length
    place = np.zeros(head[N_TOKENS] + 2, np.int32)
    for s in range(n):
        is_clone = (states[s, DEGREE] & CLONE) != 0
        frozen[s, LINK] = states[s, LINK]
        frozen[s, LEN] = states[s, LEN]
        frozen[s, COUNT] = 0 if is_clone or s == 0 else 1
        frozen[s, END] = -1 if is_clone else states[s, LEN] - 1
        place[states[s, LEN] + 1] += 1
    for length in range(1, place.shape[0]):
        place[length] += place[length - 1]
    order = np.empty(n, np.int32)
    for s in range(n):
        order[place[states[s, LEN]]] = s
        place[states[s, LEN]] += 1
    for i in range(n - 1, 0, -1):
        s = order[i]
        link = frozen[s, LINK]
        frozen[link, COUNT] += frozen[s, COUNT]
        frozen[link, END] = max(frozen[link, END], frozen[s, END])
    frozen[n] = -1
    return frozen


@jit
def _lay_edges(states: I32, edges: I32, head: I64, frozen: I32, rank: Int) -> I32:
    """Edges state by state in rank order, those by the separator left out; fills START."""
    n = head[N_STATES]
    kept, widest = 0, 0
    for e in range(head[N_EDGES]):
        kept += edges[e, TOKEN] != SEPARATOR
    for s in range(n):
        widest = max(widest, states[s, DEGREE] & (CLONE - 1))
    laid = np.empty((kept, 2), np.int32)
    keys = np.empty(widest, np.int64)
    targets = np.empty(widest, np.int32)
    at = 0
    for s in range(n):
        frozen[s, START] = at
        degree = 0
        edge = states[s, FIRST]
        while edge >= 0:
            if edges[edge, TOKEN] != SEPARATOR:
                keys[degree] = edges[edge, TOKEN]
                targets[degree] = edges[edge, TARGET]
                degree += 1
            edge = edges[edge, NEXT]
        _rank_edges(frozen, keys, targets, degree, rank)
        for i in range(degree):
            laid[at, FROZEN_TOKEN] = (keys[i] & np.int64(2**32 - 1)) - np.int64(2**31)
            laid[at, FROZEN_TARGET] = targets[i]
            at += 1
    frozen[n, START] = at
    return laid


@jit
def _index_frozen(frozen: I32, laid: I32) -> I32:
    """Index of the edges of wide states, at most half full."""
    wide = 0
    for s in range(frozen.shape[0] - 1):
        degree = frozen[s + 1, START] - frozen[s, START]
        if degree > FROZEN_SCAN:
            wide += degree
    n_slots = 1
    while n_slots < 2 * wide:
        n_slots *= 2
    slots = np.zeros(n_slots, np.int32)
    for s in range(frozen.shape[0] - 1):
        if frozen[s + 1, START] - frozen[s, START] > FROZEN_SCAN:
            for e in range(frozen[s, START], frozen[s + 1, START]):
                at = slot_of(s, laid[e, FROZEN_TOKEN], n_slots)
                while slots[at] != 0:
                    at = (at + 1) & (n_slots - 1)
                slots[at] = e + 1
    return slots


@jit
def freeze(states: I32, edges: I32, head: I64, rank: Int) -> tuple[I32, I32, I32]:
    """Frozen states, edges and index; `rank` is COUNT or END."""
    frozen = _propagate(states, head)
    laid = _lay_edges(states, edges, head, frozen, rank)
    return frozen, laid, _index_frozen(frozen, laid)


@jit_leaf
def step(states: I32, edges: I32, slots: I32, state: Int, token: Int) -> Int:
    """Target of the edge of `state` by `token`, or -1 (frozen form)."""
    start, stop = states[state, START], states[state + 1, START]
    if stop - start <= FROZEN_SCAN:
        for e in range(start, stop):
            if edges[e, FROZEN_TOKEN] == token:
                return edges[e, FROZEN_TARGET]
        return -1
    at = slot_of(state, token, slots.shape[0])
    while slots[at] != 0:
        e = int(slots[at]) - 1
        if start <= e < stop and edges[e, FROZEN_TOKEN] == token:
            return edges[e, FROZEN_TARGET]
        at = (at + 1) & (slots.shape[0] - 1)
    return -1


@jit_leaf
def advance(states: I32, edges: I32, slots: I32, state: Int, matched: Int, token: Int, depth: Int) -> tuple[Int, Int]:
    """Longest suffix of the last `depth` tokens that occurs, after one more token.

    (state, matched) before and after name that suffix: its class and its length. Amortised O(1): a miss follows suffix
    links, each of which shortens the match.
    """
    target = step(states, edges, slots, state, token)
    while target < 0 and state != 0:
        state = np.int64(states[state, LINK])
        matched = min(matched, np.int64(states[state, LEN]))
        target = step(states, edges, slots, state, token)
    if target < 0:
        return np.int64(0), np.int64(0)
    state = np.int64(target)
    matched += 1
    if matched > depth:
        matched = np.int64(depth)
        # the shorter suffix may belong to a class further up
        while states[state, LINK] >= 0 and states[states[state, LINK], LEN] >= matched:
            state = np.int64(states[state, LINK])
    return state, matched


@jit_leaf
def walk(states: I32, edges: I32, slots: I32, context: I32, start: Int, stop: Int) -> tuple[Int, Int]:
    """Class and length of the longest suffix of context[start:stop] that occurs; (0, 0) when none does."""
    state, matched = np.int64(0), np.int64(0)
    for i in range(start, stop):
        state, matched = advance(states, edges, slots, state, matched, np.int64(context[i]), stop - start)
    return state, matched
