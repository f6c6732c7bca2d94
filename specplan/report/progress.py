"""Progress of long work on stderr: bars on a terminal, plain lines now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Final, Self

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from specplan.report.console import Console

QUIET_S: Final = 2.0
"""Work that ends sooner says nothing off a terminal."""
EVERY_S: Final = 10.0
"""Seconds between two lines off a terminal."""


def progress_words(done: int, total: int, seconds: float) -> str:
    """How far, how fast and how long still; a `total` of 0 is unknown.

    >>> progress_words(1200, 5000, 3.0)
    '1,200 of 5,000, 400/s, 10 s left'
    >>> progress_words(3, 12, 60.0), progress_words(3, 0, 60.0), progress_words(0, 12, 1.0)
    ('3 of 12, 20 s each, 180 s left', '3, 20 s each', '0 of 12')
    """
    far = f"{done:,}" + (f" of {total:,}" if total else "")
    if not done or seconds <= 0:
        return far
    rate = done / seconds
    fast = f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:,.0f} s each"
    left = f", {max(total - done, 0) / rate:,.0f} s left" if total else ""
    return f"{far}, {fast}{left}"


class _Words(ProgressColumn):
    """`progress_words` of a bar."""

    def render(self, task: Task) -> Text:
        return Text(progress_words(int(task.completed), int(task.total or 0), task.elapsed or 0.0))


class Bars:
    """One bar per named piece of work; off a terminal a line, at once where `early`, then every `EVERY_S` seconds.

    >>> with Bars() as bars:
    ...     bars.update("ngram", 1, 10)
    """

    def __init__(self, *, early: bool = False) -> None:
        console = Console(stderr=True)
        self._lines = not console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Words(),
            console=console,
            disable=self._lines,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._began: dict[str, tuple[float, int]] = {}
        self._due = time.monotonic() + (0.0 if early else QUIET_S)

    def update(self, name: str, done: int, total: int) -> None:
        """Show that `done` of `total` pieces of `name` are finished; a total of 0 is unknown."""
        if self._lines:
            self._line(name, done, total)
            return
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total or None)
        self._progress.update(self._tasks[name], completed=done, total=total or None)

    def _line(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        began, first = self._began.setdefault(name, (now, done))
        if now < self._due:
            return
        self._due = now + EVERY_S
        words = progress_words(done - first, max(total - first, 0), now - began)  # what a checkpoint held took no time
        sys.stderr.write(f"{name}: {words}\n" if done or total else f"{name}\n")
        sys.stderr.flush()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
