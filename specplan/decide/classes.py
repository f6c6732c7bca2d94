"""Which classes of requests should speculate, and how far, where they share a batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specplan.decide.adaptive import verify_costs
from specplan.decide.measured import MeasuredSource
from specplan.decide.pricing import Pair, plain_step_s
from specplan.formulas.adaptive import class_lengths
from specplan.formulas.step import pass_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """One class of requests in a batch of all.

    Attributes
    ----------
    tag : str
    share : float
        Of the requests of a step, as recorded.
    kappa : int
        Draft length; 0: this class should not speculate.
    tokens_per_step : float
    speedup : float
        Its tokens per second over those of plain decoding.
    """

    tag: str
    share: float
    kappa: int
    tokens_per_step: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPlan:
    """Draft lengths by class at one batch, beside the best one for all.

    Attributes
    ----------
    batch : int
    rows : tuple of ClassRow
    speedup : float
        Of the whole batch over plain decoding.
    one_kappa : int
        Best draft length where all classes have the same; 0: no speculation.
    one_speedup : float
    """

    batch: int
    rows: tuple[ClassRow, ...]
    speedup: float
    one_kappa: int
    one_speedup: float


def class_plans(
    classes: Sequence[MeasuredSource],
    pair: Pair,
    batches: Sequence[int],
    context_len: int,
    draft_s: npt.ArrayLike = 0.0,
) -> tuple[ClassPlan, ...]:
    """Draft lengths of each class of requests, by batch.

    Parameters
    ----------
    classes : sequence of MeasuredSource
        One source on each class (``tag``), with counts by position and by draft length.
    pair : Pair
        Target and card.
    batches : sequence of int
        Requests per step.
    context_len : int
        Cached tokens of each.
    draft_s : array_like, shape (batches,)
        Seconds that drafting takes in a step.

    Returns
    -------
    tuple of ClassPlan
        One for each batch; empty where fewer than two classes made steps, or none drafted.
    """
    known = [(m, m.tally) for m in classes if m.tally is not None and m.tally.steps]
    if len(known) < 2:
        return ()
    longest = max((row.drafted for m, _ in known for row in m.lengths), default=0)
    if not longest:
        return ()
    steps = np.array([t.steps for _, t in known], dtype=np.float64)
    drafted = np.array([[sum(r.drafts for r in m.lengths if r.drafted > k) for k in range(longest)] for m, _ in known])
    accepted = np.array([[*(t.accepted_at or ()), *[0] * longest][:longest] for _, t in known])
    survival, asked, share = accepted / steps[:, None], drafted / steps[:, None], steps / steps.sum()
    costs = verify_costs(
        pair.machine, pass_shape(pair.target, pair.tp, pair.kv_format), batches=batches, context_len=context_len
    )
    found = []
    for batch, cost, spent in zip(batches, costs, np.broadcast_to(draft_s, (len(batches),)).tolist(), strict=True):
        plain_s = float(plain_step_s(pair, batch, context_len))
        lengths, tokens, seconds = class_lengths(survival, asked, share, cost, batch, spent)
        speedup = tokens / seconds * plain_s / batch
        if not lengths.any() or speedup <= 1:  # a step in which nobody drafts is a plain one
            lengths, speedup, seconds = np.zeros_like(lengths), 1.0, plain_s
        emitted = [1 + float(row[:k].sum()) for row, k in zip(survival, lengths, strict=True)]
        one_tokens, one_width = (1 + np.cumsum(share @ x) for x in (survival, asked))
        one = one_tokens * plain_s / (cost.at(batch * one_width) + spent)
        best = int(np.argmax(one))
        found.append(
            ClassPlan(
                batch=batch,
                rows=tuple(
                    ClassRow(tag=m.tag, share=float(w), kappa=int(k), tokens_per_step=e, speedup=e * plain_s / seconds)
                    for (m, _), w, k, e in zip(known, share, lengths, emitted, strict=True)
                ),
                speedup=speedup,
                one_kappa=best + 1 if one[best] > 1 else 0,
                one_speedup=max(float(one[best]), 1.0),
            )
        )
    return tuple(found)
