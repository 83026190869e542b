"""Control calls over gRPC: names, messages, the calls that every service has, errors of refused calls.

A service of this library marks each of its refusals: a trailer has the kind, and a checksum over kind and
text. A status without that mark is gRPC's own, a proxy's or a damaged one, and says nothing that lasts.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.errors import StorageUnavailable
from gigl_loader.printable import printable
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.certificates import tls_fault
from gigl_loader.rpc.checksums import checksum_text
from gigl_loader.rpc.endpoint import NOBODY, Endpoint, tcp_probe
from gigl_loader.rpc.refusals import Contact, FaultKind, RefusalKind, rule_of
from gigl_loader.rpc.versions import newest_wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.retry import Deadline
    from gigl_loader.rpc.credentials import Caller

SERVICE = "gigl.v1.Peer"
METHODS: Mapping[str, tuple[Any, Any]] = {
    "Describe": (messages.DescribeRequest, messages.Description),
    "Stats": (messages.StatsRequest, messages.Statistics),
}
"""Request and reply of each call."""

STORE_SERVICE = "gigl.v1.GraphStore"
STORE_METHODS: Mapping[str, tuple[Any, Any]] = {
    "Cluster": (messages.ClusterRequest, messages.ClusterView),
    "CreateProducer": (messages.CreateProducerRequest, messages.CreateProducerReply),
    "OpenChannel": (messages.OpenChannelRequest, messages.Channel),
    "Heartbeat": (messages.HeartbeatRequest, messages.HeartbeatReply),
    "CloseChannel": (messages.CloseChannelRequest, messages.CloseChannelReply),
    "DestroyProducer": (messages.DestroyProducerRequest, messages.DestroyProducerReply),
    "Load": (messages.LoadRequest, messages.ServerLoad),
}
ADMIN_SERVICE = "gigl.v1.Admin"
ADMIN_METHODS: Mapping[str, tuple[Any, Any]] = {
    "Adopt": (messages.AdoptRequest, messages.AdoptReply),
}
CALLS: Mapping[str, tuple[str, Any, Any]] = {
    name: (f"/{service}/{name}", request, reply)
    for service, methods in ((STORE_SERVICE, STORE_METHODS), (ADMIN_SERVICE, ADMIN_METHODS))
    for name, (request, reply) in methods.items()
}
"""Path, request and reply of each call of a storage server."""
ANNOUNCEMENT = "gigl-server"
"""Header of a ``Cluster`` call: the address of the storage server that calls."""

MEMBERSHIP_HEADER = "gigl-membership"
"""Trailer of every reply of a storage server: the version of its membership, as decimal digits."""

PENDING_HEADER = "gigl-pending"
"""Trailer of the reply to a ``Heartbeat`` of one channel: its batches that the server has to answer for.

Decimal digits, separated by commas. A caller that waits for another batch of the channel waits in vain: its
request or the reply was lost.
"""

_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # Not the backoff of another client's failure.
    ("grpc.enable_http_proxy", 0),
    # A server that moved has another address: resolve its name at every reconnect, not every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
]
_MESSAGE_SIZES = [
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.max_send_message_length", 64 << 10),
]


class ControlClient:
    """Calls to one peer's control port. They raise ``grpc.RpcError``."""

    def __init__(self, endpoint: Endpoint, caller: Caller) -> None:
        self._channel = control_channel(endpoint, caller, _MESSAGE_SIZES)
        self._metadata = caller.headers

    def describe(self, timeout_s: float) -> messages.Description:
        reply: messages.Description = self._call("Describe", timeout_s)
        return reply

    def stats(self, timeout_s: float) -> messages.Statistics:
        reply: messages.Statistics = self._call("Stats", timeout_s)
        return reply

    def _call(self, name: str, timeout_s: float) -> Any:
        request, reply = METHODS[name]
        call = self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )
        return call(request(), timeout=timeout_s, metadata=self._metadata)

    @classmethod
    @contextmanager
    def connected(cls, endpoint: Endpoint, caller: Caller) -> Iterator[ControlClient]:
        """Lend a client, and disconnect it afterwards."""
        client = cls(endpoint, caller)
        try:
            yield client
        finally:
            client._channel.close()


def control_channel(endpoint: Endpoint, caller: Caller, options: Sequence[tuple[str, int]]) -> Any:
    """Return a gRPC channel to the control port. It connects when first used."""
    parts = caller.ssl_parts(endpoint)
    chosen = [*_OPTIONS, *options]
    if parts is None:
        return grpc.insecure_channel(endpoint.control_address, options=chosen)
    return grpc.secure_channel(endpoint.control_address, grpc.ssl_channel_credentials(*parts), options=chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Description of a server and of its cluster, as the server sent it."""

    version: str
    wire_version: int
    oldest_wire_version: int
    draw_specification: int
    graph: str
    """Digest."""
    partitions: tuple[int, ...]
    data_port: int
    pid: int
    uptime_s: float
    servers: tuple[Endpoint, ...]
    """Servers known so far, by rank, this one included."""
    membership: int
    """Version of ``servers``: the view with the higher version is newer. 0: not sent."""
    away: frozenset[str]
    """Control addresses of ``servers`` that did not answer this one lately."""
    incarnation: int
    """Changes with each start of the server. 0: not sent."""
    ready: bool
    reason: str
    """Why the server is not ready, as text."""
    repairing: tuple[int, ...] = ()
    """Partitions whose files lie there, and which are not served until they are repaired."""
    proven: bool = False
    """The server proved that it has the cluster key of the request."""
    challenge: str = ""
    """Challenge for an announcement to this server. Empty: the server has no cluster key."""

    @classmethod
    def read(cls, reply: Any, *, certificate: str, proven: bool = False, challenge: str = "") -> ClusterView:
        """Return the view of a reply. ``certificate`` (PEM) is what callers of the servers must trust."""
        own = reply.self
        servers = tuple(
            Endpoint(
                what="storage server",
                host_index=rank,
                host=each.host,
                control_port=each.control_port,
                data_port=each.data_port,
                partitions=tuple(each.partitions),
                certificate=certificate,
                incarnation=each.incarnation,
                wire_version=min(each.wire_version or own.wire_version, newest_wire()),
            )
            for rank, each in enumerate(reply.servers)
        )
        away = [server for server, each in zip(servers, reply.servers, strict=True) if each.away]
        return cls(
            version=printable(own.version),
            wire_version=own.wire_version,
            oldest_wire_version=own.oldest_wire_version,
            draw_specification=own.draw_specification,
            graph=printable(own.graph),
            partitions=tuple(own.partitions),
            data_port=own.data_port,
            pid=own.pid,
            uptime_s=own.uptime_s,
            servers=servers,
            membership=reply.membership,
            away=frozenset(server.control_address for server in away),
            incarnation=own.incarnation,
            ready=reply.ready,
            reason=printable(reply.reason),
            repairing=tuple(own.repairing),
            proven=proven,
            challenge=challenge,
        )

    @property
    def itself(self) -> Endpoint | None:
        """The server of this view, as a member of its cluster. ``None`` where it does not know itself yet."""
        own = (self.partitions, self.data_port, self.incarnation)
        found = [each for each in self.servers if (each.partitions, each.data_port, each.incarnation) == own]
        return found[0] if found else None


REFUSAL_HEADER = "gigl-refusal"
"""Trailer of a refusal: its kind, a semicolon, a checksum over kind and text; then ``;unchecked`` where the
headers of the call had no checksum."""

NO_TOKEN = (
    "it wants a token, and none was given: Caller.from_files(token=PATH) in a script, --token-file PATH"
)

_UNCHECKED = ";unchecked"
_MAX_CHARACTERS = 1_000
_PROBE_S = 2.0
_OF_CONNECTION = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)


_STATUSES: Mapping[RefusalKind, grpc.StatusCode] = {
    RefusalKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.DAMAGED: grpc.StatusCode.DATA_LOSS,
    RefusalKind.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    RefusalKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    RefusalKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    RefusalKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.OTHER_GRAPH: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    RefusalKind.UNIMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    RefusalKind.FAILED: grpc.StatusCode.INTERNAL,
}
"""Status of each kind, for callers that read no marks."""

_PASSING: Mapping[grpc.StatusCode, RefusalKind] = {
    grpc.StatusCode.NOT_FOUND: RefusalKind.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED: RefusalKind.BUSY,
    grpc.StatusCode.DATA_LOSS: RefusalKind.DAMAGED,
}
"""Statuses that are believed without a mark, as builds before the marks send them: all are retried."""

_WORDS: Mapping[grpc.StatusCode, str] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "no answer in time",
    grpc.StatusCode.CANCELLED: "the call was cancelled",
    grpc.StatusCode.UNIMPLEMENTED: (
        "no control port of a storage server of this version: if it is a data port, give the port of "
        "--listen, by default the one before"
    ),
}
"""Texts in place of those of gRPC, which say less."""

_NO_GRPC = "Expected SETTINGS frame as the first frame"
_PLAIN_WORDS = {
    "Connection refused": NOBODY,
    "timed out before receiving SETTINGS frame": "it takes connections and does not answer: is it stopped?",
    _NO_GRPC: (
        "what listens there does not speak gRPC: is it the port of --metrics? Give that of --listen, its "
        "control port"
    ),
}
"""Reasons that gRPC gives only in its text."""

_NOISE = ("failed to connect to all addresses; last error: ", "UNKNOWN: ", "UNAVAILABLE: ", "INTERNAL: ")


def status_of(kind: RefusalKind) -> grpc.StatusCode:
    """Return the status code that the control port sends for a refusal."""
    return _STATUSES[kind]


def refusal_mark(kind: RefusalKind, text: str, *, checked: bool = True) -> str:
    """Return the value of ``REFUSAL_HEADER`` for a refusal with this text.

    ``checked``: the headers of the call had a checksum.
    """
    end = "" if checked else _UNCHECKED
    return f"{kind.value};{checksum_text(f'{kind.value};{text}{end}'.encode())}{end}"


def control_error(
    endpoint: Endpoint, caller: Caller, error: grpc.RpcError, contact: Contact = Contact.ESTABLISHED
) -> Exception:
    """Return the exception for ``error``, which a call of ``caller`` to ``endpoint`` raised."""
    code, details = _read(error)
    kind: RefusalKind | FaultKind | None = _marked_kind(error)
    if kind is RefusalKind.UNAUTHENTICATED and not caller.token:
        details = NO_TOKEN
    if kind is None:
        kind, details = _unmarked(code, details)
    return rule_of(kind).error_class(contact)(f"{endpoint}: {details}")


def is_marked(error: grpc.RpcError) -> bool:
    """Return whether a service of this library refused the call itself."""
    return _marked_kind(error) is not None


def lost_its_checksum(error: grpc.RpcError) -> bool:
    """Return whether the service read no checksum of the headers of the call, which may have come damaged."""
    return is_marked(error) and _marks(error)[0].endswith(_UNCHECKED)


def is_of_connection(error: grpc.RpcError) -> bool:
    """Return whether the status says that the connection, the time or the call has ended."""
    return _read(error)[0] in _OF_CONNECTION


def explained(
    endpoint: Endpoint,
    caller: Caller,
    error: grpc.RpcError,
    found: Exception,
    *,
    contact: Contact,
    deadline: Deadline,
) -> Exception:
    """Return ``found``, or an exception that says why no server responds. Takes up to two connections."""
    if not deadline.left_s():
        return found
    try:
        tcp_probe(endpoint, endpoint.control_port, min(time.monotonic() + _PROBE_S, deadline.at))
    except StorageUnavailable as silence:
        return silence
    fault = tls_fault(endpoint, caller, endpoint.control_port, deadline.left_s(_PROBE_S))
    if fault is not None:
        return rule_of(FaultKind.TLS).error_class(contact)(f"{endpoint}: {fault}")
    if _NO_GRPC in _read(error)[1]:
        return rule_of(FaultKind.PROTOCOL).error_class(contact)(str(found))
    return found


def refused_token(error: grpc.RpcError) -> bool:
    """Return whether the call may have been refused for its token."""
    return _marked_kind(error) is RefusalKind.UNAUTHENTICATED or (
        _read(error)[0] is grpc.StatusCode.UNAUTHENTICATED
    )


def _marked_kind(error: Any) -> RefusalKind | None:
    """Return the kind of a refusal that has the mark. ``None`` without one, or where it was damaged."""
    marks = _marks(error)
    if len(marks) != 1:
        return None
    checked, text = not marks[0].endswith(_UNCHECKED), str(error.details() or "")
    return next((kind for kind in RefusalKind if marks[0] == refusal_mark(kind, text, checked=checked)), None)


def _marks(error: Any) -> list[str]:
    trailers = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    return [str(value) for key, value in trailers or () if key == REFUSAL_HEADER]


def _unmarked(code: grpc.StatusCode, details: str) -> tuple[RefusalKind | FaultKind, str]:
    """Return the kind of a fault without a mark, and a text that says more than that of gRPC."""
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details:
        return FaultKind.TLS, (
            "its certificate is not good for this address, or signed by nobody that is trusted here: "
            f"{details}"
        )
    if "WRONG_VERSION_NUMBER" in details:
        return FaultKind.TLS, "it does not use TLS, and is said to"
    plain = next((words for text, words in _PLAIN_WORDS.items() if text in details), details or code.name)
    words = _WORDS.get(code, plain)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return FaultKind.PROTOCOL, words
    if code in _OF_CONNECTION:
        return FaultKind.CONNECTION, words
    return _PASSING.get(code, FaultKind.STATUS), words


def _read(error: Any) -> tuple[grpc.StatusCode, str]:
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = str(error.details() or "") if hasattr(error, "details") else str(error)
    for noise in _NOISE:
        details = details.rpartition(noise)[2]
    return code, printable(" ".join(details.split()), _MAX_CHARACTERS)
