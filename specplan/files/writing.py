"""The one way to write a file: it is there whole or not at all, and what stops it is one clear line."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from specplan.errors import InputError

try:
    import fcntl
except ModuleNotFoundError:  # Windows: two runs into one file are not told apart there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def writes(path: Path) -> Iterator[None]:
    """Name the file that cannot be written: a full disk, a folder without permission.

    Raises
    ------
    InputError
        For an `OSError` within.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}; write it elsewhere") from None


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A fresh name beside `path` to write to; `path` is given to it once all is written, and never to a part.

    A target that is there and no regular file (a pipe, a device) is written as it is.

    Raises
    ------
    InputError
        If it cannot be written; nothing is left behind.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "table.csv"
    >>> with whole(target) as fresh:
    ...     _ = fresh.write_text("a,b")
    >>> target.read_text(), len(list(target.parent.iterdir()))
    ('a,b', 1)
    """
    with writes(path):
        if path.exists() and not path.is_file():
            if path.is_dir():
                raise InputError(f"{path}: is a folder, expected a file to write")
            yield path
            return
        target = path.resolve()  # a link stays one
        fresh = target.with_name(f".{target.stem[:100]}.{os.getpid()}{target.suffix}")
        try:
            yield fresh
            with fresh.open("rb+") as file:
                os.fsync(file.fileno())  # some disks say only now that they are full
            fresh.replace(target)
        except BaseException:
            with suppress(OSError):
                fresh.unlink()
            raise


def write_whole(path: Path, text: str | bytes) -> None:
    """Write a file, whole or not at all; see `whole`."""
    with whole(path) as fresh:
        fresh.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)


def make_folder(folder: Path) -> None:
    """Make the folder of a run, or say why it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror})") from error


class Lines:
    r"""Lines of JSON that are written as they come, by one process at a time.

    The file begins with the lines that are kept of what it held; it is replaced by that beginning in one step, so a
    process that is killed at any moment leaves the old lines or the new.

    Parameters
    ----------
    path : Path
        Created where it is missing.
    kept : callable
        Called once no other process writes to `path`; its lines begin the file.

    Raises
    ------
    InputError
        If another process writes to `path`, or it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    >>> with Lines(path, lambda: ['{"schema":"x"}']) as lines:
    ...     lines.write({"a": 1})
    >>> path.read_text()
    '{"schema":"x"}\n{"a":1}\n'
    """

    def __init__(self, path: Path, kept: Callable[[], Iterable[str]] = tuple) -> None:
        self.path = path
        with writes(path):
            held = _claimed(path)
            try:
                fresh = path.with_name(path.name + ".new")
                self._file: IO[str] = fresh.open("w", encoding="utf-8")
                _claim(self._file, path)
                self._file.writelines(line + "\n" for line in kept())
                self._file.flush()
                fresh.replace(path)
            finally:
                held.close()

    def write(self, *rows: Mapping[str, Any]) -> None:
        """Append rows."""
        with writes(self.path):
            self._file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)

    def flush(self) -> None:
        """Hand what was written to the system: a process that is killed from here on has it."""
        with writes(self.path):
            self._file.flush()

    def commit(self, path: Path) -> None:
        """Close the file, whole, and give it the name `path`."""
        with writes(path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self.path.replace(path)
            self._file.close()

    def close(self) -> None:
        """Close the file where it stands."""
        with writes(self.path):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _claimed(path: Path) -> IO[str]:
    """The file at `path`, claimed: not one that its writer has replaced since it was opened."""
    while True:
        file = path.open("a", encoding="utf-8")
        _claim(file, path)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _claim(file: IO[str], path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InputError(f"{path}: another run is writing to it; let it end, or name another place") from None
