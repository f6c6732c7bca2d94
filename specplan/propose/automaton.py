# ruff: noqa: S101 - check_integrity asserts
"""Suffix automaton of a static corpus: every substring's count and last position, in linear space.

A state is a class of substrings that end at the same positions of the corpus. The automaton grows token by token; once
frozen it answers which suffix of a context occurs, how often and where last, and what follows it, ranked.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.compiled import load
from specplan.propose.protocol import Tokens, as_tokens

Order: TypeAlias = Literal["recency", "frequency"]
"""How continuations are ranked: by their last end position, or by their number of occurrences."""

SEPARATOR: Final = -(2**31)
"""Token that stands between documents; no match and no continuation crosses it."""

_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Anchor:
    """A suffix of a context that occurs in the corpus.

    Attributes
    ----------
    state : int
        Its class; the key for `continuations`.
    matched : int
        Tokens of the suffix: the longest of its class that is a suffix of the context.
    """

    state: int
    matched: int


@dataclass(frozen=True, slots=True)
class Continuation:
    """A token that follows an anchor's suffix somewhere in the corpus.

    Attributes
    ----------
    token : int
        Token id.
    state : int
        Class of the suffix with the token appended.
    count : int
        Occurrences of that longer string.
    last_end : int
        0-based position of its last token at its last occurrence.
    """

    token: int
    state: int
    count: int
    last_end: int


class SuffixAutomaton:
    """Suffix automaton of documents: at most 2 T states and 3 T edges for T tokens.

    Documents are streamed in with `append` and `separate`, then `freeze` propagates occurrence counts and last end
    positions up the suffix links and ranks the continuations. Frozen arrays are 20 bytes a state, 8 bytes an edge and
    an index of the edges of wide states: some 50 bytes per token of text.

    Parameters
    ----------
    order : {"recency", "frequency"}
        Ranking of continuations. Ties: smaller token first.

    Raises
    ------
    MissingExtraError
        Without numba.

    References
    ----------
    Blumer, Blumer, Haussler, Ehrenfeucht, Chen, Seiferas: The smallest automaton recognizing the subwords of a text,
    Theoretical Computer Science 40 (1985).

    Examples
    --------
    >>> automaton = SuffixAutomaton()
    >>> automaton.append([1, 2, 3, 1, 2, 4])
    >>> automaton.freeze()
    >>> automaton.count([1, 2]), automaton.last_end([1, 2])
    (2, 4)
    >>> [(a.matched, [c.token for c in automaton.continuations(a.state)]) for a in automaton.match([9, 1, 2])]
    [(2, [4, 3])]
    """

    def __init__(self, order: Order = "recency") -> None:
        if order not in ("recency", "frequency"):
            raise InputError(f"order of continuations: expected recency or frequency, got {order!r}")
        self.order: Order = order
        self._kernels = load("automaton_kernels")
        states = np.empty((1024, 4), np.int32)
        states[0] = (-1, 0, -1, 0)
        edges, slots = np.empty((1024, 4), np.int32), np.zeros(1024, np.int32)
        self._growing: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]] | None = (states, edges, slots)
        self._head = np.array([1, 0, 0, 0, 0], np.int64)
        self._frozen: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]] | None = None

    def append(self, tokens: Tokens) -> None:
        """Extend the current document; InputError once frozen, or if tokens hold the separator.

        >>> automaton = SuffixAutomaton()
        >>> automaton.append([5, 6, 5])
        >>> automaton.n_tokens
        3
        """
        array = as_tokens(tokens)
        if np.any(array == SEPARATOR):
            raise InputError(
                f"tokens: id {SEPARATOR} is kept for the border between documents; call separate() instead"
            )
        self._extend(array)

    def separate(self) -> None:
        """End the current document; the separator counts as one token.

        >>> automaton = SuffixAutomaton()
        >>> automaton.append([1, 2]); automaton.separate(); automaton.append([3])
        >>> automaton.freeze()
        >>> automaton.n_tokens, automaton.match([1, 2])
        (4, [])
        """
        self._extend(np.array([SEPARATOR], np.int32))

    def _extend(self, array: NDArray[np.int32]) -> None:
        if self._growing is None:
            raise InputError("this suffix automaton is frozen; build another one for more tokens")
        if self.n_tokens + array.size > 2**29:
            raise InputError(f"a suffix automaton holds at most {2**29} tokens; split the corpus")
        for start in range(0, array.size, _CHUNK):
            self._growing = self._kernels.append(*self._growing, self._head, array[start : start + _CHUNK])

    def freeze(self) -> None:
        """Propagate counts and ends, rank continuations, drop what only growth needs; a second call does nothing."""
        if self._growing is None:
            return
        rank = self._kernels.END if self.order == "recency" else self._kernels.COUNT
        states, edges, _ = self._growing
        self._growing = None
        self._frozen = self._kernels.freeze(states, edges, self._head, rank)

    @property
    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Frozen states (S + 1, 5), edges (E, 2) and index, for compiled callers; InputError before `freeze`."""
        if self._frozen is None:
            raise InputError("this suffix automaton is still growing; call freeze() before it is asked")
        return self._frozen

    def hold(self, states: NDArray[np.int32], edges: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
        """Use these copies of its frozen arrays (views into a larger pool) in place of its own, which are freed."""
        self._frozen = (states, edges, slots)

    @property
    def n_tokens(self) -> int:
        """Tokens taken in, separators included."""
        return int(self._head[3])

    @property
    def n_states(self) -> int:
        """States, the root included: at most 2 n_tokens."""
        return int(self._head[0])

    @property
    def n_edges(self) -> int:
        """Edges kept; those by the separator go when the automaton is frozen."""
        return int(self._head[1]) if self._frozen is None else len(self._frozen[1])

    @property
    def memory_bytes(self) -> int:
        """Bytes of the arrays now held.

        >>> automaton = SuffixAutomaton()
        >>> automaton.append(list(range(100)) * 5)
        >>> automaton.freeze()
        >>> automaton.memory_bytes < 50 * automaton.n_tokens
        True
        """
        arrays = self._frozen if self._frozen is not None else self._growing
        assert arrays is not None
        return self._head.nbytes + sum(array.nbytes for array in arrays)

    def locate(self, context: Tokens, depth: int | None = None) -> Anchor:
        """Longest suffix of the last `depth` tokens of the context that occurs; state 0, matched 0 for none.

        >>> automaton = SuffixAutomaton()
        >>> automaton.append([1, 2, 3, 4])
        >>> automaton.freeze()
        >>> automaton.locate([7, 2, 3]).matched, automaton.locate([2, 3], depth=1).matched
        (2, 1)
        """
        array = as_tokens(context, what="context")
        start = 0 if depth is None else max(0, array.size - depth)
        return Anchor(*self._kernels.walk(*self.arrays, array, start, array.size))

    def match(self, context: Tokens, depth: int | None = None) -> list[Anchor]:
        """Suffixes of the context that occur and continue, one per class of end positions, longest first.

        Parameters
        ----------
        context : sequence of int
            Tokens so far.
        depth : int, optional
            Only the last `depth` of them are looked at.

        Examples
        --------
        >>> automaton = SuffixAutomaton()
        >>> automaton.append([1, 2, 3, 9, 2, 3, 8])
        >>> automaton.freeze()
        >>> [anchor.matched for anchor in automaton.match([1, 2, 3])]  # 3 alone ends where 2 3 ends
        [3, 2]
        """
        states = self.arrays[0]
        found = self.locate(context, depth)
        state, matched = found.state, found.matched
        anchors = []
        while state > 0:
            matched = min(matched, int(states[state, 1]))
            if states[state + 1, 4] > states[state, 4]:
                anchors.append(Anchor(state, matched))
            state = int(states[state, 0])
        return anchors

    def continuations(self, state: int) -> list[Continuation]:
        """What follows the strings of a class, in rank order.

        >>> automaton = SuffixAutomaton("frequency")
        >>> automaton.append([1, 2, 1, 2, 1, 3])
        >>> automaton.freeze()
        >>> [(c.token, c.count, c.last_end) for c in automaton.continuations(automaton.locate([1]).state)]
        [(2, 2, 3), (3, 1, 5)]
        """
        states, edges, _ = self.arrays
        rows = edges[states[state, 4] : states[state + 1, 4]]
        return [Continuation(int(t), int(s), int(states[s, 2]), int(states[s, 3])) for t, s in rows]

    def _occurring(self, pattern: Tokens) -> int | None:
        array = as_tokens(pattern, what="pattern")
        found = self.locate(array)
        return found.state if found.matched == array.size > 0 else None

    def count(self, pattern: Tokens) -> int:
        """Occurrences of a non-empty pattern, overlapping ones included; 0 when it does not occur."""
        state = self._occurring(pattern)
        return 0 if state is None else int(self.arrays[0][state, 2])

    def last_end(self, pattern: Tokens) -> int | None:
        """Position of the last token of the pattern's last occurrence, separators counted; None without one."""
        state = self._occurring(pattern)
        return None if state is None else int(self.arrays[0][state, 3])

    def check_integrity(self) -> None:
        """Verify the frozen automaton; AssertionError names what is broken.

        Links shorten, counts add up along them, ends are inherited, edges are ranked and lead to longer strings, the
        index finds every edge.
        """
        states, edges, _ = self.arrays
        n = self.n_states
        assert states.shape == (n + 1, 5), "a row per state and one more"
        assert n <= 2 * max(1, self.n_tokens), "at most two states per token"
        link, length, count, end, start = states[:n].T
        assert link[0] == -1, "the root has no link"
        assert length[0] == 0, "the root is the empty string"
        assert np.all(length[link[1:]] < length[1:]), "a suffix link shortens"
        assert int(count[0]) == self.n_tokens, "the empty string ends once after each token"
        inherited = np.zeros(n, np.int64)
        np.add.at(inherited, link[1:], count[1:])
        own = count - inherited
        assert set(np.unique(own[1:])) <= {0, 1}, "a class has its links' ends and at most one of its own"
        last = np.full(n, -1, np.int64)
        np.maximum.at(last, link[1:], end[1:])
        # the prefix that ends at `end` is the class's own string when no child has that end
        assert np.all((last[1:] <= end[1:]) & (end[1:] >= 0)), "a class ends last where its last child does, or later"
        stops = states[1 : n + 1, 4]
        assert start[0] == 0, "edges start at 0"
        assert stops[-1] == len(edges), "edges end at the last one"
        assert np.all(stops >= start), "edges are in order of states"
        assert np.all(length[edges[:, 1]] > np.repeat(length, stops - start)), "an edge lengthens"
        rank = end if self.order == "recency" else count
        for state in range(n):
            rows = edges[start[state] : stops[state]]
            keys = [(-int(rank[target]), int(token)) for token, target in rows]
            assert keys == sorted(set(keys)), f"continuations of state {state} are ranked"
            assert all(self._kernels.step(*self.arrays, state, int(t)) == s for t, s in rows), f"index, state {state}"
