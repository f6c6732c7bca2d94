"""An engine's step loop over recorded requests: who runs in a step, in which order, and what each step accepts.

Two ways to run it, equal row for row: `drive` asks any proposer through its protocol, step by step; `steps_of` calls
the compiled replay of a source where the order of requests is the ordinary one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from specplan.errors import InputError
from specplan.propose.protocol import EMPTY, Draft, Proposer
from specplan.propose.spelling import NgramSource, SglangNgramSource, SuffixSource, TokenSource
from specplan.propose.steps import Steps
from specplan.replay.requests import RecordedRequest, TokenArray

NO_LIMIT: Final = 2**31 - 1


@dataclass(slots=True)
class Slots:
    """vLLM's batch: a request keeps its slot until it is done; a new one takes the first free slot.

    When no request waits, the last slot moves into the first free one, so that the batch stays dense.

    >>> slots = Slots(width=2, waiting=iter([0, 1, 2]))
    >>> slots.next_step(), slots.next_step(done={0}), slots.next_step(done={2})
    ([0, 1], [2, 1], [1])
    """

    width: int
    waiting: Iterator[int]
    running: list[int] = field(default_factory=list)

    def next_step(self, done: set[int] | None = None) -> list[int]:
        """Requests of the next step in batch order, once those that are done have left."""
        places = [place for place, request in enumerate(self.running) if request in (done or ())]
        while places:
            new = next(self.waiting, None)
            if new is None:
                break
            self.running[places.pop(0)] = new
        for place in reversed(places):  # from the last free slot on, so that a moved request is never a done one
            last = self.running.pop()
            if place < len(self.running):
                self.running[place] = last
        while len(self.running) < self.width and (new := next(self.waiting, None)) is not None:
            self.running.append(new)
        return list(self.running)


def accepted_path(draft: Draft, following: TokenArray) -> int:
    """Drafted tokens that the recorded text accepts: the longest root path that equals what follows.

    >>> accepted_path(Draft((5, 6, 7), parents=(-1, -1, 1)), np.array([6, 7, 8], np.int32))
    2
    """
    if draft.is_chain:
        n = min(len(draft.tokens), following.size)
        unequal = np.flatnonzero(np.array(draft.tokens[:n], np.int64) != following[:n])
        return int(unequal[0]) if unequal.size else n
    parents = draft.parents or ()
    at, depth = -1, 0
    while depth < following.size:
        wanted = int(following[depth])
        found = (i for i, (t, p) in enumerate(zip(draft.tokens, parents, strict=True)) if p == at and t == wanted)
        at = next(found, -2)
        if at == -2:
            break
        depth += 1
    return depth


@dataclass(slots=True)
class _State:
    emitted: int = 0
    draft: Draft = EMPTY


def drive(
    proposer: Proposer,
    requests: Sequence[RecordedRequest],
    k: int,
    *,
    concurrency: int = 1,
    order: Iterable[Sequence[int]] | None = None,
    max_model_len: int = NO_LIMIT,
) -> Steps:
    """Rows of every verify step, asked of a proposer through its protocol.

    A request's first step is its prefill: it emits one token and verifies nothing, so it is no row. In each step the
    requests go in batch order: each appends what it emitted, then drafts.

    Parameters
    ----------
    proposer : Proposer
        Its shared store, if it has one, is filled in the order of steps.
    requests : sequence of RecordedRequest
    k : int
        Tokens asked for.
    concurrency : int
        Requests that run at a time, in order of arrival.
    order : iterable of sequences of int, or None
        Indices of the requests of each step, prefill steps included, in place of `concurrency`.
    max_model_len : int
        L: a step at T tokens drafts at most L - T - 1.

    Raises
    ------
    InputError
        If `order` names a request that there is none of, or one that is done.
    """
    slots = Slots(width=concurrency, waiting=iter(range(len(requests))))
    states: dict[int, _State] = {}
    rows: list[tuple[int, int, int, int, int, int]] = []
    done: set[int] = set()
    fixed = None if order is None else iter(order)
    while batch := slots.next_step(done) if fixed is None else next(fixed, None):
        done = set()
        for index in batch:
            if index >= len(requests):
                raise InputError(f"the step order names request {index}; the trace has {len(requests)}")
            request = requests[index]
            if index not in states:
                states[index] = _State()
                proposer.start_request(index, request.prompt)
                new = request.response[:1]
            else:
                new = _verified(rows, index, request, states[index])
            state = states[index]
            state.emitted += new.size
            if new.size:
                proposer.extend(index, new)
            context = request.prompt.size + state.emitted
            if state.emitted >= request.response.size:
                done.add(index)
            else:
                state.draft = proposer.propose(index, max(0, min(k, max_model_len - context - 1)))
        for index in done:
            proposer.stop_request(index)
    table = np.array(rows, np.int32).reshape(-1, 6)
    return Steps.from_rows(table[np.argsort(table[:, 0], kind="stable")])


def _verified(
    rows: list[tuple[int, int, int, int, int, int]], index: int, request: RecordedRequest, state: _State
) -> TokenArray:
    """Append the row of a step; the tokens that it emits."""
    following = request.response[state.emitted :]
    if not following.size:
        raise InputError(f"the step order runs request {request.id} after its recorded end")
    draft = state.draft
    accepted = accepted_path(draft, following)
    emitted = min(accepted + 1, following.size)
    context = request.prompt.size + state.emitted
    rows.append((index, context, len(draft), accepted, emitted, draft.match_len))
    return following[:emitted]


def proposer_of(source: TokenSource) -> tuple[Proposer, int, int]:
    """A fresh proposer of a source, the tokens to ask for, and the model length that caps drafts."""
    match source:
        case NgramSource():
            from specplan.propose.ngram import NgramProposer

            return NgramProposer(source.engine_rule()), source.k, source.len or NO_LIMIT
        case SuffixSource():
            from specplan.propose.suffix import SuffixCache, SuffixProposer

            cache = SuffixCache(source.depth, source.cached)
            proposer = SuffixProposer(cache, max_spec_factor=source.factor, min_token_prob=source.min_prob)
            return proposer, source.tokens, source.len or NO_LIMIT
        case SglangNgramSource():
            from specplan.propose.sglang_ngram import SglangNgram

            return SglangNgram(source.engine_rule()), source.budget - 1, NO_LIMIT


def steps_of(source: TokenSource, requests: Sequence[RecordedRequest], *, concurrency: int = 1) -> Steps:
    """Rows of every verify step, in one compiled call; the store, if the source has one, starts empty.

    Raises
    ------
    MissingExtraError
        Without numba.
    """
    from specplan.propose.steps import join

    stream, starts, prompts = join([r.prompt for r in requests], [r.response for r in requests])
    match source:
        case NgramSource():
            from specplan.propose.ngram_replay import replay as ngram_replay

            return ngram_replay(
                stream, starts, prompts, source.engine_rule(), source.k, max_model_len=source.len or NO_LIMIT
            )
        case SuffixSource():
            from specplan.propose.suffix_replay import replay as suffix_replay

            return suffix_replay(
                stream,
                starts,
                prompts,
                source.tokens,
                max_tree_depth=source.depth,
                max_cached_requests=source.cached,
                max_spec_factor=source.factor,
                min_token_prob=source.min_prob,
                max_model_len=source.len or NO_LIMIT,
                concurrency=concurrency,
            )
        case SglangNgramSource():
            from specplan.propose.sglang_ngram import SglangNgram
            from specplan.propose.sglang_replay import replay as sglang_replay

            return sglang_replay(stream, starts, prompts, SglangNgram(source.engine_rule()), concurrency=concurrency)


def verified_width(source: TokenSource) -> int | None:
    """Draft positions that the engine verifies in every step whatever was drafted; None where it verifies the draft."""
    return source.budget - 1 if isinstance(source, SglangNgramSource) else None
