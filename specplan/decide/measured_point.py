"""A measured source on named hardware: where it lies on the plane, whether it pays, which k would be better."""

import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from specplan.decide.documents import measured_source
from specplan.decide.measured import MeasuredSource
from specplan.decide.pricing import Pair, Prices, prices
from specplan.decide.source import Placed
from specplan.errors import InputError
from specplan.formulas.emitted import FloatArray, expected_emitted_lengths
from specplan.formulas.indifference import alpha_for_emitted_lengths
from specplan.formulas.speedup import length_step_cost
from specplan.values.source import Origin

NOT_MODELED: Final = (
    "a shorter k also changes where later steps begin; the better k counts the same drafts cut short (measure it by "
    "replay where that matters)",
    "padding of batches, kernel launches, sampling and scheduling (take --layer modelled for those)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a source is placed.

    Attributes
    ----------
    pair : Pair
        Target, card, and the draft model if there is one.
    batch, context_len : int
        Requests per step; cached tokens of each.
    c : float or None
        Cost of a draft step, given; None derives it from the pair's draft, or takes 0 without one.
    width : int or None
        Draft positions verified in every step, drafted or not, by an engine that pads.
    observed_step_s : float or None
        Seconds per step that an engine measured.
    priced : dict
        Prices by positions per request, filled as they are asked for.
    """

    pair: Pair
    batch: int = 1
    context_len: int = 0
    c: float | None = None
    width: int | None = None
    observed_step_s: float | None = None
    priced: dict[int, Prices] = field(default_factory=dict, repr=False, compare=False)

    def prices(self, positions: int) -> Prices:
        """Prices of a pass over `positions` per request, each derived once."""
        if positions not in self.priced:
            self.priced[positions] = prices(
                self.pair, positions=positions, batch=self.batch, context_len=self.context_len
            )
        return self.priced[positions]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """A measured source, placed.

    Attributes
    ----------
    measured : MeasuredSource
    place : Place
    kappa : int
        Longest draft.
    c : float
        Draft step over target step.
    c_origin : str
        ``derived``, ``assumed`` (given, or 0 for want of a draft model).
    step_cost : float
        Mean cost of a step in plain steps: the observed step over a plain one where an engine measured it.
    speedup : float
        Measured tokens per step over `step_cost`.
    expected_speedup : float
        The same over the expected step.
    floor_s : float
        What reading the target's bytes once takes at the card's peak: no step is faster.
    alpha_break_even : float or None
        Constant alpha at which these draft lengths and this coverage neither win nor lose; None where alpha 1 loses.
    best_kappa : int or None
        Cap on the draft length with the highest speedup; 0 where none pays; None where it cannot be told (trees, or
        no rates by position).
    best_speedup : float or None
        With drafts cut to that length.
    expected_emitted : float or None
        Tokens per step that the measured alpha, held constant, gives with these draft lengths.
    plain_s, expected_step_s : float
        Seconds of a plain step and of a step with speculation.
    tokens_per_s : float
        Tokens per second of one request.
    """

    measured: MeasuredSource
    place: Place
    kappa: int
    c: float
    c_origin: Origin
    step_cost: float
    speedup: float
    expected_speedup: float
    floor_s: float
    alpha_break_even: float | None
    best_kappa: int | None
    best_speedup: float | None
    expected_emitted: float | None
    plain_s: float
    expected_step_s: float
    tokens_per_s: float

    @property
    def impossible(self) -> bool:
        """Whether the observed step is faster than the target's bytes can be read: another model, or another card."""
        observed = self.place.observed_step_s
        return observed is not None and observed < _BELOW * self.floor_s

    @property
    def pays(self) -> bool:
        """Whether speculation is faster than none."""
        return self.speedup > 1.0 and not self.impossible

    @property
    def sentence(self) -> str:
        """The decision in one sentence."""
        name, where = self.measured.source, f"{self.place.pair.target.name} on {self.place.pair.accelerator.name}"
        observed = self.place.observed_step_s
        if self.impossible:
            return (
                f"{name} for {where}: impossible, a step of {(observed or 0) * 1e3:.2f} ms is below the byte floor of "
                f"{self.floor_s * 1e3:.2f} ms; these figures are of another model or another card."
            )
        gain = f"{self.speedup:.3f}x at batch {self.place.batch}"
        gain += "" if observed is None else f" by the observed step ({self.expected_speedup:.3f}x by the expected one)"
        verdict = f"pays: {gain}" if self.pays else f"does not pay: {gain}"
        if self.best_kappa == 0:
            better = "; no draft length would"
        elif self.best_speedup is not None and self.best_speedup > self.speedup * 1.005:
            better = f"; drafts cut to {self.best_kappa} would give {self.best_speedup:.3f}x"
        else:
            better = ""
        return f"{name} for {where} {verdict}{better}."


_BELOW: Final = 0.95


def length_weights(measured: MeasuredSource) -> FloatArray:
    """Probability of drafting 0, 1, ... tokens in a step.

    Raises
    ------
    InputError
        If the number of steps, or the lengths of drafts, are not known.
    """
    tally = measured.tally
    if tally is None:
        if measured.draft_len is None or measured.tokens_per_step is None:
            raise InputError(f"{measured.source}: the draft length is not known; it cannot be placed")
        k = measured.chain_len or round(measured.draft_len)
        certain = np.zeros(k + 1)
        certain[k] = 1.0
        return certain
    if not tally.steps or tally.drafts is None:
        raise InputError(
            f"{measured.source}: the number of all steps is not known (only of those with a draft); it cannot be placed"
        )
    if tally.length_drafts is not None:
        counts = np.array(tally.length_drafts or (0,), np.float64)
    else:
        # Only the mean length is known: the two whole lengths around it, which give that mean.
        mean = (tally.drafted_tokens or 0) / tally.drafts if tally.drafts else 0.0
        low = int(mean)
        counts = np.zeros(low + 2)
        counts[low] += tally.drafts * (low + 1 - mean)
        counts[low + 1] += tally.drafts * (mean - low)
    counts[0] = tally.steps - counts[1:].sum()
    return np.asarray(counts / counts.sum())


def _verify_factors(place: Place, longest: int) -> FloatArray:
    """Verify factor of each draft length from 0 on; a padding engine pays its width whatever it drafted."""
    widths = range(longest + 1) if place.width is None else [place.width] * (longest + 1)
    return np.array([place.prices(n + 1).verify for n in widths])


def _cut(weights: FloatArray, k: int) -> FloatArray:
    """Length weights with drafts cut to k tokens."""
    return np.concatenate([weights[:k], [weights[k:].sum()]])


def place_measured(measured: MeasuredSource, place: Place) -> MeasuredPoint:
    """Place a measured source on a target and a card.

    Raises
    ------
    InputError
        If all steps or the draft lengths are not known.

    Notes
    -----
    Tokens per step are measured; times are derived from the pair (`specplan.decide.pricing`). A draft of d tokens costs
    d times c and a pass over d + 1 positions.
    """
    if measured.tokens_per_step is None:
        raise InputError(f"{measured.source}: tokens per step over all steps are not known; it cannot be placed")
    weights = length_weights(measured)
    longest = max(int(np.flatnonzero(weights)[-1]), 1)
    weights = np.pad(weights, (0, max(0, longest + 1 - len(weights))))[: longest + 1]
    plain = place.prices(longest + 1)
    c, origin = _c(place, plain.c)
    verify = _verify_factors(place, longest)
    cost = _cost(weights, c, verify, place)
    alpha = measured.alpha.value
    chain = place.width is None  # of a tree the number of nodes is known, not the depth
    observed = place.observed_step_s
    actual = cost if observed is None else observed / plain.plain_s
    be = float(alpha_for_emitted_lengths(max(actual, 1.0), weights)) if chain else math.nan
    best, best_speedup = _best_cut(measured, weights, c, verify, place, scale=actual / cost)
    at_peak = prices(
        replace(place.pair, layer="roofline"), positions=1, batch=place.batch, context_len=place.context_len
    )
    return MeasuredPoint(
        measured=measured,
        place=place,
        kappa=longest,
        c=c,
        c_origin=origin,
        step_cost=actual,
        speedup=measured.tokens_per_step / actual,
        expected_speedup=measured.tokens_per_step / cost,
        floor_s=at_peak.plain_s,
        alpha_break_even=None if math.isnan(be) else be,
        best_kappa=best,
        best_speedup=best_speedup,
        expected_emitted=None if alpha is None or not chain else float(expected_emitted_lengths(alpha, weights)),
        plain_s=plain.plain_s,
        expected_step_s=cost * plain.plain_s,
        tokens_per_s=measured.tokens_per_step / (actual * plain.plain_s),
    )


def _c(place: Place, derived: float | None) -> tuple[float, Origin]:
    if place.c is not None:
        if not 0 <= place.c < float("inf"):
            raise InputError(f"--c {place.c:g}: a cost ratio is at least 0")
        return place.c, "assumed"
    return (0.0, "assumed") if derived is None else (derived, "derived")


def _cost(weights: FloatArray, c: float, verify: FloatArray, place: Place) -> float:
    cost = float(length_step_cost(weights, c, verify))
    # A padding engine verifies its width in the steps without a draft as well.
    return cost if place.width is None else cost + float(weights[0]) * (float(verify[0]) - 1.0)


def _best_cut(
    measured: MeasuredSource, weights: FloatArray, c: float, verify: FloatArray, place: Place, *, scale: float = 1.0
) -> tuple[int | None, float | None]:
    """Best cap on the draft length, and its speedup; unknown for trees and without rates by position.

    `scale` is the observed cost of a step over the expected one, taken alike for every length.
    """
    rates = measured.position_rates_unconditional
    longest = len(weights) - 1
    whole = (measured.tokens_per_step or 1.0) / (scale * _cost(weights, c, verify, place))
    if rates is None or measured.coverage is None or place.width is not None:
        return None, None
    padded = np.zeros(longest)
    padded[: min(len(rates), longest)] = rates[:longest]
    best, best_speedup = longest, whole
    for k in range(1, longest):
        emitted = 1.0 + measured.coverage * float(padded[:k].sum())
        speedup = emitted / (scale * _cost(_cut(weights, k), c, verify[: k + 1], place))
        if speedup > best_speedup:
            best, best_speedup = k, speedup
    return (best, best_speedup) if best_speedup > 1.0 else (0, 1.0)


def as_draft_source(point: MeasuredPoint) -> Placed:
    """The point as `plane` draws it, worth the same speedup.

    A drawn source has one draft length; the verify factor is the one at which that costs what the measured mixture of
    lengths costs.
    """
    m, width = point.measured, point.place.width
    extra = point.step_cost - 1.0
    drafting = 1.0 if width is not None or not m.coverage else m.coverage
    kappa = point.kappa
    if 1.0 + extra / drafting <= kappa * point.c:
        kappa = max(1, round(m.draft_len or 1))
    source = measured_source(m)
    return Placed(
        source=replace(source, nodes=None if width is None else max(width, kappa) + 1),
        kappa=kappa,
        c=point.c,
        verify=1.0 + extra / drafting - kappa * point.c,
        target=point.place.pair.target.name,
        c_origin=point.c_origin,
        verify_origin="derived",
    )
