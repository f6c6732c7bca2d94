r"""Adaptive verification: how many drafted positions to verify in a step, given how likely each is to be accepted.

Request r has drafted K tokens; :math:`S(r, k)` is the probability that its first k are all accepted, so it never rises
along a request. With N requests that sample a token anyway and T tokens of the step beside the drafts (those N, and
chunks of prefills), verifying a budget of B positions takes

.. math:: B^* = \arg\max_B \frac{N + \sum_{i \le B} S_{(i)}}{D + V(T + B)}

where :math:`S_{(1)} \ge S_{(2)} \ge \dots` are all survivals in falling order, D the time of drafting and V the time of
a verifying pass by its width. Since S falls along a request, the B best positions are a prefix of each request's draft.
V is a staircase over the captured graph sizes, for a batch is padded to the next of them, and linear above the largest.

What a step sees of S is its *confidence*; `confidences` draws a population of them around known acceptance, from
perfect (each drafted token's fate is known) to none (the mean by position), and `adaptive_expectation` runs the rule on
batches of that population.

Source: vLLM #47808 (``enable_adaptive_verification``), SGLang #36136, arXiv 2607.05147; the estimator without a
confidence head vLLM #52228.
"""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.formulas.emitted import FloatArray, IntArray, checked_probability

_NODES: Final = 64  # quantiles of requests over which means are taken
_FLAT: Final = 1e-12  # a rise of survival along a request by no more than this is rounding


@dataclass(frozen=True, slots=True)
class WidthCost:
    """Seconds of a pass by its width: a staircase over captured sizes, linear above the largest.

    Attributes
    ----------
    widths : ndarray of int, shape (n,)
        Captured sizes in tokens, rising; a narrower pass is padded to the next of them.
    seconds : ndarray, shape (n,)
        Seconds at each, above 0 and never falling.
    slope : float
        Seconds per token above the largest captured size, at least 0.
    """

    widths: IntArray
    seconds: FloatArray
    slope: float

    @classmethod
    def of(cls, widths: npt.ArrayLike, seconds: npt.ArrayLike, slope: float) -> Self:
        """A table as it was profiled, forced to rise as engines force it.

        Raises
        ------
        InputError
            If the table has holes, is not finite, or has no time above 0.

        Examples
        --------
        >>> WidthCost.of([1, 2, 4], [1.0, 0.9, 1.5], 0.1).seconds.tolist()
        [1.0, 1.0, 1.5]
        """
        w, s = np.asarray(widths), np.asarray(seconds, dtype=np.float64)
        if w.ndim != 1 or w.shape != s.shape or not w.size:
            raise InputError(f"step costs: {w.size} widths beside {s.size} times; give one time per width")
        if w.dtype.kind not in "iu" or w.min() < 1 or np.any(np.diff(w) <= 0):
            raise InputError("step costs: the widths must be whole numbers of at least 1, each above the one before")
        if not (np.all(np.isfinite(s)) and s.min() > 0):
            raise InputError(f"step costs: the time at width {w[~(s > 0)][:1] or w[~np.isfinite(s)][:1]} is no time")
        if not 0 <= slope < np.inf:
            raise InputError(f"step costs: the slope above width {w[-1]} must be finite and at least 0, got {slope:g}")
        return cls(w.astype(np.int64), np.maximum.accumulate(s), float(slope))

    def at(self, width: npt.ArrayLike) -> FloatArray:
        """Seconds of passes of these widths, padding included.

        Examples
        --------
        >>> WidthCost.of([1, 2, 4], [1.0, 1.2, 1.5], 0.1).at([0, 3, 4, 6]).round(3).tolist()
        [1.0, 1.5, 1.5, 1.7]
        """
        w = np.asarray(width)
        step = self.seconds[np.minimum(np.searchsorted(self.widths, w), self.widths.size - 1)]
        return np.asarray(step + self.slope * np.maximum(w - self.widths[-1], 0))


@dataclass(frozen=True, slots=True)
class Budget:
    """What a step verifies.

    Attributes
    ----------
    positions : int
        B*, drafted positions verified over all requests.
    lengths : ndarray of int, shape (requests,)
        Of each request; their sum is `positions`.
    tokens : float
        Expected emitted tokens of the step: one of each request and the survivals of the verified positions.
    seconds : float
        Of the step.
    """

    positions: int
    lengths: IntArray
    tokens: float
    seconds: float


def checked_survivals(survival: npt.ArrayLike) -> FloatArray:
    """Survivals by request and position, each in [0, 1] and never rising along a request.

    >>> checked_survivals([[0.5, 0.7]])
    Traceback (most recent call last):
    specplan.errors.InputError: survival of request 0 rises from 0.5 to 0.7 at position 2; it can only fall
    """
    s = np.asarray(survival, dtype=np.float64)
    if s.ndim != 2:
        raise InputError(f"survivals must be requests by positions, got {s.ndim} axes")
    # min and max are NaN where a survival is, and every comparison with NaN fails
    if s.size and not (s.min() >= 0 and s.max() <= 1):
        bad = s[~((s >= 0) & (s <= 1))].flat[0]
        raise InputError(f"survivals must lie in [0, 1], got {bad:g}")
    if s.shape[1] > 1 and _rises(s) and np.any(s[:, 1:] > s[:, :-1] + _FLAT):
        r, k = np.argwhere(s[:, 1:] > s[:, :-1] + _FLAT)[0]
        raise InputError(
            f"survival of request {r} rises from {s[r, k]:g} to {s[r, k + 1]:g} at position {k + 2}; it can only fall"
        )
    return s


def _rises(s: FloatArray) -> bool:
    """Whether a value is above the one before it in its row; compared in one piece, row ends and all."""
    flat = np.ravel(s)
    above = np.zeros(s.size, dtype=bool)
    np.greater(flat[1:], flat[:-1], out=above[1:])
    above[:: s.shape[1]] = False
    return bool(above.any())


def verify_budget(survival: npt.ArrayLike, cost: WidthCost, draft_s: float = 0.0, other: int | None = None) -> Budget:
    """B* and its allocation for one step.

    Parameters
    ----------
    survival : array_like, shape (requests, positions)
        S: probability that all drafted tokens up to a position are accepted; never rising along a request.
    cost : WidthCost
        Seconds of a verifying pass.
    draft_s : float
        Seconds of drafting, paid whatever is verified.
    other : int or None
        Tokens of the step beside the drafts, at least one per request; None: one per request.

    Returns
    -------
    Budget
        The least budget of the highest rate. Equal survivals are taken position by position.

    Raises
    ------
    InputError
        If a survival is NaN, lies outside [0, 1] or rises along its request.

    Notes
    -----
    A rate can only peak where one more position is a step up the staircase, so the sums are needed there alone (one
    partition, no sort); above the captured sizes the rate has one peak, found by Dinkelbach's iteration.

    Examples
    --------
    >>> cost = WidthCost.of([1, 2, 4, 8], [1.0, 1.0, 1.1, 1.9], 0.3)
    >>> verify_budget([[0.9, 0.6, 0.3], [0.4, 0.1, 0.0]], cost).lengths.tolist()
    [2, 0]
    """
    s = checked_survivals(survival)
    n = s.shape[0]
    t = n if other is None else int(other)
    if n == 0 or t < n:
        raise InputError(f"a step of {n} requests schedules at least one token of each, got {t} tokens")
    if not 0 <= draft_s < np.inf:
        raise InputError(f"the time of drafting must be finite and at least 0, got {draft_s:g}")
    flat = s.ravel()
    last = int(cost.widths[-1])
    edges = cost.widths[(cost.widths >= t) & (cost.widths <= t + flat.size)] - t
    # B = 0, each step of the staircase filled, and all positions where they end inside a step
    ends = [0, *edges.tolist(), *([flat.size] if t + flat.size < last or not flat.size else [])]
    candidates = np.unique(np.asarray(ends, dtype=np.int64))
    sums = _top_sums(flat, candidates)
    rates = (n + sums) / (draft_s + cost.at(t + candidates))
    best = int(np.argmax(rates))
    budget, tokens, threshold = int(candidates[best]), n + float(sums[best]), None
    if t + flat.size > last:
        above = _linear_budget(flat, n, t, cost, draft_s, rates[best])
        if above is not None:
            budget, tokens, threshold = above
    lengths = _allocated(s, budget, threshold)
    return Budget(budget, lengths, tokens, float(draft_s + cost.at(t + budget)))


def _top_sums(values: FloatArray, counts: IntArray) -> FloatArray:
    """Sums of the largest values, for rising counts."""
    some = counts[counts > 0]
    sums = np.zeros(counts.size)
    if some.size:
        parted = np.partition(values, values.size - some) if some.size < 100 else np.sort(values)
        sums[counts.size - some.size :] = np.cumsum(np.add.reduceat(parted, values.size - some[::-1])[::-1])
    return sums


def _linear_budget(
    values: FloatArray, n: int, t: int, cost: WidthCost, draft_s: float, rate: float
) -> tuple[int, float, float | None] | None:
    """Budget, tokens and, unless it is the least, the survival that it exceeds; None where `rate` is not beaten.

    The widest captured size is the least width of this part; above it a position pays while its survival exceeds
    rate * slope.
    """
    least = max(int(cost.widths[-1]) - t, 0)
    floor = float(_top_sums(values, np.array([least]))[0])
    fixed, slope = float(draft_s + cost.at(t + least)), cost.slope
    found: tuple[int, float, float | None] | None = None
    while True:  # each round's rate is higher, and budgets are finite
        least_paying = float(rate * slope)
        pays = values > least_paying
        b = int(np.count_nonzero(pays))
        gain, threshold = (float(np.vdot(values, pays)), least_paying) if b >= least else (floor, None)
        b = max(b, least)
        better = (n + gain) / (fixed + slope * (b - least))
        if not better > rate * (1 + 1e-15):
            return found
        rate, found = better, (b, n + gain, threshold)


def _allocated(s: FloatArray, budget: int, threshold: float | None) -> IntArray:
    """How many positions of each request are among the `budget` best: above the threshold, then ties by position."""
    n, k = s.shape
    if budget in (0, s.size):
        return np.full(n, 0 if budget == 0 else k, dtype=np.int64)
    if threshold is None:
        threshold = np.partition(s.ravel(), s.size - budget)[s.size - budget]
    lengths = ((s > threshold) @ np.ones(k)).astype(np.int64)
    left = budget - int(lengths.sum())
    if left:
        ties = (s == threshold).T  # position-major: earlier positions of all requests first
        lengths += np.bincount(np.nonzero(ties)[1][:left], minlength=n)
    return lengths


def class_lengths(
    survival: npt.ArrayLike,
    drafted: npt.ArrayLike,
    share: npt.ArrayLike,
    cost: WidthCost,
    batch: int,
    draft_s: float = 0.0,
) -> tuple[IntArray, float, float]:
    r"""Draft length of each class of requests that run in one batch.

    .. math:: \max_{\kappa_1, \dots} \frac{1 + \sum_c w_c \sum_{k \le \kappa_c} S_c(k)}
        {D + V(B + B \sum_c w_c \sum_{k \le \kappa_c} D_c(k))}

    Parameters
    ----------
    survival, drafted : array_like, shape (classes, positions)
        Of a step of a request of each class: the probability that position k is accepted, and that it is drafted at
        all, the latter at least the former. Both only fall along the positions.
    share : array_like, shape (classes,)
        Of the batch's requests, adding up to 1.
    cost : WidthCost
        Seconds of a verifying pass.
    batch : int
        Requests.
    draft_s : float
        Seconds of drafting, paid where a class drafts.

    Returns
    -------
    lengths : ndarray of int, shape (classes,)
    tokens, seconds : float
        Of the whole batch's step.

    Raises
    ------
    InputError
        If an array does not have the shape or range above.

    Notes
    -----
    Taken are the lengths that are best at some price of a position, and of those the fastest: exact where the time is
    linear in width; on a staircase a mix between two prices can be better by less than a stair.

    Examples
    --------
    >>> free = WidthCost.of([1, 64], [1.0, 1.2], 0.01)
    >>> lengths, tokens, seconds = class_lengths([[0.9, 0.8], [0.1, 0.0]], [[1, 1], [1, 1]], [0.5, 0.5], free, 16)
    >>> lengths.tolist()
    [2, 1]
    >>> steep = WidthCost.of([1, 16], [1.0, 1.0], 0.04)
    >>> class_lengths([[0.9, 0.8], [0.1, 0.0]], [[1, 1], [1, 1]], [0.5, 0.5], steep, 16)[0].tolist()
    [2, 0]
    """
    s, d, w = checked_survivals(survival), checked_survivals(drafted), np.asarray(share, dtype=np.float64)
    if s.shape != d.shape or w.shape != s.shape[:1] or np.any(s > d + _FLAT):
        raise InputError("classes need survivals, drafted shares at least as high, and one share of requests each")
    if not (np.all(w >= 0) and abs(w.sum() - 1) < 1e-9) or batch < 1:
        raise InputError("the shares of the classes must add up to 1, and a batch has at least one request")
    gain, width = (np.pad(np.cumsum(x, axis=1), ((0, 0), (1, 0))) for x in (s, d))
    rise, run = (x[:, None, :] - x[:, :, None] for x in (gain, width))
    slopes = np.unique(rise[run > 0] / run[run > 0])
    prices = np.concatenate([[0.0], slopes * (1 - 1e-9), slopes * (1 + 1e-9)])
    lengths = np.argmax(gain[None] - prices[:, None, None] * width[None], axis=2)
    lengths = np.unique(np.concatenate([lengths, np.zeros((1, w.size), np.int64)]), axis=0)
    rows = np.arange(w.size)
    tokens = batch * (1 + gain[rows, lengths] @ w)
    seconds = cost.at(batch * (1 + width[rows, lengths] @ w)) + np.where(lengths.any(axis=1), draft_s, 0.0)
    best = int(np.argmax(tokens / seconds))
    return lengths[best], float(tokens[best]), float(seconds[best])


def confidences(
    hazard: npt.ArrayLike, *, resolution: float, dispersion: float = 0.0, rows: int = 1024
) -> tuple[FloatArray, FloatArray]:
    r"""A population of drafts as a verifier that knows something about each sees them.

    Parameters
    ----------
    hazard : array_like, shape (positions,)
        Mean conditional acceptance by position, among positions reached.
    resolution : float
        What the confidence of a drafted token tells of its fate, in [0, 1]: the share of the variance of acceptance
        (within a request) that it explains. 1 is perfect (every fate known), 0 knows the request's acceptance alone.
        A confidence is Beta-distributed around it, so it is calibrated by construction.
    dispersion : float
        Share of the variance of acceptance that lies between requests, in [0, 1): their acceptances are
        Beta-distributed at each position, one quantile for all positions of a request.
    rows : int
        Drafts that are drawn, evenly (a scrambled Sobol sequence of a fixed seed); a power of two.

    Returns
    -------
    survival, by_request : ndarray, shape (rows, positions)
        Survivals that a confidence of this resolution gives, and those that the request's acceptance alone gives.
        The mean of each over the rows is the survival of `hazard`, up to sampling.

    Raises
    ------
    InputError
        If a parameter lies outside its interval.

    Examples
    --------
    >>> seen, _ = confidences([0.7, 0.7], resolution=0.5, dispersion=0.2)
    >>> bool(abs(seen.mean(axis=0) - [0.7, 0.49]).max() < 0.01)
    True
    """
    h = np.atleast_1d(checked_probability("hazard", hazard))
    if h.ndim != 1 or not h.size or np.isnan(h).any():
        raise InputError("the hazard must give one acceptance per position, none of them unknown")
    if not 0 <= resolution <= 1:
        raise InputError(f"the resolution of a confidence must lie in [0, 1], got {resolution:g}")
    if not 0 <= dispersion < 1:
        raise InputError(f"the dispersion of acceptance must lie in [0, 1), got {dispersion:g}")
    if rows < 1 or rows & (rows - 1):
        raise InputError(f"the rows of a population must be a power of two, got {rows}")
    from scipy.stats import qmc  # a second of imports that only this function needs

    quantiles = qmc.Sobol(1 + h.size, rng=0).random(rows)
    request = np.stack([_beta(m, dispersion, quantiles[:, 0]) for m in _means(h, dispersion)], axis=1)
    seen = _beta(request, resolution, quantiles[:, 1:])
    return np.asarray(np.cumprod(seen, axis=1)), np.asarray(np.cumprod(request, axis=1))


def _beta(mean: npt.ArrayLike, share: float, quantile: FloatArray) -> FloatArray:
    """Quantiles of Beta distributions of this mean whose variance is `share` of a coin's of the same mean."""
    m = np.asarray(mean, dtype=np.float64)
    if share == 0:
        return np.asarray(np.broadcast_to(m, np.broadcast_shapes(m.shape, quantile.shape)))
    if share == 1:
        return np.asarray((quantile > 1 - m).astype(np.float64))
    from scipy.special import betaincinv  # a third of a short command: only this function needs it

    size = 1 / share - 1
    inner = np.clip(m, 1e-9, 1 - 1e-9)

    drawn = betaincinv(inner * size, (1 - inner) * size, quantile)
    return np.asarray(np.where((m <= 0) | (m >= 1), m, drawn))


def _means(hazard: FloatArray, dispersion: float) -> list[float]:
    """Means over all requests at which those that reach a position accept at its hazard.

    Requests that accept more are more of those that reach a later position, so the mean over all lies below.
    """
    from scipy.optimize import brentq  # half a second of imports that only this function needs

    quantile = (np.arange(_NODES) + 0.5) / _NODES
    survivors, means = np.ones(_NODES), []
    for h in hazard.tolist():
        if dispersion == 0 or h in (0.0, 1.0):
            means.append(h)
        else:

            def excess(mean: float, h: float = h, reached: FloatArray = survivors) -> float:
                return float(np.dot(reached, _beta(mean, dispersion, quantile) - h))

            means.append(float(brentq(excess, 1e-9, h, xtol=1e-6)) if excess(h) > 0 else h)
        survivors = survivors * _beta(means[-1], dispersion, quantile)
    return means


def explained_variance(confidence: npt.ArrayLike, accepted: npt.ArrayLike, position: npt.ArrayLike) -> float:
    r"""Share of the variance of acceptance that confidences explain: the `resolution` of `confidences`.

    .. math:: 1 - \frac{\sum (y - c)^2}{\sum (y - \bar y_k)^2}

    Parameters
    ----------
    confidence, accepted : array_like, shape (n,)
        Of each drafted token whose fate is known: what was thought of it, in [0, 1], and whether it was accepted.
    position : array_like of int, shape (n,)
        Its place in the draft, whose mean acceptance :math:`\bar y_k` is known without confidences.

    Returns
    -------
    float
        In [0, 1]: 1 knows every fate; 0 tells nothing beyond the mean by position, or promises so wrongly that the mean
        is better. NaN where acceptance does not vary.

    Examples
    --------
    >>> explained_variance([1.0, 0.0, 1.0, 0.0], [1, 0, 1, 0], [0, 0, 1, 1])
    1.0
    >>> explained_variance([0.9, 0.9, 0.9, 0.9], [1, 0, 1, 0], [0, 0, 0, 0])
    0.0
    """
    c = np.atleast_1d(checked_probability("confidence", confidence))
    y, k = np.asarray(accepted, dtype=np.float64), np.asarray(position, dtype=np.int64)
    if not c.shape == y.shape == k.shape:
        raise InputError(f"confidences {c.shape}, fates {y.shape} and positions {k.shape} must be of one shape")
    counts = np.maximum(np.bincount(k), 1)
    spread = float(np.sum((y - (np.bincount(k, y) / counts)[k]) ** 2))
    return max(1 - float(np.sum((y - c) ** 2)) / spread, 0.0) if spread else float("nan")


@dataclass(frozen=True, slots=True)
class AdaptiveStep:
    """Means of a step under the rule, each of the whole batch.

    Attributes
    ----------
    tokens : float
        Emitted, one of each request included.
    verified : float
        Drafted positions that were verified.
    seconds : float
    """

    tokens: float
    verified: float
    seconds: float


def adaptive_expectation(
    seen: npt.ArrayLike,
    true: npt.ArrayLike,
    cost: WidthCost,
    batch: int,
    draft_s: float = 0.0,
    other: int | None = None,
) -> AdaptiveStep:
    """The rule on batches of a population: it allocates by what it sees, and emits by what is true.

    Parameters
    ----------
    seen, true : array_like, shape (rows, positions)
        Survivals by which positions are chosen, and by which they are accepted; the same array where confidence is
        calibrated and all that is known.
    cost : WidthCost
    batch : int
        Requests of a step; the population is cut into as many batches as it holds (repeated where it holds none).
    draft_s, other
        As in `verify_budget`.

    Returns
    -------
    AdaptiveStep
        Tokens over seconds is the throughput.

    Examples
    --------
    >>> survivals = [[0.7, 0.49, 0.343]] * 4
    >>> free = WidthCost.of([16], [1.0], 0.0)
    >>> round(adaptive_expectation(survivals, survivals, free, batch=4).tokens / 4, 3)
    2.533
    """
    s, a = checked_survivals(seen), checked_survivals(true)
    if s.shape != a.shape:
        raise InputError(f"survivals seen {s.shape} and true {a.shape} must have one shape")
    if batch < 1:
        raise InputError(f"a batch has at least one request, got {batch}")
    groups = max(len(s) // batch, 1)
    # each batch takes rows spread over the whole population
    pick = np.arange(groups * batch).reshape(batch, groups).T % len(s)
    s, a = s[pick].reshape(groups, -1), a[pick].reshape(groups, -1)
    order = np.argsort(-s, axis=1, kind="stable")
    t = batch if other is None else other
    seconds = draft_s + cost.at(t + np.arange(s.shape[1] + 1))
    gains = np.cumsum(np.take_along_axis(s, order, 1), axis=1)
    best = np.argmax((batch + np.pad(gains, ((0, 0), (1, 0)))) / seconds, axis=1)
    emitted = np.pad(np.cumsum(np.take_along_axis(a, order, 1), axis=1), ((0, 0), (1, 0)))
    tokens = batch + np.take_along_axis(emitted, best[:, None], 1)
    return AdaptiveStep(float(tokens.mean()), float(best.mean()), float(seconds[best].mean()))
