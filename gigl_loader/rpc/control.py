"""Control calls to a peer: what it is and how it does, over gRPC."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.rpc import graph_store_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["METHODS", "SERVICE", "ControlClient"]

SERVICE = "gigl.v1.Peer"
METHODS: Mapping[str, tuple[Any, Any]] = {
    "Describe": (messages.DescribeRequest, messages.Description),
    "Stats": (messages.StatsRequest, messages.Statistics),
}
"""Request and reply of each call."""

_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # No backoff that another client's failure left.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.max_send_message_length", 64 << 10),
]


class ControlClient:
    """Calls of one peer's control port. Raises ``grpc.RpcError``."""

    def __init__(self, endpoint: Endpoint, caller: Caller) -> None:
        self._channel = _channel(endpoint, caller)
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
        """Lend a client and disconnect it."""
        client = cls(endpoint, caller)
        try:
            yield client
        finally:
            client._channel.close()


def _channel(endpoint: Endpoint, caller: Caller) -> Any:
    parts = caller.ssl_parts(endpoint)
    if parts is None:
        return grpc.insecure_channel(endpoint.control_address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(*parts)
    return grpc.secure_channel(endpoint.control_address, credentials, options=_OPTIONS)
