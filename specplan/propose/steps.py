"""What a compiled replay hands back: one row per speculative step, in columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError
from specplan.propose.protocol import TokenArray, Tokens, as_tokens

COLUMNS = ("request", "context_len", "drafted", "accepted", "emitted", "match_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps of a replay, in the order of requests and of steps within a request.

    Attributes
    ----------
    request : int32 array, shape (S,)
        Index of the request.
    context_len : int32 array, shape (S,)
        Tokens before the step, prompt included.
    drafted, accepted : int32 array, shape (S,)
        Tokens drafted; leading ones that equal the recorded text.
    emitted : int32 array, shape (S,)
        min(accepted + 1, tokens left).
    match_len : int32 array, shape (S,)
        Length of the match behind the draft.
    leaf : bool array, shape (S,), or None
        For trees: whether the accepted path ends in a node without children, so that no further position was tested
        though nodes of other branches are left. None for chains, whose only leaf is their end.
    """

    request: NDArray[np.int32]
    context_len: NDArray[np.int32]
    drafted: NDArray[np.int32]
    accepted: NDArray[np.int32]
    emitted: NDArray[np.int32]
    match_len: NDArray[np.int32]
    leaf: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        """Number of steps."""
        return int(self.request.size)

    @classmethod
    def from_rows(cls, rows: NDArray[np.int32]) -> "Steps":
        """Columns of a (S, 6) array whose columns are `COLUMNS`, or of a (S, 7) one that ends with `leaf`.

        >>> steps = Steps.from_rows(np.array([[0, 9, 3, 2, 3, 4]], np.int32))
        >>> len(steps), int(steps.accepted[0])
        (1, 2)
        """
        columns = {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(COLUMNS)}
        return cls(**columns, leaf=rows[:, len(COLUMNS)] != 0 if rows.shape[1] > len(COLUMNS) else None)


def join(prompts: list[Tokens], responses: list[Tokens]) -> tuple[TokenArray, NDArray[np.int64], NDArray[np.int64]]:
    """Requests end to end: the stream, where each request starts (and the end), and how long each prompt is.

    >>> join([[1, 2], [3]], [[4], [5, 6]])
    (array([1, 2, 4, 3, 5, 6], dtype=int32), array([0, 3, 6]), array([2, 1]))
    """
    if len(prompts) != len(responses):
        raise InputError(f"{len(prompts)} prompts for {len(responses)} responses; give one response per prompt")
    parts = [as_tokens(part, what="request") for pair in zip(prompts, responses, strict=True) for part in pair]
    sizes = np.array([part.size for part in parts], np.int64).reshape(-1, 2)
    starts = np.zeros(len(prompts) + 1, np.int64)
    np.cumsum(sizes.sum(axis=1), out=starts[1:])
    stream = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    return stream.astype(np.int32, copy=False), starts, sizes[:, 0].copy()


def check_trace(stream: TokenArray, starts: NDArray[np.int64], prompts: NDArray[np.int64]) -> None:
    """Requests must tile the stream in order, each with its prompt inside it; InputError otherwise.

    >>> check_trace(np.zeros(3, np.int32), np.array([0, 4]), np.array([1]))
    Traceback (most recent call last):
    specplan.errors.InputError: starts: expected ascending offsets within the stream of 3 tokens, got 0 to 4
    """
    if starts.size < 1 or starts[0] < 0 or starts[-1] > stream.size or (np.diff(starts) < 0).any():
        ends = f"{starts[0]} to {starts[-1]}" if starts.size else "none"
        raise InputError(f"starts: expected ascending offsets within the stream of {stream.size} tokens, got {ends}")
    if prompts.size != starts.size - 1:
        raise InputError(f"prompts: {prompts.size} lengths for {starts.size - 1} requests")
    if ((prompts < 0) | (prompts > np.diff(starts))).any():
        raise InputError("prompts: a prompt is longer than its request, or negative; give its length in tokens")
