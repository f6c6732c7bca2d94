r"""E: tokens a speculative step is expected to emit, the bonus or recovered token included.

One form for each way to describe acceptance:

- `expected_emitted`: one conditional acceptance :math:`\alpha` at every position;
- `expected_emitted_hazard`: a vector of conditional acceptances, one per position (a hazard);
- `expected_emitted_hit`: a matcher that hits with one probability and then continues with another;
- `expected_emitted_lengths`: any of them under a distribution of draft lengths;
- `emitted_over_all_steps`, `emitted_of_drafted_steps`, `mixture_yield`: a source that offers a draft in only a share
  of the steps.

All are sums of non-negative terms evaluated by Horner's rule, so no digit is lost near :math:`\alpha = 1`, where the
quotient :math:`(1-\alpha^{\kappa+1})/(1-\alpha)` loses all of them.

Source: chapter "Draft sources", first paragraph and last code block; Leviathan et al. 2023 (arXiv 2211.17192), Eq. 1.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

HORNER_MAX_KAPPA: Final = 32
"""Up to this draft length one multiply-add per token is used; beyond it, one doubling per binary digit."""


def checked_probability(name: str, values: npt.ArrayLike) -> FloatArray:
    """Values as float64, each in [0, 1]; NaN (unknown) passes through.

    >>> float(checked_probability("alpha", 0.7))
    0.7
    >>> checked_probability("alpha", [0.7, 1.2])
    Traceback (most recent call last):
    specplan.errors.InputError: alpha must lie in [0, 1], got 1.2
    """
    return checked_between(name, values, 0.0, 1.0)


def checked_between(name: str, values: npt.ArrayLike, low: float, high: float) -> FloatArray:
    """Values as float64, each in [low, high]; NaN (unknown) passes through."""
    array = np.asarray(values, dtype=np.float64)
    if array.size and not (array.min() >= low and array.max() <= high):  # NaN also comes here, and is let through
        outside = array[(array < low) | (array > high)]
        if outside.size:
            interval = f"be at least {low:g}" if high == np.inf else f"lie in [{low:g}, {high:g}]"
            raise InputError(f"{name} must {interval}, got {outside.flat[0]:g}")
    return array


def checked_kappa(kappa: npt.ArrayLike) -> IntArray:
    """Draft lengths as int64, each a whole number of at least 0.

    >>> checked_kappa(2.5)
    Traceback (most recent call last):
    specplan.errors.InputError: kappa must be whole numbers of at least 0, got 2.5
    """
    raw = np.asarray(kappa)
    if raw.dtype.kind in "iu":
        whole = raw.astype(np.int64, copy=False)
    else:
        raw = raw.astype(np.float64)
        if not np.all(np.isfinite(raw)) or np.any(raw != np.floor(raw)):
            bad = raw[~(raw == np.floor(raw)) | ~np.isfinite(raw)].flat[0]
            raise InputError(f"kappa must be whole numbers of at least 0, got {bad:g}")
        whole = raw.astype(np.int64)
    if whole.size and whole.min() < 0:
        raise InputError(f"kappa must be whole numbers of at least 0, got {whole.min()}")
    return whole


def expected_emitted(alpha: npt.ArrayLike, kappa: npt.ArrayLike) -> FloatArray:
    r"""E(alpha, kappa): expected tokens per step when every position accepts with the same conditional probability.

    .. math:: E(\alpha,\kappa) = \sum_{i=0}^{\kappa} \alpha^i = \frac{1-\alpha^{\kappa+1}}{1-\alpha}

    Parameters
    ----------
    alpha : array_like
        Probability that a drafted token is accepted given that all before it were, in [0, 1].
    kappa : array_like of int
        Drafted tokens per step, at least 0; broadcast against `alpha`.

    Returns
    -------
    ndarray
        Tokens per step, between 1 and kappa + 1.

    Raises
    ------
    InputError
        If alpha lies outside [0, 1] or kappa is not a whole number of at least 0.

    Notes
    -----
    Assumes that positions accept independently with one probability. An engine's accepted/drafted ratio is not alpha:
    at alpha 0.7 and kappa 3 that ratio is 0.511. Not counted: stop tokens that cut a step short.

    Examples
    --------
    >>> float(expected_emitted(0.7, 3))
    2.533
    >>> expected_emitted(1.0, [0, 3, 7]).tolist()
    [1.0, 4.0, 8.0]
    """
    a, k = checked_probability("alpha", alpha), checked_kappa(kappa)
    return _geometric_sum(a, k)[0]


def _geometric_sum(a: FloatArray, k: IntArray, *, slope: bool = False) -> tuple[FloatArray, FloatArray]:
    """Sum of a**0 ... a**k and, if asked for, its derivative in `a` (else an empty array).

    Both branches only add and multiply numbers of at least 0: relative error stays within a few roundings.
    """
    if k.size == 0:
        return np.zeros(np.broadcast_shapes(a.shape, k.shape)), np.zeros(0)
    if k.min() == k.max() <= HORNER_MAX_KAPPA:
        return _horner(a, int(k.flat[0]), np.broadcast_shapes(a.shape, k.shape), slope)
    return _doubling(a, k, slope)


def _horner(a: FloatArray, k: int, shape: tuple[int, ...], slope: bool) -> tuple[FloatArray, FloatArray]:
    total = np.ones(a.shape)
    rise = np.zeros(a.shape if slope else 0)
    for _ in range(k):
        if slope:
            np.multiply(rise, a, out=rise)
            np.add(rise, total, out=rise)
        np.multiply(total, a, out=total)
        np.add(total, 1.0, out=total)
    total = total + 0.0 * a  # 0 drafted tokens still keep NaN as NaN
    return np.broadcast_to(total, shape).copy() if shape != a.shape else total, rise


def _doubling(a: FloatArray, k: IntArray, slope: bool) -> tuple[FloatArray, FloatArray]:
    """Sum of n = k + 1 powers over the binary digits of n.

    Invariant, for the digits read so far as the number m: total = a**0 + ... + a**(m-1), power = a**m, and rise and
    power_rise are their derivatives. Appending a digit 0 doubles m, a digit 1 doubles it and adds one.
    """
    a, n = np.broadcast_arrays(a, k + 1)
    total, power = np.zeros(a.shape), np.ones(a.shape)
    rise, power_rise = np.zeros(a.shape), np.zeros(a.shape)
    for digit in reversed(range(int(n.max()).bit_length())):
        if slope:
            rise = rise * (1.0 + power) + total * power_rise
            power_rise = 2.0 * power * power_rise
        total = total * (1.0 + power)
        power = power * power
        odd = (n >> digit) & 1 == 1
        if slope:
            rise = np.where(odd, total + a * rise, rise)
            power_rise = np.where(odd, power + a * power_rise, power_rise)
        total = np.where(odd, 1.0 + a * total, total)
        power = np.where(odd, a * power, power)
    return total, rise


def emitted_and_slope(alpha: npt.ArrayLike, kappa: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    r"""E(alpha, kappa) and its derivative in alpha.

    .. math:: \frac{\partial E}{\partial\alpha} = \sum_{i=1}^{\kappa} i\,\alpha^{i-1}

    >>> [float(x) for x in emitted_and_slope(0.5, 2)]
    [1.75, 2.0]
    """
    a, k = checked_probability("alpha", alpha), checked_kappa(kappa)
    total, rise = _geometric_sum(a, k, slope=True)
    return total, np.broadcast_to(rise, total.shape)


def expected_emitted_hazard(conditionals: npt.ArrayLike) -> FloatArray:
    r"""E for a vector of per-position conditional acceptances (a hazard).

    .. math:: E = 1 + h_1 (1 + h_2 (1 + \dots (1 + h_\kappa)))

    Parameters
    ----------
    conditionals : array_like, shape (..., kappa)
        :math:`h_i`: probability that position i is accepted given that it was reached, in [0, 1]. The length of the
        last axis is kappa; a constant vector gives `expected_emitted`.

    Returns
    -------
    ndarray, shape (...)
        Tokens per step.

    Notes
    -----
    Conditional, not marginal: an engine's per-position rates are running products of these. Source: Leviathan et al.
    2023, Eq. 1, without its assumption of one acceptance for all positions.

    Examples
    --------
    >>> round(float(expected_emitted_hazard([0.7, 0.7, 0.7])), 12)
    2.533
    >>> float(expected_emitted_hazard([0.5, 1.0]))
    2.0
    """
    h = np.atleast_1d(checked_probability("conditional acceptance", conditionals))
    total = np.ones(h.shape[:-1])
    for i in reversed(range(h.shape[-1])):
        total = 1.0 + h[..., i] * total
    return total


def survival(conditionals: npt.ArrayLike) -> FloatArray:
    r"""Probability that positions 0 ... kappa are emitted: the running product of a hazard, led by a 1.

    .. math:: s_i = \prod_{j \le i} h_j, \quad s_0 = 1, \quad E = \sum_i s_i

    >>> survival([0.5, 0.5]).tolist()
    [1.0, 0.5, 0.25]
    """
    h = np.atleast_1d(checked_probability("conditional acceptance", conditionals))
    return np.concatenate([np.ones((*h.shape[:-1], 1)), np.cumprod(h, axis=-1)], axis=-1)


def expected_emitted_hit(hit: npt.ArrayLike, continuation: npt.ArrayLike, kappa: npt.ArrayLike) -> FloatArray:
    r"""E of a drafted step of a matcher: the first token hits with one probability, later ones continue with another.

    .. math:: E = 1 + h\,E(r, \kappa-1) \quad (\kappa \ge 1)

    Parameters
    ----------
    hit : array_like
        h: probability that the first drafted token is accepted, in [0, 1].
    continuation : array_like
        r: probability that each later one is accepted, given that all before it were, in [0, 1].
    kappa : array_like of int
        Drafted tokens, at least 0 (0 emits one token).

    Notes
    -----
    Given that the matcher found something; `emitted_over_all_steps` adds the steps in which it did not. Matchers need
    the two rates: traces of an n-gram proposer show a first-token acceptance of 0.07 to 0.19 and then 0.56 to 0.84
    (arXiv 2601.11580, published traces).

    Examples
    --------
    >>> float(expected_emitted_hit(0.2, 0.8, 3))
    1.488
    >>> float(expected_emitted_hit(0.7, 0.7, 3)) == float(expected_emitted(0.7, 3))
    True
    """
    h, k = checked_probability("hit", hit), checked_kappa(kappa)
    return np.where(k == 0, 1.0, 1.0 + h * expected_emitted(continuation, np.maximum(k - 1, 0)))


def checked_weights(name: str, weights: npt.ArrayLike) -> FloatArray:
    """Weights over the last axis as float64: each at least 0, their sum 1 within 1e-9.

    >>> checked_weights("length weights", [0.5, 0.6])
    Traceback (most recent call last):
    specplan.errors.InputError: length weights must sum to 1 over the last axis, got 1.1
    """
    w = np.atleast_1d(checked_between(name, weights, 0.0, np.inf))
    sums = w.sum(axis=-1)
    if np.any(np.abs(sums - 1.0) > 1e-9):
        raise InputError(f"{name} must sum to 1 over the last axis, got {sums[np.abs(sums - 1.0) > 1e-9].flat[0]:g}")
    return w


def expected_emitted_lengths(conditionals: npt.ArrayLike, length_weights: npt.ArrayLike) -> FloatArray:
    r"""E when the draft length varies from step to step, independently of acceptance.

    .. math:: E = \sum_{i=0}^{K} s_i \Pr(L \ge i), \quad s_i = \prod_{j \le i} h_j

    Parameters
    ----------
    conditionals : array_like, shape (..., K) or scalar
        Hazard of positions 1 ... K, or one alpha for all of them.
    length_weights : array_like, shape (..., K + 1)
        Probability of drafting 0, 1, ..., K tokens; they sum to 1. All weight on 0 and kappa is coverage.

    Returns
    -------
    ndarray
        Tokens per step, over all steps (a length of 0 counts as a step that emits one token).

    Notes
    -----
    Suffix decoding drafts `max_spec_factor` times the match length; `factor_lengths` gives its weights.

    Examples
    --------
    >>> round(float(expected_emitted_lengths(0.7, [0, 0, 0, 1])), 12)
    2.533
    >>> round(float(expected_emitted_lengths(0.7, [0.9, 0, 0, 0.1]) - mixture_yield(0.1, 0.7, 3)), 12)
    0.0
    """
    return np.asarray(emission_coefficients(conditionals, length_weights).sum(axis=-1))


def emission_coefficients(conditionals: npt.ArrayLike, length_weights: npt.ArrayLike) -> FloatArray:
    """Probability that position i of a step is emitted, i = 0 ... K; their sum is E.

    >>> emission_coefficients(1.0, [0.25, 0.25, 0.5]).tolist()
    [1.0, 0.75, 0.5]
    """
    w = checked_weights("length weights", length_weights)
    h = np.asarray(conditionals, dtype=np.float64)
    if h.ndim == 0:
        h = np.full(w.shape[-1] - 1, float(h))
    if h.shape[-1] != w.shape[-1] - 1:
        raise InputError(
            f"{w.shape[-1]} length weights (lengths 0 to {w.shape[-1] - 1}) need {w.shape[-1] - 1} "
            f"conditional acceptances, got {h.shape[-1]}"
        )
    at_least = np.cumsum(w[..., ::-1], axis=-1)[..., ::-1]
    at_least = np.concatenate([np.ones((*w.shape[:-1], 1)), at_least[..., 1:]], axis=-1)
    return survival(h) * at_least


def factor_lengths(match_weights: npt.ArrayLike, cap: int, factor: float = 1.0, offset: float = 0.0) -> FloatArray:
    r"""Distribution of suffix decoding's draft length from that of its match length.

    .. math:: L = \min(\mathrm{cap}, \lfloor \mathrm{factor}\cdot m + \mathrm{offset} + 10^{-6} \rfloor)

    Parameters
    ----------
    match_weights : array_like, shape (M + 1,)
        Probability of a match of 0, 1, ..., M tokens (0: no match, nothing is drafted).
    cap : int
        Most tokens that the engine drafts (``num_speculative_tokens``), at least 0.
    factor, offset : float
        ``max_spec_factor`` (at least 0) and ``max_spec_offset``.

    Returns
    -------
    ndarray, shape (cap + 1,)
        Probability of drafting 0 ... cap tokens.

    Notes
    -----
    Source: Arctic Inference, suffix decoding, whose rule caps the draft. A store with too little to copy, or
    ``min_token_prob``, drafts fewer. A match drafts nothing where factor and offset leave less than one token.

    Examples
    --------
    >>> factor_lengths([0.5, 0.2, 0.2, 0.1], cap=4, factor=2.0).tolist()
    [0.5, 0.0, 0.2, 0.0, 0.30000000000000004]
    """
    w = checked_weights("match weights", match_weights)
    if w.ndim != 1:
        raise InputError(f"match weights must be one distribution, got an array of shape {w.shape}")
    if cap < 0 or factor < 0:
        raise InputError(f"cap and factor must be at least 0, got {cap} and {factor:g}")
    match = np.arange(w.size)
    length = np.floor(factor * match + offset + 1e-6)
    length = np.where(match == 0, 0, np.clip(length, 0, cap)).astype(np.int64)
    return np.asarray(np.bincount(length, weights=w, minlength=cap + 1), dtype=np.float64)


def emitted_over_all_steps(coverage: npt.ArrayLike, emitted: npt.ArrayLike) -> FloatArray:
    r"""E over all steps from E given a draft: a step without one emits one token.

    .. math:: E_{\mathrm{all}} = 1 + \gamma (E - 1)

    Parameters
    ----------
    coverage : array_like
        :math:`\gamma`: share of the steps in which the source offers a draft, in [0, 1].
    emitted : array_like
        E given a draft, at least 1; engines report it as mean acceptance length.

    Examples
    --------
    >>> round(float(emitted_over_all_steps(0.126, 1.62)), 3)
    1.078
    """
    g = checked_probability("coverage", coverage)
    return 1.0 + g * (checked_between("emitted tokens", emitted, 1.0, np.inf) - 1.0)


def emitted_of_drafted_steps(coverage: npt.ArrayLike, all_steps: npt.ArrayLike, kappa: npt.ArrayLike) -> FloatArray:
    r"""E given a draft from E over all steps: the inverse of `emitted_over_all_steps`.

    .. math:: E = 1 + \frac{E_{\mathrm{all}} - 1}{\gamma}

    Parameters
    ----------
    coverage : array_like
        :math:`\gamma`, in [0, 1].
    all_steps : array_like
        Tokens per step over all steps, of any value (a solver asks for what may be out of reach).
    kappa : array_like of int
        Draft length. A result that misses 1 or kappa + 1 by no more than the rounding of its inputs is that end.

    Returns
    -------
    ndarray
        NaN where the coverage is 0.

    Examples
    --------
    >>> round(float(emitted_of_drafted_steps(0.126, 1.078, 1)), 3)
    1.619
    """
    g = checked_probability("coverage", coverage)
    e_all = np.asarray(all_steps, dtype=np.float64)
    top = checked_kappa(kappa) + 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        e = 1.0 + (e_all - 1.0) / g
        slack = 8.0 * np.finfo(np.float64).eps * (np.abs(e_all) + top) / g
    e = np.where(np.abs(e - 1.0) <= slack, 1.0, np.where(np.abs(e - top) <= slack, top, e))
    return np.where(g > 0, e, np.nan)


def mixture_yield(coverage: npt.ArrayLike, alpha: npt.ArrayLike, kappa: npt.ArrayLike) -> FloatArray:
    """Tokens per step, over all steps, of a source with constant acceptance and partial coverage.

    Source: chapter, last code block (``mixture_yield``): a rare accurate source yields less than a common moderate one.

    >>> round(float(mixture_yield(0.1, 0.99, 3)), 5), round(float(mixture_yield(0.9, 0.7, 3)), 5)
    (1.29404, 2.3797)
    """
    return emitted_over_all_steps(coverage, expected_emitted(alpha, kappa))
