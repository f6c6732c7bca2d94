"""Greedy rule: a drafted token is accepted if it is the target's most probable one."""

import numpy as np
import numpy.typing as npt

from specplan.verify.categorical import checked_draft, checked_rows, used_rows
from specplan.verify.outcome import Outcome, chain_outcome


def accept_greedy(scores: npt.ArrayLike, draft: npt.ArrayLike) -> Outcome:
    """Accept drafted tokens while they equal the target's argmax; then emit the argmax.

    Parameters
    ----------
    scores : array_like, shape (B, K + 1, V)
        Logits or probabilities of the target after the context and each drafted token.
    draft : array_like of int, shape (B, K)
        Drafted tokens; -1 where there is none. A draft ends at its first -1.

    Returns
    -------
    Outcome
        The emitted tokens are those of greedy decoding whatever was drafted. Ties go to the lowest id.

    Raises
    ------
    InputError
        For NaN in a row in use, named; for tokens outside the vocabulary.

    Notes
    -----
    Source: chapter (greedy verification is exact match); vLLM 0.32 V1 and V2 and SGLang 0.5.23 have the same rule for
    temperature 0.

    Examples
    --------
    >>> out = accept_greedy([[[0, 1, 0], [3, 0, 0], [0, 0, 2]]], [[1, 2]])
    >>> out.emitted_tokens(), out.accepted.tolist()
    ([[1, 0]], [1])
    """
    shape = np.shape(scores)
    d, drafted = checked_draft(draft, shape[-1] if shape else 0)
    s = checked_rows("target scores", scores, used_rows(drafted, d.shape[1] + 1), total=None)
    best = s.argmax(axis=-1)
    accepted = np.cumprod((best[:, :-1] == d) & (d >= 0), axis=1, dtype=np.int64).sum(axis=1)
    return chain_outcome(d, drafted, accepted, best[np.arange(len(d)), accepted], None)
