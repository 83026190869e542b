"""HTTP port for Prometheus, and for health probes."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gigl_loader.rpc.address import Address
from gigl_server.bind_check import check_free
from gigl_server.ports.metrics import LoadCollector

if TYPE_CHECKING:
    from gigl_server.cluster.readiness import View
    from gigl_server.counters import Counters
    from gigl_server.sampling.service import SamplingService

__all__ = ["MetricsPort"]

_LOGGER = logging.getLogger(__name__)
_THREADS = 8
_MAX_CALLS = 32
_CALL_S = 2.0


class MetricsPort:
    """Serves ``GET /metrics`` and ``GET /healthz`` from its construction to ``close``."""

    def __init__(
        self, where: str, *, service: SamplingService, counters: Counters, view: Callable[[], View]
    ) -> None:
        """Listen at ``HOST:PORT``; port 0 selects a free one. ``OSError`` where that fails."""
        address = Address.parse(where)
        check_free(address)
        registry = CollectorRegistry()
        registry.register(LoadCollector(service, counters, view))
        ProcessCollector(registry=registry)
        self._server = _Server((address.host, address.port), registry, view)
        self.address = str(Address(address.host, self._server.server_port))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        """Thread that lives until ``close``."""
        return self._thread

    def close(self) -> None:
        """Stop listening. Closing twice is fine."""
        self._server.shutdown()
        self._thread.join(_CALL_S)
        self._server.server_close()


class _Server(HTTPServer):
    """HTTP server with a few threads and two seconds per caller, so that sampling keeps its resources."""

    def __init__(self, place: tuple[str, int], registry: CollectorRegistry, view: Callable[[], View]) -> None:
        self.registry, self.view = registry, view
        self.address_family = _family(place[0])
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="metrics")
        self._turns = threading.BoundedSemaphore(_MAX_CALLS)
        super().__init__(place, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._turns.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._pool.submit(self._respond, request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOGGER.debug("a request for metrics failed", exc_info=True)

    def server_close(self) -> None:
        super().server_close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _respond(self, request: Any, client_address: Any) -> None:
        # A socket's timeout applies to each read: a caller that sends single bytes would hold the thread.
        end = threading.Timer(_CALL_S, _cut, (request,))
        end.daemon = True
        end.start()
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            end.cancel()
            self.shutdown_request(request)
            self._turns.release()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CALL_S
    server_version = "gigl-loader"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._reply(200, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))
        elif path == "/healthz":
            view = self.server.view()
            text = "ready" if view.ready else view.reason
            self._reply(200 if view.ready else 503, "text/plain; charset=utf-8", f"{text}\n".encode())
        else:
            self._reply(404, "text/plain; charset=utf-8", b"/metrics or /healthz\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: Prometheus sends a request every few seconds."""

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _cut(request: socket.socket) -> None:
    with suppress(OSError):  # Closed meanwhile.
        request.shutdown(socket.SHUT_RDWR)


def _family(host: str) -> Any:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
