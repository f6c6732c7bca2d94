"""One-hot rule: drafts that were chosen, not sampled, are accepted with the target's own probability of the token."""

import numpy.typing as npt

from specplan.verify.categorical import draw
from specplan.verify.chain import checked_chain, last_weights, leading, overlap_of
from specplan.verify.outcome import Outcome, chain_outcome


def accept_one_hot(p: npt.ArrayLike, draft: npt.ArrayLike, u: npt.ArrayLike) -> Outcome:
    r"""Verify drafts without a distribution (n-gram, suffix, greedy draft model); emits p's distribution.

    .. math::

        \text{accept } x_i \iff u_i < p_i(x_i), \qquad \text{else draw from } p_i \text{ without } x_i

    Parameters
    ----------
    p : array_like, shape (B, K + 1, V)
        Target distributions after the context and each drafted token.
    draft : array_like of int, shape (B, K)
        Drafted tokens, chosen in any way that does not depend on the uniforms; -1 where there is none.
    u : array_like, shape (B, K + 1)
        Uniforms in [0, 1): K coins, then the one that draws the last token.

    Returns
    -------
    Outcome
        With overlap p(x) at each reached position. The rejected token is never emitted in its own position.

    Raises
    ------
    InputError
        As `accept_standard`.

    Notes
    -----
    The standard rule with q = 1 at the drafted token. Source: chapter ("accepts the drafted token with its own target
    probability"); vLLM 0.32 (``draft_probs is None``).

    Examples
    --------
    >>> p = [[[0.25, 0.75], [0.5, 0.5]]] * 2
    >>> accept_one_hot(p, [[0], [-1]], [[0.2, 0.9], [0.2, 0.9]]).emitted_tokens()
    [[0, 1], [1]]
    """
    p_rows, _, d, drafted, coins = checked_chain(p, None, draft, u)
    chance = overlap_of(p_rows, None, d)
    accepted = leading(coins[:, :-1] < chance, drafted)
    last = draw(last_weights(p_rows, None, d, drafted, accepted), coins[:, -1])
    return chain_outcome(d, drafted, accepted, last, chance)
