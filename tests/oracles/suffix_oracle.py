"""Brute force for suffix decoding: every substring of bounded length with its count and its ranked children.

Slow and large; the referee of the compiled proposer. Float32 where the engine computes in float32.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from specplan.propose.protocol import Draft

_F = np.float32
_Item = tuple[np.float32, int, tuple[int, ...], int | None]


class OracleTree:
    """All substrings of at most `depth` tokens of some texts.

    Examples
    --------
    >>> tree = OracleTree(4)
    >>> tree.append("a", [1, 2, 1, 3, 1, 3])
    >>> tree.count[(1,)], tree.children[(1,)]
    (3, [3, 2])
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.texts: dict[Hashable, list[int]] = {}
        self.count: dict[tuple[int, ...], int] = {(): 0}
        self.children: dict[tuple[int, ...], list[int]] = {(): []}

    def append(self, text_id: Hashable, tokens: Sequence[int]) -> None:
        """Append tokens to a text, one occurrence of each of its new suffixes."""
        text = self.texts.setdefault(text_id, [])
        for token in tokens:
            text.append(token)
            self.count[()] += 1
            for length in range(1, min(len(text), self.depth) + 1):
                self._raise(tuple(text[-length:]))

    def _raise(self, string: tuple[int, ...]) -> None:
        parent, token = string[:-1], string[-1]
        ranks = self.children[parent]
        counts = [self.count[(*parent, t)] for t in ranks]
        if string not in self.count:
            self.count[string] = 1
            self.children[string] = []
            ranks.append(token)
            return
        old = self.count[string]
        was_first = ranks[counts.index(old)] == token
        self.count[string] = old + 1
        ranks.remove(token)
        larger = sum(c > old + 1 for c in counts)
        equal = sum(c == old + 1 for c in counts)
        ranks.insert(larger if was_first else larger + equal, token)

    def remove(self, text_id: Hashable) -> None:
        """Take a text's occurrences away, by their starting places."""
        text = self.texts.pop(text_id)
        for start in range(len(text)):
            self.count[()] -= 1
            for stop in range(min(start + self.depth, len(text)), start, -1):  # a child goes before its parent
                self._lower(tuple(text[start:stop]))

    def _lower(self, string: tuple[int, ...]) -> None:
        parent, token = string[:-1], string[-1]
        ranks = self.children[parent]
        self.count[string] -= 1
        ranks.remove(token)
        if not self.count[string]:
            del self.count[string]
            self.children.pop(string)
            return
        ranks.insert(sum(self.count[(*parent, t)] > self.count[string] for t in ranks), token)

    def speculate(
        self, context: Sequence[int], limit: int, factor: float, offset: float, min_prob: float, as_tree: bool
    ) -> Draft:
        """Best draft over all match lengths, the longest of equals."""
        context = tuple(context)[-self.depth :]
        best = Draft((), (), (), 0.0, 0)
        for m in range(1, len(context)):
            string = context[-m:]
            if string not in self.count:
                break
            real = float(_F(_F(_F(m) * _F(factor)) + _F(offset))) + 1e-6
            n = max(0, min(limit, int(real)))
            draft = self._tree(string, n, _F(min_prob)) if as_tree else self._path(string, n, _F(min_prob))
            if draft.score >= best.score:
                best = draft
        return best

    def _path(self, string: tuple[int, ...], n: int, min_prob: np.float32) -> Draft:
        m, prob = len(string), _F(1)
        probs: list[np.float32] = []
        while len(probs) < n and self.children.get(string) and prob >= min_prob:
            child = (*string, self.children[string][0])
            prob = _F(prob * _F(_F(self.count[child]) / _F(self.count[string])))
            if not prob >= min_prob:
                break
            probs.append(prob)
            string = child
        return _draft(list(string[m:]), list(range(-1, len(probs) - 1)), probs, m)

    def _tree(self, string: tuple[int, ...], n: int, min_prob: np.float32) -> Draft:
        """Most probable first, by a binary heap with the C++ library's order of equals.

        An item is (probability, parent, string, token): with a token it is a child not drafted yet, without one the end
        of a string.
        """
        tokens: list[int] = []
        parents: list[int] = []
        probs: list[np.float32] = []
        heap: list[_Item] = [(_F(1), -1, string, None)]
        while len(tokens) < n and heap:
            prob, parent, here, token = heap[0]
            _pop(heap)
            if token is None:
                ranks = self.children.get(here, [])
                if not ranks or self.count[(*here, ranks[0])] != self.count[here]:
                    for t in ranks:
                        chance = _F(_F(prob * _F(self.count[(*here, t)])) / _F(self.count[here]))
                        if chance < min_prob:
                            break
                        _push(heap, (chance, parent, here, t))
                    continue
                token = ranks[0]
            tokens.append(token)
            parents.append(parent)
            probs.append(prob)
            _push(heap, (prob, len(tokens) - 1, (*here, token), None))
        return _draft(tokens, parents, probs, len(string))


def _draft(tokens: list[int], parents: list[int], probs: list[np.float32], match_len: int) -> Draft:
    score = _F(0)
    for prob in probs:
        score = _F(score + prob)
    return Draft(tuple(tokens), tuple(parents), tuple(float(p) for p in probs), float(score), match_len)


def _push(heap: list[_Item], item: _Item) -> None:
    heap.append(item)
    _rise(heap, len(heap) - 1, item)


def _rise(heap: list[_Item], hole: int, item: _Item) -> None:
    while hole > 0 and heap[(hole - 1) // 2][0] < item[0]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = item


def _pop(heap: list[_Item]) -> None:
    """Sink the hole at the top to a leaf (the right child of equals), then let the last item rise from there."""
    last = heap.pop()
    size = len(heap)
    if size == 0:
        return
    hole = 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 2
        if child == size or heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    _rise(heap, hole, last)


class OracleCache:
    """Per-request trees and the shared tree of responses, by definition; calls as in `SuffixCache`."""

    def __init__(self, depth: int, max_cached_requests: int = -1) -> None:
        self.depth, self.limit = depth, max_cached_requests
        self.shared = OracleTree(depth)
        self.own: dict[Hashable, OracleTree] = {}
        self.cached: list[Hashable] = []

    def start_request(self, request_id: Hashable, prompt: Sequence[int]) -> None:
        """Begin a request; the oldest cached responses go where there are too many."""
        self.own[request_id] = OracleTree(self.depth)
        self.own[request_id].append(0, prompt)
        if self.limit == 0:
            return
        if request_id in self.cached:
            self.evict_cached_response(request_id)
        self.cached.append(request_id)
        self.shared.append(request_id, [])
        while 0 < self.limit < len(self.cached):
            self.evict_cached_response(self.cached[0])

    def stop_request(self, request_id: Hashable) -> None:
        """Drop the request's own tree."""
        del self.own[request_id]

    def add_active_response(self, request_id: Hashable, tokens: Sequence[int]) -> None:
        """Append to both trees."""
        self.own[request_id].append(0, tokens)
        if request_id in self.cached:
            self.shared.append(request_id, tokens)

    def evict_cached_response(self, request_id: Hashable) -> None:
        """Take a response out of the shared tree."""
        self.cached.remove(request_id)
        self.shared.remove(request_id)

    def speculate(
        self,
        request_id: Hashable,
        context: Sequence[int],
        max_spec_tokens: int,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        use_tree_spec: bool = False,
    ) -> Draft:
        """The better of the own and the shared tree's draft; the own one of equals."""
        arguments = (context, max_spec_tokens, max_spec_factor, max_spec_offset, min_token_prob, use_tree_spec)
        own, shared = self.own[request_id].speculate(*arguments), self.shared.speculate(*arguments)
        return own if own.score >= shared.score else shared
