"""A recorded request: the prompt that was given and the response that came, as token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specplan.errors import InputError

TokenArray: TypeAlias = NDArray[np.int32]

MAX_TOKEN_ID: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request of a trace.

    Attributes
    ----------
    id : str
        As recorded, or FILE:LINE.
    tag : str
        Group in the report, or empty.
    prompt, response : ndarray of int32
        Token ids; the response's first one was emitted by the prefill.
    """

    id: str
    tag: str
    prompt: TokenArray
    response: TokenArray


def token_ids(values: object, what: str) -> TokenArray:
    """Token ids as int32.

    Parameters
    ----------
    values : list of int or integer array
        Ids from 0 to 2^31 - 1.
    what : str
        Name of the field for messages.

    Raises
    ------
    InputError
        For anything else: another type, a nested list, a fraction, a truth value, a negative or too large id.

    Examples
    --------
    >>> token_ids([1, 2, 3], "prompt").tolist()
    [1, 2, 3]
    >>> token_ids([1, -2], "prompt")
    Traceback (most recent call last):
    specplan.errors.InputError: prompt has token id -2; ids lie between 0 and 2147483647
    """
    if not isinstance(values, list | np.ndarray):
        raise InputError(f"{what} must be a list of token ids, got {_named(values)}")
    if len(values) == 0:
        return np.zeros(0, np.int32)
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        raise InputError(f"{what} must be a flat list of token ids") from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{what} must be a flat list of token ids, got {_odd_one(values)}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > MAX_TOKEN_ID:
        raise InputError(f"{what} has token id {low if low < 0 else high}; ids lie between 0 and {MAX_TOKEN_ID}")
    return array.astype(np.int32)


def _named(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text[:40]}{'...' if len(text) > 40 else ''}"


def _odd_one(values: Sequence[object] | NDArray[np.generic]) -> str:
    for index, value in enumerate(values):
        if type(value) is not int:
            return f"{_named(value)} at index {index}"
    return "ids beyond 64 bits"
