"""From logits to the distribution that a request samples from: the only place where sampling parameters act."""

from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.verify.outcome import FloatArray

_ROW_NAMES: Final = ("request", "position")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How requests sample; each parameter is one number, or one per request.

    Attributes
    ----------
    temperature : float or sequence of float
        At least 0; 0 is greedy: all mass on the largest logit, the lowest id among equals.
    top_k : int or sequence of int
        Keep the k largest logits and those equal to the k-th; 0 or -1 keeps all.
    top_p : float or sequence of float
        In (0, 1]: keep the fewest tokens, by falling probability and rising id, whose sum reaches top_p.
    min_p : float or sequence of float
        In [0, 1]: keep tokens of at least min_p times the largest probability.
    min_p_first : bool
        Order of the filters. False: top-k, top-p, min-p, as transformers does. True: min-p, top-k, top-p, as vLLM 0.32
        does, whose top-p then sees what min-p left.

    Notes
    -----
    Each filter sees the distribution that the one before it left, renormalised. Source: vLLM 0.32 (min-p before top-k
    and top-p, equals of the k-th kept), transformers 5 (min-p last).
    """

    temperature: float | tuple[float, ...] = 1.0
    top_k: int | tuple[int, ...] = 0
    top_p: float | tuple[float, ...] = 1.0
    min_p: float | tuple[float, ...] = 0.0
    min_p_first: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, np.inf),
            ("top_k", -1.0, np.inf),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
        ):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            wrong = ~((values >= low) & (values <= high)) | ~np.isfinite(values)
            if name == "top_p":
                wrong |= values == 0.0
            if wrong.any() or values.ndim > 1:
                bad = values[wrong].flat[0] if wrong.any() else values.shape
                expected = {"top_p": "(0, 1]", "min_p": "[0, 1]", "top_k": "whole numbers of at least -1"}
                raise InputError(f"{name}: expected {expected.get(name, 'finite numbers of at least 0')}, got {bad}")

    def column(self, name: str, batch: int) -> FloatArray:
        """One parameter for each of `batch` requests.

        >>> Sampling(temperature=(0.0, 1.0)).column("temperature", 2).tolist()
        [0.0, 1.0]
        """
        values = np.asarray(getattr(self, name), dtype=np.float64)
        if values.ndim == 1 and values.shape != (batch,):
            raise InputError(
                f"{name}: {values.shape[0]} values for {batch} requests; give one number or one per request"
            )
        return np.broadcast_to(values, (batch,))

    def rows(self, start: int, stop: int) -> "Sampling":
        """The parameters of requests start ... stop - 1.

        >>> Sampling(temperature=(0.0, 1.0)).rows(1, 2).temperature
        (1.0,)
        """

        def cut(values: T) -> T:
            return cast(T, values[start:stop]) if isinstance(values, tuple) else values

        return replace(
            self,
            temperature=cut(self.temperature),
            top_k=cut(self.top_k),
            top_p=cut(self.top_p),
            min_p=cut(self.min_p),
        )


PLAIN: Final = Sampling()
"""Temperature 1, no filters."""


def probabilities(logits: npt.ArrayLike, sampling: Sampling = PLAIN) -> FloatArray:
    r"""Distributions that the requests sample from.

    .. math:: p(v) \propto e^{z_v / T} \text{ over the tokens that the filters keep}

    Parameters
    ----------
    logits : array_like, shape (B, ..., V)
        Finite or -inf; the first axis is the request.
    sampling : Sampling
        Temperature and filters.

    Returns
    -------
    ndarray of float64, shape (B, ..., V)
        Each row sums to 1. Rows of temperature 0 are one-hot by construction, not by a limit.

    Raises
    ------
    InputError
        Naming the row that holds NaN or +inf, or nothing but -inf.

    Notes
    -----
    Penalties, biases and masks belong to the logits. Exact: the maximum is subtracted before the temperature divides,
    so no temperature above 0 overflows.

    Examples
    --------
    >>> probabilities([[0.0, float("-inf")], [1.0, 2.0]], Sampling(temperature=(1.0, 0.0))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    z = np.asarray(logits, dtype=np.float64)
    if z.ndim < 2 or z.shape[-1] == 0:
        raise InputError(f"logits: expected shape (B, ..., V), got {z.shape}")
    _check(z)
    batch, lead = z.shape[0], (-1, *[1] * (z.ndim - 1))
    temperature, top_k, top_p, min_p = (
        sampling.column(n, batch).reshape(lead) for n in ("temperature", "top_k", "top_p", "min_p")
    )
    greedy = temperature == 0.0
    # Weights relative to the most probable token: the largest is exactly 1, so min-p compares without a division.
    w = np.exp((z - z.max(axis=-1, keepdims=True)) / np.where(greedy, 1.0, temperature))
    if sampling.min_p_first:
        w = np.where(w >= min_p, w, 0.0)
    if (top_k > 0).any():
        w = _top_k(w, top_k)
    if (top_p < 1.0).any():
        w = _top_p(w, top_p)
    if not sampling.min_p_first:
        w = np.where(w >= min_p, w, 0.0)
    p: FloatArray = w / w.sum(axis=-1, keepdims=True)
    if greedy.any():
        one_hot = np.zeros_like(p)
        np.put_along_axis(one_hot, z.argmax(axis=-1, keepdims=True), 1.0, axis=-1)
        p = np.where(greedy, one_hot, p)
    return p


def _top_k(w: FloatArray, top_k: FloatArray) -> FloatArray:
    size = w.shape[-1]
    keep = np.where(top_k > 0, np.minimum(top_k, size), size).astype(np.int64)
    falling = -np.sort(-w, axis=-1)
    kth = np.take_along_axis(falling, np.broadcast_to(keep, (*w.shape[:-1], 1)) - 1, axis=-1)
    return np.where(w >= kth, w, 0.0)


def _top_p(w: FloatArray, top_p: FloatArray) -> FloatArray:
    order = np.argsort(-w, axis=-1, kind="stable")
    falling = np.take_along_axis(w, order, axis=-1)
    before = np.cumsum(falling, axis=-1) - falling
    keep_sorted = (before < top_p * falling.sum(axis=-1, keepdims=True)) | (top_p >= 1.0)
    keep = np.empty(w.shape, dtype=bool)
    np.put_along_axis(keep, order, keep_sorted, axis=-1)
    return np.where(keep, w, 0.0)


def _check(z: FloatArray) -> None:
    nan, top = np.asarray(np.isnan(z).any(axis=-1)), z.max(axis=-1)
    bad = np.argwhere(nan | np.isinf(top))
    if len(bad):
        at = tuple(bad[0].tolist())
        names = ", ".join(f"{_ROW_NAMES[min(i, 1)]} {n}" for i, n in enumerate(at))
        problem = "NaN" if nan[at] else "+inf" if top[at] > 0 else "nothing but -inf"
        raise InputError(f"logits of {names}: {problem}; expected finite numbers, -inf for tokens that are ruled out")
