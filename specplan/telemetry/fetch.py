"""One HTTP answer in bounded time and size, from the place that was named and no other."""

import contextlib
import http.client
import socket
import threading
from typing import Final
from urllib.parse import urlsplit

from specplan.errors import InputError

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 16 * 2**20
"""A large server's metrics page has about 1 MiB."""


def fetch_text(url: str, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_BYTES) -> str:
    """Body of a GET, decoded as UTF-8; without a path ``/metrics`` is asked for.

    Redirects are not followed, proxies are not used. The time limit holds for the whole exchange, however slowly the
    other side sends.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``.
    timeout_s : float
        Seconds for everything, above 0.
    max_bytes : int
        Longest body that is taken.

    Raises
    ------
    InputError
        If the address is wrong, nobody answers, the time is up, the answer is a redirect, an error or a page of HTML,
        or the body is too long.
    """
    if not 0 < timeout_s <= 3600:
        raise InputError(f"--timeout {timeout_s:g}: expected seconds between 0 and 3600")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InputError(f"{url} is no address; write http://HOST:PORT/metrics") from None
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InputError(f"{url}: the port is not a number from 0 to 65535") from None
    if not host:
        raise InputError(f"{url} names no host; write http://HOST:PORT/metrics")
    kind = http.client.HTTPSConnection if parts.scheme.lower() == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=timeout_s)
    expired = threading.Event()

    opened: list[socket.socket] = []

    def stop() -> None:
        expired.set()
        for sock in opened:
            with contextlib.suppress(OSError):  # closed already
                sock.shutdown(socket.SHUT_RDWR)

    watchdog = threading.Timer(timeout_s, stop)
    watchdog.daemon = True
    watchdog.start()
    try:
        target = ("/metrics" if parts.path in ("", "/") else parts.path) + (f"?{parts.query}" if parts.query else "")
        connection.connect()
        opened.append(connection.sock)  # the connection forgets it once the response owns it
        connection.request("GET", target, headers={"Accept": "text/plain, application/json", "Connection": "close"})
        response = connection.getresponse()
        body = response.read(max_bytes + 1)
        short = response.length if len(body) <= max_bytes else None  # bytes that were announced and never came
    except (OSError, http.client.HTTPException, ValueError) as error:
        late = expired.is_set() or isinstance(error, TimeoutError)
        reason = f"no complete answer within {timeout_s:g} s" if late else f"{error or type(error).__name__}"
        raise InputError(f"cannot read {url}: {reason}") from None
    finally:
        watchdog.cancel()
        connection.close()
    if expired.is_set():
        raise InputError(f"cannot read {url}: no complete answer within {timeout_s:g} s")
    if short:
        raise InputError(f"cannot read {url}: the answer ended {short} bytes before its Content-Length")
    return _checked_body(url, response, body, max_bytes)


def _checked_body(url: str, response: http.client.HTTPResponse, body: bytes, max_bytes: int) -> str:
    if 300 <= response.status < 400:
        where = response.getheader("Location", "nowhere")
        raise InputError(f"{url} redirects to {where[:200]}; name that address yourself if it is the right one")
    if response.status != 200:
        raise InputError(f"{url} answered {response.status} {response.reason}; expected the metrics page of an engine")
    if len(body) > max_bytes:
        raise InputError(f"{url} sent more than {max_bytes} bytes; expected the metrics page of an engine")
    if response.getheader("Content-Type", "").startswith("text/html") or looks_like_html(body):
        raise InputError(f"{url} is a page of HTML; an engine's figures usually lie at /metrics")
    return body.decode("utf-8", errors="replace")


def looks_like_html(body: bytes) -> bool:
    """Whether a text begins as HTML does.

    >>> looks_like_html(b"  <!doctype html>"), looks_like_html(b"# HELP vllm:x")
    (True, False)
    """
    return body.lstrip()[:15].lower().startswith((b"<!doctype", b"<html", b"<head", b"<body"))
