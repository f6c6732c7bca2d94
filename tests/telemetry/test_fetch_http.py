"""An endpoint may hang, drip, redirect, fail or be a web page: one clear line, in bounded time and size."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from specplan.errors import InputError
from specplan.telemetry.fetch import fetch_text
from specplan.telemetry.read import read_origin

PAGE = (
    "# TYPE vllm:spec_decode_num_drafts counter\nvllm:spec_decode_num_drafts_total {drafts}\n"
    "# TYPE vllm:spec_decode_num_draft_tokens counter\nvllm:spec_decode_num_draft_tokens_total {drafted}\n"
    "# TYPE vllm:spec_decode_num_accepted_tokens counter\nvllm:spec_decode_num_accepted_tokens_total {accepted}\n"
)


class Engine(BaseHTTPRequestHandler):
    scrapes = 0

    def log_message(self, *args: object) -> None:
        """Stay silent."""

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/metrics":
            Engine.scrapes += 1
            n = Engine.scrapes
            self.answer(200, PAGE.format(drafts=10 * n, drafted=30 * n, accepted=12 * n).encode())
        elif self.path == "/redirect":
            self.answer(302, b"", Location="http://169.254.169.254/latest")
        elif self.path == "/html":
            self.answer(200, b"<html><body>Grafana</body></html>", Content_Type="text/html; charset=utf-8")
        elif self.path == "/html-as-text":
            self.answer(200, b"\n <!DOCTYPE html><html>", Content_Type="text/plain")
        elif self.path == "/error":
            self.answer(503, b"loading")
        elif self.path == "/hang":
            time.sleep(5)
        elif self.path == "/drip":
            self.answer(200, b"")
            with contextlib.suppress(OSError):
                for _ in range(100):
                    self.wfile.write(b"#\n")
                    time.sleep(0.05)
        elif self.path == "/endless":
            self.answer(200, b"")
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"# comment\n" * 10_000)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_one_scrape_counts_since_the_start_two_count_the_window(address: str) -> None:
    Engine.scrapes = 0
    (seen,) = read_origin(f"{address}/metrics")
    assert seen.tally is not None
    assert (seen.tally.drafts, seen.tally.accepted_tokens) == (10, 12)
    Engine.scrapes = 3
    (window,) = read_origin(address, interval_s=0.05)
    assert window.tally is not None
    assert (window.tally.drafts, window.tally.drafted_tokens, window.tally.accepted_tokens) == (10, 30, 12)
    assert window.window_s == pytest.approx(0.05, abs=1.0)


@pytest.mark.parametrize("path", ["", "/", "/metrics"])
def test_an_address_alone_means_its_metrics(address: str, path: str) -> None:
    assert fetch_text(address + path, timeout_s=5).startswith("# TYPE vllm:spec_decode_num_drafts")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/redirect", "redirects to http://169.254.169.254/latest"),
        ("/html", "HTML"),
        ("/html-as-text", "HTML"),
        ("/error", "answered 503"),
        ("/absent", "cannot read"),
    ],
)
def test_answers_that_are_no_metrics_say_so(address: str, path: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        fetch_text(address + path, timeout_s=5)


@pytest.mark.parametrize("path", ["/hang", "/drip"])
def test_time_is_bounded_however_slowly_the_other_side_sends(address: str, path: str) -> None:
    start = time.monotonic()
    with pytest.raises(InputError, match=r"no complete answer within 0\.3 s"):
        fetch_text(address + path, timeout_s=0.3)
    assert time.monotonic() - start < 3


def test_size_is_bounded(address: str) -> None:
    with pytest.raises(InputError, match="more than 100000 bytes"):
        fetch_text(address + "/endless", timeout_s=20, max_bytes=100_000)


def test_headers_that_drip_are_bounded_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(OSError):
                peer.sendall(b"HTTP/1.1 200 OK\r\n")
                for _ in range(100):
                    peer.sendall(b"X: y\r\n")
                    time.sleep(0.05)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        start = time.monotonic()
        with pytest.raises(InputError, match="no complete answer"):
            fetch_text(f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=0.3)
        assert time.monotonic() - start < 3
        thread.join(timeout=10)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 1e9])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="--timeout"):
        fetch_text("http://127.0.0.1:1/metrics", timeout_s=seconds)


@pytest.mark.parametrize(
    "url", ["http://", "http://[::1", "http://127.0.0.1:99999/metrics", "http://127.0.0.1:1/metrics"]
)
def test_addresses_that_nobody_answers_say_so(url: str) -> None:
    with pytest.raises(InputError, match=r"names no host|no address|port|cannot read"):
        fetch_text(url, timeout_s=2)
