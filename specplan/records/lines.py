"""Lines of files of any size in bounded memory (plain, gzip, zstandard), and the place of whatever is broken."""

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from specplan.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_LINE_BYTES: Final = 64 * 2**20
"""Longest line that is read, in bytes; a longer one is reported and passed over without being held in memory."""

DECODE_ERRORS: Final = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading a compressed file raises where it is cut off or corrupt."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_INPUT: Final = 2**11  # a run-length block turns 4 bytes into 128 KiB, so this bounds one step's output to 64 MiB
_ZSTD_WINDOW: Final = 2**27  # a frame may ask for gigabytes; the zstd tool, too, takes more only when it is told to


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


class _ZstdStream(io.RawIOBase):
    """Decompresses frames one after another; an end inside a frame is an EOFError, as with gzip."""

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ModuleNotFoundError:
            raise MissingExtraError("zstandard", extra="replay") from None
        self._raw = raw
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj
        self._error = zstandard.ZstdError
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._raw.close()
        super().close()

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        while not self._output:
            self._input = self._input or self._raw.read(_ZSTD_INPUT)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("the last zstandard frame is cut off")
                return 0
            self._frame = self._frame or self._new_frame()
            try:
                self._output = memoryview(self._frame.decompress(self._input))
            except self._error as error:
                raise EOFError(f"not zstandard data: {error}") from None
            self._input = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._output))
        view[:size] = self._output[:size]
        self._output = self._output[size:]
        return size


def is_there(path: Path) -> bool:
    """Whether a file or folder of this name exists; a name that none can have (too long) is not there.

    >>> is_there(Path("a" * 5000))
    False
    """
    try:
        return path.exists()
    except OSError:
        return False


def open_binary(path: Path) -> IO[bytes]:
    """Open a plain, gzip or zstandard file for reading; the compression is told by the first bytes, not by the name.

    Raises
    ------
    InputError
        If the file cannot be opened.
    MissingExtraError
        For zstandard without the package.
    """
    try:
        raw = path.open("rb")
        magic = raw.peek(4)[:4]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the name
        raise InputError(f"cannot read {str(path)!r}: {error}") from None
    if magic.startswith(_GZIP):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if magic == _ZSTD:
        return io.BufferedReader(_ZstdStream(raw), 2**20)
    if magic.startswith(codecs.BOM_UTF8):
        raw.read(len(codecs.BOM_UTF8))  # a mark that some editors write; no part of the text
    return raw


def peek(path: Path, size: int = 2**16) -> bytes:
    """First bytes of a file, decompressed; of one that is cut off, what there is."""
    head = b""
    with open_binary(path) as stream:
        try:
            while len(head) < size and (piece := stream.read(2**9)):
                head += piece
        except DECODE_ERRORS:
            return head
    return head


def split_lines(
    stream: IO[bytes], name: str | Path, broken: BrokenLog, max_line_bytes: int = MAX_LINE_BYTES
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

    Yields
    ------
    tuple of int and bytes
        1-based line number and the line without its end.

    Examples
    --------
    >>> list(split_lines(io.BytesIO(b"a\n\nbc\r\n"), "x", BrokenLog()))
    [(1, b'a'), (3, b'bc')]
    """
    number = 0
    try:
        while line := stream.readline(max_line_bytes + 1):
            number += 1
            if len(line) > max_line_bytes and not line.endswith(b"\n"):
                while (rest := stream.readline(2**20)) and not rest.endswith(b"\n"):
                    pass
                broken.add(name, number, f"a line of more than {max_line_bytes} bytes; it was passed over")
            elif stripped := line.strip():
                yield number, stripped
    except DECODE_ERRORS as error:
        broken.add(name, 0, f"ends too early, after line {number} ({error}); the lines before were kept")


def read_lines(path: Path, broken: BrokenLog, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a plain, gzip or zstandard file, in bounded memory; see `split_lines`."""
    with open_binary(path) as stream:
        yield from split_lines(stream, path, broken, max_line_bytes)
