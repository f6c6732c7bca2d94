"""Lines of files of any size in bounded memory (plain, gzip, zstandard), and the place of whatever is broken."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from specplan.errors import InputError
from specplan.files.reading import DECODE_ERRORS, open_binary

MAX_LINE_BYTES: Final = 64 * 2**20
"""Longest line that is read, in bytes; a longer one is reported and passed over without being held in memory."""
MAX_RATIO: Final = 200
"""Decoded bytes for each byte of a compressed file; recorded requests and logs shrink to a fiftieth at most."""
_MAX_FREE_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLine:
    """Something in a file that could not be used.

    Attributes
    ----------
    path : str
        File, as it was named.
    line : int
        1-based line (row of a Parquet file); 0 for the file as a whole.
    reason : str
        What was found and what was expected.
    """

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}" if self.line else f"{self.path}: {self.reason}"


@dataclass(slots=True)
class BrokenLog:
    """Counts what could not be used, keeps the first few, and raises at once where the caller asked for that.

    >>> log = BrokenLog()
    >>> log.add("a.jsonl", 3, "not JSON")
    >>> log.count, str(log.first[0])
    (1, 'a.jsonl:3: not JSON')
    """

    fatal: bool = False
    remedy: str = ""
    keep: int = 20
    count: int = 0
    first: list[BrokenLine] = field(default_factory=list)

    def add(self, path: str | Path, line: int, reason: str) -> None:
        """Record one broken line, or raise `InputError` where broken lines are fatal."""
        self.extend(1, [BrokenLine(path=str(path), line=line, reason=reason)])

    def extend(self, count: int, first: list[BrokenLine]) -> None:
        """Record `count` broken lines, of which `first` are at hand."""
        if self.fatal and count:
            raise InputError(f"{first[0]}{self.remedy}")
        self.count += count
        self.first.extend(first[: self.keep - len(self.first)])


def split_lines(
    stream: IO[bytes],
    name: str | Path,
    broken: BrokenLog,
    max_line_bytes: int = MAX_LINE_BYTES,
    max_bytes: float = float("inf"),
) -> Iterator[tuple[int, bytes]]:
    r"""Numbered lines of a binary stream, blank lines left out.

    Parameters
    ----------
    stream : binary stream
        Never held whole.
    name : str or Path
        What the stream is called in reports.
    broken : BrokenLog
        Receives lines that are too long and an end that came too early; lines before such an end are kept.
    max_line_bytes : int
        Longest line that is held.
    max_bytes : float
        Bytes after which the stream is taken for a decompression bomb.

    Raises
    ------
    InputError
        If the stream is longer than `max_bytes`.

    Yields
    ------
    tuple of int and bytes
        1-based line number and the line without its end.

    Examples
    --------
    >>> import io
    >>> list(split_lines(io.BytesIO(b"a\n\nbc\r\n"), "x", BrokenLog()))
    [(1, b'a'), (3, b'bc')]
    """
    number = size = 0
    try:
        while line := stream.readline(max_line_bytes + 1):
            number, size = number + 1, size + len(line)
            if len(line) > max_line_bytes and not line.endswith(b"\n"):
                while size <= max_bytes and (rest := stream.readline(2**20)) and not rest.endswith(b"\n"):
                    size += len(rest)
                broken.add(name, number, f"a line of more than {max_line_bytes} bytes; it was passed over")
            elif stripped := line.strip():
                yield number, stripped
            if size > max_bytes:
                raise InputError(f"{name}: decompresses to more than {max_bytes:.0f} bytes; decompress it yourself")
    except DECODE_ERRORS as error:
        broken.add(name, 0, f"ends too early, after line {number} ({error}); the lines before were kept")


def read_lines(path: Path, broken: BrokenLog, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a plain, gzip or zstandard file, in bounded memory; see `split_lines`."""
    with open_binary(path) as stream:
        size = path.stat().st_size
        bound = max(_MAX_FREE_BYTES, MAX_RATIO * size)  # a plain file never has more than its size
        yield from split_lines(stream, path, broken, max_line_bytes, bound)
