"""N-gram drafting: what followed the last n tokens when they occurred before, by the rule of each engine.

Three things vary between engines: which occurrence wins when the longest match stands in several places, whether
missing slots are filled, and what caps the draft. `NgramRule` says them; `propose_once` looks through a whole context
(one-shot, as the engines do), `NgramProposer` keeps an index per request so that a step costs what it added, not the
whole context.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.compiled import load
from specplan.propose.protocol import EMPTY, Draft, TokenArray, Tokens, as_tokens, limits_of

NO_LIMIT: Final = 2**31 - 1
"""A model length that never caps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramRule:
    """How one engine drafts from n-grams.

    With context x of T tokens: n* is the largest n in [`min_n`, `max_n`] for which the last n tokens also start at some
    s <= T - n - 1; s* is the smallest such s (`latest` false) or the largest; the draft is x[s* + n*], x[s* + n* + 1],
    ..., never past the end of the context.

    Attributes
    ----------
    name : str
        Whose rule it is.
    min_n, max_n : int
        Shortest and longest n-gram, 1 <= min_n <= max_n.
    latest : bool
        The most recent occurrence wins instead of the earliest.
    fill : bool
        Always draft as many tokens as asked for: slots without a token hold the context's last token (0 when the
        context is empty).
    max_model_len : int
        L, in tokens.
    reserved : int
        A context of T tokens drafts only while L - T - `reserved` positions are left.
    trim : bool
        A draft is also cut to the positions that are left.
    stop_ids : frozenset of int
        A draft ends before the first of these.

    Raises
    ------
    InputError
        When 1 <= min_n <= max_n does not hold.

    Source: vLLM 0.32.0 (both runners), transformers 5.24.
    """

    name: str
    min_n: int
    max_n: int
    latest: bool = False
    fill: bool = False
    max_model_len: int = NO_LIMIT
    reserved: int = 0
    trim: bool = True
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n:
            raise InputError(f"n-gram lengths: got min {self.min_n}, max {self.max_n}; 1 <= min <= max is needed")
        if self.max_model_len < 1:
            raise InputError(f"max_model_len is {self.max_model_len}; it must be at least 1")

    def limit(self, context_len: int, asked: int) -> int:
        """Most tokens that a draft may have: min(asked, L - T - reserved), at least 0.

        >>> vllm_v1(2, 5, max_model_len=8).limit(6, 3), vllm_v2(2, 5).limit(6, 3)
        (2, 3)
        >>> transformers_lookup(2, max_length=8).limit(6, 3), transformers_lookup(2, max_length=8).limit(7, 3)
        (3, 0)
        """
        room = self.max_model_len - context_len - self.reserved
        return max(0, min(asked, room)) if self.trim or room <= 0 else max(0, asked)


def vllm_v1(min_n: int, max_n: int, *, max_model_len: int = NO_LIMIT) -> NgramRule:
    """`ngram` on vLLM's V1 runner: longest n, earliest occurrence, at most min(k, L - T) tokens, none without a match.

    >>> propose_once([1, 2, 3, 9, 1, 2, 3, 7, 1, 2, 3], 2, vllm_v1(2, 3)).tokens
    (9, 1)
    """
    return NgramRule(name="vllm-v1", min_n=min_n, max_n=max_n, max_model_len=max_model_len)


def vllm_v2(min_n: int, max_n: int) -> NgramRule:
    """`ngram` and `ngram_gpu` on vLLM's V2 runner (its default): longest n, most recent occurrence, always k tokens.

    A miss costs k verified positions: the draft is k times the last token. The matcher does not look at the model's
    length; the scheduler trims drafts to L - T - 1.

    >>> propose_once([1, 2, 3, 9, 1, 2, 3, 7, 1, 2, 3], 2, vllm_v2(2, 3)).tokens
    (7, 1)
    >>> propose_once([4, 5, 6], 2, vllm_v2(2, 3)).tokens
    (6, 6)
    """
    return NgramRule(name="vllm-v2", min_n=min_n, max_n=max_n, latest=True, fill=True)


def vllm_ngram_gpu(min_n: int, max_n: int) -> NgramRule:
    """`ngram_gpu` on vLLM's V1 runner: `vllm_v1` without the cap by the model's length, which the scheduler applies.

    >>> propose_once([1, 2, 3, 9, 1, 2], 4, vllm_ngram_gpu(2, 3)).tokens
    (3, 9, 1, 2)
    """
    return NgramRule(name="vllm-ngram-gpu", min_n=min_n, max_n=max_n)


def transformers_lookup(max_n: int, *, max_length: int = NO_LIMIT, stop_ids: frozenset[int] = frozenset()) -> NgramRule:
    """Prompt lookup of transformers 5.24: n from `max_n` down to 1, leftmost occurrence.

    The draft is cut before an end-of-sequence id. `max_length` bounds prompt and output together: at `max_length` - 1
    tokens nothing is drafted; before that a draft is not cut to what is left (generation stops it later).

    >>> propose_once([1, 2, 9, 1, 3, 1], 2, transformers_lookup(2)).tokens
    (2, 9)
    """
    return NgramRule(
        name="transformers", min_n=1, max_n=max_n, max_model_len=max_length, reserved=1, trim=False, stop_ids=stop_ids
    )


def latest_lookup(min_n: int, max_n: int, *, max_model_len: int = NO_LIMIT) -> NgramRule:
    """Prompt lookup by the most recent occurrence, nothing filled: what a recency ranking of n-grams drafts.

    >>> propose_once([1, 2, 9, 1, 3, 1], 2, latest_lookup(1, 2)).tokens
    (3, 1)
    """
    return NgramRule(name="latest", min_n=min_n, max_n=max_n, latest=True, max_model_len=max_model_len)


def _shape(rule: NgramRule, tokens: list[int], match_len: int, limit: int, last: int) -> Draft:
    """The draft that a rule makes of the tokens after a match."""
    if rule.stop_ids:
        stop = next((i for i, t in enumerate(tokens) if t in rule.stop_ids), len(tokens))
        tokens = tokens[:stop]
    if rule.fill and len(tokens) < limit:
        tokens = tokens + [last] * (limit - len(tokens))
    if not tokens and not match_len:
        return EMPTY
    return Draft(tuple(tokens), None, None, 0.0, match_len)


def propose_once(context: Tokens, k: int, rule: NgramRule) -> Draft:
    """One draft for one context, looking through all of it.

    Cost: linear in T; blocks of the context that cannot hold a better match are passed over by vector compares (about
    0.1 to 0.2 ns per token), and Knuth-Morris-Pratt takes over where candidates abound.

    Parameters
    ----------
    context : tokens, shape (T,)
        Prompt and output so far, the just-sampled token included.
    k : int
        Tokens asked for, at least 0.
    rule : NgramRule

    Returns
    -------
    Draft
        A chain; `match_len` is n*.

    Raises
    ------
    MissingExtraError
        Without numba.

    Examples
    --------
    >>> propose_once([5, 6, 7, 8, 5, 6], 3, vllm_v1(2, 4))
    Draft(tokens=(7, 8, 5), parents=None, scores=None, score=0.0, match_len=2)
    """
    text = as_tokens(context, what="context")
    end = text.size
    limit = rule.limit(end, k)
    if limit == 0:
        return EMPTY
    n, e = load("ngram_kernels").match_once(text, 0, end, rule.min_n, rule.max_n, rule.latest)
    tokens = text[e + 1 : e + 1 + limit].tolist() if n else []
    return _shape(rule, tokens, n, limit, int(text[-1]) if end else 0)


class OneShotBatch:
    """One-shot drafts of a batch of padded rows, as an engine's step asks for them.

    Parameters
    ----------
    rule : NgramRule
    k : int
        Tokens asked for per row.

    Examples
    --------
    >>> batch = OneShotBatch(vllm_v1(2, 4), 3)
    >>> rows = np.array([[5, 6, 7, 5, 6, 0], [1, 2, 3, 4, 5, 6]], np.int32)
    >>> batch(rows, np.array([5, 6], np.int32))
    [[7, 5, 6], []]
    """

    def __init__(self, rule: NgramRule, k: int) -> None:
        self.rule, self.k = rule, k
        self._draft_batch = load("ngram_kernels").draft_batch
        self._resize(1)

    def _resize(self, rows: int) -> None:
        self._out = np.zeros((rows, max(self.k, 1)), np.int32)
        self._counts = np.zeros(rows, np.int64)
        self._found = np.zeros(rows, np.int64)

    def __call__(self, tokens: NDArray[np.int32], lengths: NDArray[np.int32]) -> list[list[int]]:
        """Drafts of rows ``tokens[i, :lengths[i]]``."""
        rule, rows = self.rule, lengths.size
        if rows > self._counts.size:
            self._resize(rows)
        if rule.max_model_len == NO_LIMIT:
            limits = np.full(rows, self.k, np.int64)
        else:
            limits = np.fromiter((rule.limit(n, self.k) for n in lengths.tolist()), np.int64, rows)
        self._draft_batch(
            tokens, lengths, rule.min_n, rule.max_n, limits, rule.latest, self._out, self._counts, self._found
        )
        counts = self._counts[:rows].tolist()
        drafts = [row[:n] for row, n in zip(self._out[:rows].tolist(), counts, strict=True)]
        if rule.fill or rule.stop_ids:
            lasts = np.where(lengths > 0, tokens[np.arange(rows), np.maximum(lengths - 1, 0)], 0).tolist()
            asked, found = limits.tolist(), self._found.tolist()
            drafts = [list(_shape(rule, d, found[i], asked[i], lasts[i]).tokens) for i, d in enumerate(drafts)]
        return drafts


class NgramIndex:
    """One request's text with an index of its n-grams: a step costs what it added, whatever the context's length.

    For each n in [min_n, max_n] an open-addressing table maps an n-gram to the end of its earliest (or latest)
    occurrence. The tables hold positions, equality is verified on tokens, so the answer is exact. Text and tables
    double when full: 4 bytes of text and 8 to 16 bytes per table and token of capacity.

    Parameters
    ----------
    rule : NgramRule
    capacity : int
        Tokens that fit before the first doubling.

    Examples
    --------
    >>> index = NgramIndex(vllm_v1(2, 4))
    >>> index.extend([5, 6, 7, 8, 5, 6])
    >>> index.propose(3)
    [7, 8, 5]
    >>> index.extend([7])
    >>> index.propose(3), index.match_len
    ([8, 5, 6], 3)
    """

    __slots__ = ("_append", "_e", "_last", "_room", "_tables", "_text", "match_len", "rule", "size")

    def __init__(self, rule: NgramRule, capacity: int = 1024) -> None:
        self.rule = rule
        self.size = 0
        self.match_len = 0
        self._e = -1
        self._last = 0
        self._append = load("ngram_kernels").index_tokens
        self._room = 0
        self._text: TokenArray = np.zeros(0, np.int32)
        self._tables: NDArray[np.int32] = np.zeros((0, 0), np.int32)
        self._grow(max(capacity, 16))

    def _grow(self, capacity: int) -> None:
        """Make room for `capacity` tokens; tables stay at most half full."""
        text = np.zeros(capacity, np.int32)
        text[: self.size] = self._text[: self.size]
        slots = 1 << (2 * capacity - 1).bit_length()
        rule = self.rule
        tables = np.zeros((rule.max_n - rule.min_n + 1, slots), np.int32)
        load("ngram_kernels").reindex(text, self.size, tables, rule.min_n, rule.max_n, rule.latest)
        self._text, self._tables, self._room = text, tables, capacity

    def extend(self, tokens: Tokens) -> None:
        """Append tokens."""
        new = as_tokens(tokens)
        size = self.size
        total = size + new.size
        if total > self._room:
            self._grow(max(total, 2 * self._room))
        if total == size:
            return
        rule = self.rule
        self.match_len, self._e = self._append(self._text, size, new, self._tables, rule.min_n, rule.max_n, rule.latest)
        self.size = total

    def propose(self, k: int) -> list[int]:
        """At most `k` tokens that followed the match; no filling, no stop ids (see `draft`)."""
        e = self._e
        if e < 0:
            return []
        size = self.size
        stop = e + 1 + (k if self.rule.max_model_len == NO_LIMIT else self.rule.limit(size, k))
        return cast(list[int], self._text[e + 1 : stop if stop < size else size].tolist())

    def draft(self, k: int) -> Draft:
        """The rule's draft: filled and cut as the rule says."""
        limit = self.rule.limit(self.size, k)
        if limit == 0:
            return EMPTY
        last = int(self._text[self.size - 1]) if self.size else 0
        tokens = self._text[self._e + 1 : min(self._e + 1 + limit, self.size)].tolist() if self.match_len else []
        return _shape(self.rule, tokens, self.match_len, limit, last)

    @property
    def memory_bytes(self) -> int:
        """Bytes of text and tables."""
        return self._text.nbytes + self._tables.nbytes

    def check_integrity(self) -> None:
        """Each table holds each n-gram once, at the position that the rule names."""
        rule, text = self.rule, self._text[: self.size].tolist()
        for n in range(rule.min_n, rule.max_n + 1):
            expected: dict[tuple[int, ...], int] = {}
            for e in range(n - 1, len(text)):
                gram = tuple(text[e - n + 1 : e + 1])
                if rule.latest or gram not in expected:
                    expected[gram] = e
            held = self._tables[n - rule.min_n]
            assert sorted((held[held > 0] - 1).tolist()) == sorted(expected.values()), f"table of {n}-grams"  # noqa: S101 - integrity is asserted


class NgramProposer:
    """N-gram drafting behind the common protocol: one `NgramIndex` per active request, nothing shared, nothing kept.

    Parameters
    ----------
    rule : NgramRule

    Examples
    --------
    >>> proposer = NgramProposer(vllm_v2(2, 4))
    >>> proposer.start_request("r", [5, 6, 7, 8, 5, 6])
    >>> proposer.propose("r", 5).tokens
    (7, 8, 5, 6, 6)
    >>> proposer.stop_request("r")
    >>> proposer.memory_bytes
    0
    """

    def __init__(self, rule: NgramRule) -> None:
        self.rule = rule
        self._requests: dict[Hashable, NgramIndex] = {}

    def _index(self, request_id: Hashable) -> NgramIndex:
        index = self._requests.get(request_id)
        if index is None:
            raise InputError(f"Request '{request_id}' is not active; start it first")
        return index

    def start_request(self, request_id: Hashable, prompt: Tokens) -> None:
        """Begin a request with its prompt."""
        if request_id in self._requests:
            raise InputError(f"Request '{request_id}' is already active; stop it first")
        text = as_tokens(prompt, what="prompt")
        index = NgramIndex(self.rule, capacity=max(64, 2 * text.size))
        index.extend(text)
        self._requests[request_id] = index

    def extend(self, request_id: Hashable, tokens: Tokens) -> None:
        """Append emitted tokens."""
        self._index(request_id).extend(tokens)

    def propose(self, request_id: Hashable, limit: int) -> Draft:
        """The rule's draft of at most `limit` tokens."""
        return self._index(request_id).draft(limit)

    def propose_batch(self, request_ids: Sequence[Hashable], limits: int | Sequence[int]) -> list[Draft]:
        """Drafts of several requests, in order."""
        asked = limits_of(request_ids, limits)
        return [self.propose(r, k) for r, k in zip(request_ids, asked, strict=True)]

    def stop_request(self, request_id: Hashable) -> None:
        """Drop a request's text and index."""
        self._index(request_id)
        del self._requests[request_id]

    def check_integrity(self) -> None:
        """Check every active index."""
        for index in self._requests.values():
            index.check_integrity()

    @property
    def memory_bytes(self) -> int:
        """Bytes of all active indexes."""
        return sum(index.memory_bytes for index in self._requests.values())
