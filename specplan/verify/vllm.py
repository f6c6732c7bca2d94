"""vLLM 0.32's rejection samplers, V1 and V2, where they differ from each other and from the plain rules.

====================  ======================================  =========================================
..                    V1                                      V2
====================  ======================================  =========================================
coin                  float64 in [0, 1)                       float32, at least 2**-31
accept                p/q >= u, and q > 0; one-hot: p >= u    log p > log u + log q; one-hot: log q = 0
token of p = 0        accepted at u = 0                       never
token of q = 0        rejected                                accepted if p > 0
recovered token       argmax of residual / E, one vector E    argmax of log residual + Gumbel noise, own
                      per request for all its positions       noise per position
bonus token           from the ordinary sampler               the same Gumbel draw from the target's row
``block``             not implemented: acts as ``standard``   implemented
====================  ======================================  =========================================

The differences have probability 2**-31 or less: over one step both emit p's distribution. Greedy rows follow
`accept_greedy` in both.

Over a sequence of steps V2's ``block`` of 0.32 does not: its coins are keyed by seed and position alone, and block
verification looks at coins behind the token where it ends, which the next step meets again (variation 0.05 to 0.16
over three tokens). 0.33 keys them by the place in the draft too, so that none is met twice. The other rules stop at the
first coin that fails. ``fly`` (0.33) is lossy: see `specplan.verify.fly`.

A slot of -1 ends the draft: either engine rejects it and draws from the target's row, as for a whole draft.
V2 compares only the tokens that both vocabularies share; pad the smaller one with zeros. V1 refuses more than 128
drafted tokens.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError
from specplan.verify.block import block_thresholds, last_passed
from specplan.verify.categorical import at_tokens
from specplan.verify.chain import checked_chain, last_weights, leading, overlap_of
from specplan.verify.outcome import FloatArray, Outcome, chain_outcome

V1_MAX_DRAFT: Final = 128
V2_SMALLEST_COIN: Final = 2.0**-31


def accept_vllm_v1(
    p: npt.ArrayLike,
    q: npt.ArrayLike | None,
    draft: npt.ArrayLike,
    u: npt.ArrayLike,
    race: npt.ArrayLike,
    bonus: npt.ArrayLike,
) -> Outcome:
    r"""Verify as vLLM's V1 sampler does.

    .. math::

        \text{accept } x_i \iff q_i(x_i) > 0 \text{ and } p_i(x_i)/q_i(x_i) \ge u_i, \qquad
        \text{else } \arg\max_v \max(p_i(v) - q_i(v), 0) / E(v)

    Parameters
    ----------
    p, draft : array_like
        As in `accept_standard`; K at most 128.
    q : array_like, shape (B, K, V), or None
        None for one-hot drafts.
    u : array_like, shape (B, K)
        Coins in [0, 1).
    race : array_like, shape (B, V)
        E: exponential variates, one vector per request for all of its positions. Only one position draws, so sharing
        them biases nothing.
    bonus : array_like of int, shape (B,)
        Token that the ordinary sampler drew after the last drafted token.

    Returns
    -------
    Outcome
        With overlap, as the plain rules.

    Examples
    --------
    >>> p = [[[0.25, 0.75], [0.5, 0.5]]]
    >>> accept_vllm_v1(p, None, [[0]], [[0.25]], [[1.0, 1.0]], [1]).emitted_tokens()  # 0.25 >= 0.25
    [[0, 1]]
    """
    k = np.shape(draft)[-1]
    if k > V1_MAX_DRAFT:
        raise InputError(f"draft tokens: vLLM V1 verifies at most {V1_MAX_DRAFT} per step, got {k}")
    p_rows, q_rows, d, drafted, coins = checked_chain(p, q, draft, _with_spare_column(u))
    noise = np.asarray(race, dtype=np.float64)
    if noise.shape != (len(d), p_rows.shape[-1]) or not (noise > 0.0).all():
        raise InputError(f"race: expected positive numbers of shape {(len(d), p_rows.shape[-1])}, got {noise.shape}")
    chance = at_tokens(p_rows[:, :-1], d)
    if q_rows is None:
        accept = chance >= coins[:, :-1]
    else:
        drawn = at_tokens(q_rows, d)
        with np.errstate(over="ignore"):  # an infinite ratio accepts, as it should
            accept = (drawn > 0.0) & (chance / np.where(drawn > 0.0, drawn, 1.0) >= coins[:, :-1])
    accepted = leading(accept, drafted)
    recovered = np.argmax(last_weights(p_rows, q_rows, d, drafted, accepted) / noise, axis=-1)
    last = np.where(accepted == drafted, np.asarray(bonus, dtype=np.int64), recovered)
    return chain_outcome(d, drafted, accepted, last, overlap_of(p_rows, q_rows, d))


def accept_vllm_v2(
    p: npt.ArrayLike,
    q: npt.ArrayLike | None,
    draft: npt.ArrayLike,
    u: npt.ArrayLike,
    gumbel: npt.ArrayLike,
    *,
    block: bool = False,
) -> Outcome:
    r"""Verify as vLLM's V2 sampler does.

    .. math::

        \text{accept } x_i \iff \log p_i(x_i) > \log u_i + \log q_i(x_i), \qquad
        \text{then } \arg\max_v \log w(v) + G(v)

    with w the target's row after a whole draft, else the residual. Block verification accepts up to the largest i with
    :math:`u_i \le h_i`.

    Parameters
    ----------
    p, draft : array_like
        As in `accept_standard`.
    q : array_like, shape (B, K, V), or None
        None for one-hot drafts.
    u : array_like, shape (B, K)
        Coins in [0, 1); raised to 2**-31, as the engine does.
    gumbel : array_like, shape (B, K + 1, V)
        Gumbel variates of each position and token.
    block : bool
        ``rejection_sample_method="block"``.

    Returns
    -------
    Outcome
        With overlap, as the plain rules.

    Examples
    --------
    >>> p, noise = [[[0.25, 0.75], [0.5, 0.5]]], [[[0.0, 0.0], [0.1, 0.0]]]
    >>> accept_vllm_v2(p, None, [[0]], [[0.25]], noise).emitted_tokens()  # 0.25 is not above 0.25
    [[1]]
    """
    p_rows, q_rows, d, drafted, coins = checked_chain(p, q, draft, _with_spare_column(u))
    noise = np.asarray(gumbel, dtype=np.float64)
    if noise.shape != p_rows.shape:
        raise InputError(f"gumbel: expected shape {p_rows.shape}, got {noise.shape}")
    coin = np.maximum(coins[:, :-1], V2_SMALLEST_COIN)
    chance = at_tokens(p_rows[:, :-1], d)
    if block:
        h, survival = block_thresholds(p_rows, q_rows, d, drafted)
        accepted = last_passed(coin <= h, drafted)
        scale = survival[np.arange(len(d)), accepted]
    else:
        drawn = np.ones_like(chance) if q_rows is None else at_tokens(q_rows, d)
        with np.errstate(divide="ignore"):
            accepted = leading(np.log(chance) > np.log(coin) + np.log(drawn), drafted)
        scale = np.ones(len(d))
    weights = last_weights(p_rows, q_rows, d, drafted, accepted, scale)
    with np.errstate(divide="ignore"):
        last = np.argmax(np.log(weights) + noise[np.arange(len(d)), accepted], axis=-1)
    return chain_outcome(d, drafted, accepted, last.astype(np.int64), overlap_of(p_rows, q_rows, d))


def _with_spare_column(u: npt.ArrayLike) -> FloatArray:
    """Coins with a column for the last token, which these samplers do not draw by inversion."""
    coins = np.asarray(u, dtype=np.float64)
    return np.pad(coins, ((0, 0), (0, 1))) if coins.ndim == 2 else coins
