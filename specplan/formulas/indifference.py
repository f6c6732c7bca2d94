r"""Contours of equal speedup on the (alpha, c) plane, break-even, and ties between sources.

Everything here rearranges one equation, the speedup of `specplan.formulas.speedup`:

.. math:: 1 + \gamma(E - 1) = s\,\bigl(1 + \gamma(\kappa c + v - 1) + o\bigr)

It is linear in c, in the coverage and in E, so those are closed forms. Only the step from E to an acceptance needs a
solver: `alpha_for_emitted` (one alpha), `alpha_for_emitted_lengths` (one alpha, varying draft length),
`hazard_scale_for_emitted` (a factor on a vector of conditionals); a matcher's first hit and its continuation rate have
`hit_for_emitted` and `continuation_for_emitted`. Arrays answer NaN where nothing in range gives the value asked for,
and `reach` says on which side it fails.

Source: chapter "Draft sources", the paragraphs on contours, the indifference curve and the free-draft tie.
"""

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.formulas.emitted import (
    FloatArray,
    IntArray,
    checked_between,
    checked_kappa,
    checked_probability,
    emission_coefficients,
    emitted_and_slope,
    emitted_of_drafted_steps,
    expected_emitted,
    survival,
)
from specplan.formulas.speedup import speedup, step_cost

_CHUNK: Final = 1 << 14  # elements per pass of the solver: its temporaries stay in the cache
_MAX_GROUPS: Final = 64  # distinct draft lengths in a chunk that are still solved one by one
_MAX_STEPS: Final = 60  # Newton needs about 6; a bound, so that nothing can loop for ever
_ROUNDING: Final = 8 * np.finfo(np.float64).eps  # a tie at alpha 0 or 1, or at c 0, is reached in spite of roundings


class Reach(IntEnum):
    """Why a solver answered a number or NaN; the order is that of the needed value against what can be had."""

    BELOW = -1
    """Even the lower end gives more than was asked for."""
    SOLVED = 0
    ABOVE = 1
    """Even the upper end (acceptance 1, a free draft) gives less than was asked for."""
    ANY = 2
    """Nothing is drafted, so that every value gives what was asked for."""
    UNKNOWN = 3
    """An input is NaN."""


def reach(needed: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike) -> npt.NDArray[np.int8]:
    """Status of a solve: where the needed quantity lies against its attainable interval [low, high].

    Parameters
    ----------
    needed : array_like
        For an acceptance: E from `emitted_for_speedup`, against 1 and the E of acceptance 1 (kappa + 1). For a
        coverage: itself against 0 and 1.
    low, high : array_like
        Ends of the interval.

    Returns
    -------
    ndarray of int8
        Values of `Reach`.

    Examples
    --------
    >>> [Reach(x).name for x in reach([0.5, 2.0, 5.0, np.nan], 1, 4)]
    ['BELOW', 'SOLVED', 'ABOVE', 'UNKNOWN']
    """
    x, a, b = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (needed, low, high)))
    slack = _ROUNDING * np.maximum(np.abs(a), np.abs(b))
    out = np.where(x < a - slack, Reach.BELOW, np.where(x > b + slack, Reach.ABOVE, Reach.SOLVED))
    out = np.where((a == b) & (out == Reach.SOLVED), Reach.ANY, out)
    return np.where(np.isnan(x) | np.isnan(a) | np.isnan(b), Reach.UNKNOWN, out).astype(np.int8)


def alpha_for_emitted(emitted: npt.ArrayLike, kappa: npt.ArrayLike) -> FloatArray:
    r"""The alpha at which a step emits a given number of tokens: the inverse of E in alpha.

    .. math:: E(\alpha, \kappa) = e

    Parameters
    ----------
    emitted : array_like
        e: tokens per step.
    kappa : array_like of int
        Draft length, at least 0; broadcast against `emitted`.

    Returns
    -------
    ndarray
        alpha in [0, 1]; NaN where e lies outside [1, kappa + 1] (and for kappa 0, where every alpha emits one token).

    Notes
    -----
    Newton on :math:`1/E - 1/e`. :math:`1/E` is convex and falls in alpha (:math:`1-\alpha` as kappa grows), so from
    the lower bound :math:`\max(1 - 1/e, (e-1)/\kappa)` the iterates rise to the root and never pass it.

    Examples
    --------
    >>> round(float(alpha_for_emitted(2.4047, 3)), 4)
    0.6659
    >>> float(alpha_for_emitted(4.1, 3))
    nan
    """
    e, k = np.broadcast_arrays(np.asarray(emitted, dtype=np.float64), checked_kappa(kappa))
    out = np.empty(e.shape)
    flat_e, flat_k, flat_out = e.ravel(), k.ravel(), out.reshape(-1)
    for start in range(0, flat_e.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        lengths = sorted(set(flat_k[part].tolist()))  # np.unique imports numpy.ma
        if len(lengths) > _MAX_GROUPS:
            flat_out[part] = _newton_chunk(flat_e[part], flat_k[part])
            continue
        for length in lengths:  # one length at a time is Horner's rule, several times the speed of mixed lengths
            chosen = np.flatnonzero(flat_k[part] == length) + start
            flat_out[chosen] = _newton_chunk(flat_e[chosen], np.int64(length))
    return out


def _newton_chunk(e: FloatArray, k: IntArray | np.int64) -> FloatArray:
    reachable = (e >= 1.0 - _ROUNDING) & (e <= (k + 1.0) * (1.0 + _ROUNDING)) & (k > 0)
    target = np.where(reachable, np.clip(e, 1.0, k + 1.0), 1.0)
    a: FloatArray = np.maximum(1.0 - 1.0 / target, (target - 1.0) / np.maximum(k, 1))
    for _ in range(_MAX_STEPS):
        value, slope = emitted_and_slope(a, k)
        with np.errstate(invalid="ignore", divide="ignore"):  # kappa 0 has slope 0; masked below
            step = np.where(k > 0, (target - value) / slope * (value / target), 0.0)
        np.clip(a + step, 0.0, 1.0, out=a)
        if np.all(np.abs(step) <= 4e-16):
            break
    return np.where(reachable, a, np.nan)


def _polynomial_root(e: FloatArray, coefficients: FloatArray, x_max: npt.ArrayLike = 1.0) -> FloatArray:
    """X in [0, x_max] with sum of coefficients[i] * x**i = e, for coefficients of at least 0 and a leading 1.

    The polynomial is convex and rises, so Newton from the upper end falls to the root and never passes it.
    """
    top = np.asarray(x_max, dtype=np.float64)
    shape = np.broadcast_shapes(e.shape, coefficients.shape[:-1], top.shape)
    e = np.broadcast_to(e, shape)
    x: FloatArray = np.broadcast_to(top, shape).copy()
    highest = _polynomial(x, coefficients)[0]
    varies = highest > 1.0
    reachable = varies & (e >= 1.0 - _ROUNDING) & (e <= highest * (1.0 + _ROUNDING))
    target = np.where(reachable, np.clip(e, 1.0, highest), highest)
    for _ in range(_MAX_STEPS * 4):  # linear convergence where the lowest coefficient is 0 and e is near 1
        value, slope = _polynomial(x, coefficients)
        with np.errstate(invalid="ignore", divide="ignore"):
            step = np.where(varies & (slope > 0), (target - value) / slope, 0.0)
        new = np.clip(x + step, 0.0, top)
        done = np.all(np.abs(new - x) <= 4e-16 * np.maximum(x, 1.0))
        x = new
        if done:
            break
    return np.where(reachable, x, np.nan)


def _polynomial(x: FloatArray, coefficients: FloatArray) -> tuple[FloatArray, FloatArray]:
    value, slope = np.zeros(x.shape), np.zeros(x.shape)
    for i in reversed(range(coefficients.shape[-1])):
        slope = slope * x + value
        value = value * x + coefficients[..., i]
    return value, slope


def alpha_for_emitted_lengths(emitted: npt.ArrayLike, length_weights: npt.ArrayLike) -> FloatArray:
    r"""The alpha at which steps of varying draft length emit a given mean number of tokens.

    .. math:: \sum_i \Pr(L \ge i)\,\alpha^i = e

    Parameters
    ----------
    emitted : array_like, shape (...)
        e: tokens per step over all steps, those without a draft included.
    length_weights : array_like, shape (..., K + 1)
        Probability of drafting 0, 1, ..., K tokens.

    Returns
    -------
    ndarray
        alpha in [0, 1]; NaN where e lies outside [1, 1 + mean draft length].

    Examples
    --------
    >>> round(float(alpha_for_emitted_lengths(2.533, [0, 0, 0, 1])), 12)
    0.7
    >>> abs(float(alpha_for_emitted_lengths(1.5, [0.5, 0, 0, 0.5]) - alpha_for_emitted(2.0, 3))) < 1e-15
    True
    """
    return _polynomial_root(np.asarray(emitted, dtype=np.float64), emission_coefficients(1.0, length_weights))


def hazard_scale_for_emitted(
    emitted: npt.ArrayLike, conditionals: npt.ArrayLike, length_weights: npt.ArrayLike | None = None
) -> FloatArray:
    r"""The factor on every conditional acceptance of a hazard at which a step emits a given number of tokens.

    .. math:: \sum_i \lambda^i s_i = e, \quad s_i = \prod_{j \le i} h_j

    The shape of the hazard is kept; a constant one scales to `alpha_for_emitted`.

    Parameters
    ----------
    emitted : array_like, shape (...)
        e: tokens per step.
    conditionals : array_like, shape (..., K)
        The hazard h.
    length_weights : array_like, shape (..., K + 1), optional
        Probability of drafting 0, 1, ..., K tokens; without it K are always drafted.

    Returns
    -------
    ndarray
        lambda from 0 to 1 / max(h) (no conditional may pass 1); NaN where no such factor gives e.

    Examples
    --------
    >>> round(float(hazard_scale_for_emitted(2.533, [0.5, 0.5, 0.5])), 12)
    1.4
    """
    h = np.atleast_1d(checked_probability("conditional acceptance", conditionals))
    coefficients = survival(h) if length_weights is None else emission_coefficients(h, length_weights)
    largest = h.max(axis=-1, initial=0.0)
    with np.errstate(divide="ignore"):
        x_max = np.where(largest > 0, 1.0 / largest, 1.0)
    return _polynomial_root(np.asarray(emitted, dtype=np.float64), coefficients, x_max)


def hit_for_emitted(emitted: npt.ArrayLike, continuation: npt.ArrayLike, kappa: npt.ArrayLike) -> FloatArray:
    r"""First-token hit probability at which a matcher's drafted step emits a given number of tokens.

    .. math:: h = \frac{e - 1}{E(r, \kappa - 1)}

    NaN where h would leave [0, 1], and for kappa 0.

    >>> round(float(hit_for_emitted(1.488, 0.8, 3)), 12)
    0.2
    """
    k = checked_kappa(kappa)
    h = (np.asarray(emitted) - 1.0) / expected_emitted(continuation, np.maximum(k - 1, 0))
    return np.where((k > 0) & (h >= -_ROUNDING) & (h <= 1.0 + _ROUNDING), np.clip(h, 0.0, 1.0), np.nan)


def continuation_for_emitted(emitted: npt.ArrayLike, hit: npt.ArrayLike, kappa: npt.ArrayLike) -> FloatArray:
    r"""Continuation rate at which a matcher's drafted step emits a given number of tokens, its hit probability given.

    .. math:: E(r, \kappa - 1) = \frac{e - 1}{h}

    NaN where no rate in [0, 1] does, and for kappa below 2 (nothing continues).

    >>> round(float(continuation_for_emitted(1.488, 0.2, 3)), 12)
    0.8
    """
    h, k = checked_probability("hit", hit), checked_kappa(kappa)
    with np.errstate(invalid="ignore", divide="ignore"):
        needed = (np.asarray(emitted) - 1.0) / h
    return alpha_for_emitted(needed, np.maximum(k - 1, 0))


def emitted_for_speedup(
    s: npt.ArrayLike,
    kappa: npt.ArrayLike,
    c: npt.ArrayLike,
    verify: npt.ArrayLike = 1.0,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    r"""E that a drafted step must reach for a speedup of s; any description of acceptance can be solved from it.

    .. math:: E = 1 + \frac{s\,(1 + \gamma(\kappa c + v - 1) + o) - 1}{\gamma}

    NaN where the coverage is 0 (no E changes anything).

    >>> round(float(emitted_for_speedup(2.4047, 3, 0.0177801)), 3)
    2.533
    """
    s = checked_between("speedup", s, 0.0, np.inf)
    return emitted_of_drafted_steps(coverage, s * step_cost(kappa, c, verify, coverage, overhead), kappa)


def contour_alpha(
    c: npt.ArrayLike,
    s: npt.ArrayLike,
    kappa: npt.ArrayLike,
    verify: npt.ArrayLike = 1.0,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    r"""alpha(c; s, kappa): the acceptance at which a source of cost c reaches a speedup of s.

    .. math:: E(\alpha, \kappa) = s\,(1 + \kappa c)

    Parameters
    ----------
    c, s, kappa, verify, coverage, overhead : array_like
        As in `specplan.formulas.speedup.speedup`, s the speedup; broadcast together.

    Returns
    -------
    ndarray
        alpha in [0, 1]; NaN where no acceptance gives s (even alpha 1 is too slow, or even alpha 0 is too fast).

    Examples
    --------
    >>> round(float(contour_alpha(0.0177801, 2.0, 3)), 4)
    0.5785
    """
    return alpha_for_emitted(emitted_for_speedup(s, kappa, c, verify, coverage, overhead), kappa)


def contour_c(
    alpha: npt.ArrayLike,
    s: npt.ArrayLike,
    kappa: npt.ArrayLike,
    verify: npt.ArrayLike = 1.0,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    r"""c(alpha; s, kappa): the draft cost at which an acceptance alpha still gives a speedup of s.

    .. math:: c = \frac{1}{\kappa}\Bigl(\frac{E(\alpha,\kappa)}{s} - 1\Bigr)

    (with coverage, verify factor and overhead: the solution of the equation at the head of this module).

    Returns
    -------
    ndarray
        c of at least 0; NaN where even a free draft is too slow, and for kappa or coverage 0.

    Examples
    --------
    >>> round(float(contour_c(0.7, 1.0, 3)), 4)
    0.511
    """
    return c_for_emitted(expected_emitted(alpha, kappa), s, kappa, verify, coverage, overhead)


def c_for_emitted(
    emitted: npt.ArrayLike,
    s: npt.ArrayLike,
    kappa: npt.ArrayLike,
    verify: npt.ArrayLike = 1.0,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    r"""The draft cost at which a source that emits E per drafted step gives a speedup of s; E from any description.

    >>> round(float(c_for_emitted(2.533, 1.0, 3)), 4)
    0.511
    """
    g, k = checked_probability("coverage", coverage), checked_kappa(kappa)
    s = checked_between("speedup", s, np.finfo(float).tiny, np.inf)
    emitted = checked_between("emitted tokens", emitted, 1.0, np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        cost = (1.0 + g * (emitted - 1.0)) / s
        c = ((cost - 1.0 - np.asarray(overhead)) / g - (np.asarray(verify) - 1.0)) / k
        slack = _ROUNDING * (cost + np.asarray(verify)) / (g * k)
        return np.where((k > 0) & (g > 0) & (c >= -slack), np.maximum(c, 0.0), np.nan)


def coverage_for_speedup(
    s: npt.ArrayLike,
    emitted: npt.ArrayLike,
    kappa: npt.ArrayLike,
    c: npt.ArrayLike = 0.0,
    verify: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    r"""Share of the steps in which a source must offer a draft to give a speedup of s.

    .. math:: \gamma = \frac{s(1 + o) - 1}{(E - 1) - s(\kappa c + v - 1)}

    Parameters
    ----------
    s : array_like
        Speedup to reach: that of a dense draft gives the coverage at which a sparse matcher ties with it.
    emitted : array_like
        E given a draft, from any description of acceptance.
    kappa, c, verify, overhead : array_like
        The sparse source, as in `specplan.formulas.speedup.speedup`.

    Returns
    -------
    ndarray
        Coverage in [0, 1]; NaN where even a draft in every step does not reach s (or every coverage gives it).

    Examples
    --------
    >>> round(float(coverage_for_speedup(speedup(0.7, 3, 0.0177801), expected_emitted(0.9, 3), 3)), 3)
    0.576
    """
    s = checked_between("speedup", s, 0.0, np.inf)
    per_draft = checked_between("emitted tokens", emitted, 1.0, np.inf) - 1.0
    extra_cost = step_cost(kappa, c, verify) - 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted, slope = s * (1.0 + np.asarray(overhead)), per_draft - s * extra_cost
        coverage = (wanted - 1.0) / slope
        slack = _ROUNDING * (1.0 + (wanted + 1.0) / np.abs(slope))  # what is left of the digits after two differences
        inside = (coverage >= -slack) & (coverage <= 1.0 + slack)
    return np.where(inside, np.clip(coverage, 0.0, 1.0), np.nan)


def break_even_alpha(
    kappa: npt.ArrayLike,
    c: npt.ArrayLike,
    verify: npt.ArrayLike = 1.0,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    r"""Acceptance alpha at which speculation neither wins nor loses: the contour of speedup 1.

    .. math:: E(\alpha, \kappa) = 1 + \kappa c

    Returns
    -------
    ndarray
        alpha in [0, 1]; NaN where even alpha 1 loses (c above 1 in the closed form).

    Notes
    -----
    At kappa 1 it equals c; at larger kappa it is larger. Some kappa pays if and only if alpha > c (Leviathan et al.
    2023, Corollary 3.9).

    Examples
    --------
    >>> round(float(break_even_alpha(1, 0.164664)), 6)
    0.164664
    >>> round(float(break_even_alpha(3, 0.0177801)), 4)
    0.0506
    """
    return contour_alpha(c, 1.0, kappa, verify, coverage, overhead)


def free_draft_tie(
    alpha: npt.ArrayLike,
    kappa: npt.ArrayLike,
    c: npt.ArrayLike,
    verify: npt.ArrayLike = 1.0,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
    *,
    free_verify: npt.ArrayLike = 1.0,
    free_coverage: npt.ArrayLike = 1.0,
) -> FloatArray:
    r"""alpha-dagger: the acceptance at which a free draft of the same length is worth as much as this one.

    .. math:: E(\alpha^\dagger, \kappa) = \frac{E(\alpha, \kappa)}{1 + \kappa c}

    It is where the indifference curve through (alpha, c) meets c = 0.

    Parameters
    ----------
    alpha, kappa, c, verify, coverage, overhead : array_like
        The draft, as in `specplan.formulas.speedup.speedup`.
    free_verify, free_coverage : array_like
        The same for the free source: what its verification costs (a free draft still pays it) and how often it drafts.

    Returns
    -------
    ndarray
        alpha-dagger in [0, 1]; NaN where the draft loses to plain decoding (any free draft is better) or where its
        coverage keeps the free source from reaching the tie.

    Notes
    -----
    Source: chapter, "Solving E(alpha, 3) = 2.4047 for the free-draft tie".

    Examples
    --------
    >>> round(float(free_draft_tie(0.7, 3, 0.0177801)), 4), round(float(free_draft_tie(0.7, 3, 0.164664)), 4)
    (0.6659, 0.4304)
    >>> [round(float(free_draft_tie(0.7, k, 0.165)), 3) for k in (1, 3, 7)]
    [0.459, 0.43, 0.314]
    """
    s = speedup(alpha, kappa, c, verify, coverage, overhead)
    return contour_alpha(0.0, s, kappa, free_verify, free_coverage)
