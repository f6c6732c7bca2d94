"""Standard rejection: accept with probability min(1, p/q), else draw from the residual."""

import numpy.typing as npt

from specplan.verify.categorical import at_tokens, draw
from specplan.verify.chain import checked_chain, last_weights, leading, overlap_of
from specplan.verify.outcome import Outcome, chain_outcome


def accept_standard(p: npt.ArrayLike, q: npt.ArrayLike, draft: npt.ArrayLike, u: npt.ArrayLike) -> Outcome:
    r"""Verify drafts that were sampled from q; the emitted tokens are distributed as p's.

    .. math::

        \text{accept } x_i \iff u_i\, q_i(x_i) < p_i(x_i), \qquad
        \text{else draw from } \max(p_i - q_i, 0) / \textstyle\sum_v \max(p_i(v) - q_i(v), 0)

    When all are accepted, a bonus token is drawn from the target's next row.

    Parameters
    ----------
    p : array_like, shape (B, K + 1, V)
        Target distributions after the context and each drafted token.
    q : array_like, shape (B, K, V)
        Distributions from which the drafted tokens were drawn.
    draft : array_like of int, shape (B, K)
        Drafted tokens; -1 where there is none. A draft ends at its first -1.
    u : array_like, shape (B, K + 1)
        Uniforms in [0, 1): K coins, then the one that draws the last token.

    Returns
    -------
    Outcome
        With overlap sum of min(p, q) at each reached position.

    Raises
    ------
    InputError
        Naming the row that is not a distribution, the token outside the vocabulary, the uniform outside [0, 1).

    Notes
    -----
    The strict comparison accepts with probability exactly min(1, p/q): u = 0 never accepts a token of p = 0. A token
    with q = 0 cannot have been drawn from q; it is accepted if p > 0, the limit of the rule.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), Algorithm 1; Chen et al. 2023 (arXiv 2302.01318).

    Examples
    --------
    >>> p = [[[0.25, 0.75], [0.5, 0.5]]]
    >>> out = accept_standard(p, [[[0.75, 0.25]]], [[0]], [[0.5, 0.1]])
    >>> out.emitted_tokens(), out.overlap.tolist()
    ([[1]], [[0.5]])
    """
    p_rows, q_rows, d, drafted, coins = checked_chain(p, q, draft, u)
    drawn = at_tokens(q_rows, d) if q_rows is not None else 1.0
    accepted = leading(coins[:, :-1] * drawn < at_tokens(p_rows[:, :-1], d), drafted)
    last = draw(last_weights(p_rows, q_rows, d, drafted, accepted), coins[:, -1])
    return chain_outcome(d, drafted, accepted, last, overlap_of(p_rows, q_rows, d))
