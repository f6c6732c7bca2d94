"""The one protocol of all proposers: token ids in, a draft out.

A proposer sees token ids and nothing else. It is told of a request's prompt and of every token that the request emits,
and is asked for a draft in between; all proposers, whatever engine's rule they run, answer the same calls, so that
replay and harness drive any of them.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError

TokenArray: TypeAlias = NDArray[np.int32]
"""Token ids, one dimension, contiguous."""

Tokens: TypeAlias = Sequence[int] | NDArray[np.integer]
"""What callers may hand over as token ids."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a proposer offers for one step of one request.

    Attributes
    ----------
    tokens : tuple of int
        Drafted token ids; a chain, or a tree in an order where parents stand before their children.
    parents : tuple of int or None
        For each token, the index in `tokens` of its parent, -1 for a continuation of the context itself. None: a chain,
        each token following the one before it.
    scores : tuple of float or None
        Estimated probability that the path to each token is what follows; None where the rule estimates nothing.
    score : float
        Sum of `scores`: the expected number of accepted tokens by the proposer's own estimate; 0 where there is none.
    match_len : int
        Length of the context's suffix that was found again; 0 without a match.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    scores: tuple[float, ...] | None = None
    score: float = 0.0
    match_len: int = 0

    def __len__(self) -> int:
        """Number of drafted tokens.

        >>> len(Draft((5, 6, 7))), len(EMPTY)
        (3, 0)
        """
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether each token follows the one before it.

        >>> Draft((5, 6)).is_chain, Draft((5, 6), parents=(-1, 0)).is_chain, Draft((5, 6), parents=(-1, -1)).is_chain
        (True, True, False)
        """
        return self.parents is None or self.parents == tuple(range(-1, len(self.tokens) - 1))


EMPTY = Draft()
"""The draft of a proposer that has nothing to offer."""


@runtime_checkable
class Proposer(Protocol):
    """A draft source that needs no model: per-request state, perhaps a store shared by requests.

    Calls for one request: `start_request`, then `extend` and `propose` in any order, then `stop_request`. `extend`
    takes the tokens that the request has emitted since (accepted drafts and the bonus or recovered token); rejected
    drafts are never told.
    """

    def start_request(self, request_id: Hashable, prompt: Tokens) -> None:
        """Begin a request with its prompt; InputError if it is active."""
        ...

    def extend(self, request_id: Hashable, tokens: Tokens) -> None:
        """Append emitted tokens to an active request; InputError if it is not active."""
        ...

    def propose(self, request_id: Hashable, limit: int) -> Draft:
        """Draft at most `limit` tokens that may follow the request's text; the rule may cap further."""
        ...

    def propose_batch(self, request_ids: Sequence[Hashable], limits: int | Sequence[int]) -> list[Draft]:
        """Drafts of several requests, in order; equal to asking one by one."""
        ...

    def stop_request(self, request_id: Hashable) -> None:
        """Drop the request's own state; what a shared store keeps of it is the rule's matter."""
        ...

    def check_integrity(self) -> None:
        """Verify every structural invariant; AssertionError names the one that is broken. Slow: for tests."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes held now: request states and shared store, exact for arrays."""
        ...


def limits_of(request_ids: Sequence[Hashable], limits: int | Sequence[int]) -> Iterable[int]:
    """One limit for each request.

    >>> list(limits_of(["a", "b"], 3)), list(limits_of(["a", "b"], [3, 5]))
    ([3, 3], [3, 5])
    """
    if isinstance(limits, int):
        return (limits,) * len(request_ids)
    if len(limits) != len(request_ids):
        raise InputError(f"{len(limits)} limits for {len(request_ids)} requests; give one number or one per request")
    return limits


def as_tokens(tokens: Tokens, *, what: str = "tokens") -> TokenArray:
    """Token ids as a contiguous, writable int32 vector; one that is so already is passed through without a copy.

    Parameters
    ----------
    tokens : sequence of int or integer array, shape (T,)
        Ids in [-2^31, 2^31).
    what : str
        How the message names them.

    Raises
    ------
    InputError
        When they are not one-dimensional integers that fit 32 bits.

    Examples
    --------
    >>> as_tokens([1, 2, 3])
    array([1, 2, 3], dtype=int32)
    >>> as_tokens([2**31])
    Traceback (most recent call last):
    specplan.errors.InputError: tokens: id 2147483648 does not fit 32 bits; give token ids below 2147483648
    """
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1 and tokens.flags.carray:
        return cast(TokenArray, tokens)
    try:
        array = np.asarray(tokens)
    except (OverflowError, ValueError):
        raise InputError(f"{what}: expected a flat sequence of token ids") from None
    if array.size == 0:
        array = array.astype(np.int32)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"{what}: expected a flat sequence of token ids, got dtype {array.dtype} with {array.ndim} dimension(s)"
        )
    info = np.iinfo(np.int32)
    for id_ in (int(array.min(initial=0)), int(array.max(initial=0))):
        if not info.min <= id_ <= info.max:
            raise InputError(f"{what}: id {id_} does not fit 32 bits; give token ids below {2**31}")
    return np.array(array, dtype=np.int32, order="C")
