"""Block verification: all positions are judged together, so more tokens are accepted than one by one."""

import numpy as np
import numpy.typing as npt

from specplan.verify.categorical import at_tokens, draw
from specplan.verify.chain import checked_chain, last_weights, overlap_of
from specplan.verify.outcome import BoolArray, FloatArray, IntArray, Outcome, chain_outcome


def accept_block(p: npt.ArrayLike, q: npt.ArrayLike | None, draft: npt.ArrayLike, u: npt.ArrayLike) -> Outcome:
    r"""Verify drafts as a block; emits p's distribution and accepts at least as many tokens as any such rule.

    With :math:`P_0 = 1` and the draft's length n,

    .. math::

        P_i = \min\!\left(1, P_{i-1} \frac{p_i(x_i)}{q_i(x_i)}\right), \qquad
        R_i = \sum_v \max(P_i\, p_{i+1}(v) - q_{i+1}(v), 0)

        h_i = \frac{R_i}{R_i + 1 - P_i} \; (i < n), \quad h_n = P_n, \qquad \tau = \max\{i : u_i < h_i\}

    (:math:`\tau = 0` if there is none). The last token is drawn from :math:`\max(P_\tau\, p_{\tau+1} - q_{\tau+1}, 0)`
    or, when :math:`\tau = n`, from the target's next row.

    Parameters
    ----------
    p, draft, u : array_like
        As in `accept_standard`.
    q : array_like, shape (B, K, V), or None
        Distributions from which the drafted tokens were drawn; None for one-hot drafts.

    Returns
    -------
    Outcome
        Positions count as reached up to and including the first that was not accepted, though all were looked at.

    Raises
    ------
    InputError
        As `accept_standard`.

    Notes
    -----
    Expected accepted tokens are the sum over i of E[P_i], not the sum of min(p, q) over paths, which bounds it from
    above. Equal to the standard rule for one drafted token and at temperature 0. The overlap that is recorded is the
    sum of min(p, q), which describes the pair of models, not this rule's acceptance.
    Source: Sun et al., arXiv 2403.10444, Algorithm 2; vLLM 0.32 V2 and SGLang 0.5.23 implement it.

    Examples
    --------
    >>> p, q = [1 / 3, 2 / 3], [2 / 3, 1 / 3]
    >>> out = accept_block([[p, p, p]], [[q, q]], [[0, 1]], [[0.6, 0.9, 0.1]])
    >>> out.accepted.tolist()  # the standard rule rejects the first token: 0.6 > 1/2
    [2]
    """
    p_rows, q_rows, d, drafted, coins = checked_chain(p, q, draft, u)
    h, survival = block_thresholds(p_rows, q_rows, d, drafted)
    accepted = last_passed(coins[:, :-1] < h, drafted)
    scale = survival[np.arange(len(d)), accepted]
    last = draw(last_weights(p_rows, q_rows, d, drafted, accepted, scale), coins[:, -1])
    return chain_outcome(d, drafted, accepted, last, overlap_of(p_rows, q_rows, d))


def block_thresholds(
    p: FloatArray, q: FloatArray | None, draft: IntArray, drafted: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Acceptance thresholds h_1 ... h_K, shape (B, K), and P_0 ... P_K, shape (B, K + 1), of checked inputs."""
    batch, k = draft.shape
    chance = at_tokens(p[:, :-1], draft)
    h, survival = np.zeros((batch, k)), np.ones((batch, k + 1))
    for i in range(1, k + 1):
        running = np.minimum(1.0, _ratio(survival[:, i - 1], chance[:, i - 1], q, draft, i - 1))
        survival[:, i] = h[:, i - 1] = running
        if i < k:
            left = _residual_mass(running, p[:, i], q, draft, chance, i)
            gap = left + 1.0 - running
            held = np.where(gap > 0.0, left / np.where(gap > 0.0, gap, 1.0), 1.0)
            h[:, i - 1] = np.where(i == drafted, running, held)
    return h, survival


def last_passed(passed: BoolArray, drafted: IntArray) -> IntArray:
    """Accepted length of a block: the last position within the draft that passed, failures before it or not.

    >>> last_passed(np.array([[False, True, True], [False, False, True]]), np.array([2, 2])).tolist()
    [2, 0]
    """
    length = np.arange(1, passed.shape[1] + 1)
    return np.asarray(np.where(passed & (length <= drafted[:, None]), length, 0).max(axis=1, initial=0), dtype=np.int64)


def _ratio(running: FloatArray, chance: FloatArray, q: FloatArray | None, d: IntArray, i: int) -> FloatArray:
    """P_{i-1} p/q at the drafted token; infinite where only q is 0, and 0 where p is."""
    if q is None:
        return running * chance
    drawn = at_tokens(q[:, i], d[:, i])
    with np.errstate(over="ignore"):  # p over a subnormal q may overflow, to an infinity that min(1, .) absorbs
        ratio = np.where(drawn > 0.0, chance / np.where(drawn > 0.0, drawn, 1.0), np.inf)
    product = running * np.where(chance > 0.0, ratio, 0.0)
    return np.where(running > 0.0, product, 0.0)


def _residual_mass(
    running: FloatArray, p: FloatArray, q: FloatArray | None, d: IntArray, chance: FloatArray, i: int
) -> FloatArray:
    if q is None:
        return running * np.where(d[:, i] >= 0, 1.0 - chance[:, i], 0.0)
    return np.asarray(np.maximum(running[:, None] * p - q[:, i], 0.0).sum(axis=-1))
