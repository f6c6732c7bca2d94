# ruff: noqa: S101 - check_integrity asserts
"""SGLang's n-gram drafting (NGRAM): token trees from an online trie and external corpora.

With ``quirks="sglang-0.5.23"`` every draft is the engine's, node for node. The quirks, and the sane rule beside each:

==================================================================  ====================================================
``quirks="sglang-0.5.23"``                                          ``quirks=None``
==================================================================  ====================================================
only the last D tokens of each step's context are inserted, so      the prompt is inserted when the request starts
most of a prompt never enters the trie                              (unless ``index_prompts=False``)
a step's emitted tokens enter one step later                        they enter at once
windows overlap, so counts are visits                               counts are occurrences
an absent suffix stays absent for its continuations (stale)         every match is what a fresh one would be
room is made for D nodes even when all exist                        only missing nodes evict others
unused rows are token 0 under the root and can be accepted          unused rows are token -1 and are not drafted
in a merge the path that is token 0 alone is dropped                token 0 is a token
a corpus that has no match wastes its share of the nodes            what one source leaves, the others use
more corpora than budget: none drafts                               the longest match drafts first
a budget of 0 leaves corpora idle; one above N - 1 is clamped       both are errors
equal chances come out in the order of a C++ priority queue         first come, first served
==================================================================  ====================================================
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.compiled import load
from specplan.propose.protocol import EMPTY, Draft, TokenArray, Tokens, as_tokens, limits_of
from specplan.propose.sglang_corpus import SglangCorpora
from specplan.propose.sglang_rule import SglangRule
from specplan.propose.sglang_trees import DraftTrees
from specplan.propose.sglang_trie import SglangTrie

_MAX_PENDING = 1 << 16  # tokens; a longer queue is worked off as it fills, as the engine's thread would


def _joined(contexts: Sequence[Tokens]) -> tuple[TokenArray, list[int]]:
    """Contexts end to end, and their lengths."""
    if contexts and all(type(context) is np.ndarray for context in contexts):
        tokens = np.concatenate(contexts)
        if tokens.dtype == np.int32 and tokens.ndim == 1:
            return tokens, [len(context) for context in contexts]
    arrays = [as_tokens(context, what="context") for context in contexts]
    return np.concatenate([np.zeros(0, np.int32), *arrays]), [array.size for array in arrays]


@dataclass(slots=True)
class _Request:
    """Last D tokens, length of the whole text, and whether a draft was asked for at this length."""

    tail: TokenArray
    total: int
    asked: bool = False


class SglangNgram:
    """Trie, external corpora and match states of one namespace.

    Two faces. The engine's: `put`, `synchronize`, `match`, `erase`, `reset`, for callers that keep their own text. And
    the proposers': `start_request`, `extend`, `propose`, `stop_request`, which feed the trie as the engine's worker
    does.

    Everything in it may be drafted for any of its requests: keep one per tenant, model and tokenizer
    (`specplan.propose.stores.Stores` does). Memory is bounded by the trie's capacity, the corpora's token limit and the
    active requests; `reset` clears the trie, `corpora.remove` a corpus.

    Parameters
    ----------
    rule : SglangRule
        Parameters, with the engine's names.
    index_prompts : bool, optional
        Insert a request's whole prompt when it starts. Default: only without quirks.

    Raises
    ------
    MissingExtraError
        Without numba.

    Examples
    --------
    >>> ngram = SglangNgram(SglangRule(draft_token_num=4))
    >>> ngram.start_request("a", [1, 2, 3, 4, 1, 2])
    >>> draft = ngram.propose("a", 8)
    >>> draft.tokens, draft.parents, draft.match_len
    ((3, 4, 1), (-1, 0, 1), 2)
    """

    def __init__(self, rule: SglangRule, *, index_prompts: bool | None = None) -> None:
        self.rule = rule
        self.index_prompts = rule.quirks is None if index_prompts is None else index_prompts
        self.trie = SglangTrie(rule)
        self.corpora = SglangCorpora(rule)
        self._kernels = load("sglang_trie_kernels")
        self._match_batch = load("sglang_tree_kernels").match_batch
        self._pending: list[TokenArray] = []
        self._rows: dict[Hashable, int] = {}
        self._free_rows: list[int] = []
        self._states = np.zeros((8, self._kernels.S_ANCHORS + 2 * rule.max_trie_depth), np.int64)
        self._requests: dict[Hashable, _Request] = {}

    # ------------------------------------------------------------------------------------------- the engine's calls

    def put(self, sequences: Sequence[Tokens]) -> None:
        """Queue sequences for insertion, first in first out; `match` sees them after `synchronize`.

        >>> ngram = SglangNgram(SglangRule(draft_token_num=2))
        >>> ngram.put([[1, 2, 3]])
        >>> ngram.match(["r"], [[1]]).sizes.tolist()
        [1]
        >>> ngram.synchronize()
        >>> ngram.match(["s"], [[1]]).paths(0)
        [(2,)]
        """
        self._pending.extend(as_tokens(sequence).copy() for sequence in sequences)
        if sum(sequence.size for sequence in self._pending) > _MAX_PENDING:
            self.synchronize()

    def synchronize(self) -> None:
        """Insert what is queued, in order."""
        pending, self._pending = self._pending, []
        for sequence in pending:
            self.trie.insert(sequence)

    def match(
        self,
        request_ids: Sequence[Hashable],
        contexts: Sequence[Tokens],
        total_lens: Sequence[int] | None = None,
        *,
        widths: Sequence[int] | None = None,
    ) -> DraftTrees:
        """Draft trees of a batch.

        A request's match state moves on by ``total_len`` minus the last call's, when the context holds that many
        tokens; otherwise it is rebuilt from the context. The texts of one id must continue each other; `erase` it
        before it starts another text.

        Parameters
        ----------
        request_ids : sequence
            A new id gets a fresh match state; `erase` ends it.
        contexts : sequence of token sequences
            The last tokens of each request (the engine gives D), at least one each.
        total_lens : sequence of int, optional
            Tokens of each whole text. Default: the lengths of the contexts.
        widths : sequence of int, optional
            Rows of each tree, root included, 1 to N. Default: N.

        Raises
        ------
        InputError
            For an empty context or lengths that do not fit together.
        """
        n, width = len(request_ids), self.rule.draft_token_num
        tokens, sizes = _joined(contexts)
        totals = sizes if total_lens is None else total_lens
        widths = (width,) * n if widths is None else widths
        if not len(sizes) == len(totals) == len(widths) == n:
            raise InputError(
                f"match: {n} requests, {len(sizes)} contexts, {len(totals)} total lengths, {len(widths)} widths; "
                "give one of each per request"
            )
        if 0 in sizes:
            raise InputError(
                f"match: the context of request {request_ids[sizes.index(0)]!r} is empty; give its last token"
            )
        if n and not 1 <= min(widths) <= max(widths) <= width:
            raise InputError(f"match: widths {min(widths)} to {max(widths)}; expected 1 to draft_token_num = {width}")
        offsets = np.zeros(n + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        try:
            rows = np.array([self._rows[request_id] for request_id in request_ids], np.int64)
        except KeyError:
            rows = np.array([self._row(request_id) for request_id in request_ids], np.int64)
        trees = DraftTrees(
            tokens=np.empty((n, width), np.int32),
            parents=np.empty((n, width), np.int32),
            chances=np.empty((n, width)),
            sizes=np.empty(n, np.int64),
            match_lens=np.empty(n, np.int64),
        )
        trie, pool = self.trie, self.corpora.pool
        self._match_batch(
            trie.nodes, trie.slots, trie.head, trie.params, self._states, rows,
            tokens, offsets,
            np.array(totals, np.int64), np.array(widths, np.int64),
            pool.states, pool.edges, pool.slots, pool.bounds,
            trees.tokens, trees.parents, trees.chances, trees.sizes, trees.match_lens,
        )  # fmt: skip
        return trees

    def _row(self, request_id: Hashable) -> int:
        row = self._rows.get(request_id)
        if row is None:
            row = self._free_rows.pop() if self._free_rows else len(self._rows)
            if row == len(self._states):
                self._states = np.concatenate([self._states, np.zeros_like(self._states)])
            self._states[row, self._kernels.S_EPOCH] = -1
            self._rows[request_id] = row
        return row

    def erase(self, request_ids: Sequence[Hashable]) -> None:
        """Drop match states; unknown ids are ignored, the trie stays as it is."""
        for request_id in request_ids:
            row = self._rows.pop(request_id, None)
            if row is not None:
                self._free_rows.append(row)

    def reset(self) -> None:
        """Empty the trie and the queue, void all match states; external corpora stay."""
        self._pending.clear()
        self.trie.reset()

    # ---------------------------------------------------------------------------------------- the proposers' protocol

    def start_request(self, request_id: Hashable, prompt: Tokens) -> None:
        """Begin a request; its prompt is inserted where `index_prompts` says so."""
        if request_id in self._requests:
            raise InputError(f"request {request_id!r} is active; stop it before it starts again")
        array = as_tokens(prompt, what="prompt")
        self._requests[request_id] = _Request(array[-self.rule.max_trie_depth :].copy(), array.size)
        if self.index_prompts:
            self.synchronize()
            self.trie.insert(array)

    def _active(self, request_id: Hashable) -> _Request:
        request = self._requests.get(request_id)
        if request is None:
            raise InputError(f"request {request_id!r} is not active; start it with its prompt")
        return request

    def extend(self, request_id: Hashable, tokens: Tokens) -> None:
        """Append emitted tokens, and feed the trie.

        With quirks the text that the last draft was asked for goes into the queue, one step late; without, the emitted
        tokens are inserted.
        """
        request = self._active(request_id)
        array = as_tokens(tokens)
        if array.size == 0:
            return
        text = np.concatenate([request.tail, array])
        if self.rule.quirks is None:
            # a window that holds a new token starts at most D - 1 tokens before it
            first = max(0, request.tail.size - self.rule.max_trie_depth + 1)
            self.trie.insert(text[first:], new=array.size)
        elif request.asked:
            self.put([request.tail])
        request.tail = text[-self.rule.max_trie_depth :].copy()
        request.total += array.size
        request.asked = False

    def propose(self, request_id: Hashable, limit: int) -> Draft:
        """Draft tree of at most min(limit, N - 1) tokens."""
        return self.propose_batch([request_id], limit)[0]

    def propose_batch(self, request_ids: Sequence[Hashable], limits: int | Sequence[int]) -> list[Draft]:
        """Draft trees of several requests, matched in one compiled call after what is queued went in."""
        self.synchronize()
        drafts = [EMPTY] * len(request_ids)
        places, contexts, totals, widths = [], [], [], []
        for place, (request_id, limit) in enumerate(zip(request_ids, limits_of(request_ids, limits), strict=True)):
            request = self._active(request_id)
            if limit < 0:
                raise InputError(f"limit {limit}: expected at least 0 tokens")
            if request.total:
                request.asked = True
                places.append(place)
                contexts.append(request.tail)
                totals.append(request.total)
                widths.append(min(limit, self.rule.draft_token_num - 1) + 1)
        trees = self.match([request_ids[place] for place in places], contexts, totals, widths=widths)
        for row, place in enumerate(places):
            drafts[place] = trees.draft(row)
        return drafts

    def stop_request(self, request_id: Hashable) -> None:
        """Drop the request's text and match state; the trie keeps what was inserted."""
        self._active(request_id)
        del self._requests[request_id]
        self.erase([request_id])

    # --------------------------------------------------------------------------------------------------- housekeeping

    @property
    def memory_bytes(self) -> int:
        """Bytes of trie, corpora, match states, queue and request tails."""
        tails = sum(request.tail.nbytes for request in self._requests.values())
        queued = sum(sequence.nbytes for sequence in self._pending)
        return self.trie.memory_bytes + self.corpora.memory_bytes + self._states.nbytes + tails + queued

    def check_integrity(self) -> None:
        """Verify trie, corpora and match states; AssertionError names what is broken. Slow: for tests."""
        self.trie.check_integrity()
        self.corpora.check_integrity()
        k, depth, nodes = self._kernels, self.rule.max_trie_depth, self.trie.nodes
        taken = sorted([*self._rows.values(), *self._free_rows])
        assert taken == list(range(len(taken))), "a state row is in use or free, not both"
        for request in self._requests.values():
            assert request.tail.size == min(request.total, depth), "a tail holds the last D tokens"
        for row in self._rows.values():
            state: NDArray[np.int64] = self._states[row]
            if state[k.S_EPOCH] != self.trie.head[k.EPOCH]:
                continue
            for d in range(state[k.S_LENGTHS]):
                node, version = int(state[k.S_ANCHORS + d]), state[k.S_ANCHORS + depth + d]
                length = 0
                while node and nodes[node, k.VERSION] == version and length <= d:
                    node, length = int(nodes[node, k.PARENT]), length + 1
                    version = nodes[node, k.VERSION]
                assert node == 0 or length == 0, "a live anchor lies as deep as it is long"
