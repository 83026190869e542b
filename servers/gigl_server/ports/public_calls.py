"""Calls that need no token: health and reflection."""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from gigl_loader.rpc.graph_store_pb2 import HealthList
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.ports.shares import ByteSemaphore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_server.ports.auth import AuthenticatedCalls
    from gigl_server.ports.control_call import CallTimes, ControlCall

_STATUS = health_pb2.HealthCheckResponse
_LOOK_S = 1.0


class Health:
    """Statuses by name of service. Thread-safe.

    ``grpc_health`` has one too, whose ``Watch`` uses experimental parts of gRPC, and sends to watchers while
    it holds its lock: a watcher that does not read would block all.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._statuses: dict[str, int] = {}
        self._closed = False

    def set(self, names: Sequence[str], serving: bool) -> None:
        """Set the status of services. Does nothing after ``close``."""
        with self._changed:
            if not self._closed:
                status = _STATUS.SERVING if serving else _STATUS.NOT_SERVING
                self._statuses.update(dict.fromkeys(names, status))
                self._changed.notify_all()

    def close(self) -> None:
        """Set every status to not serving, and end all watches."""
        with self._changed:
            self._statuses = dict.fromkeys(self._statuses, _STATUS.NOT_SERVING)
            self._closed = True
            self._changed.notify_all()

    def check(self, name: str) -> Any | None:
        """Return the reply to ``Check``. ``None``: no such service."""
        status = self._statuses.get(name)
        return None if status is None else _STATUS(status=status)

    def listed(self) -> Any:
        """Return the reply to ``List``."""
        statuses = dict(self._statuses)
        return HealthList(
            statuses={name: _STATUS(status=each).SerializeToString() for name, each in statuses.items()}
        )

    def watch(self, name: str, goes_on: Callable[[], bool]) -> Iterator[Any]:
        """Yield the status of a service and each change of it, while ``goes_on``, until ``close``."""
        told = None
        while goes_on():
            with self._changed:
                status = self._statuses.get(name, _STATUS.SERVICE_UNKNOWN)
                if status == told:
                    if self._closed:
                        return
                    self._changed.wait(_LOOK_S)
                    continue
            told = status
            yield _STATUS(status=status)


_CHECKS, _CHECK_S = 16, 2.0
_LASTING, _LASTING_S = 16, 20.0
_MAX_REQUEST_BYTES = 64 << 10


class PublicCalls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handlers of health and reflection. Their threads are not taken from those of trainers.

    A caller may have as many calls as it leaves free. Without the token, a call is cancelled after its time.
    """

    threads = _CHECKS + _LASTING
    """Most threads that these calls hold at once."""

    def __init__(
        self,
        health_: Health,
        authenticated: AuthenticatedCalls,
        times: CallTimes,
        *,
        reflected: Sequence[str],
    ) -> None:
        """``reflected`` are the services that reflection lists. Empty: no reflection."""
        self._health = health_
        self._authenticated = authenticated
        self._times = times
        self._checks = ByteSemaphore(_CHECKS, wait_s=0.0, what="calls of health")
        self._lasting = ByteSemaphore(_LASTING, wait_s=0.0, what="watches and reflections")
        unary, streamed = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        prefix = f"/{health.SERVICE_NAME}/"
        self._handlers: dict[str, Any] = {
            f"{prefix}Check": unary(self._check),
            f"{prefix}Watch": streamed(self._watch),
            f"{prefix}List": unary(self._list),
        }
        if reflected:
            from grpc_reflection.v1alpha import reflection, reflection_pb2

            servicer = reflection.ReflectionServicer(
                (*reflected, health.SERVICE_NAME, reflection.SERVICE_NAME)
            )
            reflect = partial(self._reflect, servicer, reflection_pb2.ServerReflectionRequest)
            self._handlers[f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"] = streamed(reflect)

    def service(self, details: Any) -> Any:
        """Return gRPC's handler of a call, ``None`` for other calls. Runs on gRPC's one thread."""
        return self._handlers.get(details.method)

    @contextmanager
    def _admitted(
        self, name: str, requests: Iterator[bytes], context: Any, places: ByteSemaphore, seconds: float
    ) -> Iterator[ControlCall]:
        """Hold a place for a call. Without the token, it has so many seconds."""
        call, token = self._authenticated.call(name, requests, context)
        with self._authenticated.responding(call), places.take(1, call.caller):
            self._times.limit(call, seconds if token is None else math.inf, int)
            yield call

    def _check(self, requests: Iterator[bytes], context: Any) -> bytes:
        with self._admitted("Check", requests, context, self._checks, _CHECK_S) as call:
            status = self._health.check(_parsed(call.read(), health_pb2.HealthCheckRequest).service)
            if status is None:
                raise Refusal(RefusalKind.NOT_FOUND, "no such service")
            return call.reply(status)

    def _list(self, requests: Iterator[bytes], context: Any) -> bytes:
        """Reply without a place, and to no message: silent callers cannot delay the server's own probe."""
        call, _ = self._authenticated.call("List", requests, context)
        return call.reply(self._health.listed())

    def _watch(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        with self._admitted("Watch", requests, context, self._lasting, _LASTING_S) as call:
            name = _parsed(call.read(), health_pb2.HealthCheckRequest).service
            for status in self._health.watch(name, context.is_active):
                yield status.SerializeToString()

    def _reflect(
        self, servicer: Any, request: Any, requests: Iterator[bytes], context: Any
    ) -> Iterator[bytes]:
        with self._admitted("Reflect", requests, context, self._lasting, _LASTING_S) as call:
            parsed = (_parsed(data, request) for data in iter(call.read, b""))
            for reply in servicer.ServerReflectionInfo(parsed, None):
                yield reply.SerializeToString()


def _parsed(data: bytes, request: Any) -> Any:
    """Return the parsed message. ``Refusal`` where it is malformed."""
    try:
        if len(data) <= _MAX_REQUEST_BYTES:
            return request.FromString(data)
    except DecodeError:
        pass
    raise Refusal(RefusalKind.MALFORMED, f"the message is no {request.DESCRIPTOR.name}")
