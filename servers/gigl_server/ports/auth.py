"""Interceptor of the control port: authentication, limits on calls, and parsing of messages."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import lru_cache, partial
from hashlib import sha256
from ssl import PEM_cert_to_DER_cert
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from gigl_loader.rpc.checksums import CHECKSUM_HEADER, head_is_whole
from gigl_loader.rpc.control import ANNOUNCEMENT, status_of
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.server_proof import NONCE
from gigl_loader.tracing import TRACE_HEADERS, ServedSpan, find_tracer
from gigl_server.admission import Identity, Quota
from gigl_server.ports.control_call import ControlCall, MessageReader, handler, header_values

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.admission import Access
    from gigl_server.counters import Counters
    from gigl_server.logs import AuditLog
    from gigl_server.ports.control_call import Stream

    Handler = Callable[[Any, ControlCall], Any]

_LOGGER = logging.getLogger(__name__)
_MEMORY_BYTES = 1 << 30
_MAX_TURNS = 32
_MIN_CALLS_PER_CALLER = 32
_CACHED_IDENTITIES = 4096
_ORDINARY = frozenset({RefusalKind.UNAVAILABLE, RefusalKind.FAILED})
_NOT_COUNTED = _ORDINARY | {RefusalKind.BUSY, RefusalKind.TOO_LARGE}


class AuthenticatedCalls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handlers of all calls that need the token.

    A call is accepted or refused by its headers, before a byte of its message is read. gRPC alone would hold
    the messages of thousands of calls, log a traceback for bytes that are no message, and send callers the
    text of any exception.
    """

    def __init__(
        self,
        credentials: Credentials,
        counters: Counters,
        audit: AuditLog,
        *,
        message_bytes: int,
        max_calls: int,
        access: Access | None = None,
        membership: Callable[[], int] = int,
    ) -> None:
        """A message has at most ``message_bytes``. As many are read at a time as fit in 1 GiB.

        ``access`` has the rights of the tokens. ``None``: every token has all. ``membership`` returns the
        version that every reply carries. 0: none.
        """
        self._access = access
        self._membership = membership
        self.turns = max(min(_MEMORY_BYTES // message_bytes, _MAX_TURNS), 1)
        self._credentials = credentials
        self._tracer = find_tracer()
        self._counters = counters
        self._audit = audit
        self._reader = MessageReader(self.turns, self._refuse_late)
        self._calls = Quota("calls are under way", max_calls, max(max_calls // 4, _MIN_CALLS_PER_CALLER))
        self._identity = lru_cache(_CACHED_IDENTITIES)(Identity.of)
        self._certificate = lru_cache(_CACHED_IDENTITIES)(_fingerprint)
        self._services: dict[str, Mapping[str, Callable[..., None]]] = {}
        self._methods: set[str] = set()

    @property
    def idle(self) -> bool:
        """Whether no message is being read or waits to be read."""
        return self._reader.idle

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that live until ``close``."""
        return self._reader.threads

    def add(
        self, service: str, handlers: Mapping[str, Handler], methods: Mapping[str, tuple[Any, Any]]
    ) -> None:
        """Serve the calls of a service. ``methods`` has the request and reply of each call.

        A handler takes a request and its call, and returns the reply, or ``None`` where it replies later. It
        may raise ``Refusal``. It must not wait: few threads serve all calls.
        """
        self._methods.update(methods)
        self._services[f"/{service}/"] = {
            name: partial(self._receive, handlers[name], methods[name][0]) for name in methods
        }

    def service(self, details: Any) -> Any:
        """Return gRPC's handler of a call, ``None`` for other services. Runs on gRPC's one thread."""
        service, _, name = details.method.rpartition("/")
        methods = self._services.get(f"{service}/")
        if methods is None:
            return None
        if not head_is_whole(details.method, details.invocation_metadata or ()):
            return handler(partial(self._begin, _refuse_damaged, name, ""))
        token = self._credentials.identify(header_values(details.invocation_metadata, "authorization"))
        if token is None:
            return handler(partial(self._begin, self._refuse_token, name, ""))
        return handler(partial(self._begin, methods.get(name, _refuse_unknown), name, token))

    def renew(self, credentials: Credentials) -> None:
        """Accept the tokens of ``credentials`` from now on, and no others."""
        self._credentials = credentials

    def close(self) -> None:
        """Read no more messages. Closing twice is fine."""
        self._reader.close()

    def call(self, name: str, stream: Stream, token: str, *, trusted: bool = True) -> ControlCall:
        """Return a call of gRPC. ``token`` is the name of the token that the caller sent."""
        caller = self._identify(stream.context, token)
        return ControlCall(name, caller, stream, self._refused, replied=self._count_reply, trusted=trusted)

    def _identify(self, context: Any, token: str) -> Identity:
        """Return the identity of the caller. TLS has checked its certificate."""
        certificate = ""
        if self._credentials.client_authority:
            shown = context.auth_context().get("x509_pem_cert")
            certificate = self._certificate(bytes(shown[0])) if shown else ""
        return self._identity(peer=str(context.peer()), token=token, certificate=certificate)

    def _refused(self, call: ControlCall, refusal: Refusal) -> None:
        """Count and log a refusal, unless its kind is an ordinary state of a server."""
        self._counters.add(refused=refusal.kind not in _NOT_COUNTED)
        if refusal.kind not in _ORDINARY:
            status = status_of(refusal.kind).name
            self._audit.refused(call.caller, f"{call.method}: {status}: {refusal.message}")

    def _count_reply(self, call: ControlCall, nbytes: int) -> None:
        if call.method in self._methods:  # Others need no token and are not counted.
            self._counters.add_call("control", _counted_as(call), calls=0, bytes_out=nbytes)

    def _begin(self, receive: Callable[[ControlCall], None], name: str, token: str, stream: Stream) -> None:
        call = self.call(name, stream, token)
        try:
            receive(call)
        except Refusal as refusal:
            call.refuse(refusal)
        except Exception:
            self._fail(call)

    def _check_right(self, call: ControlCall) -> None:
        """Raise ``Refusal`` where the caller has no right to the graph, or has lost it meanwhile."""
        if self._access is not None:
            self._access.check(call.caller.token)

    def _receive(self, handle: Handler, request: Any, call: ControlCall) -> None:
        self._check_right(call)
        if not self._calls.enter(call.caller):
            raise Refusal(RefusalKind.BUSY, self._calls.reason)
        call.membership = self._membership
        if call.watch_end(partial(self._end, call)):
            self._reader.read(call, partial(self._respond, handle, request, call))
        else:
            self._calls.leave(call.caller)

    def _respond(self, handle: Handler, request: Any, call: ControlCall, data: bytes) -> None:
        self._counters.add_call("control", _counted_as(call), bytes_in=len(data))
        try:
            # Only the handler holds the message: it may have megabytes, and the call may wait for minutes.
            with self._span(call):
                self._check_right(call)
                reply = handle(request.FromString(data), call)
        except DecodeError:
            text = f"the message is no {request.DESCRIPTOR.name}"
            # Callers that send a checksum send a message of this kind: it was damaged.
            kind = RefusalKind.DAMAGED if call.headers(CHECKSUM_HEADER) else RefusalKind.MALFORMED
            call.refuse(Refusal(kind, text))
        except Refusal as refusal:
            call.refuse(refusal)
        except Exception:
            self._fail(call)
        else:
            if reply is not None:
                call.reply(reply)

    def _span(self, call: ControlCall) -> AbstractContextManager[Any]:
        """Return the span of a call whose caller traces, as a context."""
        if self._tracer is None:
            return nullcontext()
        headers = {name: str(values[0]) for name in TRACE_HEADERS if (values := call.headers(name))}
        return ServedSpan(self._tracer, call.method, headers) if headers else nullcontext()

    def _end(self, call: ControlCall) -> None:
        """Handle the end of a call, on gRPC's one thread."""
        self._calls.leave(call.caller)
        call.end()

    def _fail(self, call: ControlCall) -> None:
        _LOGGER.exception("a control call failed")
        call.refuse(Refusal(RefusalKind.FAILED, "the server failed to answer; its log says why"))

    def _refuse_token(self, call: ControlCall) -> None:
        call.refuse(Refusal(RefusalKind.UNAUTHENTICATED, "wrong token: all hosts must use the same one"))

    def _refuse_late(self, call: ControlCall, others_wait: bool) -> None:
        if others_wait:
            text = "the message was slow to come, and others wait: send it again"
            call.refuse(Refusal(RefusalKind.BUSY, text))
        else:
            call.refuse(Refusal(RefusalKind.INVALID, "the message did not come in time"))


def _refuse_unknown(call: ControlCall) -> None:
    call.refuse(Refusal(RefusalKind.UNIMPLEMENTED, "this version has no such call"))


def _refuse_damaged(call: ControlCall) -> None:
    call.refuse(Refusal(RefusalKind.DAMAGED, "the headers do not match their checksum"))


def _counted_as(call: ControlCall) -> str:
    """Return the method under which a call is counted: queries of other servers are told apart."""
    by_server = call.method == "Cluster" and (call.headers(ANNOUNCEMENT) or call.headers(NONCE))
    return "Cluster by servers" if by_server else call.method


def _fingerprint(pem: bytes) -> str:
    return sha256(PEM_cert_to_DER_cert(pem.decode("ascii"))).hexdigest()
