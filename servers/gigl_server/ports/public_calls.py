"""Calls that need no token: health and reflection."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from gigl_loader.rpc.graph_store_pb2 import HealthList
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.threads import ThreadPool
from gigl_server.admission import REFLECTIONS, WATCHES, Quota
from gigl_server.ports.control_call import MessageReader, Patience, handler, header_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.ports.auth import AuthenticatedCalls
    from gigl_server.ports.control_call import ControlCall, Stream

_STATUS = health_pb2.HealthCheckResponse
_LOOK_S = 1.0


class Health:
    """Statuses by name of service. Thread-safe; a watcher cannot delay a thread that sets a status.

    ``grpc_health`` sends to watchers while it holds its lock: a watcher that does not read would block all.
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

    def watch(self, name: str, until: threading.Event) -> Iterator[Any]:
        """Yield the status of a service and each change of it, until the event is set or health is closed."""
        told = None
        while not until.is_set():
            with self._changed:
                status = self._statuses.get(name, _STATUS.SERVICE_UNKNOWN)
                if status == told:
                    if self._closed:
                        return
                    self._changed.wait(_LOOK_S)
                    continue
            told = status
            yield _STATUS(status=status)


_LOGGER = logging.getLogger(__name__)
_PATIENCE = Patience(alone_s=2.0, others_wait_s=0.1, prompt_s=0.1, turns_per_caller=1)
_TURNS = 1  # Limits the memory for messages of callers without a token.
_LASTING_S = 20.0
_END_S = 1.0
_MAX_REQUEST_BYTES = 64 << 10


class PublicCalls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handlers of health and reflection. They have few places, which are separate from those of trainers.

    Lasting calls (``Watch``, reflection) have threads of their own, because a caller that does not read holds
    its thread. Without the token, such a call ends after 20 s.
    """

    def __init__(
        self,
        health_: Health,
        authenticated: AuthenticatedCalls,
        credentials: Credentials,
        *,
        reflected: Sequence[str],
    ) -> None:
        """``reflected`` are the services that reflection lists. Empty: no reflection."""
        self._health = health_
        self._authenticated = authenticated
        self._credentials = credentials
        self._reader = MessageReader(_TURNS, _refuse_late, _PATIENCE)
        self._watches = Quota("watches are open", WATCHES.calls, WATCHES.calls_per_caller)
        self._reflections = Quota("reflections are open", REFLECTIONS.calls, REFLECTIONS.calls_per_caller)
        self._threads = ThreadPool(WATCHES.calls + REFLECTIONS.calls, thread_name_prefix="public")
        self._closed = threading.Event()
        prefix = f"/{health.SERVICE_NAME}/"
        self._calls: dict[str, Callable[[ControlCall], None]] = {
            f"{prefix}Check": self._check,
            f"{prefix}Watch": self._watch,
            f"{prefix}List": self._list,
        }
        if reflected:
            from grpc_reflection.v1alpha import reflection, reflection_pb2

            names = (*reflected, health.SERVICE_NAME, reflection.SERVICE_NAME)
            servicer = reflection.ReflectionServicer(names)
            self._calls[f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"] = partial(
                self._reflect, servicer, reflection_pb2.ServerReflectionRequest
            )

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that live until ``close``."""
        return self._reader.threads

    def start(self) -> None:
        """Start a thread for lasting calls. ``OSError`` where the system gives none."""
        self._threads.start_first()

    def service(self, details: Any) -> Any:
        """Return gRPC's handler of a call, ``None`` for other calls. Runs on gRPC's one thread."""
        receive = self._calls.get(details.method)
        if receive is None:
            return None
        return handler(partial(self._begin, receive, details.method.rpartition("/")[2]))

    def renew(self, credentials: Credentials) -> None:
        """Recognize the tokens of ``credentials`` from now on."""
        self._credentials = credentials

    def close(self) -> None:
        """End lasting calls. Closing twice is fine."""
        self._closed.set()
        self._reader.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, receive: Callable[[ControlCall], None], name: str, stream: Stream) -> None:
        shown = header_values(stream.context.invocation_metadata(), "authorization")
        token = self._credentials.identify(shown)
        receive(self._authenticated.call(name, stream, token or "", trusted=token is not None))

    def _check(self, call: ControlCall) -> None:
        def reply(data: bytes) -> None:
            request = _parsed(call, data, health_pb2.HealthCheckRequest)
            if request is None:
                return
            status = self._health.check(request.service)
            if status is None:
                call.refuse(Refusal(RefusalKind.NOT_FOUND, "no such service"))
            else:
                call.reply(status)

        self._reader.read(call, reply)

    def _list(self, call: ControlCall) -> None:
        call.reply(self._health.listed())

    def _watch(self, call: ControlCall) -> None:
        def begin(data: bytes) -> None:
            request = _parsed(call, data, health_pb2.HealthCheckRequest)
            if request is not None:
                self._last(call, self._watches, lambda ended: self._health.watch(request.service, ended))

        self._reader.read(call, begin)

    def _reflect(self, servicer: Any, request: Any, call: ControlCall) -> None:
        def requests() -> Iterator[Any]:
            while data := call.read():
                parsed = _parsed(call, data, request)
                if parsed is None:
                    return
                yield parsed

        self._last(call, self._reflections, lambda _: servicer.ServerReflectionInfo(requests(), None))

    def _last(
        self, call: ControlCall, places: Quota, replies: Callable[[threading.Event], Iterator[Any]]
    ) -> None:
        """Start a lasting call in a thread, if a place is free."""
        if not places.enter(call.caller):
            call.refuse(Refusal(RefusalKind.BUSY, places.reason))
            return
        try:
            self._threads.submit(self._run, call, places, replies)
        except RuntimeError:  # The port is being closed.
            places.leave(call.caller)
            call.cancel()

    def _run(
        self, call: ControlCall, places: Quota, replies: Callable[[threading.Event], Iterator[Any]]
    ) -> None:
        ended = threading.Event()
        limit = threading.Timer(_LASTING_S, _end_late, (call, ended))
        limit.daemon = True
        try:
            if call.watch_end(ended.set):
                if not call.trusted:
                    limit.start()
                call.stream(replies(ended))
        except Exception:
            _LOGGER.exception("a call of health or reflection failed")
            call.refuse(Refusal(RefusalKind.FAILED, "the server failed to answer; its log says why"))
        finally:
            limit.cancel()
            places.leave(call.caller)


def _end_late(call: ControlCall, ended: threading.Event) -> None:
    """End a call without a token after its time: with a status, or, if it is not read, by cancelling."""
    text = f"without the token, a call ends after {_LASTING_S:g} s"
    call.refuse(Refusal(RefusalKind.UNAVAILABLE, text))
    if not ended.wait(_END_S):
        call.cancel()


def _parsed(call: ControlCall, data: bytes, request: Any) -> Any | None:
    """Return the parsed message. ``None`` where it is malformed, and the call was refused."""
    try:
        if len(data) <= _MAX_REQUEST_BYTES:
            return request.FromString(data)
    except DecodeError:
        pass
    call.refuse(Refusal(RefusalKind.MALFORMED, f"the message is no {request.DESCRIPTOR.name}"))
    return None


def _refuse_late(call: ControlCall, others_wait: bool) -> None:
    call.refuse(Refusal(RefusalKind.INVALID, "no message of this call came in time"))
