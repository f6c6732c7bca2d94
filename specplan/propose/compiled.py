"""Compilation of hot loops with numba, which is imported only when a compiled proposer is first used.

Modules named ``*_kernels`` decorate their functions with `jit` or `jit_leaf`; proposers import those modules inside
functions, through `load`, so that importing a proposer costs nothing and a missing numba is one clear line.
"""

import hashlib
import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from specplan.errors import MissingExtraError

_F = TypeVar("_F", bound=Callable[..., Any])


def jit(function: _F) -> _F:
    """Compile `function` with numba: no Python objects, no fast-math, machine code cached on disk, the GIL released.

    Without fast-math a float32 expression is rounded after each operation, as in the engines' C++.

    Raises
    ------
    MissingExtraError
        When numba is not installed.
    """
    return _compile(function)


def jit_leaf(function: _F) -> _F:
    """`jit` for a function that allocates no array: arrays are passed without counting references.

    Counting them is atomic and costs more than a walk over a few tree nodes. The caller, compiled or not, holds the
    references; so a leaf neither returns an array nor calls a counting function that does.

    Raises
    ------
    MissingExtraError
        When numba is not installed.
    """
    return _compile(function, _nrt=False)


def _compile(function: _F, **options: Any) -> _F:
    try:
        from numba import njit
    except ImportError:
        raise MissingExtraError("numba", extra="replay") from None
    decorate: Any = njit  # the stubs do not know every option
    compiled: Any = decorate(cache=True, nogil=True, error_model="numpy", **options)(function)
    # numba notices a change of the function's own file alone, while what it calls may stand in another.
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if file is not None:
        file._source_stamp = (file._source_stamp, sources_stamp())
    return cast(_F, compiled)


@cache
def sources_stamp() -> str:
    """Hash of every source that compiled functions are made of: a change in one makes all machine code anew.

    >>> len(sources_stamp())
    64
    """
    rooms = Path(__file__).parent, Path(__file__).parents[1] / "queueing"
    files = sorted(
        f for room in rooms for end in ("_kernels", "_loop", "state", "compiled") for f in room.glob(f"*{end}.py")
    )
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()


def load(kernels: str) -> ModuleType:
    """Module of compiled functions in this room, by its last name.

    Raises
    ------
    MissingExtraError
        When numba is not installed.

    Examples
    --------
    >>> load("ngram_kernels").__name__
    'specplan.propose.ngram_kernels'
    """
    return importlib.import_module(f"specplan.propose.{kernels}")
