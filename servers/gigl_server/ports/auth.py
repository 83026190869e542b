"""Handlers of control calls that need a token: authentication, shares of callers, parsing of messages."""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
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
from gigl_server.ports.control_call import ControlCall
from gigl_server.ports.shares import ByteSemaphore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.admission import Access
    from gigl_server.counters import Counters
    from gigl_server.logs import AuditLog
    from gigl_server.ports.control_call import CallTimes

    Handler = Callable[[Any, ControlCall], Any]

_LOGGER = logging.getLogger(__name__)
_MEMORY_BYTES = 1 << 30
_MAX_TURNS = 32
_CALL_S = 10.0
"""From the headers of a call until the last byte of its reply is read. A message comes with its headers, or
within moments; a call that is cancelled is a fault of the moment, which callers retry."""
_MIN_CALLS_PER_CALLER = 32
_CACHED_IDENTITIES = 4096
_ORDINARY = frozenset({RefusalKind.UNAVAILABLE, RefusalKind.FAILED})
_NOT_COUNTED = _ORDINARY | {RefusalKind.BUSY, RefusalKind.TOO_LARGE}


class AuthenticatedCalls(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Handlers of all calls that need the token.

    A call is accepted or refused by its headers, before a byte of its message is read. Handlers have gRPC's
    form for a stream of messages and one reply: a handler of one message would be called after that message
    has come, and gRPC sends the one reply without waiting for the caller to read it. Callers see no
    difference. A call holds a thread of the pool from its headers to its reply: a turn, of which a caller may
    have as many as it leaves free.
    """

    def __init__(
        self,
        credentials: Credentials,
        counters: Counters,
        audit: AuditLog,
        times: CallTimes,
        *,
        message_bytes: int,
        max_calls: int,
        access: Access | None = None,
        membership: Callable[[], int] = int,
    ) -> None:
        """A message has at most ``message_bytes``. As many are read at a time as fit in 1 GiB.

        ``max_calls`` are under way at once: a call ends when its reply was read. ``access`` has the rights of
        the tokens. ``None``: every token has all. ``membership`` returns the version that every reply
        carries. 0: none.
        """
        self._access = access
        self._membership = membership
        self.turns = max(min(_MEMORY_BYTES // message_bytes, _MAX_TURNS), 1)
        self._credentials = credentials
        self._tracer = find_tracer()
        self._counters = counters
        self._audit = audit
        self._times = times
        self._calls = Quota("calls are under way", max_calls, max(max_calls // 4, _MIN_CALLS_PER_CALLER))
        self._turns = ByteSemaphore(self.turns, wait_s=0.0, what="calls whose message is read")
        self._identity = lru_cache(_CACHED_IDENTITIES)(Identity.of)
        self._certificate = lru_cache(_CACHED_IDENTITIES)(_fingerprint)
        self._services: dict[str, Mapping[str, tuple[Handler, Any]]] = {}

    @property
    def idle(self) -> bool:
        """Whether no call holds a thread."""
        return not self._turns.lent

    def add(
        self, service: str, handlers: Mapping[str, Handler], methods: Mapping[str, tuple[Any, Any]]
    ) -> None:
        """Serve the calls of a service. ``methods`` has the request and reply of each call.

        A handler takes a request and its call, and returns the reply, or raises ``Refusal``. It must not
        wait: few threads serve all calls.
        """
        self._services[f"/{service}/"] = {name: (handlers[name], methods[name][0]) for name in methods}

    def service(self, details: Any) -> Any:
        """Return gRPC's handler of a call, ``None`` for other services. Runs on gRPC's one thread."""
        service, _, name = details.method.rpartition("/")
        methods = self._services.get(f"{service}/")
        if methods is None:
            return None
        respond = partial(self._respond, details.method, methods.get(name))
        return grpc.stream_unary_rpc_method_handler(respond)

    def renew(self, credentials: Credentials) -> None:
        """Accept the tokens of ``credentials`` from now on, and no others."""
        self._credentials = credentials

    def call(self, path: str, requests: Iterator[bytes], context: Any) -> tuple[ControlCall, str | None]:
        """Return a call of gRPC, and the name of the token that its caller sent, if it is valid."""
        shown = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
        token = self._credentials.identify(shown)
        caller = self._identify(context, token or "")
        return ControlCall(path.rpartition("/")[2], caller, requests, context), token

    @contextmanager
    def responding(self, call: ControlCall) -> Iterator[None]:
        """End a call by a refusal that the block raises. Callers never see the text of another exception."""
        try:
            yield
        except grpc.RpcError:  # The call has ended.
            raise
        except Refusal as error:
            refusal = error
        except Exception:
            _LOGGER.exception("a control call failed")
            refusal = Refusal(RefusalKind.FAILED, "the server failed to answer; its log says why")
        else:
            return
        self._note(call, refusal)
        call.refuse(refusal)

    def _identify(self, context: Any, token: str) -> Identity:
        """Return the identity of the caller. TLS has checked its certificate."""
        certificate = ""
        if self._credentials.client_authority:
            shown = context.auth_context().get("x509_pem_cert")
            certificate = self._certificate(bytes(shown[0])) if shown else ""
        return self._identity(peer=str(context.peer()), token=token, certificate=certificate)

    def _note(self, call: ControlCall, refusal: Refusal) -> None:
        """Count and log a refusal, unless its kind is an ordinary state of a server."""
        self._counters.add(refused=refusal.kind not in _NOT_COUNTED)
        if refusal.kind not in _ORDINARY:
            status = status_of(refusal.kind).name
            self._audit.refused(call.caller, f"{call.method}: {status}: {refusal.message}")

    def _check_right(self, call: ControlCall) -> None:
        """Raise ``Refusal`` where the caller has no right to the graph, or has lost it meanwhile."""
        if self._access is not None:
            self._access.check(call.caller.token)

    def _respond(
        self, path: str, method: tuple[Handler, Any] | None, requests: Iterator[bytes], context: Any
    ) -> bytes:
        """Return the reply to a call of gRPC, on a thread of the pool."""
        call, token = self.call(path, requests, context)
        with self.responding(call):
            if not head_is_whole(path, call.metadata):
                raise Refusal(RefusalKind.DAMAGED, "the headers do not match their checksum")
            if token is None:
                raise Refusal(RefusalKind.UNAUTHENTICATED, "wrong token: all hosts must use the same one")
            if method is None:
                raise Refusal(RefusalKind.UNIMPLEMENTED, "this version has no such call")
            self._check_right(call)
            if not self._calls.enter(call.caller):
                raise Refusal(RefusalKind.BUSY, self._calls.reason)
            self._times.limit(call, _CALL_S, partial(self._calls.leave, call.caller))
            call.membership = self._membership
            with self._turns.take(1, call.caller):
                data = call.reply(self._handled(call, *method))
            self._counters.add_call("control", _counted_as(call), calls=0, bytes_out=len(data))
            return data

    def _handled(self, call: ControlCall, handle: Handler, request: Any) -> Any:
        """Read the message of a call, and return its reply. Raises ``Refusal``."""
        data = call.read()
        self._counters.add_call("control", _counted_as(call), bytes_in=len(data))
        with self._span(call):
            self._check_right(call)
            try:
                message = request.FromString(data)
            except DecodeError:
                text = f"the message is no {request.DESCRIPTOR.name}"
                # Callers that send a checksum send a message of this kind: it was damaged.
                kind = RefusalKind.DAMAGED if call.headers(CHECKSUM_HEADER) else RefusalKind.MALFORMED
                raise Refusal(kind, text) from None
            return handle(message, call)

    def _span(self, call: ControlCall) -> AbstractContextManager[Any]:
        """Return the span of a call whose caller traces, as a context."""
        if self._tracer is None:
            return nullcontext()
        headers = {name: str(values[0]) for name in TRACE_HEADERS if (values := call.headers(name))}
        return ServedSpan(self._tracer, call.method, headers) if headers else nullcontext()


def _counted_as(call: ControlCall) -> str:
    """Return the method under which a call is counted: queries of other servers are told apart."""
    by_server = call.method == "Cluster" and (call.headers(ANNOUNCEMENT) or call.headers(NONCE))
    return "Cluster by servers" if by_server else call.method


def _fingerprint(pem: bytes) -> str:
    return sha256(PEM_cert_to_DER_cert(pem.decode("ascii"))).hexdigest()
