"""Web server of ``gigl-loader top --web``: a page on this machine that shows a cluster while it runs.

It listens on loopback alone. The page holds no data and needs no token; it reads ``/loads``, which does. The
token is in the fragment of the link, which browsers do not send: neither requests nor logs have it.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.cli.errors import one_line
from gigl_loader.errors import GiglError
from gigl_loader.rpc.endpoint import Address
from gigl_loader.rpc.tokens import Token, matching_token, new_token, shown_form

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.cli.cluster_loads import Loads

_HOST = "127.0.0.1"
_NAMES = (_HOST, "localhost")
"""Hosts that a request may name. A page of another site, whose name resolves to 127.0.0.1, names its own."""
_PAGE = Path(__file__).parent / "top_page"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_REQUEST_S = 10.0
"""Seconds for a request to arrive, and for a reply to be taken."""


class TopServer:
    """HTTP server on loopback. It calls the storage servers while pages are open, once for all of them."""

    def __init__(self, look: Callable[[], Loads], *, port: int, interval_s: float) -> None:
        """Listen at ``port`` of 127.0.0.1; 0 selects a free one. ``OSError`` where that fails."""
        self._token = new_token()
        self._interval_s = interval_s
        try:
            self._server = _Server((_HOST, port), _Cached(look, interval_s), self._token)
        except OSError as error:
            raise OSError(f"--web: {Address(_HOST, port)}: {error.strerror or error}") from error
        self.address = str(Address(_HOST, self._server.server_port))

    @property
    def link(self) -> str:
        """Address of the page, with its token."""
        return f"http://{self.address}/#token={self._token}&interval={self._interval_s:g}"

    def serve(self) -> None:
        """Serve until ``stop``, or until an exception such as that of Ctrl-C."""
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """End ``serve`` of another thread."""
        self._server.shutdown()

    def __enter__(self) -> TopServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()


@dataclass
class _Cached:
    """Looks at the cluster, at most once per interval. Thread-safe."""

    look: Callable[[], Loads]
    interval_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    text: str = ""
    until: float = 0.0

    def read(self) -> str:
        """Return what ``top --json`` prints. Raises as ``Looker.look``."""
        with self.lock:
            if time.monotonic() >= self.until:
                self.text = json.dumps(self.look().to_json(), allow_nan=False)
                # Pages wait an interval after each reply. From the end of the look: a page that gave up on a
                # slow one, and sent its request again, gets its result.
                self.until = time.monotonic() + self.interval_s / 2
            return self.text


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # A browser may hold a connection open.

    def __init__(self, place: tuple[str, int], loads: _Cached, token: str) -> None:
        self.loads = loads
        self.tokens = (shown_form(Token(name="page", secret=token)),)
        super().__init__(place, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a browser that leaves in mid-reply is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_S
    server_version = "gigl-loader"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._names_this_host():
            self._reply(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"for this machine alone\n")
        elif path in _FILES:
            name, kind = _FILES[path]
            self._reply(HTTPStatus.OK, kind, (_PAGE / name).read_bytes())
        elif path == "/loads":
            self._loads()
        else:
            self._reply(HTTPStatus.NOT_FOUND, "text/plain", b"/ or /loads\n")

    def _names_this_host(self) -> bool:
        host = self.headers.get("Host", "").lower()
        return host.rpartition(":")[0] in _NAMES or host in _NAMES

    def _loads(self) -> None:
        if matching_token(self.server.tokens, self.headers.get_all("Authorization", [])) is None:
            self._reply(HTTPStatus.UNAUTHORIZED, "text/plain", b"open the link that gigl-loader top prints\n")
            return
        try:
            text = self.server.loads.read()
        except (GiglError, ValueError, OSError) as error:
            self._reply(HTTPStatus.BAD_GATEWAY, "text/plain; charset=utf-8", f"{one_line(error)}\n".encode())
        else:
            self._reply(HTTPStatus.OK, "application/json", text.encode())

    def _reply(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        headers = _HEADERS | {"Content-Type": kind, "Content-Length": str(len(body))}
        if status is HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: each page sends a request per interval."""
