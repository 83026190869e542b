"""What a storage server does, for Prometheus, and whether it is ready, for whoever asks by HTTP."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gigl_loader.rpc.address import Address
from gigl_server.binding import check_free

if TYPE_CHECKING:
    from gigl_server.ledger import Ledger
    from gigl_server.loads import ServiceLoad
    from gigl_server.service import SamplingService
    from gigl_server.view import View

__all__ = ["MetricsPort"]

_LOGGER = logging.getLogger(__name__)
_THREADS = 8
_MOST_CALLS = 32
_CALL_S = 2.0
_Family = CounterMetricFamily | GaugeMetricFamily


class MetricsPort:
    """Answers ``GET /metrics`` and ``GET /healthz`` from its construction to ``close``."""

    def __init__(
        self, where: str, *, service: SamplingService, ledger: Ledger, view: Callable[[], View]
    ) -> None:
        """Listen at ``HOST:PORT``; port 0 takes a free one. ``OSError`` where that cannot be."""
        address = Address.parse(where)
        check_free(address)
        registry = CollectorRegistry()
        registry.register(_Collector(service, ledger, view))
        ProcessCollector(registry=registry)
        self._server = _Server((address.host, address.port), registry, view)
        self.address = str(Address(address.host, self._server.server_port))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Closing twice is fine."""
        self._server.shutdown()
        self._thread.join(_CALL_S)
        self._server.server_close()


class _Server(HTTPServer):
    """A few threads answer, each caller has a few seconds: nobody can take what sampling needs."""

    def __init__(self, place: tuple[str, int], registry: CollectorRegistry, view: Callable[[], View]) -> None:
        self.registry, self.view = registry, view
        self.address_family = _family(place[0])
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="metrics")
        self._turns = threading.BoundedSemaphore(_MOST_CALLS)
        super().__init__(place, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._turns.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._pool.submit(self._answer, request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _LOGGER.debug("a request for metrics failed", exc_info=True)

    def server_close(self) -> None:
        super().server_close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
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
        """Say nothing: Prometheus asks every few seconds."""

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Collector:
    """Reads the state once per scrape: nothing is counted twice, and closed channels vanish."""

    def __init__(self, service: SamplingService, ledger: Ledger, view: Callable[[], View]) -> None:
        self._service, self._ledger, self._view = service, ledger, view

    def describe(self) -> Iterator[_Family]:
        """Names without numbers: registering must not collect."""
        return iter(())

    def collect(self) -> Iterator[_Family]:
        load, view = self._service.load(), self._view()
        yield _gauge("ready", "1 while the server serves", int(view.ready))
        yield _gauge("servers", "Servers of the cluster that are known", len(view.members))
        yield from _of_server(load)
        totals = self._ledger.read()
        yield _counter("data_requests", "Requests to the data port", totals.calls)
        yield _counter("data_received_bytes", "Bodies of requests", totals.bytes_in)
        yield _counter("data_sent_bytes", "Bodies of replies", totals.bytes_out)
        yield _counter("refused", "Requests that broke a rule, on either port", totals.refused)
        yield _counter("neighbors_cpu_seconds", "CPU time of answering other servers", totals.sampling_s)
        yield _counter("gathering_cpu_seconds", "CPU time of gathering rows for others", totals.gathering_s)
        yield from _of_channels(load)
        yield from _of_peers(view)


def _of_server(load: ServiceLoad) -> Iterator[_Family]:
    yield _gauge("workers", "Batches that are sampled at once, at most", load.workers)
    yield _gauge("busy_workers", "Batches that are being sampled", load.busy)
    yield _gauge("jobs", "Training jobs that hold something", load.jobs)
    yield _gauge("producers", "Producers", load.producers)
    yield _gauge("channels", "Channels", len(load.channels))
    yield _gauge("queued", "Batches asked for that nobody samples yet", sum(e.queued for e in load.channels))
    yield _gauge("ready_bytes", "Bytes of batches that lie ready to be fetched", load.ready_bytes)
    yield _gauge("frame_memory_bytes", "Memory of frames: written, ready, being sent", load.frame_bytes)
    yield _counter("batches", "Batches sampled", load.batches)
    yield _counter("batch_bytes", "Bytes of sampled batches", load.nbytes)
    yield _counter(
        "sampling_seconds", "Time from the beginning of a batch to its end, summed", load.sampling_s
    )
    yield _counter(
        "waiting_seconds", "Time from an ask to the beginning of its batch, summed", load.waiting_s
    )


_CHANNEL_NAMES = ("job", "channel", "transport")
_CHANNEL_METRICS: tuple[tuple[type[Any], str, str, str], ...] = (
    (CounterMetricFamily, "batches", "channel_batches", "Batches of the channel"),
    (CounterMetricFamily, "nbytes", "channel_bytes", "Bytes of its batches"),
    (GaugeMetricFamily, "queued", "channel_queued", "Its batches that nobody samples yet"),
    (GaugeMetricFamily, "ready", "channel_ready", "Its batches that lie ready to be fetched"),
    (CounterMetricFamily, "sampling_s", "channel_sampling_seconds", "Time of sampling its batches, summed"),
    (CounterMetricFamily, "waiting_s", "channel_waiting_seconds", "Time that its asks waited, summed"),
)


def _of_channels(load: ServiceLoad) -> Iterator[_Family]:
    for family, field, name, text in _CHANNEL_METRICS:
        metric = family(f"gigl_{name}", text, labels=_CHANNEL_NAMES)
        sums: dict[tuple[str, ...], float] = {}
        for each in load.channels:  # Channels of equal names are one: a label set may appear once only.
            labels: tuple[str, ...] = (
                each.short_job,
                f"{each.key}/{each.name}" if each.name else each.key,
                each.transport,
            )
            sums[labels] = sums.get(labels, 0) + getattr(each, field)
        for names, value in sums.items():
            metric.add_metric(names, value)
        yield metric


_PEER_METRICS = (
    ("calls", "peer_calls", "Asks to another server"),
    ("bytes_in", "peer_received_bytes", "Bytes received from another server"),
    ("bytes_out", "peer_sent_bytes", "Bytes sent to another server"),
    ("retries", "peer_retries", "Asks to another server that were made again"),
)


def _of_peers(view: View) -> Iterator[_Family]:
    for field, name, text in _PEER_METRICS:
        metric = CounterMetricFamily(f"gigl_{name}", text, labels=("server",))
        for peer in view.peers:
            metric.add_metric((str(peer.server),), getattr(peer.counts, field))
        yield metric


def _gauge(name: str, text: str, value: float) -> _Family:
    return GaugeMetricFamily(f"gigl_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> _Family:
    return CounterMetricFamily(f"gigl_{name}", text, value=value)


def _family(host: str) -> Any:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
