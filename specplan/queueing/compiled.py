"""Loops that numba compiles where it is installed, and that Python runs as they stand where it is not.

The loops index flat arrays and allocate nothing. Without numba the same functions run on lists, which Python indexes
faster than arrays; both ways give the same bits, since neither reorders an operation.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from specplan.propose.compiled import jit_leaf

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T", bound=NamedTuple)

IS_COMPILED: Final = find_spec("numba") is not None
"""Whether the loops run as machine code."""


def loop(function: _F) -> _F:
    """Compile `function`, which allocates no array, if numba is there."""
    return jit_leaf(function) if IS_COMPILED else function


def as_indexed(arrays: _T) -> _T:
    """The same named arrays in the form that is indexed fastest: arrays for machine code, lists for Python."""
    if IS_COMPILED:
        return arrays
    return type(arrays)(*(a.tolist() if isinstance(a, np.ndarray) else a for a in arrays))
