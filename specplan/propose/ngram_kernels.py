"""Compiled loops of n-gram drafting; imported lazily through `specplan.propose.compiled.load`.

Notation: a context is ``text[base:end]``; its last token stands at ``end - 1``. An occurrence of the last n tokens is
named by the position ``e`` of its last token, ``base + n - 1 <= e <= end - 2``, so at least one token follows it and it
may overlap the suffix that it repeats.
"""

import numpy as np
from numpy.typing import NDArray

from specplan.propose.compiled import jit, jit_leaf

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

BLOCK = 512  # positions that one vectorised test covers
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
_TOP = np.uint64(32)


@jit
def match_by_border(text: Ints, base: int, end: int, lo: int, hi: int, latest: bool) -> tuple[int, int]:
    """Longest n in [lo, hi] and its occurrence by Knuth-Morris-Pratt over the reversed context: linear in any case.

    Reversed, the suffix is a prefix, and the longest border of a reversed prefix, capped at `hi`, is the longest match
    that begins there in the original.
    """
    length = end - base
    top = min(hi, length - 1)
    best, best_e = 0, -1
    if top < lo:
        return best, best_e
    fail = np.zeros(top, np.int32)
    border = 0
    for i in range(1, length):
        token = text[end - 1 - i]
        if border == top:
            border = fail[border - 1]
        while border > 0 and text[end - 1 - border] != token:
            border = fail[border - 1]
        if text[end - 1 - border] == token:
            border += 1
        if i < top:
            fail[i] = border
        # Later i is further left: ">=" keeps the earliest occurrence, ">" the latest.
        if border >= lo and (border > best or (border == best and not latest)):
            best, best_e = border, end - 1 - i + border - 1
    return best, best_e


@jit_leaf
def _any_pair(a: Ints, b: Ints, x: int, y: int) -> bool:
    """Whether a[i] == x and b[i] == y for some i; no early exit, so that it compiles to vector compares."""
    first, second = np.int32(x), np.int32(y)
    hit = np.int32(0)
    for i in range(a.size):
        hit |= np.int32((a[i] == first) & (b[i] == second))
    return bool(hit != 0)


@jit
def match_once(text: Ints, base: int, end: int, lo: int, hi: int, latest: bool) -> tuple[int, int]:
    """Longest n in [lo, hi] whose last n tokens occur before, and the earliest or latest occurrence of it.

    A candidate must agree with the suffix at its last token and at the token that would make it longer than the best so
    far; blocks without such a pair are passed over by vector compares. Where candidates are so many that checking them
    costs more than the context is long, `match_by_border` takes over, so the worst case stays linear.
    """
    top = min(hi, end - base - 1)
    best, best_e = 0, -1
    if top < lo:
        return best, best_e
    last = text[end - 1]
    off = lo - 1  # a better match agrees with the suffix at distance `off` from its end
    key = text[end - 1 - off]
    work = 0
    allowed = 2 * (end - base) + 256
    span = end - 1 - (base + off)  # candidates e in [base + off, end - 2]
    done = 0
    while done < span:
        step = min(BLOCK, span - done)
        first = base + off + done if not latest else end - 1 - done - step
        if _any_pair(text[first : first + step], text[first - off : first - off + step], last, key):
            for i in range(step):
                e = first + i if not latest else first + step - 1 - i
                if e - off < base or text[e] != last or text[e - off] != key:
                    continue
                n = 1
                while n < top and e - n >= base and text[e - n] == text[end - 1 - n]:
                    n += 1
                work += n
                if n > off:
                    best, best_e = n, e
                    if n == top:
                        return best, best_e
                    # From here a match must be longer; the earlier start of `e` rules out nothing that was passed.
                    off = n
                    key = text[end - 1 - off]
            if work > allowed:
                return match_by_border(text, base, end, lo, hi, latest)
        done += step
        if not latest:
            # `off` may have grown: the first candidate not yet seen keeps its place.
            done = max(0, first + step - base - off)
            span = end - 1 - (base + off)
        else:
            span = end - 1 - (base + off)
    return best, best_e


@jit
def draft_batch(
    tokens: Ints, lengths: Ints, lo: int, hi: int, limits: Longs, latest: bool, out: Ints, counts: Longs, found: Longs
) -> None:
    """One proposal for each row: at most ``limits[i]`` tokens that follow the match and stand before the row's end."""
    for i in range(lengths.size):
        end = lengths[i]
        row = tokens[i]
        n, e = 0, -1
        if limits[i] > 0:
            n, e = match_once(row, 0, end, lo, hi, latest)
        count = 0
        if n > 0:
            count = min(limits[i], end - 1 - e)
            for j in range(count):
                out[i, j] = row[e + 1 + j]
        counts[i] = count
        found[i] = n


@jit_leaf
def index_token(text: Ints, base: int, at: int, tables: Ints, lo: int, hi: int, latest: bool) -> tuple[int, int]:
    """Match for the context ``text[base:at + 1]``, then enter the n-grams that end at `at`.

    ``tables[n - lo]`` is an open-addressing table of positions: it holds ``e + 1`` for an n-gram that ends at `e`. An
    entry not above `base` belongs to an earlier request and counts as empty, so tables are never cleared. The earliest
    rule writes an entry once; the latest rule overwrites it. Equality is verified on tokens, so hashes need not be
    perfect. An (n+1)-gram can only have occurred if its last n tokens have.
    """
    mask = np.uint64(tables.shape[1] - 1)
    hash_ = np.uint64(0)
    best, best_e = 0, -1
    known = True
    top = min(hi, at - base + 1)
    for n in range(1, top + 1):
        hash_ = (hash_ ^ np.uint64(np.uint32(text[at + 1 - n]))) * _MULTIPLIER
        hash_ ^= hash_ >> _SHIFT
        if n < lo:
            continue
        row = tables[n - lo]
        slot = np.int64((hash_ ^ (hash_ >> _TOP)) & mask)
        hit = -1
        while row[slot] > base:
            if known:
                e = row[slot] - 1
                same = True
                for j in range(n):
                    if text[e - j] != text[at - j]:
                        same = False
                        break
                if same:
                    hit = e
                    break
            slot = np.int64(np.uint64(slot + 1) & mask)
        if hit >= 0:
            best, best_e = n, hit
            if latest:
                row[slot] = at + 1
        else:
            known = False
            row[slot] = at + 1
    return best, best_e


@jit_leaf
def index_tokens(text: Ints, have: int, new: Ints, tables: Ints, lo: int, hi: int, latest: bool) -> tuple[int, int]:
    """Append `new` to one request's text of `have` tokens and index each; the match of the whole text."""
    n, e = 0, -1
    for i in range(new.size):
        text[have + i] = new[i]
        n, e = index_token(text, 0, have + i, tables, lo, hi, latest)
    return n, e


@jit_leaf
def reindex(text: Ints, have: int, tables: Ints, lo: int, hi: int, latest: bool) -> None:
    """Enter the text's n-grams into empty tables."""
    for at in range(have):
        index_token(text, 0, at, tables, lo, hi, latest)


@jit_leaf
def scan(
    stream: Ints, starts: Longs, tables: Ints, lo: int, hi: int, k: int, latest: bool, fill: bool
) -> tuple[int, int, int]:
    """Positions, drafted and accepted of a proposal at every position of every request.

    Request r is ``stream[starts[r]:starts[r + 1]]``; accepted counts leading drafted tokens that equal what follows.
    """
    positions = drafted = accepted = 0
    for r in range(starts.size - 1):
        base, stop = starts[r], starts[r + 1]
        for end in range(base + 1, stop):
            n, e = index_token(stream, base, end - 1, tables, lo, hi, latest)
            positions += 1
            count, good = _verify(stream, base, end, stop, n, e, k, fill)
            drafted += count
            accepted += good
    return positions, drafted, accepted


@jit_leaf
def _verify(stream: Ints, base: int, end: int, stop: int, n: int, e: int, limit: int, fill: bool) -> tuple[int, int]:
    """Drafted and accepted tokens of a match at `e` for ``stream[base:end]``; the truth follows up to `stop`."""
    last = stream[end - 1] if end > base else np.int32(0)
    real = min(limit, end - 1 - e) if n > 0 else 0
    count = limit if fill else real
    good = 0
    while good < count and end + good < stop:
        token = stream[e + 1 + good] if good < real else last
        if token != stream[end + good]:
            break
        good += 1
    return count, good


@jit_leaf
def replay(
    stream: Ints,
    starts: Longs,
    prompts: Longs,
    tables: Ints,
    lo: int,
    hi: int,
    k: int,
    max_model_len: int,
    latest: bool,
    fill: bool,
    steps: Ints,
) -> int:
    """Engine-like steps of every request: draft, accept the leading equal tokens, emit one more, repeat.

    Rows of `steps` (request, context_len, drafted, accepted, emitted, match_len) are filled; their number is returned.
    ``prompts[r]`` tokens of request r stand before its first step.
    """
    row = 0
    for r in range(starts.size - 1):
        base, stop = starts[r], starts[r + 1]
        end = base
        n, e = 0, -1
        while end < base + prompts[r]:
            n, e = index_token(stream, base, end, tables, lo, hi, latest)
            end += 1
        while end < stop:
            limit = max(0, min(k, max_model_len - (end - base) - 1))
            count, good = _verify(stream, base, end, stop, n, e, limit, fill)
            emitted = min(good + 1, stop - end)
            steps[row, 0] = r
            steps[row, 1] = end - base
            steps[row, 2] = count
            steps[row, 3] = good
            steps[row, 4] = emitted
            steps[row, 5] = n
            row += 1
            for _ in range(emitted):
                n, e = index_token(stream, base, end, tables, lo, hi, latest)
                end += 1
    return row
