"""Synthetic acceptance: what-if runs in which a schedule, not the models, decides how much is accepted."""

import math

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.verify.categorical import draw
from specplan.verify.chain import checked_chain, last_weights, leading
from specplan.verify.outcome import FloatArray, Outcome, chain_outcome


def conditional_rates(rates: npt.ArrayLike) -> FloatArray:
    r"""Conditional acceptance per position from marginal rates.

    .. math:: c_i = r_i / r_{i-1}, \quad c_0 = r_0, \quad 0 \text{ where } r_{i-1} = 0

    Raises
    ------
    InputError
        Unless the rates lie in [0, 1] and do not increase.

    Examples
    --------
    >>> conditional_rates([0.8, 0.56, 0.2, 0, 0]).round(3).tolist()
    [0.8, 0.7, 0.357, 0.0, 0.0]
    """
    r = np.asarray(rates, dtype=np.float64)
    before = np.concatenate([[1.0], r[:-1]]) if r.ndim == 1 else r
    if r.ndim != 1 or not ((r >= 0.0) & (r <= before)).all() or not math.isfinite(r.sum()):
        raise InputError(
            f"synthetic rates: expected numbers in [0, 1] that do not increase (each the probability that all "
            f"tokens up to it are accepted), got {r.tolist()}"
        )
    return np.where(before > 0.0, r / np.where(before > 0.0, before, 1.0), 0.0)


def accept_synthetic(
    p: npt.ArrayLike, q: npt.ArrayLike | None, draft: npt.ArrayLike, u: npt.ArrayLike, *, rates: npt.ArrayLike
) -> Outcome:
    r"""Accept position i with a given conditional probability, whatever was drafted.

    .. math:: \text{accept } x_i \iff u_i < c_i

    Parameters
    ----------
    p, q, draft, u : array_like
        As in `accept_standard`; q None for one-hot drafts.
    rates : array_like, shape (K,)
        Marginal rates, not increasing.

    Returns
    -------
    Outcome
        Without overlap. The emitted tokens do not follow p: only lengths mean something.

    Notes
    -----
    A rejected position draws from the residual, as the engine does. Source: vLLM 0.32,
    ``rejection_sample_method="synthetic"``.

    Examples
    --------
    >>> p = [[[0.5, 0.5]] * 3]
    >>> accept_synthetic(p, None, [[0, 0]], [[0.7, 0.2, 0.5]], rates=[0.8, 0.2]).accepted.tolist()  # 0.2 < 0.25
    [2]
    """
    p_rows, q_rows, d, drafted, coins = checked_chain(p, q, draft, u)
    chance = conditional_rates(rates)
    if chance.shape != (d.shape[1],):
        raise InputError(f"synthetic rates: expected {d.shape[1]}, one per drafted position, got {chance.size}")
    accepted = leading(coins[:, :-1] < chance, drafted)
    last = draw(last_weights(p_rows, q_rows, d, drafted, accepted), coins[:, -1])
    return chain_outcome(d, drafted, accepted, last, None)
