"""Drift: whether acceptance fell in the course of a trace, by more than chance and more than a threshold."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Protocol

from specplan.errors import InputError

FAMILY_ERROR: Final = 0.01
"""Probability that chance alone makes any window of a steady trace look fallen."""


class WindowCounts(Protocol):
    """What is known of a window of requests."""

    @property
    def first(self) -> int:
        """Index of the first request."""
        ...

    @property
    def steps(self) -> int:
        """Verify steps."""
        ...

    @property
    def accepted(self) -> int:
        """Accepted tokens."""
        ...

    @property
    def accepted_per_step(self) -> float:
        """Accepted tokens per step."""
        ...

    @property
    def accepted_var(self) -> float:
        """Squared standard error of `accepted_per_step`; NaN where it is unknown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The deepest significant fall of accepted tokens per step against the beginning of the trace.

    Attributes
    ----------
    baseline : float
        Accepted tokens per step over the first windows.
    baseline_windows : int
        How many those are: a quarter of all, at least one.
    fall : float
        1 - lowest / baseline; 0 where no later window lies significantly below the baseline.
    at_request : int or None
        First request of that window.
    sigmas : float
        Its distance from the baseline in standard errors.
    """

    baseline: float
    baseline_windows: int
    fall: float
    at_request: int | None
    sigmas: float

    def passes(self, threshold: float) -> bool:
        """Whether the fall is deeper than the threshold."""
        return self.fall > threshold


def drift(windows: Sequence[WindowCounts]) -> Drift | None:
    r"""Compare later windows with the first quarter; None for fewer than two windows with steps.

    A window counts as fallen where its distance from the baseline, in standard errors, exceeds the level that all m
    later windows together pass by chance with probability `FAMILY_ERROR`:

    .. math:: z_j = \frac{b - x_j}{\sqrt{v/n_b + v/n_j}} > \Phi^{-1}(1 - 0.01/m)

    with x accepted tokens per step, n steps, and v the variance per step, from the spread between requests within
    windows, pooled over the windows.

    Notes
    -----
    Accepted tokens per step fall when alpha falls and when coverage falls, so both kinds of shift are seen.
    """
    known = [w for w in windows if w.steps]
    if len(known) < 2:
        return None
    n = max(1, len(known) // 4)
    first, later = known[:n], known[n:]
    steps = sum(w.steps for w in first)
    baseline = sum(w.accepted for w in first) / steps
    found = Drift(baseline=baseline, baseline_windows=n, fall=0.0, at_request=None, sigmas=0.0)
    spread = [w for w in known if not math.isnan(w.accepted_var)]
    if baseline == 0 or not spread:
        return found
    per_step = sum(w.accepted_var * w.steps * w.steps for w in spread) / sum(w.steps for w in spread)
    level = NormalDist().inv_cdf(1 - FAMILY_ERROR / len(later))
    for w in later:
        error = math.sqrt(per_step * (1 / steps + 1 / w.steps))
        below = baseline - w.accepted_per_step
        sigmas = below / error if error > 0 else math.copysign(math.inf, below) if below else 0.0
        if sigmas > level and below / baseline > found.fall:
            found = Drift(
                baseline=baseline,
                baseline_windows=n,
                fall=below / baseline,
                at_request=w.first,
                sigmas=sigmas,
            )
    return found


def alert_threshold(text: str) -> float:
    """A fall as a fraction or in percent.

    >>> alert_threshold("20%"), alert_threshold("0.2")
    (0.2, 0.2)
    """
    try:
        value = float(text.rstrip("% ")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError(f"--alert {text}: expected a fall between 0 and 1, such as 0.2 or 20%")
    return value
