"""What was measured of a draft source, in one shape whoever measured it: replay, an engine, or the harness."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from specplan.errors import InputError
from specplan.formulas.acceptance import (
    Estimate,
    alpha_of_mean_acceptance_length,
    conditionals_of_marginals,
    pooled_rate,
    ratio_estimate_of_sums,
)
from specplan.formulas.adaptive import explained_variance
from specplan.records.means import Means
from specplan.records.step import StepRecord
from specplan.records.tally import Tally

CLOSE: Final = 0.01
"""Where the least and the largest alpha that counts allow differ by no more, alpha is taken as known."""

_AS_LONG: Final = (
    "a few drafts were shorter than the others, the counts do not say which: rates by position take all as equally long"
)

ASSUMPTIONS: Final = (
    "alpha is conditional per position, among positions that were reached: accepted / tested",
    "requests are independent of one another; steps of one request are not (clustered interval, 95 %)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alpha:
    """alpha with its interval, and what it rests on.

    Attributes
    ----------
    value, low, high : float or None
        None where it is not known.
    basis : str
        ``requests`` (interval from the spread between requests), ``positions`` (counts without requests; the interval
        takes positions as independent, so it is too narrow; ``derived`` where their number is known up to a few),
        ``bounds`` (not identified: the counts allow low to high),
        ``mean`` (the constant alpha that gives the measured mean; no interval), or ``none``.
    kind : str
        ``measured`` or ``derived``.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    basis: str = "none"
    kind: str = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow:
    """Drafts of one length: how many, and the acceptance in them."""

    drafted: int
    drafts: int
    accepted_tokens: int
    tested_tokens: int

    @property
    def alpha(self) -> float | None:
        """Accepted over tested positions in drafts of this length."""
        return self.accepted_tokens / self.tested_tokens if self.tested_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSource:
    """One draft source, measured. What could not be measured is None.

    Attributes
    ----------
    source, tag : str
        Spelling or name; group of requests, or empty for all.
    tally : Tally or None
        The counts; None where only means were at hand.
    alpha : Alpha
    coverage : float or None
        Share of the steps with a draft.
    hit_rate, continuation_rate : float or None
        Acceptance of the first drafted token; of the later ones, where they were reached.
    tokens_per_step : float or None
        E over all steps, bonus included.
    tokens_per_drafted_step : float or None
        E over the steps with a draft: vLLM's mean acceptance length.
    accepted_per_drafted : float or None
        Pooled; not alpha.
    position_rates_unconditional, position_rates_conditional : tuple of float or None
        Entry i: drafts with more than i tokens accepted over all drafts; over those that reached position i.
    lengths : tuple of LengthRow
        Drafts by length.
    draft_len : float or None
        Mean drafted tokens per draft.
    chain_len : int or None
        Longest accepted path that the source allows, where it is known.
    confidence_explains : float or None
        As `confidence_of`: the share of the variance of acceptance that its recorded confidences explain.
    """

    source: str
    tag: str = ""
    tally: Tally | None = None
    alpha: Alpha = Alpha()
    coverage: float | None = None
    hit_rate: float | None = None
    continuation_rate: float | None = None
    tokens_per_step: float | None = None
    tokens_per_drafted_step: float | None = None
    accepted_per_drafted: float | None = None
    position_rates_unconditional: tuple[float, ...] | None = None
    position_rates_conditional: tuple[float, ...] | None = None
    lengths: tuple[LengthRow, ...] = ()
    draft_len: float | None = None
    chain_len: int | None = None
    notes: tuple[str, ...] = ()
    confidence_explains: float | None = None


def confidence_of(steps: Iterable[StepRecord]) -> float | None:
    """Share of the variance of acceptance that recorded confidences explain; None where steps have none."""
    told = [(s.confidence[: s.n_tested], s.accepted) for s in steps if s.confidence is not None and s.n_tested]
    if not told:
        return None
    found = explained_variance(
        [c for confidences, _ in told for c in confidences],
        [i < accepted for confidences, accepted in told for i in range(len(confidences))],
        [i for confidences, _ in told for i in range(len(confidences))],
    )
    return None if math.isnan(found) else found


def summarise(
    tally: Tally | None,
    *,
    source: str,
    tag: str = "",
    means: Means | None = None,
    tested: tuple[int, int] | None = None,
    confidence: float = 0.95,
) -> MeasuredSource:
    """All measured quantities of one source.

    Parameters
    ----------
    tally : Tally or None
        Counts of steps; None where the origin gives only `means`.
    source, tag : str
        Names for the report.
    means : Means or None
        Means of an engine that keeps no counts.
    tested : tuple of int or None
        Least and most positions that were tested, where rates were rounded or some are missing: alpha's interval widens
        by that and no more.
    confidence : float
        Of the interval of alpha.

    Raises
    ------
    InputError
        If there is neither a tally nor means, or they break a law (`specplan.records.laws`).

    Examples
    --------
    >>> m = summarise(Tally.of_counters(drafts=7, drafted_tokens=21, accepted_tokens=13, accepted_at=[5, 4, 4],
    ...                                 steps=22, emitted_tokens=35), source="ngram")
    >>> m.alpha.value, round(m.tokens_per_drafted_step, 3), round(m.tokens_per_step, 3)
    (0.8125, 2.857, 1.591)
    >>> round(m.accepted_per_drafted, 3)
    0.619
    """
    if tally is None:
        if means is None:
            raise InputError(f"{source}: nothing was measured")
        return _of_means(means, source, tag)
    tally.check_integrity()
    drafts, drafted, accepted = tally.drafts, tally.drafted_tokens, tally.accepted_tokens
    at, reached = tally.accepted_at, tally.tested_at
    alpha = _alpha(tally, confidence) if tested is None else _of_tested(tally, tested, confidence)
    notes: tuple[str, ...] = ()
    if reached is None and at is not None and drafts is not None and alpha.value is not None:
        reached, notes = (drafts, *at[:-1]), (_AS_LONG,)
    return MeasuredSource(
        source=source,
        tag=tag,
        tally=tally,
        alpha=alpha,
        coverage=_ratio(drafts, tally.steps),
        hit_rate=_ratio(at[0] if at else 0, drafts) if at is not None else None,
        continuation_rate=_ratio(sum(at[1:]), sum(reached[1:])) if at is not None and reached else None,
        tokens_per_step=_ratio(tally.emitted_tokens, tally.steps),
        tokens_per_drafted_step=_plus_one(_ratio(accepted, drafts)),
        accepted_per_drafted=_ratio(accepted, drafted),
        position_rates_unconditional=_unconditional(at, tally),
        position_rates_conditional=_conditional(at, reached),
        lengths=_lengths(tally),
        draft_len=_ratio(drafted, drafts),
        chain_len=None if reached is None else len(reached) or None,
        notes=notes,
    )


def _ratio(above: int | None, below: int | None) -> float | None:
    return above / below if above is not None and below else None


def _plus_one(value: float | None) -> float | None:
    return None if value is None else 1.0 + value


def _unconditional(at: tuple[int, ...] | None, tally: Tally) -> tuple[float, ...] | None:
    """One rate per drafted position, also where none was accepted."""
    if at is None or not tally.drafts:
        return None
    positions = max(len(at), len(tally.length_drafts or ()) - 1)
    return tuple(a / tally.drafts for a in (*at, *(0,) * (positions - len(at))))


def _conditional(at: tuple[int, ...] | None, reached: tuple[int, ...] | None) -> tuple[float, ...] | None:
    if at is None or reached is None:
        return None
    padded = (*at, *(0,) * (len(reached) - len(at)))
    return tuple(a / t for a, t in zip(padded, reached, strict=False) if t)


def _lengths(tally: Tally) -> tuple[LengthRow, ...]:
    if tally.length_drafts is None or tally.length_accepted is None or tally.length_tested is None:
        return ()
    rows = zip(tally.length_drafts, tally.length_accepted, tally.length_tested, strict=True)
    return tuple(
        LengthRow(drafted=d, drafts=n, accepted_tokens=a, tested_tokens=t) for d, (n, a, t) in enumerate(rows) if n
    )


def _alpha(tally: Tally, confidence: float) -> Alpha:
    tested, accepted = tally.tested_tokens, tally.accepted_tokens
    if tested is None or accepted is None:
        return _of_totals(tally, confidence)
    if tested == 0:
        return Alpha()
    c = tally.clusters
    if c is not None and c.t == tested and c.n >= 2:
        found = ratio_estimate_of_sums(requests=c.n, y=c.a, x=c.t, yy=c.aa, xy=c.at, xx=c.tt, confidence=confidence)
        return _of_estimate(found, "requests")
    return _of_estimate(_of_positions(accepted, tested, confidence), "positions")


def _of_positions(accepted: int, tested: int, confidence: float) -> Estimate:
    """Each position its own cluster: y is 0 or 1 and x is 1, so yy = xy = y and xx = x."""
    return ratio_estimate_of_sums(
        requests=tested, y=accepted, x=tested, yy=accepted, xy=accepted, xx=tested, confidence=confidence
    )


def _of_estimate(found: Estimate, basis: str) -> Alpha:
    low, high = (None if math.isnan(end) else end for end in (found.low, found.high))
    return Alpha(value=found.value, low=low, high=high, basis=basis)


def _of_totals(tally: Tally, confidence: float) -> Alpha:
    """Least and largest alpha that the counts allow; alpha itself where counts per position leave it close to known."""
    accepted, drafted = tally.accepted_tokens, tally.drafted_tokens
    if not drafted or accepted is None:
        return Alpha()
    least, most = _rejections(tally)
    low, high = accepted / max(accepted + most, 1), accepted / max(accepted + least, 1)
    if not tally.accepted_histogram or high - low > CLOSE:
        return Alpha(value=low if low == high else None, low=low, high=high, basis="bounds", kind="derived")
    found = _around(accepted, (accepted + least, accepted + most), confidence)
    return Alpha(value=(low + high) / 2, low=found.low, high=found.high, basis="positions", kind="derived")


def _around(accepted: int, tested: tuple[int, int], confidence: float) -> Alpha:
    """Interval of alpha over every number of tested positions between the two."""
    most, least = (_of_estimate(_of_positions(accepted, n, confidence), "positions") for n in reversed(tested))
    exact = tested[0] == tested[1]
    value = least.value if exact else accepted / ((tested[0] + tested[1]) / 2)
    return Alpha(value=value, low=most.low, high=least.high, basis="positions", kind="measured" if exact else "derived")


def _of_tested(tally: Tally, tested: tuple[int, int], confidence: float) -> Alpha:
    """Alpha where the tested positions are known to a range; bounds alone where the range is wide."""
    accepted = tally.accepted_tokens
    if accepted is None or not tested[0]:
        return Alpha()
    low, high = accepted / tested[1], accepted / tested[0]
    if high - low > CLOSE:
        return Alpha(low=low, high=high, basis="bounds", kind="derived")
    return _around(accepted, tested, confidence)


def _rejections(tally: Tally) -> tuple[int, int]:
    r"""Least and most rejections R that the counts allow.

    Each rejection ends one draft and wastes at least its own token, so :math:`R \le \min(D, N - A)`. A draft of k
    tokens of which j were accepted wastes at most k - j. With the drafts told apart by j, those with none accepted were
    all rejected, those with k accepted were not, and the fewest others that can have wasted the rest were.
    """
    drafted, accepted = tally.drafted_tokens or 0, tally.accepted_tokens or 0
    wasted = drafted - accepted
    most = wasted if tally.drafts is None else min(tally.drafts, wasted)
    histogram = tally.accepted_histogram
    if not histogram:
        return min(1, wasted), most
    longest = len(histogram) - 1
    if drafted > longest * sum(histogram):  # some drafts were longer than the positions that are told
        return max(histogram[0], min(1, wasted)), most
    least, rest = histogram[0], wasted - histogram[0] * longest
    for j in range(1, longest):
        needed = min(histogram[j], math.ceil(max(rest, 0) / (longest - j)))
        least, rest = least + needed, rest - needed * (longest - j)
    return least, max(least, min(most, sum(histogram[:longest])))


def _of_means(means: Means, source: str, tag: str) -> MeasuredSource:
    rates = means.position_rates
    per_draft = means.tokens_per_drafted_step
    value, basis = None, "none"
    conditional = None
    if rates:
        conditional = tuple(h for h in conditionals_of_marginals(rates).tolist() if not math.isnan(h))
        value, basis = sum(rates) / (1.0 + sum(rates[:-1])), "mean"
    elif per_draft is not None and means.chain_len:
        found = float(alpha_of_mean_acceptance_length(per_draft, means.chain_len))
        value, basis = (None, "none") if math.isnan(found) else (found, "mean")
    pooled = means.accepted_per_drafted
    if pooled is None and per_draft is not None and means.draft_len:
        pooled = float(pooled_rate(per_draft - 1.0, means.draft_len))
    return MeasuredSource(
        source=source,
        tag=tag,
        alpha=Alpha(value=value, basis=basis, kind="derived"),
        coverage=1.0 if means.tokens_per_step is not None and means.tokens_per_step == per_draft else None,
        hit_rate=rates[0] if rates else None,
        tokens_per_step=means.tokens_per_step,
        tokens_per_drafted_step=per_draft,
        accepted_per_drafted=pooled,
        position_rates_unconditional=rates,
        position_rates_conditional=conditional,
        draft_len=means.draft_len,
        chain_len=means.chain_len,
    )
