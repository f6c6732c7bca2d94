"""Where shards run: here, in several processes, or on a Ray cluster; results in order, few under way at once."""

import copyreg
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar

from specplan.errors import InputError, MissingExtraError, SpecplanError

ATTEMPTS: Final = 4
"""Times that a piece of work is begun before the deaths of its workers end the run."""

_DIED: Final = (
    f"{ATTEMPTS} workers died over the same piece of work (out of memory?): try fewer at once; with a checkpoint, what "
    "is finished is not done again"
)


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
    """In `jobs` processes of this machine; work whose process died is begun again.

    Processes are spawned, not forked: numba and thread pools do not survive a fork.
    """

    def __init__(self, jobs: int) -> None:
        if not 1 <= jobs <= 1024:
            raise InputError(f"--jobs {jobs}: expected 1 to 1024 processes")
        self.jobs = jobs

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in order."""
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context

        with ExitStack() as stack:

            def pool() -> ProcessPoolExecutor:
                return stack.enter_context(ProcessPoolExecutor(self.jobs, mp_context=get_context("spawn")))

            pools = [pool()]

            def submit(item: Item) -> Any:
                try:
                    return item, pools[-1].submit(function, item)
                except BrokenProcessPool:  # the death of one process ends its pool
                    pools.append(pool())
                    return item, pools[-1].submit(function, item)

            def collect(begun: Any) -> Result:
                for _ in range(ATTEMPTS):
                    item, future = begun
                    try:
                        found: Result = future.result()
                    except BrokenProcessPool:
                        begun = submit(item)
                    else:
                        return found
                raise SpecplanError(_DIED)

            yield from _windowed(submit, collect, items, 2 * self.jobs)


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
    """On a Ray cluster: the one that the environment names, else a local one; work of a lost worker is begun again.

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

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in order."""
        ray = self._ray
        with _no_stdout(), ExitStack() as stack:  # its daemons print, and so does it of lost workers
            if not ray.is_initialized():
                ray.init(log_to_driver=False)
                stack.callback(ray.shutdown)
            call = ray.remote(_call)  # Ray takes functions, not callables such as a task with its settings
            begin = call.options(max_retries=ATTEMPTS - 1).remote
            shipped = ray.put(function)

            def collect(begun: Any) -> Result:
                try:
                    found: Result = ray.get(begun)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except ray.exceptions.WorkerCrashedError:
                    raise SpecplanError(_DIED) from None
                return found

            ahead = max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
            yield from _windowed(lambda item: begin(shipped, item), collect, items, ahead)


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
