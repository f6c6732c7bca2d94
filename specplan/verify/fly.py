"""FLy: a rejection is forgiven where the target is unsure and the drafted tokens behind it are accepted."""

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.verify.categorical import at_tokens, draw
from specplan.verify.chain import checked_chain, last_weights, leading, overlap_of
from specplan.verify.outcome import FloatArray, Outcome, chain_outcome


def top_entropy(p: npt.ArrayLike, top_k: int = 3) -> FloatArray:
    r"""Entropy of the largest probabilities, as they stand: :math:`-\sum_{v \in \mathrm{top}_k} p_v \ln p_v`, nats.

    >>> top_entropy([0.5, 0.25, 0.125, 0.125]).round(3).tolist()
    0.953
    """
    rows = np.sort(np.asarray(p, np.float64), axis=-1)[..., -top_k:]
    return np.asarray(-np.sum(rows * np.log(np.where(rows > 0, rows, 1.0)), axis=-1))


def accept_fly(
    p: npt.ArrayLike,
    q: npt.ArrayLike | None,
    draft: npt.ArrayLike,
    u: npt.ArrayLike,
    *,
    window: int | None = None,
    threshold: float = 0.3,
    top_k: int = 3,
) -> Outcome:
    r"""Verify as `accept_standard`, but forgive rejections.

    .. math::

        \text{forgive } x_i \iff H_{\mathrm{top}_k}(p_i) \ge h,\ p_i(x_i) > 0,\ i + W < K
        \text{ and } x_{i+1}, \ldots, x_{i+W} \text{ are accepted by the plain rule}

    Parameters
    ----------
    p, q, draft, u : array_like
        As in `accept_standard`; q None for one-hot drafts.
    window : int, optional
        W, the drafted tokens behind a rejected one that must be accepted; min(6, K - 1) by default.
    threshold : float
        h, nats.
    top_k : int
        Largest probabilities that the entropy is of.

    Raises
    ------
    InputError
        For fewer than two drafted tokens, or a window that is not below their number.

    Notes
    -----
    The output does not keep the target's law. What it keeps: a token that is emitted in place of the target's choice
    has p > 0, stands where the target's entropy is at least h, and is followed by W tokens that the plain rule accepts;
    with ``threshold`` infinite, or never W accepted in a row, it is the plain rule.

    Source: vLLM 0.33, ``rejection_sample_method="fly"`` (``v1/spec_decode/fly.py``; both runners decide alike).

    Examples
    --------
    >>> p = [[[0.5, 0.5], [0.0, 1.0], [0.5, 0.5]]]
    >>> accept_fly(p, None, [[0, 1]], [[0.9, 0.2, 0.1]]).accepted.tolist()  # 0.5 < 0.9, but the next one is accepted
    [2]
    """
    p_rows, q_rows, d, drafted, coins = checked_chain(p, q, draft, u)
    k = d.shape[1]
    w = min(6, k - 1) if window is None else window
    if k < 2 or not 1 <= w < k:
        raise InputError(f"fly: a window of {w} among {k} drafted tokens; it needs at least 2 of them, and is below")
    target = at_tokens(p_rows[:, :k], d)
    offered = np.ones_like(target) if q_rows is None else at_tokens(q_rows, d)
    native = coins[:, :k] * offered < target
    index = np.arange(k)
    behind = np.stack([native[:, i + 1 : i + 1 + w].all(axis=1) for i in range(k)], axis=1)
    forgiven = (
        (target > 0) & (offered > 0) & behind & (index + w < drafted[:, None])
        & (top_entropy(p_rows[:, :k], top_k) >= threshold)
    )  # fmt: skip
    accepted = leading(native | forgiven, drafted)
    last = draw(last_weights(p_rows, q_rows, d, drafted, accepted), coins[:, -1])
    return chain_outcome(d, drafted, accepted, last, overlap_of(p_rows, q_rows, d))
