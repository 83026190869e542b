"""The control port: what the service is, how it does, over gRPC."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gigl_loader import __version__
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.control import METHODS, SERVICE
from gigl_loader.rpc.requests import WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_loader.rpc.address import Address
    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.ledger import Ledger

__all__ = ["ControlService"]

_THREADS = 4
_MOST_CALLS = 64
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # Else a second service on the port would take half of the calls.
    ("grpc.max_receive_message_length", 64 << 10),
    ("grpc.max_send_message_length", 1 << 20),
]


class ControlService:
    """Answers from its construction to ``close``."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        ledger: Ledger,
        *,
        graph: str,
        partitions: Sequence[int],
        data_port: int,
    ) -> None:
        """Listen at ``address``; port 0 takes a free one. ``OSError`` where that cannot be."""
        self._credentials = credentials
        self._ledger = ledger
        self._began = time.monotonic()
        self._graph, self._partitions, self._data_port = graph, list(partitions), data_port
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, thread_name_prefix="control"),
            options=_OPTIONS,
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        self._server.add_generic_rpc_handlers((self._handler(),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.port = self._listen(address)
        self._server.start()
        for service in ("", SERVICE):
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Stop answering. Closing twice is fine."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace=None).wait(5)

    def describe(self, request: Any) -> Any:
        return messages.Description(
            version=__version__,
            wire_version=WIRE_VERSION,
            graph=self._graph,
            partitions=self._partitions,
            data_port=self._data_port,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._began,
        )

    def stats(self, request: Any) -> Any:
        totals = self._ledger.read()
        return messages.Statistics(
            cpu_s=time.process_time(),
            sampling_s=totals.sampling_s,
            gathering_s=totals.gathering_s,
            calls=totals.calls,
            bytes_in=totals.bytes_in,
            bytes_out=totals.bytes_out,
            refused=totals.refused,
        )

    def _listen(self, address: Address) -> int:
        try:
            if not self._credentials.certificate:
                return int(self._server.add_insecure_port(str(address)))
            pair = (self._credentials.key, self._credentials.certificate)
            return int(self._server.add_secure_port(str(address), grpc.ssl_server_credentials([pair])))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from None

    def _handler(self) -> Any:
        answers = {"Describe": self.describe, "Stats": self.stats}
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    self._guarded(answers[name]),
                    request_deserializer=request.FromString,
                    response_serializer=reply.SerializeToString,
                )
                for name, (request, reply) in METHODS.items()
            },
        )

    def _guarded(self, answer: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        def call(request: Any, context: Any) -> Any:
            values = [value for name, value in context.invocation_metadata() if name == "authorization"]
            if not self._credentials.accepts(values):
                self._ledger.add(refused=1)
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token: all hosts must use the same one")
            return answer(request)

        return call
