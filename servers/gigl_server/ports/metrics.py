"""Metrics of a storage server for Prometheus, and the HTTP port that shows them and answers health probes.

Anyone may connect, so that everything has a limit: two seconds for a connection, from its handshake to the
last byte of its reply; 32 connections, 16 of one address; 16 KiB for the request and its headers.
"""

from __future__ import annotations

import logging
import resource
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import accumulate
from typing import TYPE_CHECKING, Any, BinaryIO

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.utils import floatToGoString

from gigl_loader.resources import memory_bytes
from gigl_loader.rpc.certificates import expiry, server_context
from gigl_loader.rpc.endpoint import Address
from gigl_loader.rpc.tokens import matching_token, shown_form
from gigl_loader.threads import ThreadPool, start_thread
from gigl_server.admission import METRICS_PORT, Identity, Quota
from gigl_server.counters import Durations
from gigl_server.logs import AuditLog
from gigl_server.preflight import check_free

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.tokens import Token
    from gigl_server.cluster.membership import View
    from gigl_server.counters import Counters
    from gigl_server.sampling.service import SamplingService, ServiceLoad

_LOGGER = logging.getLogger(__name__)
_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_MAX_HEADER_BYTES = 16 << 10
_TEXT = "text/plain; charset=utf-8"


class LoadCollector:
    """Reads the state at each scrape: nothing is counted twice, and closed channels disappear."""

    def __init__(
        self,
        service: SamplingService,
        counters: Counters,
        view: Callable[[], View],
        memory: Callable[[], Mapping[str, int]],
        certificate: Callable[[], bytes],
    ) -> None:
        self._service, self._counters, self._view = service, counters, view
        self._memory, self._certificate = memory, certificate
        self._process_memory = memory_bytes()

    def describe(self) -> Iterator[_Family]:
        """Yield families without values: registering must not collect."""
        return iter(())

    def collect(self) -> Iterator[_Family]:
        load, view = self._service.load(), self._view()
        yield _gauge("ready", "1 while the server serves", int(view.ready))
        yield _gauge("servers", "Servers of the cluster that are known", len(view.members))
        yield _gauge("servers_away", "Those of them that do not answer", len(view.away))
        yield _of_holders(view)
        yield _of_certificate(self._certificate())
        yield from _of_server(load)
        yield from _of_durations(load)
        yield _of_memory(self._memory())
        yield self._memory_limits()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        yield _counter("major_page_faults", "Reads of mapped files that had to wait for the disk", faults)
        totals = self._counters.read()
        yield _counter("data_requests", "Requests to the data port", totals.calls)
        yield _counter("data_received_bytes", "Bodies of requests", totals.bytes_in)
        yield _counter("data_sent_bytes", "Bodies of replies", totals.bytes_out)
        yield _counter("refused", "Requests refused because they broke a rule", totals.refused)
        yield _counter("adoptions", "Partitions taken over while the server runs", totals.adoptions)
        yield _counter("adopted_bytes", "Bytes pulled for them", totals.adopted_bytes)
        yield _counter("repairs", "Repairs of damaged files from another server", totals.repairs)
        yield _counter("repaired_bytes", "Bytes pulled for them", totals.repaired_bytes)
        yield _counter("neighbors_cpu_seconds", "CPU time of answering other servers", totals.sampling_s)
        yield _counter(
            "gathering_cpu_seconds", "CPU time of gathering rows for other servers", totals.gathering_s
        )
        text = "Frames that were not read, and given up for a job that waited for memory"
        yield _counter("dropped_frames", text, totals.dropped_frames)
        yield from _of_calls(self._counters)
        yield from _of_channels(load)
        yield from _of_peers(view)

    def _memory_limits(self) -> _Family:
        text = "Limits of memory: of frames and rings, and of the whole process (machine or control group)"
        limits = self._service.limits
        kinds = {"frames": limits.frame_memory, "rings": limits.ring_memory, "process": self._process_memory}
        return _by_kind("memory_limit_bytes", text, kinds)


def _of_server(load: ServiceLoad) -> Iterator[_Family]:
    yield _gauge(
        "topology_partitions",
        "Partitions whose topology is mapped, its own among them",
        load.topology_partitions,
    )
    yield _gauge("workers", "Batches that are sampled at once, at most", load.workers)
    yield _gauge("busy_workers", "Batches that are being sampled", load.busy)
    yield _gauge("jobs", "Training jobs that hold something", load.jobs)
    yield _gauge("producers", "Producers", load.producers)
    yield _gauge("channels", "Channels", len(load.channels))
    yield _gauge(
        "queued", "Requests for batches that no thread has begun", sum(e.queued for e in load.channels)
    )
    yield _gauge("ready_bytes", "Bytes of batches that are sampled and not read yet", load.ready_bytes)
    yield _gauge("frame_memory_bytes", "Memory of frames that are written or sent", load.frame_bytes)
    yield _gauge(
        "shared_frame_bytes", "Frames that are kept for equal requests of other jobs", load.shared_bytes
    )
    yield _gauge("ring_memory_bytes", "Memory of rings that was written to", load.ring_bytes)
    yield _counter("batches", "Batches sampled", load.batches)
    yield _counter(
        "shared_batches", "Batches whose frames were sampled for an equal request of another job", load.shared
    )
    yield _counter("batch_bytes", "Bytes of sampled batches", load.nbytes)
    yield _counter(
        "sampling_seconds", "Time from the beginning of a batch to its end, summed", load.sampling_s
    )
    yield _counter(
        "waiting_seconds", "Time from a request to the beginning of its batch, summed", load.waiting_s
    )


def _of_memory(kinds: Mapping[str, int]) -> _Family:
    return _by_kind("memory_bytes", "Memory of the process beyond its start, by kind of object", kinds)


def _of_holders(view: View) -> _Family:
    """Return the holders of the partitions of this server, and of those that no server holds now.

    The series of all servers together are as many as there are copies of partitions, not their square.
    """
    text = "Servers that hold a partition and answer: of partitions that are here, or that no server holds"
    metric = GaugeMetricFamily("gigl_partition_holders", text, labels=("partition",))
    answering = [each for each in view.members if each.control_address not in view.away]
    holders = Counter(part for each in answering for part in each.partitions)
    own = {part for each in view.members if each.control_address == view.own for part in each.partitions}
    lost = {part for each in view.members for part in each.partitions} - holders.keys()
    for part in sorted(own | lost):
        metric.add_metric((str(part),), holders[part])
    return metric


def _of_certificate(pem: bytes) -> _Family:
    text = "When the certificate of this server expires, in seconds since 1970"
    metric = GaugeMetricFamily("gigl_certificate_expiry_timestamp_seconds", text)
    if pem:
        metric.add_metric((), expiry(pem))
    return metric


_DURATION_TEXTS = {
    "waiting": "Time from a request to the beginning of its batch",
    "sampling": "Time from the beginning of a batch to its end",
}


def _of_durations(load: ServiceLoad) -> Iterator[_Family]:
    bounds = [*map(floatToGoString, Durations.BOUNDS_S), "+Inf"]
    for of, text in _DURATION_TEXTS.items():
        metric = HistogramMetricFamily(f"gigl_batch_{of}_seconds", text, labels=("kind",))
        for (name, kind), found in load.durations.items():
            if name == of:
                buckets = list(zip(bounds, accumulate(found.counts), strict=True))
                metric.add_metric((kind,), buckets, found.sum_s)
        yield metric


_CALL_METRICS = (
    ("calls", "calls", "Calls by method"),
    ("bytes_in", "call_received_bytes", "Messages of calls, without headers and framing"),
    ("bytes_out", "call_sent_bytes", "Replies to calls, without headers and framing"),
)


def _of_calls(counters: Counters) -> Iterator[_Family]:
    calls = counters.calls()
    for of_port in ("control", "data"):
        for field, name, text in _CALL_METRICS:
            metric = CounterMetricFamily(f"gigl_{of_port}_{name}", text, labels=("method",))
            for (port, method), counts in calls.items():
                if port == of_port:
                    metric.add_metric((method,), getattr(counts, field))
            yield metric


_CHANNEL_NAMES = ("job", "channel", "transport")
_CHANNEL_METRICS: tuple[tuple[type[Any], str, str, str], ...] = (
    (CounterMetricFamily, "batches", "channel_batches", "Batches of the channel"),
    (CounterMetricFamily, "shared", "channel_shared_batches", "Of these, those sampled for another job"),
    (CounterMetricFamily, "nbytes", "channel_bytes", "Bytes of its batches"),
    (GaugeMetricFamily, "queued", "channel_queued", "Its requests that no thread has begun"),
    (CounterMetricFamily, "sampling_s", "channel_sampling_seconds", "Time of sampling its batches, summed"),
    (CounterMetricFamily, "waiting_s", "channel_waiting_seconds", "Time that its requests waited, summed"),
)


def _of_channels(load: ServiceLoad) -> Iterator[_Family]:
    for family, field, name, text in _CHANNEL_METRICS:
        metric = family(f"gigl_{name}", text, labels=_CHANNEL_NAMES)
        sums: dict[tuple[str, ...], float] = {}
        for each in load.channels:  # Channels of equal names are summed: a label set may appear only once.
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
    ("calls", "peer_calls", "Requests to another server"),
    ("bytes_in", "peer_received_bytes", "Bytes received from another server"),
    ("bytes_out", "peer_sent_bytes", "Bytes sent to another server"),
    ("retries", "peer_retries", "Requests to another server that were repeated"),
    ("damaged", "peer_damaged", "Replies of another server that arrived damaged"),
)


def _of_peers(view: View) -> Iterator[_Family]:
    for field, name, text in _PEER_METRICS:
        metric = CounterMetricFamily(f"gigl_{name}", text, labels=("server",))
        for server, counts in view.peers.items():
            metric.add_metric((str(server),), getattr(counts, field))
        yield metric


def _by_kind(name: str, text: str, kinds: Mapping[str, int]) -> _Family:
    metric = GaugeMetricFamily(f"gigl_{name}", text, labels=("of",))
    for kind, nbytes in kinds.items():
        metric.add_metric((kind,), nbytes)
    return metric


def _gauge(name: str, text: str, value: float) -> _Family:
    return GaugeMetricFamily(f"gigl_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> _Family:
    return CounterMetricFamily(f"gigl_{name}", text, value=value)


class MetricsPort:
    """Serves ``GET /metrics`` and ``GET /healthz`` from its construction to ``close``."""

    def __init__(
        self,
        where: str,
        *,
        service: SamplingService,
        counters: Counters,
        view: Callable[[], View],
        memory: Callable[[], Mapping[str, int]] = dict,
        certificate: Callable[[], bytes] = bytes,
        audit: AuditLog | None = None,
        tokens: Sequence[Token] = (),
        tls: Credentials | None = None,
    ) -> None:
        """Listen at ``HOST:PORT``; port 0 selects a free one. ``OSError`` where that fails.

        ``memory`` returns bytes by kind of object (``MemoryAccount.read``), ``certificate`` the PEM of the
        server's certificate; empty without TLS.
        With ``tokens``, callers of ``/metrics`` must show one of them. With ``tls``, the port speaks TLS with
        its certificate.
        """
        address = Address.parse(where)
        check_free(address)
        registry = CollectorRegistry()
        registry.register(LoadCollector(service, counters, view, memory, certificate))
        ProcessCollector(registry=registry)
        self._server = _Server((address.host, address.port), registry, view, audit or AuditLog())
        self._tls = tls is not None
        self.renew(tls, tokens)
        self.address = str(Address(address.host, self._server.server_port))
        self._thread = start_thread(
            threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        )

    @property
    def thread(self) -> threading.Thread:
        """Thread that lives until ``close``."""
        return self._thread

    def renew(self, credentials: Credentials | None, tokens: Sequence[Token]) -> None:
        """Accept other tokens, and show another certificate, from the next connection on.

        Whether there is TLS, or a token, does not change.
        """
        if self._tls and credentials is not None:
            self._server.context = server_context(credentials.certificate, credentials.key)
        self._server.tokens = tuple(map(shown_form, tokens))

    def close(self) -> None:
        """Stop listening. Closing twice is fine."""
        self._server.shutdown()
        self._thread.join(METRICS_PORT.first_s)
        self._server.server_close()


class _Server(HTTPServer):
    """HTTP server with a few threads and two seconds per connection, so that sampling keeps its resources."""

    def __init__(
        self,
        place: tuple[str, int],
        registry: CollectorRegistry,
        view: Callable[[], View],
        audit: AuditLog,
    ) -> None:
        self.registry, self.view, self.audit = registry, view, audit
        self.context: ssl.SSLContext | None = None
        self.tokens: tuple[tuple[str, bytes], ...] = ()
        self.address_family = _family(place[0])
        limits = METRICS_PORT  # A thread each: a silent connection must not delay the next one.
        self._pool = ThreadPool(limits.connections, thread_name_prefix="metrics")
        self._pool.start_first()
        self._places = Quota("connections", limits.connections, limits.connections_per_address)
        super().__init__(place, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.enter(_identity_at(client_address)):
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
        with ExitStack() as ends:
            ends.callback(self._places.leave, _identity_at(client_address))
            line = ends.enter_context(request.dup())
            end = threading.Timer(METRICS_PORT.first_s, _cut, (line,))
            end.daemon = True
            with suppress(RuntimeError):  # No thread can be started. Places are bounded.
                end.start()
            ends.callback(end.cancel)
            self._serve(request, client_address)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            if self.context is not None:
                request.settimeout(METRICS_PORT.first_s)
                request = self.context.wrap_socket(request, server_side=True)
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = METRICS_PORT.first_s
    server_version = "gigl-loader"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Bounded(self.rfile, _MAX_HEADER_BYTES)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.rfile.exceeded:
            self._reply(431, _TEXT, b"the headers are too large\n")
        elif path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            view = self.server.view()
            text = "ready" if view.ready else view.reason
            self._reply(200 if view.ready else 503, _TEXT, f"{text}\n".encode())
        else:
            self._reply(404, _TEXT, b"/metrics or /healthz\n")

    def _metrics(self) -> None:
        tokens, shown = self.server.tokens, self.headers.get_all("Authorization", [])
        if tokens and matching_token(tokens, shown) is None:
            self.server.audit.refused(_identity_at(self.client_address), "metrics: wrong token or none")
            self._reply(401, _TEXT, b"a token is needed: authorization: Bearer TOKEN\n")
            return
        self._reply(200, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: Prometheus sends a request every few seconds."""

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)


class _Bounded:
    """Reader of a request that ends after so many bytes."""

    def __init__(self, source: BinaryIO, most: int) -> None:
        self._source, self._left = source, most
        self.exceeded = False

    def readline(self, limit: int = -1) -> bytes:
        most = self._left if limit < 0 else min(limit, self._left)
        line = self._source.readline(most)
        self._left -= len(line)
        self.exceeded = self.exceeded or (len(line) == most and not line.endswith(b"\n"))
        return b"" if self.exceeded else line

    def close(self) -> None:
        self._source.close()

    @property
    def closed(self) -> bool:
        return self._source.closed


def _identity_at(client_address: Any) -> Identity:
    """Return the identity of a caller at an address of ``socket``."""
    host, port = client_address[:2]
    kind = f"ipv6:[{host}]" if ":" in host else f"ipv4:{host}"
    return Identity.of(peer=f"{kind}:{port}")


def _cut(request: socket.socket) -> None:
    with suppress(OSError):  # Closed meanwhile.
        request.shutdown(socket.SHUT_RDWR)


def _family(host: str) -> Any:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
