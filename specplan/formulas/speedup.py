r"""Speedup of speculative decoding: tokens emitted per step over the cost of a step in units of one plain decode step.

.. math:: s = \frac{E}{1 + \kappa c}

is the chapter's closed form. Beyond it, a covered step costs :math:`\kappa c + v`, where v is the verify factor (cost
of a target pass over kappa + 1 positions, relative to one; 1 in the closed form), a step without a draft costs 1, and
every step may pay a fixed overhead (a lookup that is made whether or not it finds something).

Source: chapter "Draft sources", first paragraph; Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.8.
"""

import numpy as np
import numpy.typing as npt

from specplan.formulas.emitted import (
    FloatArray,
    checked_between,
    checked_kappa,
    checked_probability,
    checked_weights,
    expected_emitted,
)
from specplan.formulas.student import student_quantile


def step_cost(
    kappa: npt.ArrayLike,
    c: npt.ArrayLike,
    verify: npt.ArrayLike = 1.0,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    r"""Mean cost of a step in units of one plain decode step.

    .. math:: 1 + \gamma(\kappa c + v - 1) + o

    Parameters
    ----------
    kappa : array_like of int
        Drafted tokens per covered step, at least 0.
    c : array_like
        Time of one draft step over time of one target step, at least 0.
    verify : array_like
        v: time of the target pass over kappa + 1 positions over that of one position, above 0; 1 while verification is
        hidden under reading the weights.
    coverage : array_like
        :math:`\gamma`: share of the steps that carry a draft, in [0, 1].
    overhead : array_like
        o: what every step pays on top, drafted or not, at least 0.

    Examples
    --------
    >>> round(float(step_cost(3, 0.0177801)), 7)
    1.0533403
    """
    g = checked_probability("coverage", coverage)
    drafted = checked_kappa(kappa) * checked_between("c", c, 0.0, np.inf)
    drafted = drafted + checked_between("verify factor", verify, np.finfo(float).tiny, np.inf)
    if g.ndim == 0 and g == 1.0:
        return drafted + checked_between("overhead", overhead, 0.0, np.inf)
    return 1.0 + g * (drafted - 1.0) + checked_between("overhead", overhead, 0.0, np.inf)


def speedup(
    alpha: npt.ArrayLike,
    kappa: npt.ArrayLike,
    c: npt.ArrayLike,
    verify: npt.ArrayLike = 1.0,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    r"""Speedup over plain decoding at constant acceptance.

    .. math:: s(\alpha, \kappa, c) = \frac{1 + \gamma(E(\alpha,\kappa) - 1)}{1 + \gamma(\kappa c + v - 1) + o}

    With coverage 1, v = 1 and no overhead this is the chapter's :math:`E/(1+\kappa c)`.

    Parameters
    ----------
    alpha : array_like
        Conditional acceptance per position, in [0, 1].
    kappa, c, verify, coverage, overhead : array_like
        As in `step_cost`. Everything broadcasts; E is computed on the shape of alpha and kappa alone, so a grid given
        as a column of alphas and a row of cs costs one division per cell.

    Returns
    -------
    ndarray
        Tokens per unit of time relative to plain decoding, above 0; below 1 speculation loses.

    Notes
    -----
    Assumes independent acceptance and times that add up (no overlap of drafting with verification). Not counted:
    requests that finish inside a step.

    Examples
    --------
    >>> round(float(speedup(0.7, 3, 0.0177801)), 4), round(float(speedup(0.7, 3, 0.164664)), 4)
    (2.4047, 1.6955)
    """
    g = checked_probability("coverage", coverage)
    emitted = expected_emitted(alpha, kappa)
    if not (g.ndim == 0 and g == 1.0):
        emitted = 1.0 + g * (emitted - 1.0)
    return emitted / step_cost(kappa, c, verify, g, overhead)


def length_step_cost(
    length_weights: npt.ArrayLike, c: npt.ArrayLike, verify: npt.ArrayLike = 1.0, overhead: npt.ArrayLike = 0.0
) -> FloatArray:
    r"""Mean cost of a step whose draft length varies.

    .. math:: \sum_k w_k (k c + v_k) + o, \quad v_0 = 1

    Parameters
    ----------
    length_weights : array_like, shape (..., K + 1)
        Probability of drafting 0, 1, ..., K tokens.
    c : array_like
        As in `step_cost`; broadcasts against the leading axes.
    verify : array_like, scalar or shape (..., K + 1)
        :math:`v_k` for each draft length. A step that drafts nothing is a plain step and costs 1, whatever is given.
    overhead : array_like
        As in `step_cost`.

    Examples
    --------
    >>> round(float(length_step_cost([0.5, 0.0, 0.5], 0.1, [1.0, 1.1, 1.2])), 12)
    1.2
    """
    w = checked_weights("length weights", length_weights)
    k = np.arange(w.shape[-1])
    v = np.where(k == 0, 1.0, checked_between("verify factor", verify, np.finfo(float).tiny, np.inf))
    mean_length = (w * k).sum(axis=-1)
    cost: FloatArray = mean_length * checked_between("c", c, 0.0, np.inf) + (w * v).sum(axis=-1)
    return cost + checked_between("overhead", overhead, 0.0, np.inf)


def verify_factor(positions: npt.ArrayLike, plain_positions: npt.ArrayLike, ridge: npt.ArrayLike) -> FloatArray:
    r"""v: cost of a pass over many positions relative to a plain pass, on a roofline with one ridge.

    .. math:: v = \frac{\max(1, B(\kappa+1)/R)}{\max(1, B/R)}

    Parameters
    ----------
    positions : array_like
        :math:`B(\kappa+1)`: positions that the verify pass computes, or B times the node budget of a tree.
    plain_positions : array_like
        B: positions of the plain decode pass.
    ridge : array_like
        R: positions at which computing takes as long as reading the weights, above 0 (295 on an H100 in bf16).

    Returns
    -------
    ndarray
        1 below the ridge, then rising in proportion.

    Notes
    -----
    Weights alone: reading the cached keys and values adds the same to both passes and pulls v towards 1.
    Source: chapter, "the cost is kappa+1 verified positions against the roofline ridge of 295".

    Examples
    --------
    >>> round(float(verify_factor(16 * 25, 16, 295)), 3), float(verify_factor(8 * 4, 8, 295))
    (1.356, 1.0)
    """
    ridge = checked_between("ridge", ridge, np.finfo(float).tiny, np.inf)
    wide = np.maximum(1.0, checked_between("positions", positions, 0.0, np.inf) / ridge)
    return wide / np.maximum(1.0, checked_between("positions", plain_positions, 0.0, np.inf) / ridge)


def ridge_batch(kappa: npt.ArrayLike, ridge: npt.ArrayLike) -> FloatArray:
    r"""Batch at which the verified positions cross the ridge: beyond it verification is no longer hidden.

    .. math:: B = \frac{R}{\kappa + 1}

    >>> round(float(ridge_batch(24, 295)), 1)
    11.8
    """
    return checked_between("ridge", ridge, np.finfo(float).tiny, np.inf) / (checked_kappa(kappa) + 1.0)


def paired_speedup(
    tokens: npt.ArrayLike,
    seconds: npt.ArrayLike,
    plain_tokens: npt.ArrayLike,
    plain_seconds: npt.ArrayLike,
    confidence: float = 0.95,
    strata: npt.ArrayLike | None = None,
) -> tuple[float, float, float]:
    r"""Speedup of requests that ran with and without speculation, with its interval: (value, low, high).

    .. math:: s = \frac{\sum T_r / \sum t_r}{\sum T^0_r / \sum t^0_r}

    Parameters
    ----------
    tokens, seconds, plain_tokens, plain_seconds : array_like, shape (requests,)
        Emitted tokens and step time of each request with speculation, and without; seconds above 0.
    confidence : float
        Of the interval.
    strata : array_like, shape (requests,), optional
        Kind of each request, where the mix of kinds is given: how kinds differ is then no part of the interval.

    Returns
    -------
    tuple of float
        The ends are NaN where there are fewer than two requests of a kind. They come from leaving out one request at a
        time (jackknife of log s, Student's t with one degree of freedom less than requests for each kind): requests
        differ, and the speed of the machine while a pair of them ran falls on both of its halves.

    Examples
    --------
    >>> value, low, high = paired_speedup([10, 20, 30], [1.0, 2.1, 2.9], [10, 20, 30], [2.0, 4.0, 6.0])
    >>> round(value, 2), low < 2.0 < high
    (2.0, True)
    """
    columns = [np.asarray(x, dtype=np.float64) for x in (tokens, seconds, plain_tokens, plain_seconds)]
    n = columns[0].size
    if n == 0:
        return np.nan, np.nan, np.nan
    sums = np.array([x.sum() for x in columns])
    value = float(sums[0] / sums[1] * sums[3] / sums[2])
    kinds, kind = np.unique(np.zeros(n) if strata is None else np.asarray(strata), return_inverse=True)
    counts = np.bincount(kind)
    if counts.min() < 2:
        return value, np.nan, np.nan
    data = np.array(columns)
    of_kind = np.stack([data[:, kind == k].sum(axis=1) for k in range(kinds.size)], axis=1)[:, kind]
    others = (of_kind - data) * counts[kind] / (counts[kind] - 1)  # what is left of a kind stands for all of it
    left = sums[:, None] - of_kind + others
    logs = np.log(left[0] / left[1] * left[3] / left[2])
    means = np.bincount(kind, logs) / counts
    error = float(np.sqrt(np.sum((1 - 1 / counts[kind]) * (logs - means[kind]) ** 2)))
    reach = student_quantile(n - kinds.size, (1 + confidence) / 2) * error
    return value, value * float(np.exp(-reach)), value * float(np.exp(reach))
