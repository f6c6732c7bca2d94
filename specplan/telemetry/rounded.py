"""Counts behind rounded figures: how many drafts a log line speaks of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from specplan.errors import InputError
from specplan.records.tally import EMPTY, UNKNOWN, Clusters, Tally, checked

MAX_CANDIDATES: Final = 20_000
"""Most numbers of drafts that are tried one by one; a wider range cannot be told apart by rounded rates anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredDrafts:
    """Number of drafts behind a line that gives only means.

    Attributes
    ----------
    drafts : int
        The number.
    low, high : int
        Least and largest number that the rounded figures allow; equal where it is certain.
    accepted_at : tuple of int or None
        Entry i: drafts with more than i tokens accepted; None where the rounded rates fit no whole numbers.
    """

    drafts: int
    low: int
    high: int
    accepted_at: tuple[int, ...] | None


def recover_drafts(
    mean_length: float,
    accepted: int,
    drafted: int,
    rates: Sequence[float],
    *,
    length_digits: int = 2,
    rate_digits: int = 3,
) -> RecoveredDrafts | None:
    r"""Drafts D from a rounded mean acceptance length, exact totals and rounded rates per position.

    The mean acceptance length is :math:`1 + A/D` and the rate of position i is :math:`A_i/D` with whole :math:`A_i`
    that add up to A. Every D that rounds to what is printed is allowed; among those, one at which all drafts are
    equally long (drafted = D times the number of positions) is taken first, else the one nearest to the printed mean.

    Parameters
    ----------
    mean_length : float
        Mean acceptance length, bonus included, per drafted step.
    accepted, drafted : int
        Tokens.
    rates : sequence of float
        Unconditional rate per position; may be empty.
    length_digits, rate_digits : int
        Digits after the decimal point of the two kinds of figures.

    Returns
    -------
    RecoveredDrafts or None
        None if no number of drafts fits.

    Examples
    --------
    >>> recover_drafts(2.86, 13, 21, [0.714, 0.571, 0.571])
    RecoveredDrafts(drafts=7, low=7, high=7, accepted_at=(5, 4, 4))
    """
    if drafted <= 0 or accepted < 0 or accepted > drafted or not mean_length >= 1:
        return None
    half = 0.5 * 10.0**-length_digits * (1 + 1e-9)
    gain_low, gain_high = max(mean_length - 1 - half, 0.0), mean_length - 1 + half
    low = max(1, math.ceil(drafted / len(rates)) if rates else 1, math.ceil(accepted / gain_high))
    high = min(drafted, math.floor(accepted / gain_low) if gain_low > 0 else drafted)
    if low > high:
        return None
    fitting = (
        [d for d in range(low, high + 1) if _fits(d, accepted, rates, rate_digits)]
        if high - low < MAX_CANDIDATES
        else []
    )
    candidates = fitting or [low, high]
    uniform = drafted // len(rates) if rates and drafted % len(rates) == 0 else 0
    centre = accepted / (mean_length - 1) if accepted and mean_length > 1 else drafted
    drafts = (
        uniform
        if uniform in fitting
        else min(fitting or [min(max(round(centre), low), high)], key=lambda d: abs(d - centre))
    )
    return RecoveredDrafts(
        drafts=drafts,
        low=min(candidates),
        high=max(candidates),
        accepted_at=_whole_counts(drafts, accepted, rates, rate_digits) if fitting and rates else None,
    )


def positions_behind(
    drafts: int, drafted: int, accepted: int, rates: Sequence[float], digits: int
) -> tuple[tuple[int, ...] | None, tuple[int, int] | None]:
    r"""Counts per position behind rounded rates, and the least and most positions that were tested.

    Where all drafts have k tokens, the drafts that reached a position were tested there: :math:`T = D + A - A_k`. So
    only the last position's count leaves doubt, by its rounding, or by what rates that are missing leave open.

    Parameters
    ----------
    drafts, drafted, accepted : int
        Totals.
    rates : sequence of float
        Unconditional, from the first position on; later ones may be missing.
    digits : int
        Digits after the point of the rates as fractions.

    Raises
    ------
    InputError
        If no whole counts within the rounding add up to `accepted`.

    Examples
    --------
    >>> positions_behind(1000, 3000, 1500, [0.75, 0.5, 0.25], 4)
    ((750, 500, 250), (2250, 2250))
    >>> positions_behind(1000, 3000, 1500, [0.75], 4)
    (None, (2125, 2500))
    """
    k = drafted // drafts if drafts and drafted % drafts == 0 else 0
    if k == 1:
        return (accepted,), (drafts, drafts)
    if not rates or len(rates) > max(k, 1) or not k:
        return (_whole_counts(drafts, accepted, rates, digits) if rates and not k else None), None
    bounds = [_bounds(drafts, rate, digits) for rate in rates]
    least, most = sum(low for low, _ in bounds), sum(high for _, high in bounds)
    missing = k - len(rates)
    if any(low > high for low, high in bounds) or accepted < least or accepted > most + missing * bounds[-1][1]:
        raise InputError(
            f"the rates by position belong to {least} to {most + missing * bounds[-1][1]} accepted tokens of {drafts} "
            f"drafts, not to {accepted}"
        )
    if not missing:
        low = max(bounds[-1][0], accepted - (most - bounds[-1][1]))
        high = min(bounds[-1][1], accepted - (least - bounds[-1][0]))
        return _whole_counts(drafts, accepted, rates, digits), (drafts + accepted - high, drafts + accepted - low)
    rest = max(accepted - most, 0), accepted - least
    low = max(0, rest[0] - (missing - 1) * bounds[-1][1])
    return None, (drafts + accepted - rest[1] // missing, drafts + accepted - low)


def _bounds(drafts: int, rate: float, digits: int) -> tuple[int, int]:
    half = 0.5 * 10.0**-digits * (1 + 1e-6)
    return max(0, math.ceil((rate - half) * drafts)), min(drafts, math.floor((rate + half) * drafts))


def _fits(drafts: int, accepted: int, rates: Sequence[float], digits: int) -> bool:
    """Whether whole numbers of accepted drafts exist that round to the rates and add up to `accepted`."""
    if not rates:
        return True
    bounds = [_bounds(drafts, rate, digits) for rate in rates]
    return all(low <= high for low, high in bounds) and sum(low for low, _ in bounds) <= accepted <= sum(
        high for _, high in bounds
    )


def _whole_counts(drafts: int, accepted: int, rates: Sequence[float], digits: int) -> tuple[int, ...] | None:
    """Counts per position within the rounding of the rates, falling with the position, that add up to `accepted`."""
    bounds = [_bounds(drafts, rate, digits) for rate in rates]
    counts = [min(max(round(rate * drafts), low), high) for rate, (low, high) in zip(rates, bounds, strict=True)]
    missing = accepted - sum(counts)
    step = 1 if missing > 0 else -1
    # Invariant: counts never leave their bounds; one unit is moved at a time where the rounded rate allows it.
    while missing:
        order = range(len(counts)) if step > 0 else reversed(range(len(counts)))
        movable = [i for i in order if bounds[i][0] <= counts[i] + step <= bounds[i][1]]
        if not movable:
            return None
        for i in movable[: abs(missing)]:
            counts[i] += step
            missing -= step
    if any(later > earlier for earlier, later in pairwise(counts)):
        return None
    return tuple(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLine:
    """Figures of one interval of vLLM or one request of llama.cpp: exact totals beside rounded means.

    Attributes
    ----------
    mean_length : float
        1 + accepted / drafts, two digits; NaN where the line has none.
    accepted, drafted : int
        Tokens.
    rates : tuple of float
        Unconditional rate per position, three digits; may be empty.
    """

    mean_length: float
    accepted: int
    drafted: int
    rates: tuple[float, ...]

    def recovered(self) -> RecoveredDrafts | None:
        """Drafts behind the line; None where no number fits."""
        return recover_drafts(self.mean_length, self.accepted, self.drafted, self.rates)


def pooled(lines: Sequence[RateLine], *, per_request: bool = False) -> tuple[Tally, list[str]]:
    """Sum over lines, each with its recovered number of drafts; a line may be one request or one interval."""
    total, low, high = EMPTY, 0, 0
    misfits = without = 0
    for line in lines:
        found = line.recovered()
        if found is None:
            without += math.isnan(line.mean_length)
            misfits += not math.isnan(line.mean_length)
            part = replace(
                UNKNOWN, drafted_tokens=line.drafted, verified_tokens=line.drafted, accepted_tokens=line.accepted
            )
        else:
            low, high = low + found.low, high + found.high
            part = Tally.of_counters(
                drafts=found.drafts,
                drafted_tokens=line.drafted,
                accepted_tokens=line.accepted,
                accepted_at=found.accepted_at,
            )
        if per_request:
            tested = part.tested_tokens
            clusters = None if tested is None else Clusters.of(line.accepted, tested)
            part = replace(part, requests=1, prefills=1, clusters=clusters)
        total += part
    notes = []
    if without:
        notes.append(f"{without} lines have totals alone, as older versions print them: drafts stay unknown")
    if misfits:
        notes.append(f"the figures of {misfits} lines fit no whole number of drafts; the number stays unknown")
    if total.drafts is not None and low != high:
        notes.append(f"rounded figures allow {low} to {high} drafts; {total.drafts} was taken")
    return checked(total), notes
