"""Requests for batches at the data port. A request that waits for its batch holds no thread."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tokens import JOB_HEADER
from gigl_loader.tracing import ServedSpan, find_tracer, trace_in
from gigl_server.admission import Quota

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.native import DataCall
    from gigl_server.admission import Identity
    from gigl_server.cluster.membership import View
    from gigl_server.counters import Counters
    from gigl_server.sampling.service import SamplingService
    from gigl_server.sessions.channel import Result, SampleTask

_LOGGER = logging.getLogger(__name__)

_MIN_CALLS_PER_CALLER = 32
_REPLY_S = 60.0
"""Time for a reply to be read."""
_MESSAGE_BYTES = Struct("<I")


class SampleCalls:
    """Requests for batches that wait for their replies. Thread-safe."""

    def __init__(
        self,
        service: SamplingService,
        counters: Counters,
        *,
        view: Callable[[], View],
        membership: Callable[[], int],
    ) -> None:
        """``view`` says why a server that refuses is not ready, ``membership`` returns the version that every
        reply carries."""
        self.most_bytes = service.limits.message_bytes
        """Size of the largest request that is read."""
        self.membership = membership
        self._service = service
        self._counters = counters
        self._view = view
        most = service.limits.calls
        self._calls = Quota("calls are under way", most, max(most // 4, _MIN_CALLS_PER_CALLER))
        self._tracer = find_tracer()
        self._waiting: dict[int, _Waiting] = {}  # Whoever takes an entry out ends its call.

    def begin(
        self,
        call: DataCall,
        caller: Identity,
        job: bytes | None,
        body: bytes,
        check_right: Callable[[Identity], None] = lambda _: None,
    ) -> None:
        """Have a batch sampled. The reply is sent by a sampling thread, or here. Raises ``Refusal``.

        ``check_right`` is called again before the reply is sent. It raises ``Refusal`` where the caller has
        lost its right.
        """
        if job is None:
            raise Refusal(RefusalKind.INVALID, f"the header {JOB_HEADER!r} has 64 hex digits, once")
        try:
            request = messages.SampleRequest.FromString(body)
        except DecodeError:
            raise Refusal(RefusalKind.MALFORMED, "the message is no SampleRequest") from None
        self._counters.add_call("data", "sample", bytes_in=len(body))
        if not self._calls.enter(caller):
            raise Refusal(RefusalKind.BUSY, self._calls.reason)
        span = None if self._tracer is None else ServedSpan(self._tracer, "sample", trace_in(call.header))
        waiting = _Waiting(self, call, caller, check_right, span)
        self._waiting[call.id] = waiting
        call.wait()
        try:
            task = self._service.submit(job, request, waiting.settle, span, call.cut_reply)
        except Refusal as refusal:
            waiting.refuse(refusal)
        except Exception:
            _LOGGER.exception("a request for a batch failed")
            waiting.refuse(Refusal(RefusalKind.FAILED, "the service failed to answer; its log says why"))
        else:
            waiting.begun(task)

    def gone(self, number: int) -> None:
        """Drop the request of a call (``DataCall.id``) whose caller is gone."""
        waiting = self.take(number)
        if waiting is not None:
            waiting.abandon()

    def close(self) -> None:
        """Drop all requests: their connections have ended."""
        for number in list(self._waiting):
            self.gone(number)

    def take(self, number: int) -> _Waiting | None:
        """Take a call out, to end it. ``None`` where another thread has."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            self._calls.leave(waiting.caller)
        return waiting

    def abandon(self, task: SampleTask) -> None:
        """Have the service drop a request."""
        self._service.abandon(task)

    def count_sent(self, nbytes: int) -> None:
        """Count a reply."""
        self._counters.add(bytes_out=nbytes)
        self._counters.add_call("data", "sample", calls=0, bytes_out=nbytes)

    def count_refused(self) -> None:
        """Count a refusal."""
        self._counters.add(refused=1)

    def with_reason(self, refusal: Refusal) -> Refusal:
        """Return the refusal, with the reason why the server does not serve if it is unavailable."""
        return with_reason(refusal, self._view)


class _Waiting:
    """A call that waits for its batch: settled by a sampling thread, or abandoned when its caller is gone."""

    def __init__(
        self,
        calls: SampleCalls,
        call: DataCall,
        caller: Identity,
        check_right: Callable[[Identity], None],
        span: ServedSpan | None,
    ) -> None:
        self.caller = caller
        self._check_right = check_right
        self._span = span
        self._calls = calls
        self._call = call
        self._lock = threading.Lock()
        self._task: SampleTask | None = None
        self._ended = self._abandoned = False

    def begun(self, task: SampleTask) -> None:
        """Record the task, which may have a result already."""
        with self._lock:
            abandoned = self._abandoned
            if not self._ended:  # Else a cycle would keep the seeds and this object.
                self._task = task
        if abandoned:
            self._calls.abandon(task)

    def settle(self, result: Result) -> None:
        """Send the result, if the caller still has its right. Thread-safe."""
        try:
            self._check_right(self.caller)
        except Refusal as lost:
            self.refuse(lost)
            return
        if result.refusal is not None:
            self.refuse(result.refusal)
        elif self._take():
            message = reply_message(result).SerializeToString(deterministic=True)
            chunks = [np.frombuffer(_MESSAGE_BYTES.pack(len(message)) + message, np.uint8)]
            if result.frame is not None:
                chunks.append(result.frame)
            nbytes = sum(map(len, chunks))
            self._calls.count_sent(nbytes)
            if self._span is not None:
                self._span.annotate(gigl_bytes=nbytes)
                # The data port keeps the chunks until they were sent.
                weakref.finalize(chunks[0], self._span.sent, time.perf_counter()).atexit = False
            try:
                self._call.post(chunks, _REPLY_S, self._calls.membership())
            except Exception:  # It must not end a sampling thread.
                _LOGGER.exception("a reply could not be sent")

    def refuse(self, refusal: Refusal) -> None:
        """Send a refusal. Thread-safe."""
        if self._take():
            refusal = self._calls.with_reason(refusal)
            if self._span is not None:
                self._span.end(refusal)
            self._calls.count_refused()
            try:
                self._call.post_refusal(refusal.to_record(), _REPLY_S)
            except Exception:
                _LOGGER.exception("a refusal could not be sent")

    def abandon(self) -> None:
        """Drop the task: the caller is gone, and this call was taken out of those that wait."""
        if self._span is not None:
            self._span.drop()
        with self._lock:
            self._abandoned = self._ended = True
            task, self._task = self._task, None
        if task is not None:
            self._calls.abandon(task)

    def _take(self) -> bool:
        """Take the call out of those that wait. ``False`` where its caller is gone."""
        with self._lock:
            self._ended, self._task = True, None
        return self._calls.take(self._call.id) is not None


def reply_message(result: Result) -> Any:
    """Return a result as a message. A frame is not in it, but follows it."""
    reply = messages.SampleReply(
        nbytes=result.nbytes,
        unavailable=result.unavailable,
        sampling_s=result.sampling_s,
        waiting_s=result.waiting_s,
    )
    for name in ("in_slot", "failure", "skipped"):
        if value := getattr(result, name):
            setattr(reply, name, value)
    if result.frame is not None:
        reply.frame = True
    return reply


def with_reason(refusal: Refusal, view: Callable[[], View]) -> Refusal:
    """Return the refusal, with the reason why the server does not serve if it is unavailable."""
    if refusal.kind is not RefusalKind.UNAVAILABLE:
        return refusal
    found = view()
    if found.ready or found.reason in refusal.message:
        return refusal
    return Refusal(refusal.kind, f"{refusal.message}: {found.reason}")
