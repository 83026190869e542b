"""Control calls over gRPC: names and messages, and the client of the calls that every service has."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.rpc import graph_store_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

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
