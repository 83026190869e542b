"""Control calls over gRPC: names and messages, and the client of the calls that every service has."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.versions import newest_wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.rpc.credentials import Caller

__all__ = [
    "ADMIN_METHODS",
    "ADMIN_SERVICE",
    "ANNOUNCEMENT",
    "CALLS",
    "MEMBERSHIP_HEADER",
    "METHODS",
    "PENDING_HEADER",
    "SERVICE",
    "STORE_METHODS",
    "STORE_SERVICE",
    "ClusterView",
    "ControlClient",
    "control_channel",
]

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
    "Sample": (messages.SampleRequest, messages.SampleReply),
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

    def describe(self, timeout_s: float) -> Any:
        return self._call("Describe", timeout_s)

    def stats(self, timeout_s: float) -> Any:
        return self._call("Stats", timeout_s)

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
    """Version of ``servers``: of two views, that with the higher version is newer. 0: not told."""
    away: frozenset[str]
    """Control addresses of ``servers`` that did not answer this one lately."""
    incarnation: int
    """Tells a server that was started again from the one before. 0: not told."""
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
            version=own.version,
            wire_version=own.wire_version,
            oldest_wire_version=own.oldest_wire_version,
            draw_specification=own.draw_specification,
            graph=own.graph,
            partitions=tuple(own.partitions),
            data_port=own.data_port,
            pid=own.pid,
            uptime_s=own.uptime_s,
            servers=servers,
            membership=reply.membership,
            away=frozenset(server.control_address for server in away),
            incarnation=own.incarnation,
            ready=reply.ready,
            reason=reply.reason,
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
