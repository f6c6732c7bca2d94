"""Files of bounded size, from regular files alone: no pipe that never ends, no device, no folder, no bomb."""

import codecs
import gzip
import io
import os
import stat
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from specplan.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_TEXT_BYTES: Final = 32 * 2**20
"""A spec, a config or a table is a few kilobytes; far larger files are something else."""
MAX_DOCUMENT_BYTES: Final = 128 * 2**20
"""A benchmark's result with all of its texts; what is larger is read line by line."""

DECODE_ERRORS: Final = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading a compressed file raises where it is cut off or corrupt."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_INPUT: Final = 2**11  # a run-length block turns 4 bytes into 128 KiB, so this bounds one step's output to 64 MiB
_ZSTD_WINDOW: Final = 2**27  # a frame may ask for gigabytes; the zstd tool, too, takes more only when it is told to


def is_there(path: Path) -> bool:
    """Whether a file or folder of this name exists; a name that none can have (too long) is not there.

    >>> is_there(Path("a" * 5000))
    False
    """
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def open_file(path: Path, expected: str = "a file") -> io.BufferedReader:
    """Open a regular file for reading, as it is.

    Parameters
    ----------
    path : Path
    expected : str
        What the file should be, for messages: ``a model spec``.

    Raises
    ------
    InputError
        If it is missing, unreadable, a folder, a pipe or a device.
    """
    try:
        # Opening a pipe would wait for its other end; a pipe that is opened without waiting is told apart afterwards.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise InputError(f"{path}: cannot be read: no such file, expected {expected}") from None
    except IsADirectoryError:  # on Windows a PermissionError, which says as much
        raise InputError(f"{path}: cannot be read: is a folder, expected {expected}") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {why}, expected {expected}") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise InputError(f"{path}: is {kind}, expected {expected}")
    return open(handle, "rb")  # noqa: PTH123 - of a handle, which no path opens


def open_binary(path: Path, expected: str = "a file") -> IO[bytes]:
    """Open a plain, gzip or zstandard file for reading; the compression is told by the first bytes, not by the name.

    Raises
    ------
    InputError
        As `open_file`.
    MissingExtraError
        For zstandard without the package.
    """
    raw = open_file(path, expected)
    try:
        magic = raw.peek(4)[:4]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}, expected {expected}") from None
    if magic.startswith(_GZIP):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if magic == _ZSTD:
        return io.BufferedReader(_ZstdStream(raw), 2**20)
    if magic.startswith(codecs.BOM_UTF8):
        raw.read(len(codecs.BOM_UTF8))  # a mark that some editors write; no part of the text
    return raw


def read_bytes(path: Path, expected: str = "a file", max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """A whole file, decompressed, of at most `max_bytes`.

    Raises
    ------
    InputError
        As `open_binary`; or if it is too large, cut off or corrupt.
    """
    with open_binary(path, expected) as stream:
        try:
            body = stream.read(max_bytes + 1)
        except DECODE_ERRORS as error:
            raise InputError(f"{path}: cut off or corrupt ({error}), expected {expected}") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}, expected {expected}") from None
    if len(body) > max_bytes:
        raise InputError(f"{path}: larger than {_size(max_bytes)}, expected {expected}")
    return body


def _size(n_bytes: int) -> str:
    return f"{n_bytes >> 20} MiB" if n_bytes >= 2**20 else f"{n_bytes} bytes"


def read_text(path: Path, expected: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Text of a file of at most `max_bytes`.

    Raises
    ------
    InputError
        As `read_bytes`; or if it is not UTF-8 text.
    """
    try:
        text = read_bytes(path, expected, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\x00"
    if "\x00" in text:
        raise InputError(f"{path}: a binary file, expected {expected}")
    return text


def peek(path: Path, size: int = 2**16, expected: str = "a file") -> bytes:
    """First bytes of a file, decompressed; of one that is cut off, what there is."""
    head = b""
    with open_binary(path, expected) as stream:
        try:
            while len(head) < size and (piece := stream.read(2**9)):
                head += piece
        except DECODE_ERRORS:
            return head
    return head


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
