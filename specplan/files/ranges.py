"""A file behind an HTTP address, read by byte ranges: what is asked for crosses the network, the rest stays there."""

import os
import re
from typing import TYPE_CHECKING, Final

from specplan.errors import InputError

if TYPE_CHECKING:
    import urllib.request

TIMEOUT_S: Final = 20.0
MAX_FETCHED: Final = 128 * 2**20
"""A GGUF header holds its tokenizer's words, some 15 MiB; headers of a thousand tensors are smaller."""
_PIECE: Final = 2**20

_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")


def _opener() -> "urllib.request.OpenerDirector":
    """Follows redirects to HTTP alone, as the Hub's to its store; opens no files."""
    import urllib.request as kinds

    opener = kinds.OpenerDirector()
    for kind in (
        kinds.HTTPHandler,
        kinds.HTTPSHandler,
        kinds.ProxyHandler,
        kinds.HTTPRedirectHandler,
        kinds.HTTPErrorProcessor,
        kinds.HTTPDefaultErrorHandler,
        kinds.UnknownHandler,
    ):
        opener.add_handler(kind())
    return opener


class Ranges:
    """Bytes of a file at `url`, fetched in pieces as they are asked for, at most `MAX_FETCHED` in all.

    Attributes
    ----------
    url : str
    fetched : int
        Bytes that came so far.

    Raises
    ------
    InputError
        Where nobody answers, the answer is an error or no range, or too much is asked for.
    """

    def __init__(self, url: str) -> None:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
            raise InputError(f"{url}: --offline or HF_HUB_OFFLINE forbids to ask for it; give a file's path")
        self.url = url
        self._opener = _opener()
        self.fetched = 0
        self._pieces: dict[int, bytes] = {}
        self._size: int | None = None
        self._piece(0)

    def __len__(self) -> int:
        return self._size or 0

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(len(self))
        found = b"".join(self._piece(i) for i in range(begin // _PIECE, -(-end // _PIECE)))
        return found[begin % _PIECE : begin % _PIECE + max(end - begin, 0)]

    def _piece(self, i: int) -> bytes:
        if i not in self._pieces:
            last = (i + 1) * _PIECE - 1
            self._pieces[i] = self._fetch(i * _PIECE, last if self._size is None else min(last, self._size - 1))
        return self._pieces[i]

    def _fetch(self, first: int, last: int) -> bytes:
        import http.client
        import urllib.error
        import urllib.request

        if self.fetched + last - first >= MAX_FETCHED:
            raise InputError(f"{self.url}: a header of more than {MAX_FETCHED >> 20} MiB")
        request = urllib.request.Request(self.url, headers={"Range": f"bytes={first}-{last}"})  # noqa: S310 - below
        if request.type not in ("http", "https"):
            raise InputError(f"{self.url}: no address; write https://HOST/PATH")
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                told = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
                if response.status == 200 and first == 0:  # a server without ranges: small files come whole
                    body = bytes(response.read(_PIECE + 1))
                    if len(body) <= _PIECE:
                        self._size = len(body)
                elif told is not None and int(told[1]) == first:
                    self._size = int(told[3])
                    body = bytes(response.read(last - first + 1))
                else:
                    body = b""
        except urllib.error.HTTPError as error:
            raise InputError(f"{self.url}: answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise InputError(f"{self.url}: cannot be read: {str(error) or type(error).__name__}") from None
        if self._size is None:
            raise InputError(f"{self.url}: its server sends no byte ranges; download the file and give its path")
        if len(body) != min(last + 1, self._size) - first:
            raise InputError(f"{self.url}: the answer ended before byte {last}")
        self.fetched += len(body)
        return body


def fetch_bytes(url: str, max_bytes: int) -> bytes:
    """A whole small file at `url`.

    Raises
    ------
    InputError
        As `Ranges`; or if it is larger than `max_bytes`.
    """
    found = Ranges(url)
    if len(found) > max_bytes:
        raise InputError(f"{url}: larger than {max_bytes} bytes")
    return found[0 : len(found)]
