"""Adaptive verification on recorded requests: what it would have given on this traffic, with any source of chains.

First every position of every recorded response is asked for a draft, once (`drafts_of`): its length and how much of it
the record accepts. From these tables any rule of verification is a walk over the responses, since a step that
verifies less only starts its next step earlier. `serve` walks `batch` requests at a time under the rule of
`specplan.formulas.adaptive`, with survivals that it estimates as it goes, and beside it the whole draft, and no draft.

The estimate needs no confidence head: acceptance by position and request as a moving average of what verification
showed (vLLM's ``adaptive_verification_ema_alpha``, 0.8 by default; without a head vLLM #52228, #56451).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.decide.adaptive import verify_costs
from specplan.decide.pricing import Pair
from specplan.errors import InputError
from specplan.formulas.adaptive import WidthCost, verify_budget
from specplan.formulas.step import pass_shape
from specplan.propose.build import proposer_of
from specplan.propose.rules import TokenSource
from specplan.timing.draft_time import host_ngram_s
from specplan.traces.requests import RecordedRequest
from specplan.traces.serve import walked

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

KEEP: Final = 0.8
"""Weight of what was known at each new observation."""
PRIOR: Final = 0.7
"""Acceptance that a position is thought to have before anything was verified there: high enough to be tried."""
_FORGET: Final = 0.1
"""How fast, beside learning, a position that was not verified goes back to what is thought of all, and that to the
prior: what is never verified would never be learnt."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """What a source drafts at each position of one response, the first emitted token behind it.

    Attributes
    ----------
    drafted, accepted : ndarray of int, shape (tokens,)
        At entry t, with t tokens of the response emitted: tokens drafted, and leading ones that the record accepts.
        Entry 0 is not used: the prefill emits the first token.
    """

    drafted: IntArray
    accepted: IntArray


def drafts_of(source: TokenSource, requests: Sequence[RecordedRequest]) -> tuple[Drafts, ...]:
    """Drafts at every position, requests in order of arrival (a shared store holds those before).

    Raises
    ------
    InputError
        For a source of trees: a tree is verified whole.
    """
    proposer, k, most = proposer_of(source)
    tables = []
    for index, request in enumerate(requests):
        tokens = request.response
        drafted, accepted = np.zeros(tokens.size, np.int64), np.zeros(tokens.size, np.int64)
        proposer.start_request(index, request.prompt)
        for t in range(1, tokens.size):
            proposer.extend(index, tokens[t - 1 : t])
            draft = proposer.propose(index, max(0, min(k, most - request.prompt.size - t - 1)))
            if not draft.is_chain:
                raise InputError(f"{source.short}: a tree is verified whole; adaptive verification cuts chains")
            drafted[t], accepted[t] = len(draft), walked(draft, tokens[t:])[0]
        proposer.extend(index, tokens[tokens.size - 1 :])
        proposer.stop_request(index)
        tables.append(Drafts(drafted, accepted))
    return tuple(tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one rule did: sums over the steps of one walk."""

    steps: int
    request_steps: int
    tokens: int
    drafted: int
    verified: int
    accepted: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Of the whole batch."""
        return self.tokens / self.seconds

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per step of a request."""
        return self.tokens / self.request_steps


@dataclass(slots=True)
class _Estimate:
    """Moving averages of acceptance by position, of each slot's request; a new request starts from those of all."""

    keep: float
    overall: FloatArray
    by_slot: FloatArray

    def survivals(self, slots: IntArray, drafted: IntArray) -> FloatArray:
        beyond = np.arange(self.overall.size) >= drafted[:, None]
        return np.asarray(np.cumprod(np.where(beyond, 0.0, self.by_slot[slots]), axis=1))

    def learn(self, slots: IntArray, verified: IntArray, accepted: IntArray) -> None:
        at = np.arange(self.overall.size)
        tested = at < np.minimum(accepted + 1, verified)[:, None]
        right = at < accepted[:, None]
        old, slow = self.by_slot[slots], self.keep**_FORGET
        seen, unseen = self.keep * old + (1 - self.keep) * right, slow * old + (1 - slow) * self.overall
        self.by_slot[slots] = np.where(tested, seen, unseen)
        count = tested.sum(axis=0)
        share = (tested & right).sum(axis=0) / np.maximum(count, 1)
        kept = self.keep ** (count / slots.size)  # a step in which all requests tested a position weighs as one
        learnt, forgotten = kept * self.overall + (1 - kept) * share, slow * self.overall + (1 - slow) * PRIOR
        self.overall = np.where(count > 0, learnt, forgotten)


Rule = Callable[[IntArray, FloatArray], IntArray]
"""Verified positions of each running request, from what was drafted and the survivals as estimated."""


def everything(drafted: IntArray, _: FloatArray) -> IntArray:
    """The whole draft, as engines verify without this rule."""
    return drafted


def nothing(drafted: IntArray, _: FloatArray) -> IntArray:
    """No draft: plain decoding."""
    return np.zeros_like(drafted)


def budgeted(cost: WidthCost, draft_s: float) -> Rule:
    """What `specplan.formulas.adaptive.verify_budget` says."""
    # a budget that fills a captured size takes positions beyond a draft, which hold nothing
    return lambda drafted, survivals: np.minimum(verify_budget(survivals, cost, draft_s).lengths, drafted)


def serve(
    tables: Sequence[Drafts],
    order: Sequence[int],
    batch: int,
    rule: Rule,
    cost: WidthCost,
    *,
    draft_s: float = 0.0,
    keep: float = KEEP,
) -> Served:
    """Walk the requests of `order`, `batch` at a time, until the last one ends.

    Parameters
    ----------
    tables : sequence of Drafts
    order : sequence of int
        Requests as they arrive; one may come again.
    batch : int
        Requests that run at a time.
    rule : Rule
    cost : WidthCost
        Seconds of a verifying pass by its tokens.
    draft_s : float
        Seconds of drafting, in every step.
    keep : float
        Weight of the past in the moving averages.

    Raises
    ------
    InputError
        For a weight outside [0, 1), or a batch below 1.
    """
    if not 0 <= keep < 1:
        raise InputError(f"the weight of the past must lie in [0, 1), got {keep:g}")
    if batch < 1:
        raise InputError(f"a batch has at least one request, got {batch}")
    sizes = np.array([t.drafted.size for t in tables])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    drafted_at = np.concatenate([t.drafted for t in tables])
    accepted_at = np.concatenate([t.accepted for t in tables])
    waiting = iter([i for i in order if sizes[i] > 1])
    running, at = np.full(batch, -1), np.zeros(batch, np.int64)
    width = int(drafted_at.max(initial=0))
    estimate = _Estimate(keep, np.full(width, PRIOR), np.full((batch, width), PRIOR))
    sums, seconds = np.zeros(6, np.int64), 0.0
    while True:
        for slot in np.flatnonzero(running < 0):
            running[slot], at[slot] = next(waiting, -1), 1
            estimate.by_slot[slot] = estimate.overall
        on = np.flatnonzero(running >= 0)
        if not on.size:
            break
        place = starts[running[on]] + at[on]
        drafted = drafted_at[place]
        verified = rule(drafted, estimate.survivals(on, drafted))
        accepted = np.minimum(accepted_at[place], verified)
        emitted = np.minimum(accepted + 1, sizes[running[on]] - at[on])
        estimate.learn(on, verified, accepted)
        sums += [1, on.size, emitted.sum(), drafted.sum(), verified.sum(), accepted.sum()]
        seconds += draft_s + float(cost.at(on.size + int(verified.sum())))
        at[on] += emitted
        running[on[at[on] >= sizes[running[on]]]] = -1
    names = ("steps", "request_steps", "tokens", "drafted", "verified", "accepted")
    return Served(**dict(zip(names, sums.tolist(), strict=True)), seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRow:
    """One source at one batch under three rules; ratios with their least and largest over `ORDERS` orders of arrival.

    Attributes
    ----------
    batch : int
    plain, whole, adaptive : Served
        Sums over all orders: no draft, the whole draft, the budget.
    speedup, speedup_whole, gain : tuple of float
        (least, over all, largest): adaptive over plain, whole over plain, adaptive over whole, in tokens per second.
    """

    batch: int
    plain: Served
    whole: Served
    adaptive: Served
    speedup: tuple[float, float, float]
    speedup_whole: tuple[float, float, float]
    gain: tuple[float, float, float]


ORDERS: Final = 6
_STEPS: Final = 600  # tokens per running request that a walk need not exceed


def adaptive_row(
    tables: Sequence[Drafts], batch: int, cost: WidthCost, *, draft_s: float = 0.0, keep: float = KEEP, seed: int = 0
) -> AdaptiveRow:
    """The three rules on the same orders of arrival, each long enough to fill the batch several times."""
    walks: dict[str, list[Served]] = {"plain": [], "whole": [], "adaptive": []}
    rng = np.random.default_rng(seed)
    mean = max(sum(t.drafted.size for t in tables) / len(tables), 1.0)
    count = max(3 * batch, min(len(tables), int(_STEPS * batch / mean)))
    for _ in range(ORDERS):
        order = rng.choice(len(tables), count).tolist()
        walks["plain"].append(serve(tables, order, batch, nothing, cost, keep=keep))
        walks["whole"].append(serve(tables, order, batch, everything, cost, draft_s=draft_s, keep=keep))
        rule = budgeted(cost, draft_s)
        walks["adaptive"].append(serve(tables, order, batch, rule, cost, draft_s=draft_s, keep=keep))
    total = {name: _sum(rows) for name, rows in walks.items()}

    def ratio(above: str, below: str) -> tuple[float, float, float]:
        each = [a.tokens_per_s / b.tokens_per_s for a, b in zip(walks[above], walks[below], strict=True)]
        return min(each), total[above].tokens_per_s / total[below].tokens_per_s, max(each)

    return AdaptiveRow(
        batch=batch,
        **total,
        speedup=ratio("adaptive", "plain"),
        speedup_whole=ratio("whole", "plain"),
        gain=ratio("adaptive", "whole"),
    )


def _sum(rows: Sequence[Served]) -> Served:
    return Served(**{f.name: sum(getattr(r, f.name) for r in rows) for f in fields(Served)})


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveReplay:
    """One source over batches; no rows where its drafts are trees, which `note` says."""

    label: str
    rows: tuple[AdaptiveRow, ...]
    note: str = ""


def replay_adaptively(
    sources: Mapping[TokenSource, str],
    requests: Sequence[RecordedRequest],
    pair: Pair,
    batches: Sequence[int],
    context_len: int,
    *,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[AdaptiveReplay, ...]:
    """What adaptive verification would have given on these requests, by source and batch.

    Parameters
    ----------
    sources : mapping of TokenSource to str
        Sources and what they are called.
    requests : sequence of RecordedRequest
    pair : Pair
        Target and card that the steps are timed on.
    batches : sequence of int
        Requests that run at a time.
    context_len : int
        Cached tokens that each reads.
    progress : callable
        Told the source, the batches that are done, and their number.

    Raises
    ------
    InputError
        If no request has a second token.
    """
    if not any(r.response.size > 1 for r in requests):
        raise InputError("adaptive verification: no request has a step after its prefill")
    on, shape = pair.machine, pass_shape(pair.target, pair.tp, pair.kv_format)
    costs = verify_costs(on, shape, batches=batches, context_len=context_len)
    found = []
    for source, label in sources.items():
        try:
            tables = drafts_of(source, requests)
        except InputError as error:
            found.append(AdaptiveReplay(label=label, rows=(), note=str(error)))
            continue
        rows = []
        for done, (batch, cost) in enumerate(zip(batches, costs, strict=True)):
            progress(label, done, len(batches))
            rows.append(adaptive_row(tables, batch, cost, draft_s=float(host_ngram_s(batch, context_len))))
        progress(label, len(batches), len(batches))
        found.append(AdaptiveReplay(label=label, rows=tuple(rows)))
    return tuple(found)
