r"""Best kappa: how many tokens to draft, and what another choice loses.

With a constant acceptance, constant coverage and verification at the price of a plain pass, one more drafted token pays
if and only if

.. math:: \alpha^{\kappa+1}\,(1 + \kappa c) > c\,E(\alpha, \kappa)

(the gain in tokens, relative, above the gain in cost). The difference of the two sides falls as kappa grows, so the
speedup has one peak, and the first kappa at which the condition fails is the best one: `best_kappa`.

So it is for every hazard: survival never rises, hence E is concave in kappa, and a concave yield over a cost that is
linear or bends upwards (a roofline) has one peak. Only a verify factor with steps (a tile that fills up), or an
overhead that plain decoding does not pay, makes more; then the curve over kappa is searched: `speedup_by_kappa`,
`peak_kappa`, `first_losing_kappa`.

Source: Leviathan et al. 2023 (arXiv 2211.17192), section 3.5 and Figure 3 (a plot); the condition is derived here.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.formulas.emitted import (
    FloatArray,
    IntArray,
    checked_between,
    checked_kappa,
    checked_probability,
    expected_emitted,
)
from specplan.formulas.speedup import step_cost

_ROUNDING: Final = 4 * np.finfo(np.float64).eps  # speedups that differ by less are equal: the shorter draft is better


def best_kappa(
    alpha: npt.ArrayLike,
    c: npt.ArrayLike,
    kappa_max: int,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> IntArray:
    r"""The draft length of highest speedup: the smallest kappa at which one more token does not pay.

    .. math:: \kappa^* = \min\{\kappa : \alpha^{\kappa+1}(1 + \kappa c) \le c\,E(\alpha,\kappa)\}

    Parameters
    ----------
    alpha, c, coverage, overhead : array_like
        As in `specplan.formulas.speedup.speedup`, with a verify factor of 1; broadcast together.
    kappa_max : int
        Longest draft that is considered, at least 0; it is the answer where every token pays (a free draft).

    Returns
    -------
    ndarray of int
        Between 0 (do not speculate) and kappa_max; the shorter of two equally good lengths; 0 for NaN.

    Examples
    --------
    >>> best_kappa([0.5, 0.6, 0.7, 0.8, 0.9], 0.165, 64).tolist()
    [2, 2, 3, 4, 7]
    >>> int(best_kappa(0.7, 0.0, 64)), int(best_kappa(0.1, 0.2, 64))
    (64, 0)
    """
    limit = int(checked_kappa(kappa_max))
    a, cost_per_token, g, o = np.broadcast_arrays(
        checked_probability("alpha", alpha),
        checked_between("c", c, 0.0, np.inf),
        checked_probability("coverage", coverage),
        checked_between("overhead", overhead, 0.0, np.inf),
    )
    best = np.zeros(a.size, dtype=np.int64)
    # Invariant at the head of each round, for the cells whose every token so far paid: power = alpha**(kappa+1),
    # emitted and cost are those of a step of kappa drafted tokens.
    cells = np.flatnonzero(g.ravel() > 0)
    power, draft, share = (x.ravel()[cells] for x in (a, cost_per_token, g))
    acceptance, emitted, cost = power.copy(), np.ones(cells.size), 1.0 + o.ravel()[cells]
    for kappa in range(limit):
        pays = power * cost > draft * emitted
        if not pays.all():
            cells, power, draft, share = cells[pays], power[pays], draft[pays], share[pays]
            acceptance, emitted, cost = acceptance[pays], emitted[pays], cost[pays]
        if cells.size == 0:
            break
        best[cells] = kappa + 1
        emitted += share * power
        cost += share * draft
        power *= acceptance
    return best.reshape(a.shape)


def speedup_by_kappa(
    alpha: npt.ArrayLike,
    c: npt.ArrayLike,
    kappa_max: int,
    verify: npt.ArrayLike = 1.0,
    coverage: npt.ArrayLike = 1.0,
    overhead: npt.ArrayLike = 0.0,
) -> FloatArray:
    """Speedup at kappa = 0 ... kappa_max, on a new last axis; kappa 0 is plain decoding at speedup 1.

    Parameters
    ----------
    alpha, c, coverage, overhead : array_like
        As in `specplan.formulas.speedup.speedup`; broadcast together.
    kappa_max : int
        Longest draft, at least 0.
    verify : array_like, scalar or last axis of kappa_max + 1
        Verify factor at each kappa.

    Examples
    --------
    >>> speedup_by_kappa(0.7, 0.165, 4).round(3).tolist()
    [1.0, 1.459, 1.647, 1.694, 1.671]
    """
    kappa = np.arange(int(checked_kappa(kappa_max)) + 1)
    a = checked_probability("alpha", alpha)[..., None]
    g = checked_probability("coverage", coverage)[..., None]
    emitted = 1.0 + g * (expected_emitted(a, kappa) - 1.0)
    cost = step_cost(kappa, np.asarray(c)[..., None], verify, g, np.asarray(overhead)[..., None])
    return np.where(kappa == 0, 1.0, emitted / cost)


def peak_kappa(speedups: npt.ArrayLike) -> IntArray:
    """Kappa of highest speedup on a curve over the last axis (kappa = 0, 1, ...), the shortest of equals.

    >>> int(peak_kappa([1.0, 0.9, 1.2, 1.2]))
    2
    """
    s = _curves(speedups)
    top = s.max(axis=-1, keepdims=True)
    return np.asarray(np.argmax(s >= top * (1.0 - _ROUNDING), axis=-1))


def first_losing_kappa(speedups: npt.ArrayLike) -> IntArray:
    """Kappa after which one more drafted token first loses or gains nothing; the last kappa if it never does.

    Equal to `peak_kappa` for a curve with one peak; smaller if the curve rises again later.

    >>> int(first_losing_kappa([1.0, 1.1, 1.05, 1.2])), int(first_losing_kappa([1.0, 1.1, 1.2]))
    (1, 2)
    """
    s = _curves(speedups)
    stops = np.concatenate(
        [s[..., 1:] <= s[..., :-1] * (1.0 + _ROUNDING), np.ones((*s.shape[:-1], 1), dtype=bool)], axis=-1
    )
    return np.asarray(np.argmax(stops, axis=-1))


def loss_from(speedups: npt.ArrayLike) -> FloatArray:
    """Share of the best speedup that each kappa of a curve forgoes: 0 at the peak.

    >>> loss_from([1.0, 2.0, 1.5]).tolist()
    [0.5, 0.0, 0.25]
    """
    s = _curves(speedups)
    return np.asarray(1.0 - s / s.max(axis=-1, keepdims=True))


def _curves(speedups: npt.ArrayLike) -> FloatArray:
    s = np.asarray(speedups, dtype=np.float64)
    if s.ndim == 0 or s.shape[-1] == 0:
        raise InputError("a speedup curve needs at least the value at kappa 0 on its last axis")
    return s
