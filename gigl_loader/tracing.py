"""OpenTelemetry spans, and the W3C trace context that requests carry.

Spans are made where the program has set a tracer provider, as by libraries with OpenTelemetry built in. A
program that has not imported OpenTelemetry pays nothing for it: callers find no tracer, and skip this module.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span, Tracer

NAME = "gigl_loader"
"""Of the tracer: the instrumentation scope of all spans."""

TRACE_HEADERS = ("traceparent", "tracestate")
"""Headers of requests on both ports, as W3C Trace Context has them."""

_MAX_HEADER_CHARACTERS = 512


def find_tracer() -> Tracer | None:
    """Return a tracer of the program's provider; ``None`` where it has set none."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    from gigl_loader import __version__

    tracer: Tracer = provider.get_tracer(NAME, __version__)
    return tracer


def trace_headers() -> tuple[tuple[str, str], ...]:
    """Return the headers that name the current span to a server. Empty without one.

    Callers look first whether ``opentelemetry.trace`` is in ``sys.modules``: else it would be imported.
    """
    from opentelemetry.trace import get_current_span

    span = get_current_span().get_span_context()
    if not span.is_valid:
        return ()
    parent = ("traceparent", f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}")
    state = span.trace_state.to_header()
    return (parent, ("tracestate", state)) if 0 < len(state) <= _MAX_HEADER_CHARACTERS else (parent,)


def trace_in(header_text: bytes) -> dict[str, str]:
    """Return the headers in the header text of a request of the data port that name the caller's span."""
    lines = header_text.decode("ascii", "replace").splitlines()
    pairs = (line.partition(": ")[::2] for line in lines)
    return {name: value for name, value in pairs if name in TRACE_HEADERS}


def name_served(what: str) -> None:
    """Say what is requested in the current ``ServedSpan``, once it is known."""
    from opentelemetry.trace import get_current_span

    get_current_span().update_name(f"gigl.serve {what}")


class OpenSpan:
    """A span under way. Its steps are spans within it. Thread-safe."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        from opentelemetry.trace import set_span_in_context

        self._is_recorded = span.is_recording()  # Else the sampler left it out, with all within it.
        self._offset_ns = _offset_ns()  # Once: steps of one span must not overlap.
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span)

    def step(self, name: str, **attributes: Any) -> AbstractContextManager[Any]:
        """Return a context that is a step, and the current span. An exception fails the step."""
        if not self._is_recorded:
            return self._entered()
        return self._tracer.start_as_current_span(name, self._context, attributes=_dotted(attributes))

    def request(self, name: str, **attributes: Any) -> AbstractContextManager[Any]:
        """Return a context that is a step: a request that a server serves."""
        if not self._is_recorded:
            return self._entered()
        from opentelemetry.trace import SpanKind

        return self._tracer.start_as_current_span(
            name, self._context, kind=SpanKind.CLIENT, attributes=_dotted(attributes)
        )

    def record(self, name: str, began: float, ended: float) -> None:
        """Add a step that is over. Times are those of ``time.perf_counter``, in any process of this host."""
        if not self._is_recorded:
            return
        begin_ns, end_ns = (self._offset_ns + int(1e9 * each) for each in (began, ended))
        self._tracer.start_span(name, self._context, start_time=begin_ns).end(end_ns)

    def annotate(self, **attributes: Any) -> None:
        """Add attributes to the span."""
        if self._is_recorded:
            self._span.set_attributes(_dotted(attributes))

    def link_to_current(self) -> None:
        """Link the span to the current one of this thread, where there is one."""
        from opentelemetry.trace import get_current_span

        current = get_current_span().get_span_context()
        if current.is_valid and self._is_recorded:
            self._span.add_link(current)

    def _entered(self) -> AbstractContextManager[Any]:
        """Return a context in which the span is the current one, so that requests carry it."""
        from opentelemetry.trace import use_span

        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    @contextmanager
    def ending(self) -> Iterator[OpenSpan]:
        """Lend the span, and end it, as failed by an exception."""
        error: BaseException | None = None
        try:
            yield self
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.end(error)
            error = None  # Its traceback has this frame.

    def drop(self) -> None:
        """End the span of what is not needed any more."""
        self.annotate(gigl_dropped=True)
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """End the span, as failed with an ``error``. Ending twice is fine."""
        if self._span.is_recording():
            if error is not None:
                from opentelemetry.trace import Status, StatusCode

                self._span.record_exception(error)
                self._span.set_status(Status(StatusCode.ERROR, str(error)))
            self._span.end()


class ServedSpan(OpenSpan):
    """Span of a request that a server serves, within the span of the caller."""

    def __init__(self, tracer: Tracer, what: str, headers: Mapping[str, str]) -> None:
        """``what`` is requested. ``headers`` name the caller's span, if it has one."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(dict(headers), Context())
        super().__init__(tracer, tracer.start_span(f"gigl.serve {what}", parent, kind=SpanKind.SERVER))

    def __enter__(self) -> Self:
        """Make the span the current one of this thread, until it ends."""
        from opentelemetry.context import attach

        self._token = attach(self._context)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from opentelemetry.context import detach

        detach(self._token)
        self.end(error)

    def sent(self, began: float) -> None:
        """Record that the reply was sent, from ``began`` (``perf_counter``) until now, and end the span."""
        self.record("gigl.send", began, time.perf_counter())
        self.end()


class BatchSpans:
    """Spans of the batches of one source: from the request of each to the trainer that takes it. Thread-safe.

    A batch is a trace of its own, and linked to the span in which the trainer takes it: it is requested long
    before. The batch of a call is within the span of its caller.
    """

    def __init__(self, tracer: Tracer, loader: str, *, of_calls: bool = False) -> None:
        self._tracer = tracer
        self._loader = loader
        self._of_calls = of_calls
        self._lock = threading.Lock()
        self._open: dict[tuple[int, int], OpenSpan] = {}

    @classmethod
    def found(cls, loader: str, *, of_calls: bool = False) -> BatchSpans | None:
        """Return the spans of a loader; ``None`` where the program has set no tracer provider."""
        tracer = find_tracer()
        return None if tracer is None else cls(tracer, loader, of_calls=of_calls)

    def begin(self, epoch: int, batch: int, began: float | None = None) -> OpenSpan:
        """Return the span of a batch, which begins now, or at ``began`` (``perf_counter``), unless it has."""
        with self._lock:
            found = self._open.get((epoch, batch))
            if found is None:
                from opentelemetry.context import Context

                attributes: dict[str, Any] = {
                    "gigl.loader": self._loader,
                    "gigl.epoch": epoch,
                    "gigl.batch": batch,
                }
                span = self._tracer.start_span(
                    "gigl.batch",
                    None if self._of_calls else Context(),
                    attributes=attributes,
                    start_time=None if began is None else _offset_ns() + int(1e9 * began),
                )
                found = self._open[epoch, batch] = OpenSpan(self._tracer, span)
            return found

    def take(self, epoch: int, batch: int, began: float) -> OpenSpan:
        """Return the span of a batch that the trainer has now, for which it waited from ``began`` on.

        The caller ends it.
        """
        span = self.begin(epoch, batch, began)
        with self._lock:
            self._open.pop((epoch, batch), None)
        span.record("gigl.wait", began, time.perf_counter())
        if not self._of_calls:
            span.link_to_current()
        return span

    def end(self, epoch: int, batch: int, error: BaseException) -> None:
        """End the span of a batch that has failed."""
        with self._lock:
            span = self._open.pop((epoch, batch), None)
        if span is not None:
            span.end(error)

    def leave(self) -> None:
        """End the spans of all batches that were requested and are not needed any more."""
        with self._lock:
            left = list(self._open.values())
            self._open.clear()
        for span in left:
            span.drop()


def _offset_ns() -> int:
    """Return nanoseconds since 1970 minus those of ``time.perf_counter``: clocks may be set at any time."""
    return time.time_ns() - time.perf_counter_ns()


def _dotted(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", ".", 1): value for name, value in attributes.items()}
