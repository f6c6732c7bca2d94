"""SGLang 0.5.23's target-only rule: drafted siblings are accepted by the target's probability, q is never looked at.

How it differs from `accept_tree` with chosen siblings, to which it is equal with both thresholds 1 and distinct
siblings: one coin decides among all siblings of a node; the thresholds accept more than p allows; and a repeated
sibling counts again. SGLang pads n-gram trees with token 0 below the root, so m pads accept token 0 with probability
min(1, m p(0)) instead of p(0): a bias of the engine, reproduced here and nowhere else.

SGLang's other rules need no convention of their own: ``--speculative-use-rejection-sampling`` is `accept_standard` (it
accepts if coin q < p), with ``--speculative-use-block-verification`` `accept_block`, and temperature 0
`accept_tree_greedy`.
"""

import numpy.typing as npt

from specplan.errors import InputError
from specplan.verify.categorical import checked_rows, checked_uniforms
from specplan.verify.outcome import FloatArray, IntArray, Outcome
from specplan.verify.tree import Verdict, checked_tree, walked


def checked_thresholds(single: float, acc: float) -> tuple[float, float]:
    """Both thresholds, each in [0, 1]; `acc` at least 1e-9, as SGLang floors it.

    >>> checked_thresholds(1.0, 0.0)
    (1.0, 1e-09)
    """
    for name, value in (("threshold_single", single), ("threshold_acc", acc)):
        if not 0.0 <= value <= 1.0:
            raise InputError(f"{name}: expected a number in [0, 1], got {value}")
    return single, max(acc, 1e-9)


def accept_sglang_target_only(
    p: npt.ArrayLike,
    draft: npt.ArrayLike,
    u: npt.ArrayLike,
    *,
    parents: npt.ArrayLike,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
) -> Outcome:
    r"""Verify a tree as SGLang samples by default for EAGLE, EAGLE3, STANDALONE and NGRAM.

    At a node with distribution p and coin u, for its children in order, with :math:`a` the sum of p over the children
    so far, this one included:

    .. math::

        \text{accept } x \iff p(x) > 0 \text{ and } (u < a / t_{\mathrm{acc}} \text{ or } p(x) \ge t_{\mathrm{single}})

    When no child is accepted, the last token is drawn from p without the rejected tokens.

    Parameters
    ----------
    p : array_like, shape (B, N + 1, V)
        Target distributions after the context (row 0) and after node j (row j + 1).
    draft, parents : array_like
        As in `accept_tree_greedy`. Give the padding that the engine would verify to see its bias; -1 for none.
    u : array_like, shape (B, N + 2)
        Uniforms in [0, 1): the coin of the context and of each node, shared by its children, then the one that draws
        the last token.
    threshold_single, threshold_acc : float
        In [0, 1]; exact only at 1, SGLang's default.

    Returns
    -------
    Outcome
        `overlap` is the probability, given the siblings, that one of them is accepted.

    Raises
    ------
    InputError
        As `accept_tree`; for thresholds outside [0, 1].

    Notes
    -----
    For one draft token per position this is the one-hot rule: alpha is the mean of p(drafted token), not the sum of
    min(p, q). Not modelled: SGLang applies min-p nowhere on this path, and on CPU and XPU takes the argmax whatever
    the temperature. Source: SGLang 0.5.23 (``--speculative-accept-threshold-single``, ``-acc``).

    Examples
    --------
    >>> p = [[[0.25, 0.75]] * 4]
    >>> out = accept_sglang_target_only(p, [[0, 0, 0]], [[0.7, 0, 0, 0, 0]], parents=[-1, -1, -1])
    >>> out.emitted_tokens(), out.overlap.tolist()  # three pads: accepted with 3 p(0), not p(0)
    ([[0, 0]], [[0.75]])
    """
    single, acc = checked_thresholds(threshold_single, threshold_acc)
    d, tree, live = checked_tree(p, draft, parents)
    p_rows = checked_rows("target probabilities", p, tree.rows_in_use(live)[0])
    coins = checked_uniforms(u, (d.shape[0], d.shape[1] + 2))

    def judge(b: int, row: int, kids: IntArray) -> Verdict:
        return _judge(p_rows[b, row], d[b], kids, coins[b, row], single, acc)

    return walked(tree, d, live, judge, coins[:, -1])


def _judge(p: FloatArray, token: IntArray, kids: IntArray, u: float, single: float, acc: float) -> Verdict:
    left, total, chance = p.copy(), 0.0, 0.0
    chosen = None
    for j in kids.tolist():
        x = token[j]
        total += p[x]
        if p[x] > 0.0:
            chance = 1.0 if p[x] >= single else max(chance, min(1.0, total / acc))
            if chosen is None and (u * acc < total or p[x] >= single):
                chosen = j
        left[x] = 0.0
    return chosen, left if left.any() else p, chance
