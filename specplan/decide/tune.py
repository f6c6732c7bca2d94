"""Best draft length, and what a wrong one loses: over a table of (alpha, c), or along the curve of one source."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from specplan.decide.pricing import Setting, priced
from specplan.decide.source import Placed, longest, source_speedup
from specplan.errors import InputError
from specplan.formulas.draft_length import best_kappa, first_losing_kappa, loss_from, peak_kappa, speedup_by_kappa
from specplan.formulas.emitted import FloatArray, IntArray

KAPPA_MAX: Final = 64
LONGEST: Final = 1024
"""Longest draft that is priced, length by length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneTable:
    """Best draft length over a table, rows along `alpha`, columns along `c`.

    Attributes
    ----------
    best : ndarray of int
        0 where no length pays; `kappa_max` where every token up to it pays.
    speedup : ndarray
        At the best length.
    compared : tuple of int
        Fixed lengths that are compared with the best.
    loss : ndarray, shape (alpha, c, compared)
        Share of the best speedup that each fixed length forgoes.
    """

    alpha: FloatArray
    c: FloatArray
    kappa_max: int
    best: IntArray
    speedup: FloatArray
    compared: tuple[int, ...]
    loss: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneCurve:
    """One source over its draft length.

    Attributes
    ----------
    kappa, speedup, loss, c, verify : ndarray
        From kappa 0 (plain decoding).
    best : int
        Draft length of highest speedup; 0 where none pays.
    last_paying : int
        The length after which one more drafted token first loses; below `best` only if the curve has several peaks.
    is_capped : bool
        Whether the best is the longest length considered, so that a longer one may be better.
    tolerance : tuple of int
        Shortest and longest length that lose at most 2% of the best speedup.
    """

    source: Placed
    kappa: IntArray
    speedup: FloatArray
    loss: FloatArray
    c: FloatArray
    verify: FloatArray
    best: int
    last_paying: int
    is_capped: bool
    tolerance: tuple[int, int]


def tune_table(
    alpha: Sequence[float], c: Sequence[float], *, kappa_max: int = KAPPA_MAX, compared: Sequence[int] = (1, 3, 5, 7)
) -> TuneTable:
    """Best draft length for each pair of `alpha` and `c`, and the loss of fixed ones, at a verify factor of 1.

    Examples
    --------
    >>> tune_table([0.5, 0.7, 0.9], [0.05, 0.165]).best.tolist()
    [[3, 2], [6, 3], [13, 7]]
    """
    _check_max(kappa_max)
    if not alpha or not c:
        raise InputError("a table needs at least one alpha and one c")
    if any(not 0 <= k <= kappa_max for k in compared):
        raise InputError(f"lengths to compare must lie in 0 to {kappa_max}, got {', '.join(map(str, compared))}")
    a, x = np.asarray(alpha, dtype=np.float64), np.asarray(c, dtype=np.float64)
    curves = speedup_by_kappa(a[:, None], x[None, :], kappa_max)
    best = best_kappa(a[:, None], x[None, :], kappa_max)
    return TuneTable(
        alpha=a,
        c=x,
        kappa_max=kappa_max,
        best=best,
        speedup=np.take_along_axis(curves, best[..., None], axis=-1)[..., 0],
        compared=tuple(compared),
        loss=loss_from(curves)[..., list(compared)],
    )


def tune_source(
    source: Placed,
    setting: Setting | None = None,
    *,
    kappa_max: int = KAPPA_MAX,
    batch: int = 1,
    context_len: int = 0,
) -> TuneCurve:
    """Speedup of one source at every draft length up to `kappa_max`, c and verify factor derived where possible.

    Examples
    --------
    >>> from specplan.decide.source import placed
    >>> from specplan.propose.spelling import read_source
    >>> found = tune_source(placed(read_source("1b:c=.164664,alpha=.7")), kappa_max=16)
    >>> found.best, found.last_paying, found.tolerance
    (3, 3, (3, 4))
    """
    _check_max(kappa_max)
    own = source.source  # an engine's own tree is as deep as its nodes allow, whatever lengths are tried of others
    most = longest(own, kappa_max if own.nodes is None or own.kappa is not None else own.nodes - 1)
    kappa = np.arange(most + 1)
    where = Setting() if setting is None else setting
    pairs = [
        priced(replace(source, kappa=int(k)), where, batch=batch, context_len=context_len) for k in range(1, most + 1)
    ]
    c = np.array([source.c if not pairs else pairs[0][0], *(pair[0] for pair in pairs)])
    verify = np.array([1.0, *(pair[1] for pair in pairs)])
    speeds = np.concatenate([[1.0], source_speedup(source, kappa=kappa[1:], c=c[1:], verify=verify[1:])])
    loss = loss_from(speeds)
    best = int(peak_kappa(speeds))
    good = np.flatnonzero(loss <= 0.02)
    return TuneCurve(
        source=source,
        kappa=kappa,
        speedup=speeds,
        loss=loss,
        c=c,
        verify=verify,
        best=best,
        last_paying=int(first_losing_kappa(speeds)),
        is_capped=best == most,
        tolerance=(int(good.min()), int(good.max())),
    )


def _check_max(kappa_max: int) -> None:
    if not 1 <= kappa_max <= LONGEST:
        raise InputError(
            f"the longest draft length considered must be at least 1 and at most {LONGEST}, got {kappa_max}"
        )
