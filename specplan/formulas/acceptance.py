r"""Acceptance: what it is, how it is estimated from steps, and what engines and papers call it.

alpha is the probability that a drafted token is accepted given that it was reached. For one pair of distributions it is
`overlap`; over many steps it is estimated by

- `alpha_estimate`: accepted / tested positions, the maximum-likelihood estimate of a censored geometric law;
- `overlap_estimate`: the mean overlap at the reached positions, the same quantity with less variance;
- `conditional_estimates`, `marginal_estimates`: one per position; `hit_estimate`, `continuation_estimate`: a
  matcher's two;
- `coverage_estimate`, `emitted_estimate`, `emitted_given_draft_estimate`: the share of steps with a draft, and E over
  all steps and over those.

All take one array entry per step and the request it belongs to. Steps of a request are alike, so intervals come from
the spread between requests, never from the number of steps.

The second half translates vLLM's `mean_acceptance_length`, `pooled_rate` and per-position rates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.formulas.emitted import checked_between, checked_kappa, checked_probability, expected_emitted
from specplan.formulas.indifference import alpha_for_emitted
from specplan.formulas.student import student_quantile

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def overlap(p: npt.ArrayLike, q: npt.ArrayLike) -> FloatArray:
    r"""Probability that a token drawn from q is accepted against p by the standard rule.

    .. math:: \sum_v \min(p(v), q(v)) = 1 - \mathrm{TV}(p, q)

    Parameters
    ----------
    p, q : array_like, shape (..., V)
        Distributions over the last axis; they broadcast.

    Returns
    -------
    ndarray, shape (...)
        In [0, 1].

    Notes
    -----
    Its mean over the positions that are reached is alpha. A draft that was chosen, not sampled, has a one-hot q: the
    overlap is then p of the drafted token. Source: Leviathan et al. 2023 (arXiv 2211.17192), Theorem 3.5.

    Examples
    --------
    >>> float(overlap([0.5, 0.25, 0.25], [0.25, 0.25, 0.5]))
    0.75
    """
    a, b = checked_probability("p", p), checked_probability("q", q)
    return np.asarray(np.minimum(a, b).sum(axis=-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A ratio of sums over requests, with its confidence interval.

    Attributes
    ----------
    value : float
        Sum of numerators over sum of denominators; NaN without any.
    low, high : float
        Ends of the interval; NaN for fewer than two requests, whose spread is unknown.
    standard_error : float
        Of `value`, from the spread between requests.
    count : float
        Sum of denominators: positions, or steps.
    requests : int
        Requests that contribute.
    confidence : float
        Probability with which such intervals cover the truth.
    """

    value: float
    low: float
    high: float
    standard_error: float
    count: float
    requests: int
    confidence: float = 0.95


def ratio_estimate(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike,
    request: npt.ArrayLike,
    *,
    proportion: bool = True,
    confidence: float = 0.95,
) -> Estimate:
    r"""Ratio of two sums over steps, with an interval that takes requests, not steps, as independent.

    With :math:`y_c, x_c` the sums over request c of C requests,

    .. math::

        R = \frac{\sum_c y_c}{\sum_c x_c}, \qquad
        \mathrm{se}^2 = \frac{C}{C-1}\,\frac{\sum_c (y_c - R\,x_c)^2}{(\sum_c x_c)^2}

    Parameters
    ----------
    numerator, denominator : array_like, shape (n,)
        One entry per step.
    request : array_like of int, shape (n,)
        Which request each step belongs to.
    proportion : bool
        Whether the ratio lies in [0, 1]; its interval is then formed on the logit scale and stays inside.
    confidence : float
        In (0, 1).

    Returns
    -------
    Estimate
        The interval uses Student's t with C - 1 degrees of freedom. Where a proportion is 0 or 1 in every request, the
        exact binomial bound for C independent requests stands in, which is wide on purpose; where all requests show
        one other proportion, the binomial variance does.

    Notes
    -----
    Requests without a denominator do not count. Source: the linearised variance of a ratio in cluster sampling
    (Cochran, Sampling Techniques, 6.3 and 9A.7).

    Examples
    --------
    >>> e = ratio_estimate([2, 1, 3, 0], [3, 2, 3, 1], [0, 0, 1, 2])
    >>> round(e.value, 4), e.requests, round(e.low, 3), round(e.high, 3)
    (0.6667, 3, 0.07, 0.982)
    """
    y, x = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    codes = np.asarray(request)
    if y.ndim != 1 or y.shape != x.shape or codes.shape != y.shape:
        raise InputError(f"steps: expected arrays of one length, got shapes {y.shape}, {x.shape} and {codes.shape}")
    if not (np.isfinite(y).all() and np.isfinite(x).all()):
        raise InputError("steps: numerators and denominators must be finite")
    _, index = np.unique(codes, return_inverse=True)
    y_c, x_c = np.bincount(index, y), np.bincount(index, x)
    y_c, x_c = y_c[x_c > 0], x_c[x_c > 0]
    if not len(x_c):
        return _estimate(np.nan, np.nan, 0.0, 0, proportion, confidence)
    value = float(y_c.sum() / x_c.sum())
    return _estimate(value, float(((y_c - value * x_c) ** 2).sum()), float(x_c.sum()), len(x_c), proportion, confidence)


def ratio_estimate_of_sums(
    *, requests: int, y: float, x: float, yy: float, xy: float, xx: float, confidence: float = 0.95
) -> Estimate:
    """`ratio_estimate` of a proportion from sums over requests, which add up over files and runs.

    Parameters
    ----------
    requests : int
        Requests with x > 0.
    y, x, yy, xy, xx : float
        Sums over requests of numerators, denominators, and their products (`Clusters` of `specplan.records`).

    Examples
    --------
    >>> e = ratio_estimate_of_sums(requests=3, y=6, x=9, yy=18, xy=24, xx=35)
    >>> e == ratio_estimate([2, 1, 3, 0], [3, 2, 3, 1], [0, 0, 1, 2])
    True
    """
    if requests == 0:
        return _estimate(np.nan, np.nan, 0.0, 0, True, confidence)
    value = y / x
    spread = max(0.0, yy - 2.0 * value * xy + value * value * xx)
    return _estimate(value, spread, float(x), requests, True, confidence)


def _estimate(value: float, spread: float, count: float, n: int, proportion: bool, confidence: float) -> Estimate:
    """Interval of a ratio whose squared residuals over n requests sum to `spread`."""
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence: expected a number between 0 and 1, got {confidence}")
    if n < 2:
        return Estimate(
            value=value, low=np.nan, high=np.nan, standard_error=np.nan, count=count, requests=n, confidence=confidence
        )
    if proportion and 0.0 < value < 1.0 and spread <= 1e-9 * count:
        # All requests show one ratio, which tells no spread: each position is taken as a coin of its own instead.
        spread = value * (1.0 - value) * count * (n - 1) / n
    error = float(np.sqrt(spread * n / (n - 1)) / count)
    tail = (1.0 - confidence) / 2.0
    reach = -student_quantile(n - 1, tail) * error
    low, high = value - reach, value + reach
    if proportion and value in (0.0, 1.0):
        far = float(-np.expm1(np.log(tail) / n))  # 1 - tail**(1/n)
        low, high = (0.0, far) if value == 0.0 else (1.0 - far, 1.0)
    elif proportion and 0.0 < value < 1.0:
        width = reach / (value * (1.0 - value))
        odds = np.log(value) - np.log1p(-value)
        low, high = (float(1.0 / (1.0 + np.exp(-(odds + side * width)))) for side in (-1.0, 1.0))
    return Estimate(
        value=value, low=low, high=high, standard_error=error, count=count, requests=n, confidence=confidence
    )


def positions_tested(accepted: npt.ArrayLike, drafted: npt.ArrayLike) -> IntArray:
    """Positions of a chain with a verdict: up to and including the first rejection.

    >>> positions_tested([0, 2, 3, 0], [3, 3, 3, 0]).tolist()
    [1, 3, 3, 0]
    """
    a, d = _accepted_of(accepted, "drafted", drafted)
    return a + (a < d)


def _accepted_of(accepted: npt.ArrayLike, name: str, of: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    """Accepted tokens, and the positions they are among (`tested` or `drafted`): nowhere more than these."""
    a, n = _counts("accepted", accepted), _counts(name, of)
    if a.shape == n.shape and (a > n).any():
        i = int(np.flatnonzero(a > n)[0])
        raise InputError(f"accepted {a[i]} exceeds {name} {n[i]} at step {i}")
    return a, n


def _counts(name: str, values: npt.ArrayLike) -> IntArray:
    a = np.asarray(values)
    if a.size and (a.dtype.kind not in "iub" or a.min() < 0):
        raise InputError(f"{name}: expected whole numbers of at least 0")
    return a.astype(np.int64)


def alpha_estimate(
    accepted: npt.ArrayLike, tested: npt.ArrayLike, request: npt.ArrayLike, *, confidence: float = 0.95
) -> Estimate:
    r"""Acceptance alpha from steps: accepted positions over tested positions.

    .. math:: \hat\alpha = \frac{\sum \mathrm{accepted}}{\sum \mathrm{tested}}

    Parameters
    ----------
    accepted : array_like of int, shape (n,)
        Drafted tokens accepted in each step, the bonus token excluded.
    tested : array_like of int, shape (n,)
        Positions with a verdict (`positions_tested` of a chain; `StepColumns.tested`).
    request : array_like of int, shape (n,)
        Which request each step belongs to.

    Returns
    -------
    Estimate
        `count` is the number of tested positions.

    Notes
    -----
    Maximum likelihood when each position accepts with one probability and a draft that is accepted whole is censored.
    Where acceptance changes with the position it is the mean over the positions that were reached: see
    `conditional_estimates`. It is not accepted / drafted.

    Examples
    --------
    >>> alpha_estimate([2, 0, 3], [3, 1, 3], [0, 0, 1]).value
    0.7142857142857143
    """
    a, t = _accepted_of(accepted, "tested", tested)
    return ratio_estimate(a, t, request, confidence=confidence)


def overlap_estimate(
    overlaps: Iterable[Sequence[float] | None], request: npt.ArrayLike, *, confidence: float = 0.95
) -> Estimate:
    r"""Acceptance alpha from the overlaps at the reached positions: the count's estimand without the coins' noise.

    .. math:: \hat\alpha = \frac{\sum_{\text{reached}} \sum_v \min(p, q)}{\#\text{reached}}

    Parameters
    ----------
    overlaps : iterable of (sequence of float or None)
        Per step, the overlap at each reached position (`StepRecord.overlap`); None for steps without distributions.
    request : array_like of int, shape (n,)
        Which request each step belongs to.

    Returns
    -------
    Estimate
        `count` is the number of reached positions.

    Notes
    -----
    Given the past, a position that is reached accepts with probability equal to its overlap, so both estimates have
    one expectation; replacing a coin by its probability removes its variance (Rao-Blackwell).

    Examples
    --------
    >>> overlap_estimate([(0.9, 0.5), (0.4,), None], [0, 1, 1]).value
    0.6
    """
    rows = list(overlaps)
    for row in rows:
        if row is not None:
            checked_between("overlaps", row, 0.0, 1.0 + 1e-4)  # sums of float32 probabilities may pass 1
    sums = [sum(row) if row is not None else 0.0 for row in rows]
    reached = [len(row) if row is not None else 0 for row in rows]
    return ratio_estimate(sums, reached, request, confidence=confidence)


def conditional_estimates(
    accepted: npt.ArrayLike, tested: npt.ArrayLike, request: npt.ArrayLike, *, confidence: float = 0.95
) -> tuple[Estimate, ...]:
    r"""Acceptance at each position given that it was reached: a hazard.

    .. math:: \hat h_i = \frac{\#\{\mathrm{accepted} > i\}}{\#\{\mathrm{tested} > i\}}

    Parameters
    ----------
    accepted, tested, request : array_like, shape (n,)
        As in `alpha_estimate`.

    Returns
    -------
    tuple of Estimate
        One per position 0, 1, ... that was reached at all.

    Notes
    -----
    `specplan.formulas.emitted.expected_emitted_hazard` turns them into E. With drafts of many lengths, a position is
    only tested in drafts that are long enough: for matchers, whose long drafts are the good ones, later values rise.

    Examples
    --------
    >>> [e.value for e in conditional_estimates([2, 0, 3], [3, 1, 3], [0, 0, 1])]
    [0.6666666666666666, 1.0, 0.5]
    """
    a, t = _accepted_of(accepted, "tested", tested)
    positions = range(int(t.max(initial=0)))
    return tuple(ratio_estimate(a > i, t > i, request, confidence=confidence) for i in positions)


def marginal_estimates(
    accepted: npt.ArrayLike, drafted: npt.ArrayLike, request: npt.ArrayLike, *, confidence: float = 0.95
) -> tuple[Estimate, ...]:
    r"""Probability that a step with a draft accepts more than i tokens: vLLM's per-position acceptance rate.

    .. math:: \hat s_i = \frac{\#\{\mathrm{accepted} > i\}}{\#\{\mathrm{drafted} > 0\}}

    Parameters
    ----------
    accepted, drafted, request : array_like, shape (n,)
        Per step.

    Returns
    -------
    tuple of Estimate
        One per drafted position; 1 plus their sum is E given a draft.

    Examples
    --------
    >>> [round(e.value, 3) for e in marginal_estimates([2, 0, 3, 0], [3, 3, 3, 0], [0, 0, 1, 1])]
    [0.667, 0.667, 0.333]
    """
    a, d = _accepted_of(accepted, "drafted", drafted)
    positions = range(int(d.max(initial=0)))
    return tuple(ratio_estimate((a > i) & (d > 0), d > 0, request, confidence=confidence) for i in positions)


def hit_estimate(
    accepted: npt.ArrayLike, tested: npt.ArrayLike, request: npt.ArrayLike, *, confidence: float = 0.95
) -> Estimate:
    """Acceptance of the first drafted token, given a draft.

    >>> hit_estimate([2, 0, 3], [3, 1, 3], [0, 0, 1]).value
    0.6666666666666666
    """
    a, t = _accepted_of(accepted, "tested", tested)
    return ratio_estimate(a > 0, t > 0, request, confidence=confidence)


def continuation_estimate(
    accepted: npt.ArrayLike, tested: npt.ArrayLike, request: npt.ArrayLike, *, confidence: float = 0.95
) -> Estimate:
    """Acceptance of the drafted tokens after the first, given that they were reached.

    >>> continuation_estimate([2, 0, 3], [3, 1, 3], [0, 0, 1]).value
    0.75
    """
    a, t = _accepted_of(accepted, "tested", tested)
    return ratio_estimate(np.maximum(a - 1, 0), np.maximum(t - 1, 0), request, confidence=confidence)


def coverage_estimate(drafted: npt.ArrayLike, request: npt.ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """Share of the steps in which the source offers a draft.

    >>> coverage_estimate([3, 0, 3, 0], [0, 0, 1, 1]).value
    0.5
    """
    d = _counts("drafted", drafted)
    return ratio_estimate(d > 0, np.ones(d.shape), request, confidence=confidence)


def emitted_estimate(emitted: npt.ArrayLike, request: npt.ArrayLike, *, confidence: float = 0.95) -> Estimate:
    """E over all steps: emitted tokens per target pass, with or without a draft.

    >>> emitted_estimate([3, 1, 4, 1], [0, 0, 1, 1]).value
    2.25
    """
    n = _counts("emitted", emitted)
    return ratio_estimate(n, np.ones(n.shape), request, proportion=False, confidence=confidence)


def emitted_given_draft_estimate(
    emitted: npt.ArrayLike, drafted: npt.ArrayLike, request: npt.ArrayLike, *, confidence: float = 0.95
) -> Estimate:
    """E given a draft: emitted tokens per target pass that verified something; vLLM's mean acceptance length.

    >>> emitted_given_draft_estimate([3, 1, 4, 1], [3, 0, 3, 0], [0, 0, 1, 1]).value
    3.5
    """
    n, d = _counts("emitted", emitted), _counts("drafted", drafted)
    return ratio_estimate(np.where(d > 0, n, 0), d > 0, request, proportion=False, confidence=confidence)


def _quotient(numerator: npt.ArrayLike, denominator: npt.ArrayLike) -> FloatArray:
    y, x = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x > 0, y / x, np.nan)


def mean_acceptance_length(accepted_tokens: npt.ArrayLike, drafts: npt.ArrayLike) -> FloatArray:
    r"""Mean acceptance length of vLLM: E given a draft, the bonus token included.

    .. math:: 1 + A / D

    Parameters
    ----------
    accepted_tokens : array_like
        A: ``vllm:spec_decode_num_accepted_tokens``.
    drafts : array_like
        D: ``vllm:spec_decode_num_drafts``, the request-steps with at least one scheduled draft token; NaN comes out
        where it is 0.

    Notes
    -----
    Steps without a draft are not in D, so this is not E over all steps: `emitted_over_all_steps` of
    `specplan.formulas.emitted` needs the coverage too. vLLM's V2 n-gram pads every step to k tokens, and its D counts
    all steps. Source: vLLM 0.32, ``v1/spec_decode/metrics.py``.

    Examples
    --------
    >>> round(float(mean_acceptance_length(1226, 1986)), 2)
    1.62
    """
    return 1.0 + _quotient(accepted_tokens, drafts)


def pooled_rate(accepted_tokens: npt.ArrayLike, drafted_tokens: npt.ArrayLike) -> FloatArray:
    r"""Accepted over drafted tokens: vLLM's "Avg Draft acceptance rate" (as a fraction). Not alpha.

    .. math:: A / N

    >>> round(float(pooled_rate(1292, 2082)), 3)
    0.621
    """
    return _quotient(accepted_tokens, drafted_tokens)


def pooled_rate_of_alpha(alpha: npt.ArrayLike, kappa: npt.ArrayLike) -> FloatArray:
    r"""Accepted over drafted tokens when every position accepts with alpha and every draft has kappa tokens.

    .. math:: (E(\alpha, \kappa) - 1) / \kappa

    Source: vLLM 0.32's draft acceptance rate (fact sheet, section 6.1).

    Examples
    --------
    >>> round(float(pooled_rate_of_alpha(0.7, 3)), 3)
    0.511
    """
    return _quotient(expected_emitted(alpha, kappa) - 1.0, checked_kappa(kappa))


def alpha_of_mean_acceptance_length(length: npt.ArrayLike, kappa: npt.ArrayLike) -> FloatArray:
    """Constant alpha with which drafts of kappa tokens give this E given a draft; NaN where none does.

    >>> round(float(alpha_of_mean_acceptance_length(2.533, 3)), 6)
    0.7
    """
    return alpha_for_emitted(length, kappa)


def conditionals_of_marginals(rates: npt.ArrayLike) -> FloatArray:
    r"""Conditional acceptances from vLLM's per-position rates.

    .. math:: h_i = s_i / s_{i-1}, \quad s_{-1} = 1

    Parameters
    ----------
    rates : array_like, shape (..., kappa)
        Probability that the first i + 1 tokens are all accepted, given a draft; not increasing.

    Returns
    -------
    ndarray, shape (..., kappa)
        NaN behind a rate of 0, where nothing was reached. `specplan.formulas.emitted.survival` is the way back.

    Notes
    -----
    Exact where every draft is at least as long as the position; a source with shorter drafts looks worse than it is.

    Examples
    --------
    >>> conditionals_of_marginals([0.8, 0.56, 0.28]).round(12).tolist()
    [0.8, 0.7, 0.5]
    """
    s = np.atleast_1d(checked_probability("per-position rates", rates))
    before = np.concatenate([np.ones((*s.shape[:-1], 1)), s[..., :-1]], axis=-1)
    if (s > before).any():
        raise InputError(f"per-position rates must not increase, got {s.tolist()}")
    return _quotient(s, before)
