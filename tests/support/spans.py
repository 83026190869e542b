"""Spans that a test records: in memory, or from other processes by a collector."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import SpanContext


def recorded(monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None = None) -> InMemorySpanExporter:
    """Set a tracer provider for the rest of the test, as a program does. Return what exports its spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # The API lets a process set one once.
    return exporter


@dataclass(eq=False)
class Tree:
    """A span and those within it, in the order in which they began."""

    span: ReadableSpan
    children: list[Tree] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.span.attributes or {})

    @property
    def context(self) -> SpanContext:
        context: SpanContext | None = self.span.context
        assert context is not None
        return context

    @property
    def began(self) -> int:
        """Nanoseconds since 1970, as ``ended``."""
        assert self.span.start_time is not None
        return self.span.start_time

    @property
    def ended(self) -> int:
        assert self.span.end_time is not None
        return self.span.end_time

    @property
    def names(self) -> set[str]:
        """Names of the span and of all within it."""
        return {self.name}.union(*(each.names for each in self.children))

    def only(self, name: str) -> Tree:
        """Return the one child of this name."""
        (found,) = [each for each in self.children if each.name == name]
        return found

    def all(self, name: str) -> list[Tree]:
        """Return the spans of this name, at any depth."""
        below = [found for each in self.children for found in each.all(name)]
        return [self, *below] if self.name == name else below


def trees(spans: Sequence[ReadableSpan]) -> list[Tree]:
    """Return the spans without a parent, with those within them. Every parent must be there."""
    nodes = {each.context.span_id: each for each in map(Tree, spans)}
    roots: list[Tree] = []
    for node in sorted(nodes.values(), key=lambda each: each.began):
        parent = node.span.parent
        (roots if parent is None else nodes[parent.span_id].children).append(node)
    return roots


def batches_in(exporter: InMemorySpanExporter) -> list[Tree]:
    """Return the spans of batches, by number."""
    found = [each for each in trees(exporter.get_finished_spans()) if each.name == "gigl.batch"]
    return sorted(found, key=lambda each: int(each.attributes["gigl.batch"]))


@dataclass(eq=False)
class Collector:
    """What arrived at an OTLP collector. Thread-safe."""

    port: int
    spans: list[Any] = field(default_factory=list)
    """``opentelemetry.proto.trace.v1.Span``."""
    resources: list[dict[str, str]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, request: Any) -> None:
        with self.changed:
            for each in request.resource_spans:
                self.resources.append({one.key: one.value.string_value for one in each.resource.attributes})
                self.spans += [span for scope in each.scope_spans for span in scope.spans]
            self.changed.notify_all()

    def by_parent(self) -> dict[str, list[Any]]:
        """Return the spans by the id of their parent, in hexadecimal digits."""
        with self.changed:
            found = defaultdict(list)
            for each in self.spans:
                found[each.parent_span_id.hex()].append(each)
            return found


@contextmanager
def collector(protocol: str) -> Iterator[Collector]:
    """Collect what exporters send by ``grpc`` or ``http/protobuf``."""
    with (_grpc_collector if protocol == "grpc" else _http_collector)() as found:
        yield found


@contextmanager
def _grpc_collector() -> Iterator[Collector]:
    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            found.add(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    found = Collector(server.add_insecure_port("127.0.0.1:0"))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    server.start()
    try:
        yield found
    finally:
        server.stop(0).wait(5)


@contextmanager
def _http_collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.add(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Collector(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join(5)
