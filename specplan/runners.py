"""Where shards run: here, in several processes, or on a Ray cluster; results in order, few under way at once."""

import copyreg
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from specplan.errors import InputError, MissingExtraError


def _read_only(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


def _reduced(mapping: MappingProxyType[Any, Any]) -> tuple[Callable[..., Any], tuple[dict[Any, Any]]]:
    return _read_only, (dict(mapping),)


copyreg.pickle(MappingProxyType, _reduced)  # frozen values hold read-only mappings, which pickle does not know

Item = TypeVar("Item")
Result = TypeVar("Result")


class Runner(Protocol):
    """Maps a function over items, lazily and in order."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of the items; only a few items are drawn ahead."""
        ...


class Here:
    """In this process, one after another.

    >>> list(Here().map(abs, [-1, 2]))
    [1, 2]
    """

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in order."""
        yield from map(function, items)


def _windowed(
    submit: Callable[[Item], Any], collect: Callable[[Any], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    under_way: deque[Any] = deque()
    for item in items:
        under_way.append(submit(item))
        if len(under_way) >= ahead:
            yield collect(under_way.popleft())
    while under_way:
        yield collect(under_way.popleft())


class Processes:
    """In `jobs` processes of this machine.

    Processes are spawned, not forked: numba and thread pools do not survive a fork.
    """

    def __init__(self, jobs: int) -> None:
        if not 1 <= jobs <= 1024:
            raise InputError(f"--jobs {jobs}: expected 1 to 1024 processes")
        self.jobs = jobs

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in order."""
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn")) as pool:
            yield from _windowed(lambda item: pool.submit(function, item), lambda f: f.result(), items, 2 * self.jobs)


def _call(function: Callable[[Item], Result], item: Item) -> Result:
    return function(item)


@contextmanager
def _no_stdout() -> Iterator[None]:
    """Whatever is printed within, and by processes that are started within, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class Ray:
    """On a Ray cluster: the one that the environment names, else a local one.

    Raises
    ------
    MissingExtraError
        Without the package ray.
    """

    def __init__(self) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise MissingExtraError("ray", extra="ray") from None
        self._ray = ray
        if not ray.is_initialized():
            with _no_stdout():  # its daemons live on with what they are given, and print
                ray.init(log_to_driver=False)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in order."""
        call = self._ray.remote(_call)  # Ray takes functions, not callables such as a task with its settings
        shipped = self._ray.put(function)
        ahead = max(2, 2 * int(self._ray.cluster_resources().get("CPU", 1)))
        yield from _windowed(lambda item: call.remote(shipped, item), self._ray.get, items, ahead)


def runner_of(on: str, jobs: int) -> Runner:
    """The runner that ``--on`` and ``--jobs`` name.

    >>> type(runner_of("local", 1)).__name__
    'Here'
    """
    if on == "ray":
        return Ray()
    if on != "local":
        raise InputError(f"--on {on}: expected local or ray")
    return Here() if jobs == 1 else Processes(jobs)
