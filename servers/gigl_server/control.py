"""The control port: what a service is, how it does, and what it samples, over gRPC."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gigl_loader.rpc.control import METHODS, SERVICE, STORE_METHODS, STORE_SERVICE
from gigl_server.event_loop import LoopThread
from gigl_server.public_calls import PublicCalls
from gigl_server.reception import Reception, TokenGuard
from gigl_server.renewal import ServedCertificate
from gigl_server.reports import PeerCalls
from gigl_server.store_calls import StoreCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gigl_loader.rpc.address import Address
    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.ledger import Ledger
    from gigl_server.service import SamplingService
    from gigl_server.standing import View

__all__ = ["ControlService"]

_LOGGER = logging.getLogger(__name__)

_START_S = 30.0
_STOP_S = 5.0
_GRACE_S = 0.2  # For replies that were made and not sent yet.
_PEER_CALLS = 64
_PEER_MESSAGE_BYTES = 64 << 10
_REPLY_BYTES = 16 << 20
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # Else a second service on the port would take half of the calls.
    ("grpc.max_send_message_length", _REPLY_BYTES),
    # Callers ping every 5 s while they wait; without this, they would be cut off for it.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A caller whose network was cut says nothing: its calls end, and its batches are not made for nobody.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
]


class ControlService:
    """Answers from its construction to ``close``, on one thread, however many calls wait.

    Health is that of ``Peer`` while the port answers, and of the whole and ``GraphStore`` while
    ``set_serving`` says so; without a sampling service, all serve from the start.
    """

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        ledger: Ledger,
        *,
        graph: str,
        partitions: Sequence[int],
        data_port: int,
        service: SamplingService | None = None,
        view: Callable[[], View] | None = None,
        announced: Callable[[str], None] | None = None,
    ) -> None:
        """Listen at ``address``; port 0 takes a free one. ``OSError`` where that cannot be.

        ``service`` samples for trainers, ``view`` is what is known of its cluster (both or neither), and
        ``announced`` is told where servers are that ask about it.
        """
        peer = PeerCalls(ledger, graph=graph, partitions=partitions, data_port=data_port)
        message_bytes = _PEER_MESSAGE_BYTES if service is None else service.limits.message_bytes
        self._reception = Reception(ledger, message_bytes=message_bytes)
        handlers = {SERVICE: self._reception.handlers(peer.answers, METHODS)}
        if service is not None and view is not None:
            calls = StoreCalls(service, peer, ledger, view=view, announced=announced)
            handlers[STORE_SERVICE] = self._reception.handlers(calls.answers, STORE_METHODS)
        self._lasting_names = (SERVICE,) if service is not None else (SERVICE, "")
        self._ready_names = ("", STORE_SERVICE) if service is not None else ()
        self._options = [*_OPTIONS, ("grpc.max_receive_message_length", message_bytes)]
        self._most_calls = _PEER_CALLS if service is None else service.limits.calls
        self._server: Any = None
        self._certificate = ServedCertificate(credentials)
        self._guard = TokenGuard(credentials, ledger, PublicCalls().limited)
        self._loop = LoopThread("control")
        try:
            self.port = self._loop.run(self._start(address, handlers), _START_S)
        except BaseException:
            self._loop.close()
            raise

    def set_serving(self, serving: bool) -> None:
        """Tell whoever watches the health whether trainers may come. Does nothing once it is closed."""
        if self._server is None:
            return
        try:
            self._loop.run(self._set(self._ready_names, serving), _STOP_S)
        except TimeoutError:  # Calls learn it anyway. A server that ends has more important things to do.
            _LOGGER.warning("the control port is too busy to change its health to %s", serving)

    def renew(self, credentials: Credentials) -> None:
        """Show another certificate and ask for other tokens from now on: as ``ServedCertificate.replace``."""
        self._certificate.replace(credentials)
        self._guard.credentials = credentials

    def close(self) -> None:
        """Stop answering; calls under way are cancelled. Closing twice is fine."""
        server, self._server = self._server, None
        try:
            if server is not None:
                self._loop.run(self._stop(server), _STOP_S)
        except TimeoutError:
            _LOGGER.warning("calls did not end within %g s", _STOP_S)
        finally:
            self._loop.close()

    async def _start(self, address: Address, handlers: Mapping[str, Mapping[str, Any]]) -> int:
        server: Any = grpc.aio.server(
            interceptors=[self._guard],
            options=self._options,
            maximum_concurrent_rpcs=self._most_calls,
        )
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, calls) for name, calls in handlers.items()]
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if STORE_SERVICE in handlers:
            _add_reflection(server, [*handlers, health.SERVICE_NAME])
        port = _listen(server, address, self._certificate)
        await self._set(self._lasting_names, serving=True)
        await self._set(self._ready_names, serving=False)
        await server.start()
        self._server = server
        return port

    async def _set(self, names: Sequence[str], serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in names:
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def _stop(self, server: Any) -> None:
        await self._health.enter_graceful_shutdown()
        await server.stop(grace=_GRACE_S)


def _listen(server: Any, address: Address, certificate: ServedCertificate) -> int:
    try:
        secure = certificate.grpc_server_credentials()
        if secure is None:
            return int(server.add_insecure_port(str(address)))
        return int(server.add_secure_port(str(address), secure))
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None


def _add_reflection(server: Any, names: Sequence[str]) -> None:
    from grpc_reflection.v1alpha import reflection

    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
