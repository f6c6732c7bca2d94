"""Compiled suffix tree of bounded depth, kept as an automaton; imported through `specplan.propose.compiled.load`.

The tree is the trie of all substrings of at most `depth` tokens, each with the number of its occurrences and its
children in rank order. Strings that have always ended at the same places share everything: count, children, ranks. So
the tree is kept as one state per class of such strings: the suffixes of the class's longest string whose lengths lie in
``(len(link), len]``; the link leads to the class of the next shorter suffix. A token is appended by walking the links
from the text's last suffix: at most `depth` states and a few on average, where the trie itself has `depth` nodes.

States are rows of `states`, and the first-ranked child lies in the row itself::

    LINK COUNT LEN  TOKEN TARGET TIMES  FIRST LAST

The other children are a list of rows of `edges` in rank order, from FIRST to LAST::

    TOKEN TARGET TIMES NEXT PREV OWNER

TIMES of a child is how often its string occurred: the COUNT of its target. LEN holds the length of the class's longest
string in its low bits, above it the number of listed children up to `NARROW`, and a flag when there have been more: the
state is then wide, and two open-addressing tables of edge numbers plus one (0 is empty) find its children by token
(`by_token`) and the first listed child of a given TIMES (`by_times`).

Invariants:

- a string of `depth` tokens has no children; where a class holds it beside shorter ones, the children are those of the
  shorter ones, and readers stop at `depth`
- every live state but the root (0) has COUNT >= 1, and COUNT(link) >= COUNT; a state is freed when its last occurrence
  goes, and by then no edge leads to it and none leaves it
- classes are split when a shorter string of theirs gets an occurrence of its own, and never merged: after an eviction
  strings may share all occurrences and still differ in ranks

Ranks follow Arctic Inference 0.3.0: larger counts first; a new child last; a child whose count rises to k goes to the
front of those with k if it was the first of its old count, else to their end; a child whose count falls to k goes to
their front.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specplan.propose.compiled import jit, jit_leaf

Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Int: TypeAlias = Any  # a machine integer; numba infers its width
Float: TypeAlias = Any

LINK, COUNT, LEN, TOKEN, TARGET, TIMES, FIRST, LAST = range(8)
STATE_WIDTH = 8
E_TOKEN, E_TARGET, E_TIMES, E_NEXT, E_PREV, E_OWNER = range(6)
EDGE_WIDTH = 6
WIDE = 1 << 30
LISTED = 1 << 26  # one listed child, in LEN
LEN_MASK = LISTED - 1
NARROW = 8

DEPTH, STATES, FREE_STATE, FREE_STATES, EDGES, FREE_EDGE, FREE_EDGES, KEYED = range(8)
HEAD_WIDTH = 8

RESERVED = -(2**31) + 1  # this id and the one below are no tokens

NONE = -1  # no such child
OWN = -2  # the child in the state's own row

_M1 = np.uint64(0x9E3779B97F4A7C15)
_M2 = np.uint64(0xC2B2AE3D27D4EB4F)
_S = np.uint64(32)


class Tree(NamedTuple):
    """Arrays of one tree: see the module's docstring; `head` holds the depth, what is in use and the free lists."""

    states: Ints
    edges: Ints
    by_token: Ints
    by_times: Ints
    head: Longs


# ------------------------------------------------------------------------------------------------ tables of wide states


@jit_leaf
def _slot(owner: Int, key: Int, mask: Int) -> Int:
    """First slot of (owner, key)."""
    h = np.uint64(owner) * _M1 ^ np.uint64(np.uint32(key)) * _M2
    h ^= h >> _S
    h *= _M1
    return np.int64((h >> _S) & np.uint64(mask))


@jit_leaf
def _seek(table: Ints, edges: Ints, owner: Int, key: Int, field: Int) -> Int:
    """Slot that holds (owner, key), or the empty slot where it would go."""
    mask = table.size - 1
    slot = _slot(owner, key, mask)
    while table[slot] != 0:
        e = table[slot] - 1
        if edges[e, E_OWNER] == owner and edges[e, field] == key:
            break
        slot = (slot + 1) & mask
    return slot


@jit_leaf
def _forget(table: Ints, edges: Ints, slot: Int, field: Int) -> None:
    """Empty a slot and move later entries of its run back, so that no run is broken."""
    mask = table.size - 1
    hole = slot
    at = (slot + 1) & mask
    while table[at] != 0:
        e = table[at] - 1
        home = _slot(edges[e, E_OWNER], edges[e, field], mask)
        if ((at - home) & mask) >= ((at - hole) & mask):
            table[hole] = table[at]
            hole = at
        at = (at + 1) & mask
    table[hole] = 0


@jit_leaf
def _enter_token(t: Tree, e: Int) -> None:
    t.by_token[_seek(t.by_token, t.edges, t.edges[e, E_OWNER], t.edges[e, E_TOKEN], E_TOKEN)] = e + 1
    t.head[KEYED] += 1


@jit_leaf
def _forget_token(t: Tree, e: Int) -> None:
    slot = _seek(t.by_token, t.edges, t.edges[e, E_OWNER], t.edges[e, E_TOKEN], E_TOKEN)
    _forget(t.by_token, t.edges, slot, E_TOKEN)
    t.head[KEYED] -= 1


@jit_leaf
def _widen(t: Tree, v: Int) -> None:
    """Make a state wide: enter its listed children into the tables."""
    t.states[v, LEN] = (t.states[v, LEN] & LEN_MASK) | WIDE
    e = t.states[v, FIRST]
    before = -1
    while e >= 0:
        _enter_token(t, e)
        if t.edges[e, E_TIMES] != before:
            before = t.edges[e, E_TIMES]
            t.by_times[_seek(t.by_times, t.edges, v, before, E_TIMES)] = e + 1
        e = t.edges[e, E_NEXT]


@jit_leaf
def rebuild_tables(t: Tree) -> None:
    """Fill empty tables from the lists of all wide states."""
    t.by_token[:] = 0
    t.by_times[:] = 0
    t.head[KEYED] = 0
    for v in range(t.head[STATES]):
        if t.states[v, LEN] >= 0 and t.states[v, LEN] & WIDE:
            _widen(t, v)


# ------------------------------------------------------------------------------------------------------------- children


@jit_leaf
def find(t: Tree, v: Int, x: Int) -> Int:
    """Handle of v's child by token: OWN, an edge, or NONE."""
    states = t.states
    if states[v, TARGET] < 0:
        return NONE
    if states[v, TOKEN] == x:
        return OWN
    if states[v, LEN] & WIDE:
        return np.int64(t.by_token[_seek(t.by_token, t.edges, v, x, E_TOKEN)]) - 1
    e = np.int64(states[v, FIRST])
    while e >= 0 and t.edges[e, E_TOKEN] != x:
        e = np.int64(t.edges[e, E_NEXT])
    return e


@jit_leaf
def _target(t: Tree, v: Int, handle: Int) -> Int:
    return np.int64(t.states[v, TARGET]) if handle == OWN else np.int64(t.edges[handle, E_TARGET])


@jit_leaf
def _first_of(t: Tree, v: Int, times: Int) -> Int:
    """First listed child with a given TIMES, or NONE."""
    if t.states[v, LEN] & WIDE:
        return np.int64(t.by_times[_seek(t.by_times, t.edges, v, times, E_TIMES)]) - 1
    e = np.int64(t.states[v, FIRST])
    while e >= 0 and t.edges[e, E_TIMES] > times:
        e = np.int64(t.edges[e, E_NEXT])
    return e if e >= 0 and t.edges[e, E_TIMES] == times else np.int64(NONE)


@jit_leaf
def _set_first_of(t: Tree, v: Int, times: Int, e: Int) -> None:
    """Note that `e`, which has these TIMES already, is now the first listed child with them (wide states only)."""
    if t.states[v, LEN] & WIDE:
        t.by_times[_seek(t.by_times, t.edges, v, times, E_TIMES)] = e + 1


@jit_leaf
def _leave_group(t: Tree, v: Int, e: Int) -> None:
    """Before `e` leaves its place or changes its TIMES: its group begins with the next one, or is gone (wide only)."""
    if t.states[v, LEN] & WIDE:
        times = t.edges[e, E_TIMES]
        slot = _seek(t.by_times, t.edges, v, times, E_TIMES)
        if t.by_times[slot] == e + 1:
            after = t.edges[e, E_NEXT]
            if after >= 0 and t.edges[after, E_TIMES] == times:
                t.by_times[slot] = after + 1
            else:
                _forget(t.by_times, t.edges, slot, E_TIMES)


@jit_leaf
def _unlink(t: Tree, v: Int, e: Int) -> None:
    before, after = t.edges[e, E_PREV], t.edges[e, E_NEXT]
    if before >= 0:
        t.edges[before, E_NEXT] = after
    else:
        t.states[v, FIRST] = after
    if after >= 0:
        t.edges[after, E_PREV] = before
    else:
        t.states[v, LAST] = before


@jit_leaf
def _link_before(t: Tree, v: Int, e: Int, anchor: Int) -> None:
    """Put `e` into v's list before `anchor`; at the end where that is NONE."""
    before = t.states[v, LAST] if anchor < 0 else t.edges[anchor, E_PREV]
    t.edges[e, E_PREV] = before
    t.edges[e, E_NEXT] = anchor
    if before >= 0:
        t.edges[before, E_NEXT] = e
    else:
        t.states[v, FIRST] = e
    if anchor >= 0:
        t.edges[anchor, E_PREV] = e
    else:
        t.states[v, LAST] = e


@jit_leaf
def _new_edge(t: Tree) -> Int:
    e = t.head[FREE_EDGE]
    if e >= 0:
        t.head[FREE_EDGE] = t.edges[e, E_NEXT]
        t.head[FREE_EDGES] -= 1
        return e
    e = t.head[EDGES]
    t.head[EDGES] = e + 1
    return e


@jit_leaf
def _free_edge(t: Tree, v: Int, e: Int) -> None:
    if not t.states[v, LEN] & WIDE:
        t.states[v, LEN] -= LISTED
    t.edges[e, E_OWNER] = -1
    t.edges[e, E_NEXT] = t.head[FREE_EDGE]
    t.head[FREE_EDGE] = e
    t.head[FREE_EDGES] += 1


@jit_leaf
def _add_child(t: Tree, v: Int, x: Int, target: Int, times: Int) -> None:
    """Append a child at the end of v's ranks; room must have been made. Widens when the list passes `NARROW`."""
    states = t.states
    if states[v, TARGET] < 0:
        states[v, TOKEN], states[v, TARGET], states[v, TIMES] = x, target, times
        return
    e = _new_edge(t)
    edges = t.edges
    edges[e, E_TOKEN], edges[e, E_TARGET], edges[e, E_TIMES], edges[e, E_OWNER] = x, target, times, v
    _link_before(t, v, e, NONE)
    if states[v, LEN] & WIDE:
        _enter_token(t, e)
        before = edges[e, E_PREV]
        if before < 0 or edges[before, E_TIMES] != times:
            _set_first_of(t, v, times, e)
        return
    if states[v, LEN] >= NARROW * LISTED:
        _widen(t, v)
    else:
        states[v, LEN] += LISTED


@jit_leaf
def _become_own(t: Tree, v: Int, e: Int, times: Int) -> None:
    """Exchange listed child `e` for v's own: `e` moves to the row with `times`, the old one to the list's front."""
    wide = t.states[v, LEN] & WIDE
    _leave_group(t, v, e)
    if wide:
        _forget_token(t, e)
    _unlink(t, v, e)
    states, edges = t.states, t.edges
    token, target = edges[e, E_TOKEN], edges[e, E_TARGET]
    edges[e, E_TOKEN], edges[e, E_TARGET], edges[e, E_TIMES] = states[v, TOKEN], states[v, TARGET], states[v, TIMES]
    states[v, TOKEN], states[v, TARGET], states[v, TIMES] = token, target, times
    _link_before(t, v, e, states[v, FIRST])
    if wide:
        _enter_token(t, e)
    _set_first_of(t, v, edges[e, E_TIMES], e)


@jit_leaf
def _raise(t: Tree, v: Int, handle: Int) -> None:
    """Count one more occurrence of a child and give it its new rank."""
    if handle == OWN:
        t.states[v, TIMES] += 1
        return
    e = handle
    old = t.edges[e, E_TIMES]
    own = t.states[v, TIMES]
    group = _first_of(t, v, old)
    first = own != old and group == e
    if own == old or (first and own == old + 1):
        _become_own(t, v, e, old + 1)
        return
    rival = _first_of(t, v, old + 1)
    _leave_group(t, v, e)
    t.edges[e, E_TIMES] = old + 1
    if first:
        if rival >= 0:
            _unlink(t, v, e)
            _link_before(t, v, e, rival)
        _set_first_of(t, v, old + 1, e)
    else:
        _unlink(t, v, e)
        _link_before(t, v, e, group)
        if rival < 0:
            _set_first_of(t, v, old + 1, e)


@jit_leaf
def _after_group(t: Tree, v: Int, e: Int, times: Int) -> Int:
    """First listed child from `e` on with at most `times`: where a child that falls to `times` belongs."""
    found = _first_of(t, v, times)
    if found >= 0:
        return found
    while e >= 0 and t.edges[e, E_TIMES] > times:
        e = np.int64(t.edges[e, E_NEXT])
    return e


@jit_leaf
def _lower(t: Tree, v: Int, handle: Int) -> None:
    """Count one occurrence of a child less; at 0 it goes, else it moves to the front of those with its new count."""
    states, edges = t.states, t.edges
    if handle == OWN:
        times = states[v, TIMES] - 1
        e = np.int64(states[v, FIRST])
        if e < 0 or (times > 0 and edges[e, E_TIMES] <= times):
            states[v, TIMES] = times
            if times == 0:
                states[v, TARGET] = -1
            return
        # The second becomes the first; the old first takes its record.
        token, target = states[v, TOKEN], states[v, TARGET]
        _leave_group(t, v, e)
        wide = states[v, LEN] & WIDE
        if wide:
            _forget_token(t, e)
        _unlink(t, v, e)
        states[v, TOKEN], states[v, TARGET], states[v, TIMES] = edges[e, E_TOKEN], edges[e, E_TARGET], edges[e, E_TIMES]
        if times == 0:
            _free_edge(t, v, e)
            return
        anchor = _after_group(t, v, np.int64(states[v, FIRST]), times)
        edges[e, E_TOKEN], edges[e, E_TARGET], edges[e, E_TIMES] = token, target, times
        _link_before(t, v, e, anchor)
        if wide:
            _enter_token(t, e)
        _set_first_of(t, v, times, e)
        return
    e = handle
    times = edges[e, E_TIMES] - 1
    _leave_group(t, v, e)
    if times == 0:
        if states[v, LEN] & WIDE:
            _forget_token(t, e)
        _unlink(t, v, e)
        _free_edge(t, v, e)
        return
    anchor = _after_group(t, v, np.int64(edges[e, E_NEXT]), times)
    edges[e, E_TIMES] = times
    _unlink(t, v, e)
    _link_before(t, v, e, anchor)
    _set_first_of(t, v, times, e)


# --------------------------------------------------------------------------------------------------------------- states


@jit_leaf
def _new_state(t: Tree, length: Int, link: Int, count: Int) -> Int:
    v = t.head[FREE_STATE]
    if v >= 0:
        t.head[FREE_STATE] = t.states[v, LINK]
        t.head[FREE_STATES] -= 1
    else:
        v = t.head[STATES]
        t.head[STATES] = v + 1
    t.states[v, LINK], t.states[v, COUNT], t.states[v, LEN] = link, count, length
    t.states[v, TARGET], t.states[v, FIRST], t.states[v, LAST] = -1, -1, -1
    return v


@jit_leaf
def _free_state(t: Tree, v: Int) -> None:
    t.states[v, LEN] = -1
    t.states[v, LINK] = t.head[FREE_STATE]
    t.head[FREE_STATE] = v
    t.head[FREE_STATES] += 1


@jit_leaf
def clear(t: Tree, depth: Int) -> None:
    """Make the tree empty: only the root, the empty string."""
    t.by_token[:] = 0
    t.by_times[:] = 0
    t.head[:] = 0
    t.head[DEPTH] = depth
    t.head[FREE_STATE] = -1
    t.head[FREE_EDGE] = -1
    _new_state(t, 0, -1, 0)


@jit_leaf
def _len(t: Tree, v: Int) -> Int:
    return np.int64(t.states[v, LEN] & LEN_MASK)


@jit_leaf
def shorten(t: Tree, v: Int, length: Int) -> Int:
    """State on v's chain that holds the suffix of `length` tokens (of the strings of `v`, which are no shorter)."""
    link = np.int64(t.states[v, LINK])
    while link >= 0 and _len(t, link) >= length:
        v = link
        link = np.int64(t.states[v, LINK])
    return v


@jit_leaf
def _list_size(t: Tree, v: Int) -> Int:
    n = 0
    e = t.states[v, FIRST]
    while e >= 0:
        n += 1
        e = t.edges[e, E_NEXT]
    return n


@jit_leaf
def has_room(t: Tree, states: Int, edges: Int, keys: Int) -> bool:
    """Whether this many states, edges and table entries can be added; tables stay at most half full."""
    head = t.head
    return bool(
        head[STATES] - head[FREE_STATES] + states <= t.states.shape[0]
        and head[EDGES] - head[FREE_EDGES] + edges <= t.edges.shape[0]
        and 2 * (head[KEYED] + keys) <= t.by_token.size
    )


@jit_leaf
def append(t: Tree, last: Int, size: Int, x: Int) -> Int:
    """Append token x to a text of `size` tokens whose last suffix is in state `last`; the new last state.

    NONE, with the tree untouched, when there is no room: grow it and call again. `last` may be stale in that its class
    was split since (by another text): the chain of links still holds all suffixes.
    """
    depth = t.head[DEPTH]
    longest = min(size, depth - 1)
    p = shorten(t, last, longest)
    # First look only: where is x missing, is a class to be split, is there room?
    v = p
    missing = edges = keys = 0
    handle = np.int64(NONE)
    while v >= 0:
        handle = find(t, v, x)
        if handle != NONE:
            break
        missing += 1
        if t.states[v, TARGET] >= 0:
            edges += 1
            keys += 1 if t.states[v, LEN] & WIDE else NARROW + 1
        v = np.int64(t.states[v, LINK])
    split = False
    q = np.int64(0)
    length = 0
    if v >= 0:
        q = _target(t, v, handle)
        length = min(_len(t, v), depth - 1) + 1
        split = _len(t, q) != length
        if split:
            n = _list_size(t, q)
            edges += n
            keys += n + 1
    if not has_room(t, 2, edges, keys):
        return np.int64(NONE)
    if split:
        q = _split(t, v, x, q, length)
    new = q
    if missing > 0:
        new = _new_state(t, longest + 1, q, 1)
        w = p
        while w != v:
            _add_child(t, w, x, new, 1)
            w = np.int64(t.states[w, LINK])
    counted = np.int64(-1)
    while v >= 0:
        handle = find(t, v, x)
        target = _target(t, v, handle)
        _raise(t, v, handle)
        if target != counted:
            t.states[target, COUNT] += 1
            counted = target
        v = np.int64(t.states[v, LINK])
    t.states[0, COUNT] += 1
    return new


@jit_leaf
def _split(t: Tree, v: Int, x: Int, q: Int, length: Int) -> Int:
    """Take the strings of at most `length` tokens out of class q; edges of v and its shorter suffixes follow them."""
    r = _new_state(t, length, t.states[q, LINK], t.states[q, COUNT])
    t.states[q, LINK] = r
    if t.states[q, TARGET] >= 0:
        _add_child(t, r, t.states[q, TOKEN], t.states[q, TARGET], t.states[q, TIMES])
    e = t.states[q, FIRST]
    while e >= 0:
        _add_child(t, r, t.edges[e, E_TOKEN], t.edges[e, E_TARGET], t.edges[e, E_TIMES])
        e = t.edges[e, E_NEXT]
    while v >= 0:
        handle = find(t, v, x)
        if _target(t, v, handle) != q:
            break
        if handle == OWN:
            t.states[v, TARGET] = r
        else:
            t.edges[handle, E_TARGET] = r
        v = np.int64(t.states[v, LINK])
    return r


@jit_leaf
def extend(t: Tree, cursor: Longs, tokens: Ints) -> Int:
    """Append tokens to the text of `cursor` (last state, size); how many fitted before the tree was full."""
    last, size = cursor[0], cursor[1]
    for i in range(tokens.size):
        new = append(t, last, size, tokens[i])
        if new == NONE:
            cursor[0], cursor[1] = last, size
            return i
        last = new
        size += 1
    cursor[0], cursor[1] = last, size
    return tokens.size


@jit_leaf
def remove(t: Tree, tokens: Ints) -> None:
    """Take all occurrences of one text out of the tree, from its first token on."""
    depth = t.head[DEPTH]
    states = t.states
    at = np.int64(0)
    for i in range(tokens.size):
        x = tokens[i]
        end = _target(t, at, find(t, at, x))
        v = at
        counted = np.int64(-1)
        while v >= 0:
            handle = find(t, v, x)
            target = _target(t, v, handle)
            _lower(t, v, handle)
            if target != counted:
                states[target, COUNT] -= 1
                counted = target
            link = np.int64(states[v, LINK])
            if v > 0 and states[v, COUNT] == 0:
                _free_state(t, v)
            v = link
        states[0, COUNT] -= 1
        at = end
        link = np.int64(states[at, LINK])
        while link >= 0 and _len(t, link) >= depth - 1:
            # Strings of `depth` tokens only: no next token will come by.
            if states[at, COUNT] == 0:
                _free_state(t, at)
            at = link
            link = np.int64(states[at, LINK])
    while at > 0:
        link = np.int64(states[at, LINK])
        if states[at, COUNT] == 0:
            _free_state(t, at)
        at = link


# ------------------------------------------------------------------------------------------------------------- matching


@jit_leaf
def match(t: Tree, context: Ints, cap: Int) -> tuple[Int, Int]:
    """State and length of the longest suffix of `context`, at most `cap` < depth tokens, that is in the tree.

    The last 8 tokens are fed first, then four times as many while all of them match, so the cost follows the match.
    """
    if cap <= 0 or find(t, 0, context[-1]) == NONE:
        return np.int64(0), 0
    window = min(8, cap)
    while True:
        v, m = np.int64(0), 0
        for i in range(context.size - window, context.size):
            x = context[i]
            handle = find(t, v, x)
            while handle == NONE and v != 0:
                v = np.int64(t.states[v, LINK])
                m = _len(t, v)
                handle = find(t, v, x)
            if handle != NONE:
                v = _target(t, v, handle)
                m += 1
        if m < window or window == cap:
            return v, m
        window = min(4 * window, cap)


@jit_leaf
def match_text(t: Tree, last: Int, size: Int, text: Ints, length: Int, context: Ints, cap: Int) -> tuple[Int, Int]:
    """`match`, from the text's own last state where the context is how ``text[:length]`` ends.

    The last `size` tokens of that text are in the tree as one sequence, which ends in state `last`.
    """
    known = min(cap, size)
    if known > 0:
        same = True
        for j in range(1, known + 1):
            if context[context.size - j] != text[length - j]:
                same = False
                break
        if same and known == cap:
            return shorten(t, last, known), known
    return match(t, context, cap)


# ------------------------------------------------------------------------------------------------------------- drafting


@jit_leaf
def _allowed(m: Int, limit: Int, factor: Float, offset: Float) -> Int:
    """Most tokens after a match of m: m * factor + offset in float32, a hair more, cut to an integer in [0, limit].

    None where it is no number below 2^31: the engine's conversion to int wraps there.
    """
    real = np.float64(np.float32(np.float32(np.float32(m) * factor) + offset)) + 1e-6
    if not real < 2147483648.0:
        return np.int64(0)
    return np.int64(min(np.float64(limit), max(real, 0.0)))


@jit_leaf
def path_score(t: Tree, v: Int, n: Int, min_prob: Float) -> Float:
    """Sum of the probabilities of `write_path`."""
    states = t.states
    prob = np.float32(1.0)
    score = np.float32(0.0)
    while n > 0 and states[v, TARGET] >= 0:
        prob = prob * (np.float32(states[v, TIMES]) / np.float32(states[v, COUNT]))
        if not prob >= min_prob:
            break
        score += prob
        v = np.int64(states[v, TARGET])
        n -= 1
    return score


@jit_leaf
def write_path(t: Tree, v: Int, n: Int, min_prob: Float, tokens: Ints, probs: Floats) -> Int:
    """Follow first-ranked children for at most n tokens while the product of count ratios is at least `min_prob`."""
    states = t.states
    prob = np.float32(1.0)
    i = 0
    while i < n and states[v, TARGET] >= 0:
        prob = prob * (np.float32(states[v, TIMES]) / np.float32(states[v, COUNT]))
        if not prob >= min_prob:
            break
        tokens[i] = states[v, TOKEN]
        probs[i] = prob
        v = np.int64(states[v, TARGET])
        i += 1
    return i


@jit_leaf
def best_path(
    t: Tree, v: Int, m: Int, limit: Int, factor: Float, offset: Float, min_prob: Float
) -> tuple[Int, Int, Int, Float]:
    """State, match length, draft limit and score of the best chain over match lengths up to m; the longest of equals.

    From the longest match down, a shorter one must score strictly more. It is skipped where even its full length at the
    probability of its first token cannot (a margin covers float32 rounding).
    """
    states = t.states
    depth = t.head[DEPTH]
    best_v, best_m, best_n, best = v, m, np.int64(0), np.float32(0.0)
    if m == 0 or not np.float32(1.0) >= min_prob:
        return best_v, best_m, best_n, best
    while m > 0:
        link = np.int64(states[v, LINK])
        shortest = _len(t, link) + 1
        if states[v, TARGET] < 0:
            m = shortest - 1
            v = link
            continue
        ratio = np.float64(states[v, TIMES]) / np.float64(states[v, COUNT])
        while m >= shortest:
            n = min(_allowed(m, limit, factor, offset), depth - m)
            if n * ratio * (1.0 + 1e-6 * (1 + n)) > best:
                score = path_score(t, v, n, min_prob)
                if score > best:
                    best_v, best_m, best_n, best = v, np.int64(m), np.int64(n), score
            m -= 1
        v = link
    return best_v, best_m, best_n, best


@jit_leaf
def _heap_move(prob: Floats, item: Ints, to: Int, source: Int) -> None:
    prob[to] = prob[source]
    for i in range(3):
        item[to, i] = item[source, i]


@jit_leaf
def _heap_rise(prob: Floats, item: Ints, hole: Int, p: Float, a: Int, b: Int, c: Int) -> None:
    """Put (p; a, b, c) at `hole` or above, past parents of strictly smaller p."""
    parent = (hole - 1) // 2
    while hole > 0 and prob[parent] < p:
        _heap_move(prob, item, hole, parent)
        hole = parent
        parent = (hole - 1) // 2
    prob[hole] = p
    item[hole, 0], item[hole, 1], item[hole, 2] = a, b, c


@jit_leaf
def _heap_pop(prob: Floats, item: Ints, n: Int) -> None:
    """Take the top off a heap of n: the hole sinks to a leaf, then the last item rises from there.

    It sinks along the larger child, the right one of equals: the order of equals is that of the C++ standard library.
    """
    p = prob[n - 1]
    a, b, c = item[n - 1, 0], item[n - 1, 1], item[n - 1, 2]
    size = n - 1
    hole = child = 0
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if prob[child] < prob[child - 1]:
            child -= 1
        _heap_move(prob, item, hole, child)
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * (child + 1)
        _heap_move(prob, item, hole, child - 1)
        hole = child - 1
    if size > 0:
        _heap_rise(prob, item, hole, p, a, b, c)


@jit
def grow_tree_draft(
    t: Tree, v: Int, m: Int, n: Int, min_prob: Float, tokens: Ints, parents: Ints, probs: Floats
) -> tuple[Int, Float]:
    """Most probable n nodes after a match of m tokens in state v; how many there are and their sum.

    A heap holds (probability; parent in the draft, place, length). A positive length marks the end of a string of that
    length, and the place is its state: where one continuation always followed, that token is drafted; else the string's
    children are pushed in rank order, down to the first below `min_prob`. A negative length marks such a child, not
    drafted yet, of a string one longer than its parent's: the place is its edge, or the complement of its parent's
    state for a state's own child. What is drafted is pushed again as the end of its string.
    """
    states, edges = t.states, t.edges
    depth = t.head[DEPTH]
    room = 64
    prob = np.zeros(room, np.float32)
    item = np.zeros((room, 3), np.int32)
    prob[0] = 1.0
    item[0, 0], item[0, 1], item[0, 2] = -1, v, m
    held = 1
    drafted = 0
    score = np.float32(0.0)
    while drafted < n and held > 0:
        p = prob[0]
        parent, v, length = np.int64(item[0, 0]), np.int64(item[0, 1]), np.int64(item[0, 2])
        _heap_pop(prob, item, held)
        held -= 1
        if length < 0:
            length = -length
            if v < 0:
                token, v = states[~v, TOKEN], np.int64(states[~v, TARGET])
            else:
                token, v = edges[v, E_TOKEN], np.int64(edges[v, E_TARGET])
        else:
            if length >= depth or states[v, TARGET] < 0:
                continue
            count = states[v, COUNT]
            if states[v, TIMES] != count:
                place = ~v
                times = states[v, TIMES]
                e = np.int64(states[v, FIRST])
                while True:
                    chance = (p * np.float32(times)) / np.float32(count)
                    if chance < min_prob:
                        break
                    if held == room:
                        room *= 2
                        wider = np.zeros(room, np.float32)
                        wider[:held] = prob
                        prob = wider
                        more = np.zeros((room, 3), np.int32)
                        more[:held] = item
                        item = more
                    _heap_rise(prob, item, held, chance, parent, place, -(length + 1))
                    held += 1
                    if e < 0:
                        break
                    place = e
                    times = edges[e, E_TIMES]
                    e = np.int64(edges[e, E_NEXT])
                continue
            token, v = states[v, TOKEN], np.int64(states[v, TARGET])
            length += 1
        tokens[drafted], parents[drafted], probs[drafted] = token, parent, p
        score += p
        _heap_rise(prob, item, held, p, drafted, v, length)
        held += 1
        drafted += 1
    return drafted, score


@jit
def best_tree(
    t: Tree,
    v: Int,
    m: Int,
    limit: Int,
    factor: Float,
    offset: Float,
    min_prob: Float,
    tokens: Ints,
    parents: Ints,
    probs: Floats,
) -> tuple[Int, Int, Float]:
    """Nodes, match length and score of the best tree over all match lengths up to m; the longest of equals.

    Rows 0 of the buffers hold the result, rows 1 the attempt.
    """
    states = t.states
    best_m, best_n, best = m, np.int64(0), np.float32(0.0)
    while m > 0:
        v = shorten(t, v, m)
        n = _allowed(m, limit, factor, offset)
        if states[v, TARGET] >= 0 and n > best:
            drafted, score = grow_tree_draft(t, v, m, n, min_prob, tokens[1], parents[1], probs[1])
            if score > best:
                best_m, best_n, best = np.int64(m), np.int64(drafted), score
                tokens[0, :drafted] = tokens[1, :drafted]
                parents[0, :drafted] = parents[1, :drafted]
                probs[0, :drafted] = probs[1, :drafted]
        m -= 1
    return best_m, best_n, best


# ---------------------------------------------------------------------------------------------- room, and entry points


@jit
def _resized(old: Ints, rows: Int) -> Ints:
    new = np.zeros((rows, old.shape[1]), np.int32)
    n = min(rows, old.shape[0])
    new[:n] = old[:n]
    return new


@jit_leaf
def _wider(used: Int, capacity: Int, least: Int) -> Int:
    """Next capacity: half as much again; unchanged where there is room to spare."""
    return capacity if capacity - used >= max(capacity // 4, least) else capacity + max(capacity // 2, least)


@jit_leaf
def roomier(t: Tree, least: Int) -> tuple[Int, Int, Int]:
    """States, edges and table slots that leave room for at least `least` more of each, larger where little is left."""
    head = t.head
    keys = t.by_token.size
    while 2 * (head[KEYED] + head[KEYED] // 4 + least) > keys:
        keys *= 2
    states = _wider(head[STATES] - head[FREE_STATES], t.states.shape[0], least)
    return states, _wider(head[EDGES] - head[FREE_EDGES], t.edges.shape[0], least), keys


@jit
def resized(t: Tree, states: Int, edges: Int, keys: Int) -> Tree:
    """The tree in arrays of these sizes, none smaller than now."""
    rehash = keys > t.by_token.size
    new = Tree(
        _resized(t.states, states) if states > t.states.shape[0] else t.states,
        _resized(t.edges, edges) if edges > t.edges.shape[0] else t.edges,
        np.zeros(keys, np.int32) if rehash else t.by_token,
        np.zeros(keys, np.int32) if rehash else t.by_times,
        t.head,
    )
    if rehash:
        rebuild_tables(new)
    return new


@jit
def empty_tree(depth: Int, states: Int, edges: Int, keys: Int) -> Tree:
    """A tree that holds nothing; `keys` is a power of two."""
    t = Tree(
        np.zeros((states, STATE_WIDTH), np.int32),
        np.zeros((edges, EDGE_WIDTH), np.int32),
        np.zeros(keys, np.int32),
        np.zeros(keys, np.int32),
        np.zeros(HEAD_WIDTH, np.int64),
    )
    clear(t, depth)
    return t


class Asked(NamedTuple):
    """Where a request stands: its own tree and the shared one, each with its `match_text` place, and its context.

    ``text[:length]`` is the request's text, of which each tree holds the last `own_size` or `shared_size` tokens.
    """

    own: Tree
    own_last: Int
    own_size: Int
    shared: Tree
    shared_last: Int
    shared_size: Int
    text: Ints
    length: Int
    context: Ints


class Options(NamedTuple):
    """Most tokens of a draft, tokens allowed per matched one and beyond, least probability; the reals in float32."""

    limit: Int
    factor: Float
    offset: Float
    min_prob: Float


@jit_leaf
def _matches(a: Asked) -> tuple[Int, Int, Int, Int, bool]:
    """State and length of the longest match in the own tree and in the shared one, and whether the ids are valid.

    They are not where a reserved id stands right before a match: the engine looks it up and refuses.
    """
    size = a.context.size
    cap = min(size, a.own.head[DEPTH]) - 1
    v, m = match_text(a.own, a.own_last, a.own_size, a.text, a.length, a.context, cap)
    w, n = match_text(a.shared, a.shared_last, a.shared_size, a.text, a.length, a.context, cap)
    valid = not ((m < cap and a.context[size - 1 - m] <= RESERVED) or (n < cap and a.context[size - 1 - n] <= RESERVED))
    return v, m, w, n, valid


@jit_leaf
def _chain(a: Asked, o: Options, tokens: Ints, probs: Floats) -> tuple[Int, Int, Float]:
    """Tokens, match length and score of the better chain of the two trees, the own one of equals; -1: a reserved id."""
    v, m, w, m2, valid = _matches(a)
    if not valid:
        return np.int64(-1), np.int64(0), np.float32(0.0)
    v, m, n, score = best_path(a.own, v, m, o.limit, o.factor, o.offset, o.min_prob)
    w, m2, n2, score2 = best_path(a.shared, w, m2, o.limit, o.factor, o.offset, o.min_prob)
    if score2 > score:
        return write_path(a.shared, w, n2, o.min_prob, tokens, probs), m2, score2
    return write_path(a.own, v, n, o.min_prob, tokens, probs), m, score


@jit
def _tree(a: Asked, o: Options, out: Ints, probs: Floats) -> tuple[Int, Int, Float]:
    """`_chain` for trees: tokens in ``out[0]``, parents in ``out[2]``, probabilities in ``probs[0]``."""
    v, m, w, m2, valid = _matches(a)
    if not valid:
        return np.int64(-1), np.int64(0), np.float32(0.0)
    m, n, score = best_tree(a.own, v, m, o.limit, o.factor, o.offset, o.min_prob, out[:2], out[2:4], probs[:2])
    m2, n2, score2 = best_tree(a.shared, w, m2, o.limit, o.factor, o.offset, o.min_prob, out[4:6], out[6:8], probs[2:])
    if score2 > score:
        out[0, :n2] = out[4, :n2]
        out[2, :n2] = out[6, :n2]
        probs[0, :n2] = probs[2, :n2]
        return n2, m2, score2
    return n, m, score


# A cursor: where a request's text stands in its own tree and in the shared one.
OWN_LAST, OWN_SIZE, SHARED_LAST, SHARED_SIZE, PROMPT, SHARED = range(6)


@jit_leaf
def feed(
    a0: Ints,
    a1: Ints,
    a2: Ints,
    a3: Ints,
    a4: Longs,
    b0: Ints,
    b1: Ints,
    b2: Ints,
    b3: Ints,
    b4: Longs,
    cursor: Longs,
    text: Ints,
    tokens: Ints,
    start: Int,
) -> Int:
    """Append `tokens` at ``text[start:]`` and bring both trees up to it; 0, or 1 or 2 for the tree that is full.

    Called again with the same arguments after growing, it goes on where it stopped. 3: a reserved id, nothing done.
    """
    for i in range(tokens.size):
        if tokens[i] <= RESERVED:
            return 3
    own, shared = Tree(a0, a1, a2, a3, a4), Tree(b0, b1, b2, b3, b4)
    stop = start + tokens.size
    for i in range(tokens.size):
        text[start + i] = tokens[i]
    while cursor[OWN_SIZE] < stop:
        new = append(own, cursor[OWN_LAST], cursor[OWN_SIZE], text[cursor[OWN_SIZE]])
        if new == NONE:
            return 1
        cursor[OWN_LAST] = new
        cursor[OWN_SIZE] += 1
    if cursor[SHARED]:
        while cursor[SHARED_SIZE] < stop - cursor[PROMPT]:
            x = text[cursor[PROMPT] + cursor[SHARED_SIZE]]
            new = append(shared, cursor[SHARED_LAST], cursor[SHARED_SIZE], x)
            if new == NONE:
                return 2
            cursor[SHARED_LAST] = new
            cursor[SHARED_SIZE] += 1
    return 0


@jit_leaf
def _options(limit: Int, factor: Float, offset: Float, min_prob: Float) -> Options:
    return Options(limit, np.float32(factor), np.float32(offset), np.float32(min_prob))


@jit_leaf
def speculate_chain(
    a0: Ints,
    a1: Ints,
    a2: Ints,
    a3: Ints,
    a4: Longs,
    b0: Ints,
    b1: Ints,
    b2: Ints,
    b3: Ints,
    b4: Longs,
    cursor: Longs,
    text: Ints,
    context: Ints,
    limit: Int,
    factor: Float,
    offset: Float,
    min_prob: Float,
    out: Ints,
    probs: Floats,
) -> tuple[Int, Int, Float]:
    """Best chain for `context` of the request's own tree and the shared one: tokens, match length, score.

    The own tree wins ties. Tokens are left in ``out[0]`` and probabilities in ``probs[0]``. Arrays come one by one:
    calls from Python are quicker so than with tuples.
    """
    own, shared = Tree(a0, a1, a2, a3, a4), Tree(b0, b1, b2, b3, b4)
    size, place, shared_size = cursor[OWN_SIZE], cursor[SHARED_LAST], cursor[SHARED_SIZE]
    asked = Asked(own, cursor[OWN_LAST], size, shared, place, shared_size, text, size, context)
    return _chain(asked, _options(limit, factor, offset, min_prob), out[0], probs[0])


@jit
def speculate_tree(
    bound: tuple[Any, ...],
    context: Ints,
    limit: Int,
    factor: Float,
    offset: Float,
    min_prob: Float,
    out: Ints,
    probs: Floats,
) -> tuple[Int, Int, Float]:
    """`speculate_chain` for trees, its first twelve arguments in `bound`; parents are left in ``out[2]``."""
    own = Tree(bound[0], bound[1], bound[2], bound[3], bound[4])
    shared = Tree(bound[5], bound[6], bound[7], bound[8], bound[9])
    cursor, text = bound[10], bound[11]
    size, place, shared_size = cursor[OWN_SIZE], cursor[SHARED_LAST], cursor[SHARED_SIZE]
    asked = Asked(own, cursor[OWN_LAST], size, shared, place, shared_size, text, size, context)
    return _tree(asked, _options(limit, factor, offset, min_prob), out, probs)


# --------------------------------------------------------------------------------------------------------------- replay


class Pool(NamedTuple):
    """Own trees of the requests that run at a time, one per slot, in common arrays."""

    states: NDArray[np.int32]
    edges: NDArray[np.int32]
    by_token: Ints
    by_times: Ints
    head: Longs


@jit
def _in_slot(pool: Pool, s: Int) -> Tree:
    return Tree(pool.states[s], pool.edges[s], pool.by_token[s], pool.by_times[s], pool.head[s])


@jit
def _new_pool(slots: Int, states: Int, edges: Int, keys: Int) -> Pool:
    return Pool(
        np.zeros((slots, states, STATE_WIDTH), np.int32),
        np.zeros((slots, edges, EDGE_WIDTH), np.int32),
        np.zeros((slots, keys), np.int32),
        np.zeros((slots, keys), np.int32),
        np.zeros((slots, HEAD_WIDTH), np.int64),
    )


@jit
def _grown_pool(pool: Pool) -> Pool:
    slots, edges = pool.edges.shape[0], pool.edges.shape[1]
    new = _new_pool(slots, pool.states.shape[1] + 64, 2 * edges, 2 * pool.by_token.shape[1])
    new.states[:, : pool.states.shape[1]] = pool.states
    new.edges[:, :edges] = pool.edges
    new.head[:] = pool.head
    for s in range(slots):
        rebuild_tables(_in_slot(new, s))
    return new


@jit_leaf
def _power_of_two(n: Int) -> Int:
    size = 1
    while size < n:
        size *= 2
    return size


@jit
def _feed_own(pool: Pool, s: Int, last: Int, stream: Ints, base: Int, done: Int, now: Int) -> tuple[Pool, Int]:
    """Append ``stream[done:now]`` of the request from `base` to the tree in slot s; the pool, grown if need be."""
    t = _in_slot(pool, s)
    for i in range(done, now):
        new = append(t, last, i - base, stream[i])
        while new == NONE:
            pool = _grown_pool(pool)
            t = _in_slot(pool, s)
            new = append(t, last, i - base, stream[i])
        last = new
    return pool, last


@jit
def _feed_shared(t: Tree, last: Int, stream: Ints, base: Int, done: Int, now: Int) -> tuple[Tree, Int]:
    """Append ``stream[done:now]`` of the response from `base`; the tree, grown if need be."""
    for i in range(done, now):
        new = append(t, last, i - base, stream[i])
        least = 64
        while new == NONE:
            states, edges, keys = roomier(t, least)
            t = resized(t, states, edges, keys)
            least *= 2
            new = append(t, last, i - base, stream[i])
        last = new
    return t, last


@jit_leaf
def _leading(draft: Ints, n: Int, stream: Ints, at: Int, stop: Int) -> Int:
    """Leading tokens of a draft of n that equal ``stream[at:stop]``."""
    good = 0
    while good < n and at + good < stop and draft[good] == stream[at + good]:
        good += 1
    return good


@jit
def _forget_oldest(
    shared: Tree, stream: Ints, begin: Int, finish: Int, oldest: Int, running: Longs, end: Longs, in_shared: Longs
) -> None:
    """Take the oldest response out; where its request still runs, what it has emitted so far, and no more later."""
    for s in range(running.size):
        if running[s] == oldest:
            finish = max(begin, end[s])
            in_shared[s] = 0
    remove(shared, stream[begin:finish])


@jit
def replay(
    stream: Ints,
    starts: Longs,
    prompts: Longs,
    prefill: Int,
    depth: Int,
    cached_limit: Int,
    slots: Int,
    k: Int,
    factor: Float,
    offset: Float,
    min_prob: Float,
    max_model_len: Int,
    steps: Ints,
) -> Int:
    """Engine-like steps of all requests, `slots` at a time; rows filled in `steps` as in the n-gram replay.

    A slot takes the next request when its own is done. Within a step slots go in order: verify the draft, append what
    was emitted to both trees, draft again; so a slot sees what earlier slots emitted in the same step.
    """
    factor, offset, min_prob = np.float32(factor), np.float32(offset), np.float32(min_prob)
    requests = starts.size - 1
    longest = 1
    for r in range(requests):
        longest = max(longest, starts[r + 1] - starts[r])
    pool = _new_pool(slots, 2 * longest + 8, 2 * longest + 320, _power_of_two(2 * longest + 1024))
    shared = empty_tree(depth, 1024, 1280, 4096)
    running = np.full(slots, -1, np.int64)
    end, own_last, shared_last = np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    in_shared, drafted, matched = np.zeros(slots, np.int64), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    tokens = np.zeros((slots, max(k, 1)), np.int32)
    probs = np.zeros(max(k, 1), np.float32)
    upcoming = oldest = row = finished = 0
    while finished < requests:
        for s in range(slots):
            r = running[s]
            if r < 0 and upcoming == requests:
                continue
            if r < 0:
                r = running[s] = upcoming
                upcoming += 1
                clear(_in_slot(pool, s), depth)
                own_last[s] = shared_last[s] = 0
                end[s] = done = starts[r]
                now = min(done + prompts[r] + prefill, starts[r + 1])
                in_shared[s] = cached_limit != 0
                if 0 < cached_limit < upcoming - oldest:
                    begin = starts[oldest] + prompts[oldest]
                    _forget_oldest(shared, stream, begin, starts[oldest + 1], oldest, running, end, in_shared)
                    oldest += 1
            else:
                done = end[s]
                good = _leading(tokens[s], drafted[s], stream, done, starts[r + 1])
                now = min(done + good + 1, starts[r + 1])
                steps[row, 0], steps[row, 1], steps[row, 2] = r, done - starts[r], drafted[s]
                steps[row, 3], steps[row, 4], steps[row, 5] = good, now - done, matched[s]
                row += 1
            base, answer = starts[r], starts[r] + prompts[r]
            pool, own_last[s] = _feed_own(pool, s, own_last[s], stream, base, done, now)
            if in_shared[s]:
                shared, shared_last[s] = _feed_shared(shared, shared_last[s], stream, answer, max(done, answer), now)
            end[s] = now
            if now == starts[r + 1]:
                running[s] = -1
                finished += 1
                continue
            length = now - base
            drafted[s] = matched[s] = 0
            if length < max_model_len:
                asked = Asked(
                    _in_slot(pool, s),
                    own_last[s],
                    length,
                    shared,
                    shared_last[s],
                    max(0, now - answer) if in_shared[s] else 0,
                    stream,
                    now,
                    stream[max(base, now - depth) : now],
                )
                limit = min(k, max_model_len - length - 1)
                drafted[s], matched[s], _ = _chain(asked, Options(limit, factor, offset, min_prob), tokens[s], probs)
    return row
