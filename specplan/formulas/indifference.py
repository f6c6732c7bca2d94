r"""Contours of equal speedup on the (alpha, c) plane, break-even, and ties between sources.

Everything here rearranges one equation, the speedup of `specplan.formulas.speedup`:

.. math:: 1 + \gamma(E - 1) = s\,\bigl(1 + \gamma(\kappa c + v - 1) + o\bigr)

It is linear in c, in the coverage and in E; only the step from E to an acceptance needs a solver (`alpha_for_emitted`),
a Newton iteration on 1/E that converges from one side in a few steps for every kappa. Arrays answer NaN where no
acceptance in [0, 1] or no cost of at least 0 gives the value asked for.

Source: chapter "Draft sources", the paragraphs on contours, the indifference curve and the free-draft tie.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.formulas.emitted import (
    FloatArray,
    IntArray,
    checked_between,
    checked_kappa,
    checked_probability,
    emitted_and_slope,
    expected_emitted,
)
from specplan.formulas.speedup import speedup, step_cost

_CHUNK: Final = 1 << 14  # elements per pass of the solver: its temporaries stay in the cache
_MAX_STEPS: Final = 60  # Newton needs about 6; a bound, so that nothing can loop for ever
_ROUNDING: Final = 8 * np.finfo(np.float64).eps  # a tie at alpha 0 or 1, or at c 0, is reached in spite of roundings


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
    one_kappa = k.size > 0 and k.strides == (0,) * k.ndim  # a broadcast scalar: Horner's rule applies
    for start in range(0, flat_e.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        flat_out[part] = _newton_chunk(flat_e[part], flat_k[:1] if one_kappa else flat_k[part])
    return out


def _newton_chunk(e: FloatArray, k: IntArray) -> FloatArray:
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
    g = checked_probability("coverage", coverage)
    s = checked_between("speedup", s, 0.0, np.inf)
    all_steps = s * step_cost(kappa, c, verify, g, overhead)
    if g.ndim == 0 and g == 1.0:
        return all_steps
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(g > 0, 1.0 + (all_steps - 1.0) / g, np.nan)


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
        return np.where((k > 0) & (g > 0) & (c >= -_ROUNDING), np.maximum(c, 0.0), np.nan)


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
