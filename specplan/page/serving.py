"""The page on this machine alone, for a browser that opens no files."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from specplan.errors import InputError


def show(text: str, port: int, tell: Callable[[str], None]) -> None:
    """Answer every request to 127.0.0.1:`port` (0: any free one) with the page, until interrupted.

    Raises
    ------
    InputError
        For a port that cannot be had.
    """
    body = text.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    try:
        server = HTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise InputError(f"--port {port}: this port cannot be had ({error}); name another one, or 0") from None
    with server:
        tell(f"http://127.0.0.1:{server.server_port}/")
        server.serve_forever()
