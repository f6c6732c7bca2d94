"""Requests and the acceptance of their drafts, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specplan.errors import InputError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """A list of whole numbers per request, end to end.

    Attributes
    ----------
    values : ndarray
    begin, count : ndarray, shape (requests,)
        Where each request's list begins, and its length. Lists may overlap.

    Examples
    --------
    >>> Lists.of([[1, 2], [], [3]]).begin.tolist()
    [0, 2, 2]
    """

    values: Ints
    begin: Ints
    count: Ints

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "Lists":
        """Lists one after another."""
        count = np.array([len(x) for x in lists], np.int64)
        return cls(
            values=np.array([v for x in lists for v in x], np.int64), begin=np.cumsum(count) - count, count=count
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """A load: requests in order of arrival.

    Attributes
    ----------
    arrival : ndarray, shape (n,)
        Seconds, not falling. Under a closed load those that wait for others to finish hold NaN.
    prompt, output : ndarray of int, shape (n,)
        Tokens.
    closed : int
        Requests in the system under a closed load; 0 for an open one.
    turnaround_s : float
        Seconds from the end of a request to the arrival of the one that it lets come: client and network.
    shared : Lists or None
        Ids of the contents at the head of each prompt, one per `shared_tokens` tokens: requests that begin with the
        same ids begin with the same tokens.
    shared_tokens : int
        A multiple of the engine's block size.
    names : tuple of str
        What errors and tables call the requests; empty for their numbers.
    """

    arrival: Floats
    prompt: Ints
    output: Ints
    closed: int = 0
    turnaround_s: float = 0.0
    shared: Lists | None = None
    shared_tokens: int = 0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse loads that make no sense."""
        n = self.prompt.size
        if n == 0:
            raise InputError("the load holds no request")
        if n > 2**22:
            raise InputError(f"{n} requests: at most {2**22} in one run; simulate parts of them, or several seeds")
        known = self.arrival[: self.closed or n]
        if self.arrival.size != n or self.output.size != n or not np.all(np.isfinite(known)):
            raise InputError("each request needs a finite arrival, a prompt and an output length")
        if np.any(np.diff(known) < 0):
            raise InputError("arrivals fall; sort the requests by arrival")

    def __len__(self) -> int:
        return int(self.prompt.size)

    def name(self, i: int) -> str:
        """What request `i` is called."""
        return self.names[i] if self.names else f"request {i + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """Draft lengths and accepted tokens of each request, used over and over from the list's beginning.

    Attributes
    ----------
    drafted : Lists
        Drafted tokens, one per step in which the request takes part (those of its prompt included).
    accepted : Lists
        Accepted tokens, one per verification, capped by the draft that is verified.
    paired : bool
        Accepted tokens stand beside the draft lengths that they belong to: one list, one place.

    Examples
    --------
    >>> Drafting.of([[3]], [[2, 0]]).accepted.values.tolist()
    [2, 0]
    """

    drafted: Lists
    accepted: Lists
    paired: bool = False

    @classmethod
    def of(cls, drafted: Sequence[Sequence[int]], accepted: Sequence[Sequence[int]]) -> "Drafting":
        """From a list per request; an empty list is a list of zeros."""
        return cls(drafted=Lists.of([x or [0] for x in drafted]), accepted=Lists.of([x or [0] for x in accepted]))

    def __post_init__(self) -> None:
        """Refuse what a step cannot hold."""
        for lists in (self.drafted, self.accepted):
            if lists.values.size and not 0 <= lists.values.min() <= lists.values.max() <= 255:
                raise InputError("drafted and accepted tokens per step lie between 0 and 255")
            if np.any(lists.count < 1):
                raise InputError("each request needs at least one draft length and one acceptance")
