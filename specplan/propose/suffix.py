"""Suffix decoding as Arctic Inference does it, on compact trees.

Each active request has a tree of its own (prompt and response); all share a tree of responses, from which the oldest go
first. A draft follows the most frequent continuation of the longest useful match. Drafts, probabilities, match lengths
and tie orders equal those of arctic-inference 0.3.0 bit for bit; the trees take about a third of the bytes and no pass
over them is quadratic (see `suffix_kernels`).

What is kept, and how long: a prompt and everything else in a request's own tree until `stop_request`; a response in the
shared tree until it is evicted: first in, first out, beyond `max_cached_requests` requests or `max_shared_bytes`.
Prompts never enter the shared tree. Nothing is written to disk.
"""

from collections import Counter
from collections.abc import Hashable, KeysView, Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.compiled import load
from specplan.propose.protocol import Draft, TokenArray, Tokens, as_tokens, limits_of

_INT32: Final = np.dtype(np.int32)
_OWN_FULL: Final = 1
_INVALID: Final = 3
_RESERVED: Final = f"invalid key: token ids {-(2**31)} and {-(2**31) + 1} are reserved"
_MAX_DEPTH: Final = 2**26 - 1
_STATE_BYTES: Final = 8 * 4
_EDGE_BYTES: Final = 6 * 4
_HEAD_BYTES: Final = 8 * 8


def _vector(tokens: Tokens) -> TokenArray:
    """Token ids as the engine takes them: a sequence of int or a contiguous int32 vector; anything else is refused."""
    if not isinstance(tokens, np.ndarray):
        return as_tokens(tokens)
    if tokens.dtype == _INT32 and tokens.ndim == 1 and tokens.flags.carray:
        return tokens  # type: ignore[return-value]  # the dtype was just compared
    if tokens.ndim != 1:
        raise InputError(f"ndarray input must have ndim=1, got ndim={tokens.ndim}")
    if tokens.dtype != _INT32:
        raise InputError(f"ndarray input must have dtype=int32, got dtype={tokens.dtype}")
    if not tokens.flags.c_contiguous:
        raise InputError("ndarray input must be contiguous; pass numpy.ascontiguousarray(tokens)")
    return tokens.astype(np.int32)  # a read-only or unaligned vector


def check_depth(depth: int) -> None:
    """Refuse a depth that no tree has.

    >>> check_depth(0)
    Traceback (most recent call last):
    specplan.errors.InputError: max_tree_depth is 0; it must be between 1 and 67108863
    """
    if not 1 <= depth <= _MAX_DEPTH:
        raise InputError(f"max_tree_depth is {depth}; it must be between 1 and {_MAX_DEPTH}")


def _whole(tokens: object) -> int:
    """A draft length as an int; InputError for what is none."""
    if tokens is None:
        raise InputError("max_spec_tokens is missing; give the longest draft, such as 32")
    if not isinstance(tokens, (int, np.integer)):
        raise InputError(f"max_spec_tokens is {tokens!r}; give a whole number, such as 32")
    return int(tokens)


class SuffixTree:
    """All substrings of at most `depth` tokens of some texts, counted and ranked; see `suffix_kernels` for the layout.

    Parameters
    ----------
    depth : int
        Longest substring, at least 1: match and draft together are no longer.
    tokens : int
        Tokens to make room for at first.
    """

    __slots__ = ("arrays", "depth", "kernels")

    def __init__(self, depth: int, tokens: int = 0) -> None:
        self.kernels: ModuleType = load("suffix_kernels")
        self.depth = depth
        keys = 1 << (max(256, 24 * min(depth, 64), tokens // 4) - 1).bit_length()
        edges = tokens + min(depth, 64) + 16
        self.arrays: tuple[NDArray[Any], ...] = tuple(
            self.kernels.empty_tree(depth, tokens + tokens // 2 + 16, edges, keys)
        )

    def grow(self, least: int, max_bytes: int | None = None) -> bool:
        """Larger arrays wherever little room is left, for at least `least` more states and edges.

        False, and nothing done, where they would take more than `max_bytes`. Near that limit they grow to it once,
        states and edges in the proportion of their use.
        """
        tree = self.kernels.Tree(*self.arrays)
        states, edges, keys = self.kernels.roomier(tree, least)
        if max_bytes is not None and self._bytes(states, edges, keys) > max_bytes:
            used_states, used_edges = self.used
            per_use = used_states * _STATE_BYTES + used_edges * _EDGE_BYTES
            factor = (max_bytes - self._bytes(0, 0, keys)) / max(per_use, 1)
            states = max(self.arrays[0].shape[0], int(used_states * factor))
            edges = max(self.arrays[1].shape[0], int(used_edges * factor))
            scarce = min(states - used_states, edges - used_edges) < max(least, used_states // 16)
            if scarce or self._bytes(states, edges, keys) > max_bytes:
                return False
        self.arrays = tuple(self.kernels.resized(tree, states, edges, keys))
        return True

    @staticmethod
    def _bytes(states: int, edges: int, keys: int) -> int:
        return states * _STATE_BYTES + edges * _EDGE_BYTES + 2 * 4 * keys + _HEAD_BYTES

    @property
    def tokens(self) -> int:
        """Tokens of all texts in the tree."""
        return int(self.arrays[0][0, self.kernels.COUNT])

    @property
    def used(self) -> tuple[int, int]:
        """States and edges in use."""
        head, k = self.arrays[4], self.kernels
        return int(head[k.STATES] - head[k.FREE_STATES]), int(head[k.EDGES] - head[k.FREE_EDGES])

    @property
    def memory_bytes(self) -> int:
        """Bytes of the arrays, room not yet used included."""
        return sum(array.nbytes for array in self.arrays)

    def strings(self) -> dict[tuple[int, ...], tuple[int, list[tuple[int, int]]]]:
        """Every string in the tree with its count and its (token, count) children in rank order; for checks.

        >>> tree = SuffixTree(3)
        >>> cursor = np.zeros(2, np.int64)
        >>> tree.kernels.extend(tree.kernels.Tree(*tree.arrays), cursor, np.array([1, 2, 1, 3], np.int32))
        4
        >>> tree.strings()[(1,)]
        (2, [(2, 1), (3, 1)])
        """
        found = {}
        pending: list[tuple[tuple[int, ...], int]] = [((), 0)]
        while pending:
            string, v = pending.pop()
            children = self._children(v) if len(string) < self.depth else []
            found[string] = (int(self.arrays[0][v, self.kernels.COUNT]), [(t, n) for t, _, n in children])
            pending.extend(((*string, t), target) for t, target, _ in children)
        return found

    def _children(self, v: int) -> list[tuple[int, int, int]]:
        """(token, target, times) in rank order."""
        states, edges, k = self.arrays[0], self.arrays[1], self.kernels
        row = states[v].tolist()
        children = [(row[k.TOKEN], row[k.TARGET], row[k.TIMES])] if row[k.TARGET] >= 0 else []
        e = row[k.FIRST]
        while e >= 0:
            edge = edges[e].tolist()
            children.append((edge[k.E_TOKEN], edge[k.E_TARGET], edge[k.E_TIMES]))
            e = edge[k.E_NEXT]
        return children

    def check_integrity(self, texts: Sequence[Sequence[int]]) -> None:
        """Verify the tree against the texts that it should hold, and every structural invariant.

        Counts of all substrings; ranks by falling count; one class for each string, its suffixes of the same class
        between the link's length and its own; tables and free lists complete.
        """
        counts: Counter[tuple[int, ...]] = Counter()
        for text in texts:
            for start in range(len(text) + 1):
                counts.update(
                    tuple(text[start:stop]) for stop in range(start + 1, min(start + self.depth, len(text)) + 1)
                )
        strings = self.strings()
        _require({s: n for s, (n, _) in strings.items() if s} == dict(counts), "counts of substrings")
        for string, (_, children) in strings.items():
            times = [n for _, n in children]
            _require(times == sorted(times, reverse=True), f"rank order below {string}")
            _require(all(n == counts[(*string, t)] for t, n in children), f"counts of the children of {string}")
        self._check_classes(strings)
        self._check_tables()

    def _check_classes(self, strings: dict[tuple[int, ...], Any]) -> None:
        states, k = self.arrays[0], self.kernels
        members: dict[int, list[tuple[int, ...]]] = {}
        for string in strings:
            v = 0
            for token in string:
                v = next(target for t, target, _ in self._children(v) if t == token)
            members.setdefault(v, []).append(string)
        for v, held in members.items():
            longest = max(held, key=len)
            low = int(states[states[v, k.LINK], k.LEN] & k.LEN_MASK) if v else -1
            _require(len(longest) == states[v, k.LEN] & k.LEN_MASK, f"length of state {v}")
            _require(
                sorted(map(len, held)) == list(range(low + 1, len(longest) + 1))
                and all(longest[len(longest) - len(s) :] == s for s in held),
                f"strings of state {v} are the suffixes of its longest between its link's length and its own",
            )
            if v:
                shorter = longest[len(longest) - low :]
                _require(shorter in members[int(states[v, k.LINK])], f"link of state {v}")
        _require(len(members) == self.used[0], "states in use are states reached")

    def _check_tables(self) -> None:
        (states, edges, by_token, by_times, head), k = self.arrays, self.kernels
        live = [v for v in range(head[k.STATES]) if states[v, k.LEN] >= 0]
        tokens: set[int] = set()
        firsts: set[int] = set()
        listed = 0
        for v in live:
            e, before, times = int(states[v, k.FIRST]), -1, -1
            here = listed
            while e >= 0:
                listed += 1
                _require(edges[e, k.E_OWNER] == v and edges[e, k.E_PREV] == before, f"list of state {v}")
                if states[v, k.LEN] & k.WIDE:
                    tokens.add(e + 1)
                    if edges[e, k.E_TIMES] != times:
                        firsts.add(e + 1)
                before, times, e = e, int(edges[e, k.E_TIMES]), int(edges[e, k.E_NEXT])
            _require(states[v, k.LAST] == before, f"end of the list of state {v}")
            if not states[v, k.LEN] & k.WIDE:
                _require(listed - here == states[v, k.LEN] // k.LISTED <= k.NARROW, f"listed children of state {v}")
        _require(set(by_token[by_token > 0].tolist()) == tokens, "table of wide states' children")
        _require(set(by_times[by_times > 0].tolist()) == firsts, "table of wide states' ranks")
        _require((by_token > 0).sum() == len(tokens) == head[k.KEYED], "entries of the table of children")
        _require((by_times > 0).sum() == len(firsts), "entries of the table of ranks")
        _require(listed == self.used[1], "edges in use are edges listed")
        for what, start, count, column, array in (
            ("states", k.FREE_STATE, k.FREE_STATES, k.LINK, states),
            ("edges", k.FREE_EDGE, k.FREE_EDGES, k.E_NEXT, edges),
        ):
            n, at = 0, int(head[start])
            while at >= 0:
                n, at = n + 1, int(array[at, column])
            _require(n == head[count], f"free list of {what}")


def _require(holds: object, what: str) -> None:
    if not holds:
        raise AssertionError(what)


class _Active:
    """An active request: its text, its own tree, and where both trees stand in it."""

    __slots__ = ("bound", "cursor", "prompt_len", "seen", "size", "text", "tree")

    def __init__(self, tree: SuffixTree, prompt_len: int, shared: bool) -> None:
        self.tree = tree
        self.text: TokenArray = np.zeros(2 * prompt_len + 64, np.int32)
        self.size = 0
        self.prompt_len = prompt_len
        self.cursor = np.array([0, 0, 0, 0, prompt_len, shared], np.int64)
        self.seen: tuple[NDArray[Any], ...] = ()
        self.bound: tuple[NDArray[Any], ...] = ()

    def bind(self, shared: tuple[NDArray[Any], ...]) -> None:
        """Line up what every compiled call takes first: both trees' arrays, the cursor, the text."""
        self.seen = shared
        self.bound = (*self.tree.arrays, *shared, self.cursor, self.text)

    def response(self) -> TokenArray:
        """A copy of the response so far."""
        return self.text[self.prompt_len : self.size].copy()


class SuffixCache:
    """The cache of suffix decoding: calls, answers and refusals of Arctic Inference's `SuffixDecodingCache`.

    Parameters
    ----------
    max_tree_depth : int
        D, 1 <= D < 2^26: match length + draft length <= D.
    max_cached_requests : int
        Responses kept in the shared tree, oldest first out; -1 for no limit, 0 for no shared tree.
    max_shared_bytes : int or None
        Bytes that the shared tree's arrays may take (the responses that are kept for eviction add 4 per token); the
        oldest responses go where more would be needed, and a response for which all others went stays out. None: no
        limit, as in the engine.

    Notes
    -----
    A response counts from its first token, also for other requests and while its request is active; its own request
    meets it twice, in its own tree and in the shared one. A pattern's unfinished last occurrence counts in its own
    count: what followed it once gets 1/2 in the request's own tree.

    Not equal on purpose: `max_spec_tokens` must be given (the engine's default raises AttributeError).

    Source: arctic-inference 0.3.0, `suffix_decoding/cache.py` and its tree.

    Examples
    --------
    >>> cache = SuffixCache(max_tree_depth=64)
    >>> cache.start_request(0, [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3])
    >>> cache.speculate(0, [1, 2, 3], max_spec_tokens=8)
    Draft(tokens=(4, 5), parents=(-1, 0), scores=(0.5, 0.5), score=1.0, match_len=2)
    """

    def __init__(
        self, max_tree_depth: int = 64, max_cached_requests: int = -1, *, max_shared_bytes: int | None = None
    ) -> None:
        check_depth(max_tree_depth)
        if max_cached_requests >= 2**31:
            raise InputError(f"max_cached_requests must be at most 2^31, got {max_cached_requests}; -1 means no limit")
        self.max_tree_depth = max_tree_depth
        self.max_cached_requests = max_cached_requests
        self.max_shared_bytes = max_shared_bytes
        self._shared = SuffixTree(max_tree_depth, 64)
        if max_shared_bytes is not None and self._shared.memory_bytes > max_shared_bytes:
            raise InputError(
                f"max_shared_bytes is {max_shared_bytes}; an empty tree takes {self._shared.memory_bytes} bytes"
            )
        self._active: dict[Hashable, _Active] = {}
        self._cached: dict[Hashable, TokenArray | _Active] = {}
        kernels = self._shared.kernels
        self._feed, self._remove = kernels.feed, kernels.remove
        self._chain, self._tree = kernels.speculate_chain, kernels.speculate_tree
        self._buffers(min(max_tree_depth, 256))
        self._chains = [tuple(range(-1, n - 1)) for n in range(min(max_tree_depth, 256))]
        self._nothing = [Draft((), (), (), 0.0, m) for m in range(min(max_tree_depth, 256))]

    def _buffers(self, width: int) -> None:
        """Room for drafts of `width` tokens."""
        self._width = width
        self._out = np.zeros((8, width), np.int32)
        self._probs = np.zeros((4, width), np.float32)
        self._drafted = self._out[0], self._out[2], self._probs[0]

    @property
    def active_requests(self) -> KeysView[Hashable]:
        """Ids of the requests that have a tree of their own."""
        return self._active.keys()

    @property
    def cached_requests(self) -> KeysView[Hashable]:
        """Ids of the requests whose response is in the shared tree, oldest first."""
        return self._cached.keys()

    def _request(self, request_id: Hashable) -> _Active:
        active = self._active.get(request_id)
        if active is None:
            raise InputError(f"Request '{request_id}' is not active; start it first")
        return active

    def start_request(self, request_id: Hashable, prompt: Tokens) -> None:
        """Begin a request: its own tree holds the prompt; room is made for its response in the shared tree.

        Raises
        ------
        InputError
            When the request is active, or the prompt is not token ids.
        """
        if request_id in self._active:
            raise InputError(f"Request '{request_id}' is already active; stop it first")
        text = _vector(prompt)
        active = _Active(SuffixTree(self.max_tree_depth, text.size), text.size, self.max_cached_requests != 0)
        self._add(active, text)
        self._active[request_id] = active
        if self.max_cached_requests == 0:
            return
        if request_id in self._cached:
            self.evict_cached_response(request_id)
        self._cached[request_id] = active
        while 0 < self.max_cached_requests < len(self._cached):
            self.evict_cached_response(next(iter(self._cached)))

    def stop_request(self, request_id: Hashable) -> None:
        """End a request: its own tree goes, prompt and all; its response stays in the shared tree until evicted."""
        active = self._request(request_id)
        del self._active[request_id]
        if active.cursor[5]:
            self._cached[request_id] = active.response()

    def add_active_response(self, request_id: Hashable, tokens: Tokens) -> None:
        """Append emitted tokens to the request's own tree and, unless it was evicted, to the shared one."""
        active = self._active.get(request_id)
        if active is None:
            active = self._request(request_id)
        self._add(active, _vector(tokens))

    def _add(self, active: _Active, tokens: TokenArray) -> None:
        start = active.size
        stop = start + tokens.size
        if stop > active.text.size:
            text = np.zeros(max(2 * active.text.size, stop), np.int32)
            text[:start] = active.text[:start]
            active.text = text
            active.seen = ()
        least = 16 + 2 * min(self.max_tree_depth, stop)
        while True:
            if active.seen is not self._shared.arrays:
                active.bind(self._shared.arrays)
            full = self._feed(*active.bound, tokens, start)
            if full == 0:
                active.size = stop
                return
            if full == _INVALID:
                raise InputError(_RESERVED)
            if full == _OWN_FULL:
                active.tree.grow(least)
                active.seen = ()
            else:
                self._make_room(active, least)
            least *= 2

    def _make_room(self, active: _Active, least: int) -> None:
        """Grow the shared tree, or evict its oldest response where the limit in bytes forbids growing."""
        if self._shared.grow(least, self.max_shared_bytes):
            return
        others = (r for r, kept in self._cached.items() if kept is not active)
        mine = (r for r, kept in self._cached.items() if kept is active)
        self.evict_cached_response(next(others) if len(self._cached) > 1 else next(mine))

    def evict_cached_response(self, request_id: Hashable) -> None:
        """Take a response out of the shared tree; if its request is active, only its own tree grows from now on."""
        kept = self._cached.pop(request_id, None)
        if kept is None:
            raise InputError(f"Request '{request_id}' is not cached; cached_requests lists those that are")
        if isinstance(kept, _Active):
            size = int(kept.cursor[3])
            tokens = kept.text[kept.prompt_len : kept.prompt_len + size].copy()
            kept.cursor[2:4] = 0
            kept.cursor[5] = 0
        else:
            tokens = kept
        self._remove(self._shared.kernels.Tree(*self._shared.arrays), tokens)

    def speculate(
        self,
        request_id: Hashable,
        context: Tokens,
        max_spec_tokens: int | None = None,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        use_tree_spec: bool = False,
    ) -> Draft:
        """Draft for the tokens `context`, whose last `max_tree_depth` count.

        For each match length m = 1, 2, ... below the context's length, while the last m tokens occur in the tree: at
        most floor(m * factor + offset + 1e-6) tokens, in [0, max_spec_tokens], each while the product of
        count(child) / count(node) along the path is at least `min_token_prob`. The draft with the largest sum of
        probabilities wins, the longer match of equals; the request's own tree before the shared one of equals.

        Parameters
        ----------
        request_id : hashable
            An active request.
        context : tokens
            How the request's text ends.
        max_spec_tokens : int
            Longest draft.
        max_spec_factor, max_spec_offset : float
            Draft length allowed per matched token, and beyond.
        min_token_prob : float
            Least estimated probability of a drafted token, given all before it.
        use_tree_spec : bool
            A tree of the most probable continuations instead of a chain.

        Returns
        -------
        Draft
            Probabilities are float32 values. Where nothing can be drafted, `match_len` is the longest match.
        """
        active = self._active.get(request_id)
        if active is None:
            active = self._request(request_id)
        pattern = _vector(context)
        if type(max_spec_tokens) is not int:
            max_spec_tokens = _whole(max_spec_tokens)
        if not type(max_spec_factor) is type(max_spec_offset) is type(min_token_prob) is float:
            max_spec_factor, max_spec_offset = float(max_spec_factor), float(max_spec_offset)
            min_token_prob = float(min_token_prob)
        if max_spec_tokens > self._width:
            self._widen(active, max_spec_tokens, max_spec_factor, max_spec_offset, use_tree_spec)
        if active.seen is not self._shared.arrays:
            active.bind(self._shared.arrays)
        options = (pattern, max_spec_tokens, max_spec_factor, max_spec_offset, min_token_prob, self._out, self._probs)
        if use_tree_spec:
            n, match_len, score = self._tree(active.bound, *options)
        else:
            n, match_len, score = self._chain(*active.bound, *options)
        if n < 0:
            raise InputError(_RESERVED)
        if n == 0:
            return self._nothing[match_len] if match_len < 256 else Draft((), (), (), 0.0, match_len)
        tokens, parents, probs = self._drafted
        if use_tree_spec:
            at = tuple(parents[:n].tolist())
        elif n < 256:
            at = self._chains[n]
        else:
            at = tuple(range(-1, n - 1))
        return Draft(tuple(tokens[:n].tolist()), at, tuple(probs[:n].tolist()), score, match_len)

    def _widen(self, active: _Active, limit: int, factor: float, offset: float, as_tree: bool) -> None:
        """Room for the longest draft there can be: by its options, and by the strings that there are."""
        nodes = self.max_tree_depth
        if as_tree:
            allowed = max(factor, 0.0) * self.max_tree_depth + max(offset, 0.0) + 2
            strings = max(active.size, self._shared.tokens) * self.max_tree_depth
            nodes = min(strings, int(allowed) if allowed < limit else limit)
        if min(limit, nodes) > self._width:
            self._buffers(min(limit, nodes))

    @property
    def cached_tokens(self) -> int:
        """Response tokens in the shared tree."""
        return self._shared.tokens

    @property
    def shared_bytes(self) -> int:
        """Bytes of the shared tree and of the responses that it keeps for eviction."""
        kept = sum(r.nbytes for r in self._cached.values() if not isinstance(r, _Active))
        return self._shared.memory_bytes + kept

    @property
    def memory_bytes(self) -> int:
        """Bytes of all trees and texts."""
        own = sum(a.tree.memory_bytes + a.text.nbytes + a.cursor.nbytes for a in self._active.values())
        return self.shared_bytes + own + self._out.nbytes + self._probs.nbytes

    def check_integrity(self) -> None:
        """Check every tree against the texts that it should hold."""
        for active in self._active.values():
            active.tree.check_integrity([active.text[: active.size].tolist()])
        responses = [r.response() if isinstance(r, _Active) else r for r in self._cached.values()]
        self._shared.check_integrity([r.tolist() for r in responses])


class SuffixProposer:
    """Suffix decoding behind the common protocol; the context is the request's own text, as the simulator drives it.

    Parameters
    ----------
    cache : SuffixCache
        Its trees and limits; a store that several proposers may share.
    max_spec_factor, max_spec_offset, min_token_prob, use_tree_spec
        As in `SuffixCache.speculate`.

    Examples
    --------
    >>> proposer = SuffixProposer(SuffixCache(max_tree_depth=64))
    >>> proposer.start_request("a", [7])
    >>> proposer.extend("a", [1, 2, 3, 4, 5])
    >>> proposer.start_request("b", [9, 1, 2, 3])
    >>> proposer.propose("b", 8).tokens
    (4, 5)
    """

    def __init__(
        self,
        cache: SuffixCache,
        *,
        max_spec_factor: float = 1.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        use_tree_spec: bool = False,
    ) -> None:
        self.cache = cache
        self.options = (max_spec_factor, max_spec_offset, min_token_prob, use_tree_spec)

    def start_request(self, request_id: Hashable, prompt: Tokens) -> None:
        """Begin a request with its prompt."""
        self.cache.start_request(request_id, as_tokens(prompt, what="prompt"))

    def extend(self, request_id: Hashable, tokens: Tokens) -> None:
        """Append emitted tokens."""
        self.cache.add_active_response(request_id, as_tokens(tokens))

    def _tail(self, request_id: Hashable) -> TokenArray:
        active = self.cache._request(request_id)
        return active.text[max(0, active.size - self.cache.max_tree_depth) : active.size]

    def propose(self, request_id: Hashable, limit: int) -> Draft:
        """Draft of at most `limit` tokens for the request's text so far."""
        return self.cache.speculate(request_id, self._tail(request_id), limit, *self.options)

    def propose_batch(self, request_ids: Sequence[Hashable], limits: int | Sequence[int]) -> list[Draft]:
        """Drafts of several requests, in order."""
        asked = limits_of(request_ids, limits)
        return [self.propose(r, k) for r, k in zip(request_ids, asked, strict=True)]

    def stop_request(self, request_id: Hashable) -> None:
        """Drop the request's own tree; its response stays in the shared tree until evicted."""
        self.cache.stop_request(request_id)

    def check_integrity(self) -> None:
        """Check every tree."""
        self.cache.check_integrity()

    @property
    def memory_bytes(self) -> int:
        """Bytes of all trees and texts."""
        return self.cache.memory_bytes
