"""An engine's step loop over recorded requests: who runs in a step, in which order, and what each step accepts.

Two ways to run it, equal row for row: `driven` asks a proposer through its protocol, step by step; `steps_of` calls the
compiled replay of a source.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specplan.errors import InputError
from specplan.propose.build import NO_LIMIT, proposer_of
from specplan.propose.protocol import EMPTY, Draft, Proposer
from specplan.propose.rules import NgramSource, OwnSource, SglangNgramSource, SuffixSource, TokenSource
from specplan.propose.steps import Steps
from specplan.traces.requests import RecordedRequest, TokenArray


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
    return walked(draft, following)[0]


def walked(draft: Draft, following: TokenArray) -> tuple[int, bool]:
    """`accepted_path`, and whether that path ends in a leaf."""
    if draft.is_chain:
        n = min(len(draft.tokens), following.size)
        unequal = np.flatnonzero(np.array(draft.tokens[:n], np.int64) != following[:n])
        accepted = int(unequal[0]) if unequal.size else n
        return accepted, accepted == len(draft.tokens)
    parents = draft.parents or ()
    at, depth = -1, 0
    while depth < following.size:
        wanted = int(following[depth])
        found = (i for i, (t, p) in enumerate(zip(draft.tokens, parents, strict=True)) if p == at and t == wanted)
        node = next(found, None)
        if node is None:
            break
        at, depth = node, depth + 1
    return depth, at not in parents


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
    """Rows of every verify step under vLLM's loop, asked of a proposer through its protocol.

    A request's first step is its prefill: it emits one token and verifies nothing, so it is no row. In each step the
    requests go in batch order; each appends what it emitted, then drafts, before the next one does.

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
    served = _Served(proposer, requests, k, max_model_len)
    done: set[int] = set()
    fixed = None if order is None else iter(order)
    while batch := slots.next_step(done) if fixed is None else next(fixed, None):
        done = set()
        for index in batch:
            if index in served.states:
                served.verify(index)
            else:
                served.prefill(index)
            if served.is_done(index):
                done.add(index)
            else:
                served.draft(index)
        for index in done:
            proposer.stop_request(index)
    return served.steps()


def drive_merged(proposer: Proposer, requests: Sequence[RecordedRequest], k: int, *, concurrency: int = 1) -> Steps:
    """Rows of every verify step under SGLang's loop: new requests join at the end, all draft, then all append.

    Arriving requests are prefilled before the step and take part in it; those that are done leave, the others keep
    their order.
    """
    served = _Served(proposer, requests, k, NO_LIMIT)
    waiting = iter(range(len(requests)))
    running: list[int] = []
    while True:
        while len(running) < concurrency and (index := next(waiting, None)) is not None:
            served.prefill(index)
            if served.is_done(index):
                proposer.stop_request(index)
            else:
                running.append(index)
        if not running:
            return served.steps()
        for index in running:
            served.draft(index)
        for index in running:
            served.verify(index)
        for index in [i for i in running if served.is_done(i)]:
            proposer.stop_request(index)
            running.remove(index)


class _Served:
    """Requests being served: how far each is, its draft, and the rows so far."""

    def __init__(self, proposer: Proposer, requests: Sequence[RecordedRequest], k: int, max_model_len: int) -> None:
        self.proposer, self.requests, self.k, self.max_model_len = proposer, requests, k, max_model_len
        self.states: dict[int, _State] = {}
        self._rows: list[tuple[int, int, int, int, int, int, bool]] = []

    def is_done(self, index: int) -> bool:
        return self.states[index].emitted >= self.requests[index].response.size

    def prefill(self, index: int) -> None:
        if index >= len(self.requests):
            raise InputError(f"the step order names request {index}; the trace has {len(self.requests)}")
        request = self.requests[index]
        self.proposer.start_request(index, request.prompt)
        first = request.response[:1]
        self.states[index] = _State(emitted=first.size)
        if first.size:
            self.proposer.extend(index, first)

    def draft(self, index: int) -> None:
        state = self.states[index]
        context = self.requests[index].prompt.size + state.emitted
        state.draft = self.proposer.propose(index, max(0, min(self.k, self.max_model_len - context - 1)))

    def verify(self, index: int) -> None:
        request, state = self.requests[index], self.states[index]
        following = request.response[state.emitted :]
        if not following.size:
            raise InputError(f"the step order runs request {request.id} after its recorded end")
        draft = state.draft
        accepted, leaf = walked(draft, following)
        emitted = min(accepted + 1, following.size)
        context = request.prompt.size + state.emitted
        self._rows.append((index, context, len(draft), accepted, emitted, draft.match_len, leaf))
        state.emitted += emitted
        self.proposer.extend(index, following[:emitted])

    def steps(self) -> Steps:
        table = np.array(self._rows, np.int32).reshape(-1, 7)
        return Steps.from_rows(table[np.argsort(table[:, 0], kind="stable")])


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

            steps = sglang_replay(stream, starts, prompts, SglangNgram(source.engine_rule()), concurrency=concurrency)
            # With the engine's quirks a row of padding may be accepted (it drafts token 0): then it was a draft.
            return replace(steps, drafted=np.maximum(steps.drafted, steps.accepted))

        case OwnSource():
            return driven(source, requests, concurrency=concurrency)


def driven(
    source: TokenSource,
    requests: Sequence[RecordedRequest],
    *,
    concurrency: int = 1,
    order: Iterable[Sequence[int]] | None = None,
) -> Steps:
    """Rows of every verify step, asked of a fresh proposer through its protocol, under its engine's loop.

    Raises
    ------
    InputError
        For a recorded order with a source of SGLang: such orders are vLLM's.
    """
    proposer, k, max_model_len = proposer_of(source)
    if not isinstance(source, SglangNgramSource):
        return drive(proposer, requests, k, concurrency=concurrency, order=order, max_model_len=max_model_len)
    if order is not None:
        raise InputError(f"{source.short}: a recorded order of steps is vLLM's; replay it with --concurrency")
    return drive_merged(proposer, requests, k, concurrency=concurrency)


def verified_width(source: TokenSource) -> int | None:
    """Draft positions that the engine verifies in every step whatever was drafted; None where it verifies the draft."""
    return source.budget - 1 if isinstance(source, SglangNgramSource) else None
