"""Quantiles of Student's t, which intervals over requests rest on: closed sums in plain Python."""

from functools import lru_cache
from math import cos, pi, sin, sqrt, tan
from statistics import NormalDist
from typing import Final

from specplan.errors import InputError

_MANY: Final = 400
"""Degrees of freedom from which four terms of the expansion about the normal quantile are exact to 1e-12."""


@lru_cache(maxsize=4096)
def student_quantile(degrees: int, probability: float) -> float:
    """The t below which a Student variable of so many degrees of freedom falls with a probability.

    Parameters
    ----------
    degrees : int
        Degrees of freedom, at least 1.
    probability : float
        In (0, 1).

    Returns
    -------
    float
        Relative error below 1e-9 for probabilities in [1e-6, 1 - 1e-6].

    Raises
    ------
    InputError
        If an argument lies outside its interval.

    Notes
    -----
    Abramowitz & Stegun 26.7.3 and 26.7.4 (finite sums for whole degrees), halved in the angle; 26.7.5 for many degrees.

    Examples
    --------
    >>> round(student_quantile(1, 0.75), 12), round(student_quantile(10, 0.975), 6)
    (1.0, 2.228139)
    """
    if degrees < 1 or degrees != int(degrees):
        raise InputError(f"degrees of freedom: expected a whole number of at least 1, got {degrees}")
    if not 0.0 < probability < 1.0:
        raise InputError(f"probability: expected a number between 0 and 1, got {probability}")
    if probability == 0.5:
        return 0.0
    if degrees >= _MANY:
        return _expanded(degrees, NormalDist().inv_cdf(probability))
    if probability > 0.5:
        return -student_quantile(degrees, 1.0 - probability)
    inside = 1.0 - 2.0 * probability
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(degrees, middle) < inside else (low, middle)
    return -sqrt(degrees) * tan((low + high) / 2)


def _inside(n: int, angle: float) -> float:
    """P(abs(T) <= t) at t = sqrt(n) tan(angle)."""
    s, c = sin(angle), cos(angle)
    odd = n % 2
    term, total = (c, 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, n + 1, 2):
        total += term
        term *= c * c * (k - 1) / k
    if not odd:
        return s * total
    return 2.0 / pi * (angle + s * total)


def _expanded(n: int, x: float) -> float:
    terms: tuple[float, ...] = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(g / float(n) ** i for i, g in enumerate(terms, start=1))
