"""Checked distributions, residuals, and one draw by inversion: what every rule is made of."""

from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.verify.outcome import BoolArray, FloatArray, IntArray

SUM_TOLERANCE: Final = 1e-4
"""How far from 1 a row of probabilities may sum; float32 softmax over 256,000 tokens stays within 1e-5."""


def draw(weights: npt.ArrayLike, u: npt.ArrayLike) -> IntArray:
    """Token drawn by inverting the cumulative weights: the first whose cumulative share exceeds `u`.

    Parameters
    ----------
    weights : array_like, shape (..., V)
        At least 0, not all 0; they need not sum to 1 and may be subnormal.
    u : array_like, shape (...)
        Uniform in [0, 1).

    Returns
    -------
    ndarray of int64, shape (...)
        Token ids; a token of weight 0 is never drawn.

    Examples
    --------
    >>> draw([[0.25, 0.0, 0.75]] * 3, [0.0, 0.25, 0.999]).tolist()
    [0, 2, 2]
    """
    w = np.asarray(weights, dtype=np.float64)
    cdf = np.cumsum(w / w.max(axis=-1, keepdims=True), axis=-1)
    # The largest scaled weight is 1, so the total is at least 1 and u times it stays below it: an index exists.
    target = np.asarray(u, dtype=np.float64)[..., None] * cdf[..., -1:]
    return np.asarray(np.argmax(cdf > target, axis=-1), dtype=np.int64)


def residual(p: FloatArray, q: FloatArray) -> FloatArray:
    """Weights max(p - q, 0) of the token that replaces a rejected one; `p` itself where nothing is left.

    Nothing is left only if p <= q everywhere, where exact arithmetic never rejects.

    >>> residual(np.array([0.75, 0.25]), np.array([0.25, 0.75])).tolist()
    [0.5, 0.0]
    """
    left = np.maximum(p - q, 0.0)
    return np.where(left.max(axis=-1, keepdims=True) > 0.0, left, p)


def without(p: FloatArray, token: IntArray) -> FloatArray:
    """Weights of p with one token per row taken out: the residual of a one-hot q; p itself where nothing is left.

    >>> without(np.array([[0.75, 0.25]]), np.array([0])).tolist()
    [[0.0, 0.25]]
    """
    left = p.copy()
    np.put_along_axis(left, token[..., None], 0.0, axis=-1)
    return np.where(left.max(axis=-1, keepdims=True) > 0.0, left, p)


def at_tokens(p: FloatArray, token: IntArray) -> FloatArray:
    """Probability of one token per row; 0 for the token -1.

    >>> at_tokens(np.array([[0.75, 0.25], [0.5, 0.5]]), np.array([1, -1])).tolist()
    [0.25, 0.0]
    """
    found = np.take_along_axis(p, np.maximum(token, 0)[..., None], axis=-1)[..., 0]
    return np.where(token >= 0, found, 0.0)


def checked_draft(draft: npt.ArrayLike, vocab: int) -> tuple[IntArray, IntArray]:
    """Drafted tokens as int64 (B, K) and the length of each draft: its tokens before the first slot of -1.

    Raises
    ------
    InputError
        For a token below -1 or at least `vocab`, with its request and position.

    Examples
    --------
    >>> checked_draft([[4, 0, -1], [-1, -1, -1]], vocab=5)[1].tolist()
    [2, 0]
    """
    d = np.asarray(draft)
    if d.ndim != 2 or (d.size and d.dtype.kind not in "iu"):
        raise InputError(f"draft tokens: expected whole numbers of shape (B, K), got {d.dtype} of shape {d.shape}")
    d = d.astype(np.int64)
    bad = np.argwhere((d < -1) | (d >= vocab))
    if len(bad):
        b, i = bad[0].tolist()
        raise InputError(
            f"draft tokens: request {b}, position {i} is {d[b, i]}; expected a token in [0, {vocab}) or -1 for none"
        )
    return d, np.cumprod(d >= 0, axis=1, dtype=np.int64).sum(axis=1)


def checked_uniforms(u: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Uniforms as float64 of the shape asked for, each in [0, 1).

    >>> checked_uniforms([[0.5, 1.0]], (1, 2))
    Traceback (most recent call last):
    specplan.errors.InputError: uniforms: [0, 1] is 1; expected numbers in [0, 1)
    """
    a = np.asarray(u, dtype=np.float64)
    if a.shape != shape:
        raise InputError(f"uniforms: expected shape {shape}, got {a.shape}")
    bad = np.argwhere(~((a >= 0.0) & (a < 1.0)))
    if len(bad):
        at = bad[0].tolist()
        raise InputError(f"uniforms: {at} is {a[tuple(at)]:g}; expected numbers in [0, 1)")
    return a


def checked_rows(
    what: str, rows: npt.ArrayLike, used: BoolArray, vocab: int | None = None, *, total: float | None = 1.0
) -> FloatArray:
    """Rows of probabilities as float64 (B, R, V); those in use are finite, at least 0 and sum to `total`.

    Parameters
    ----------
    what : str
        How messages name them.
    rows : array_like, shape (B, R, V)
        One distribution per request and position.
    used : ndarray of bool, shape (B, R)
        Rows that a verdict can depend on; the others may hold anything.
    vocab : int or None
        Expected V.
    total : float or None
        Expected sum; None for scores, which may be any numbers that are not NaN.

    Raises
    ------
    InputError
        Naming the first bad row.

    Examples
    --------
    >>> checked_rows("p", [[[0.5, float("nan")]]], np.array([[True]]))
    Traceback (most recent call last):
    specplan.errors.InputError: p of request 0, position 0: NaN at token 1; expected probabilities
    """
    a = np.asarray(rows, dtype=np.float64)
    if a.ndim != 3 or a.shape[:2] != used.shape or (vocab is not None and a.shape[2] != vocab) or a.shape[2] == 0:
        raise InputError(f"{what}: expected shape {(*used.shape, 'V' if vocab is None else vocab)}, got {a.shape}")
    kind = "scores" if total is None else "probabilities"
    _refuse(what, a, np.isnan(a) & used[..., None], f"expected {kind}")
    if total is not None:
        _refuse(what, a, ((a < 0.0) | np.isinf(a)) & used[..., None], "expected probabilities")
        sums = a.sum(axis=-1)
        off = np.argwhere((np.abs(sums - total) > SUM_TOLERANCE) & used)
        if len(off):
            b, i = off[0].tolist()
            raise InputError(
                f"{what} of request {b}, position {i}: sums to {sums[b, i]:g}; expected {total:g}, so normalise it"
            )
    return a


def _refuse(what: str, a: FloatArray, bad: BoolArray, expected: str) -> None:
    if bad.any():
        b, i, v = np.argwhere(bad)[0].tolist()
        value = "NaN" if np.isnan(a[b, i, v]) else f"{a[b, i, v]:g}"
        raise InputError(f"{what} of request {b}, position {i}: {value} at token {v}; {expected}")


def used_rows(drafted: IntArray, n: int) -> BoolArray:
    """Which of `n` rows per request lie at or before the end of its draft.

    >>> used_rows(np.array([0, 2]), 3).tolist()
    [[True, False, False], [True, True, True]]
    """
    return np.arange(n) <= drafted[:, None]
