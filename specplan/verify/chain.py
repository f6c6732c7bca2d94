"""What the rules for chains share: checked inputs, the accepted length, the weights of the last token, the overlap."""

import numpy as np
import numpy.typing as npt

from specplan.verify.categorical import (
    at_tokens,
    checked_draft,
    checked_rows,
    checked_uniforms,
    residual,
    used_rows,
    without,
)
from specplan.verify.outcome import BoolArray, FloatArray, IntArray


def checked_chain(
    p: npt.ArrayLike, q: npt.ArrayLike | None, draft: npt.ArrayLike, u: npt.ArrayLike
) -> tuple[FloatArray, FloatArray | None, IntArray, IntArray, FloatArray]:
    """Inputs of a chain rule, checked: p (B, K + 1, V), q (B, K, V) or None, draft (B, K), its lengths, u (B, K + 1).

    Raises
    ------
    InputError
        Naming the request and position of NaN, of a negative number, of a row that does not sum to 1, of a token
        outside the vocabulary, of a uniform outside [0, 1); or the shape that was expected.
    """
    shape = np.shape(p)
    vocab = shape[-1] if shape else 0
    d, drafted = checked_draft(draft, vocab)
    batch, k = d.shape
    p_rows = checked_rows("target probabilities", p, used_rows(drafted, k + 1))
    q_rows = None
    if q is not None:
        q_rows = checked_rows("draft probabilities", q, used_rows(drafted - 1, k), vocab)
    return p_rows, q_rows, d, drafted, checked_uniforms(u, (batch, k + 1))


def leading(accept: BoolArray, drafted: IntArray) -> IntArray:
    """Accepted length: the verdicts before the first rejection, within the draft.

    >>> leading(np.array([[True, False, True], [True, True, True]]), np.array([3, 2])).tolist()
    [1, 2]
    """
    inside = np.arange(accept.shape[1]) < drafted[:, None]
    return np.asarray(np.cumprod(accept & inside, axis=1, dtype=np.int64).sum(axis=1))


def last_weights(
    p: FloatArray,
    q: FloatArray | None,
    draft: IntArray,
    drafted: IntArray,
    accepted: IntArray,
    scale: FloatArray | None = None,
) -> FloatArray:
    """Weights of the last token, shape (B, V): the target's row after a whole draft, else its residual.

    `scale`, shape (B,), multiplies the target before q is taken away (block verification); None for 1.
    """
    weights = p[np.arange(len(draft)), accepted]
    short = np.flatnonzero(accepted < drafted)
    if q is None:
        weights[short] = without(weights[short], draft[short, accepted[short]])
    else:
        target = weights[short] if scale is None else scale[short, None] * weights[short]
        weights[short] = residual(target, q[short, accepted[short]])
    return weights


def overlap_of(p: FloatArray, q: FloatArray | None, draft: IntArray) -> FloatArray:
    """Sum of min(p, q) at every drafted position, shape (B, K); p of the drafted token where q is one-hot."""
    if q is None:
        return at_tokens(p[:, :-1], draft)
    return np.asarray(np.minimum(p[:, :-1], q).sum(axis=-1))
