"""Draft lengths and accepted tokens of a load's requests, from what is known of a source, or as they were recorded."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from specplan.decide.source import emitted_per_draft
from specplan.errors import InputError
from specplan.formulas.emitted import expected_emitted, survival
from specplan.queueing.load import Drafting, Floats, Ints, Lists
from specplan.records.step import StepRecord
from specplan.values.source import Source

DRAWS: Final = 2**16
"""Draws that the requests share; each begins at a place of its own. Their shares are exact, only the order is drawn."""


def drafting_of(source: Source, kappa: int, requests: int, seed: int) -> Drafting:
    """Draws for each request of a load, alike in distribution to what is known of the source.

    Each entry is a pair of drafted and accepted tokens. The shares of all pairs are those of the source, rounded to
    1 in `DRAWS`; their order and each request's beginning are drawn, so a run's acceptance has no noise of its own in
    the long run, and steps are independent.

    Parameters
    ----------
    source : Source
    kappa : int
        Drafted tokens per drafted step, at most.
    requests, seed : int

    Raises
    ------
    InputError
        If the source's acceptance is not known.

    Examples
    --------
    >>> from specplan.values.source import Range
    >>> draws = drafting_of(Source(name="d", kind="model", alpha=Range.at(0.7)), 3, 10, seed=1)
    >>> round(1 + float(draws.accepted.values.mean()), 3)
    2.533
    """
    rng = np.random.default_rng([seed, 1])
    drafted, accepted = _pairs(source, kappa)
    order = rng.permutation(DRAWS)
    begin = rng.integers(0, DRAWS, requests)
    count = np.full(requests, DRAWS)
    # Written twice, so that every beginning has a whole round before it.
    drafted, accepted = (np.tile(x[order], 2) for x in (drafted, accepted))
    return Drafting(
        drafted=Lists(values=drafted, begin=begin, count=count),
        accepted=Lists(values=accepted, begin=begin, count=count),
        paired=True,
    )


def _pairs(source: Source, kappa: int) -> tuple[Ints, Ints]:
    """`DRAWS` pairs of drafted and accepted tokens; longer drafts go with more accepted tokens where both vary."""
    drafts = round(DRAWS * source.coverage.best)
    lengths = _spread(_lengths(source, kappa), drafts)
    alive = _alive(source, kappa)
    accepted = _spread(alive - np.append(alive[1:], 0.0), drafts)
    if source.hazard or not (source.lengths or source.drafted is not None):
        # What is known already counts a draft that ended as not accepted.
        accepted = np.minimum(accepted, lengths)
    else:
        # A constant alpha holds at every length: the chain ends where its draft does.
        accepted = np.minimum(np.random.default_rng(0).permutation(accepted), lengths)
    none = np.zeros(DRAWS - drafts, np.int64)
    return np.concatenate([lengths, none]), np.concatenate([accepted, none])


def _lengths(source: Source, kappa: int) -> Floats:
    """Shares of the drafts with 0, 1, ..., kappa tokens."""
    shares = np.zeros(kappa + 1)
    if source.lengths:
        for n, share in enumerate(source.lengths, 1):
            shares[min(n, kappa)] += share
    else:
        mean = kappa if source.drafted is None else min(source.drafted, kappa)
        low = int(mean)
        shares[low] += 1 - (mean - low)
        if mean > low:
            shares[low + 1] += mean - low
    return np.asarray(shares / shares.sum())


def _alive(source: Source, kappa: int) -> Floats:
    """Probability that at least 0, 1, ..., kappa tokens of a draft are accepted, if it is long enough."""
    if source.hazard:
        hazard = np.asarray(source.hazard[:kappa])
        if hazard.size < kappa:
            raise source.wrong(f"its acceptance ends at position {hazard.size}, and {kappa} tokens are drafted")
        return np.asarray(survival(hazard))
    if source.alpha is not None:
        return np.asarray(source.alpha.best ** np.arange(kappa + 1), np.float64)
    if source.hit is not None and source.continuation is not None:
        return np.append(1.0, source.hit * source.continuation ** np.arange(kappa))
    per_draft = float(emitted_per_draft(source, kappa))  # says what is missing if nothing is known
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_emitted(middle, kappa) < per_draft else (low, middle)
    return np.asarray(low ** np.arange(kappa + 1), np.float64)


def _spread(shares: Floats, count: int) -> Ints:
    """`count` values 0, 1, ... in rising order, as many of each as its share says."""
    edges = np.round(np.cumsum(shares) * count).astype(np.int64)
    edges[-1] = count
    return np.repeat(np.arange(shares.size), np.diff(edges, prepend=0))


def recorded_drafting(steps: Iterable[StepRecord], requests: int) -> tuple[Drafting, int]:
    """Recorded steps of requests, replayed by the load's requests in turn, and the longest draft among them.

    Raises
    ------
    InputError
        Without a step.
    """
    by_request: dict[str, list[tuple[int, int]]] = {}
    for step in steps:
        rows = by_request.setdefault(step.request, [])
        # The first step of a request computes its prompt; its own draft is verified in the second.
        if rows or step.drafted or step.step > 0:
            rows.append((step.drafted, step.accepted))
        else:
            by_request[step.request] = rows
    lists: Sequence[list[tuple[int, int]]] = [rows for rows in by_request.values() if rows]
    if not lists:
        raise InputError("the records hold no step of decoding to replay")
    taken = [lists[i % len(lists)] for i in range(requests)]
    drafting = Drafting.of([[d for d, _ in rows] for rows in taken], [[a for _, a in rows] for rows in taken])
    return (
        Drafting(drafted=drafting.drafted, accepted=drafting.accepted, paired=True),
        int(drafting.drafted.values.max()),
    )
