"""Counts behind rounded figures: how many drafts a log line speaks of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

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
