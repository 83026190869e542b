"""Control port (gRPC): description and load of a service, and requests for batches."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.rpc.control import (
    ADMIN_METHODS,
    ADMIN_SERVICE,
    METHODS,
    SERVICE,
    STORE_METHODS,
    STORE_SERVICE,
)
from gigl_loader.threads import ThreadPool
from gigl_server.admission import CONTROL_PORT, PEER_PORT, share_of_descriptors
from gigl_server.certificate_renewal import ServedCertificate
from gigl_server.logs import AuditLog
from gigl_server.ports.auth import AuthenticatedCalls
from gigl_server.ports.control_call import CallTimes
from gigl_server.ports.graph_store_servicer import GraphStoreServicer
from gigl_server.ports.public_calls import Health, PublicCalls
from gigl_server.ports.reports import PeerCalls

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence

    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.endpoint import Address
    from gigl_server.admission import Access
    from gigl_server.cluster.membership import View
    from gigl_server.counters import Counters
    from gigl_server.ports.admin import AdminCalls
    from gigl_server.ports.control_call import ControlCall
    from gigl_server.sampling.service import SamplingService

_LOGGER = logging.getLogger(__name__)

_STOP_S = 5.0
_SPARE_THREADS = 8  # For calls that are refused by their headers.
_GRACE_S = 0.2  # For replies that were not sent yet.
_PEER_MESSAGE_BYTES = 64 << 10
_REPLY_BYTES = 16 << 20
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # Else a second service on the port would take half of the calls.
    ("grpc.max_send_message_length", _REPLY_BYTES),
    # Callers ping every 5 s while they wait; without this, they would be cut off for it.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A caller whose network was cut sends nothing: end its calls, so that its batches are not sampled.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A silent connection holds a descriptor: the default is 120 s, and no end.
    ("grpc.server_handshake_timeout_ms", int(CONTROL_PORT.first_s * 1e3)),
    ("grpc.max_connection_idle_ms", 10_000),
    # Limit of calls not handled yet: beyond it (by default 1,000), gRPC cancels calls of any caller.
    ("grpc.server.max_pending_requests", 4096),
    ("grpc.server.max_pending_requests_hard_limit", 6144),
]


class ControlService:
    """Serves from its construction to ``close``, with few threads, however many calls wait.

    The health of ``Peer`` is SERVING while the port is open; that of ``GraphStore`` and of the whole server
    follows ``set_serving``. Without a sampling service, all are SERVING from the start.

    It uses gRPC's blocking server: a path that is not UTF-8 ends the accept loop of ``grpc.aio``.
    """

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        counters: Counters,
        *,
        graph: str,
        partitions: Sequence[int],
        data_port: int,
        service: SamplingService | None = None,
        view: Callable[[], View] | None = None,
        health: Callable[[], View] | None = None,
        announced: Callable[[ControlCall, Any], tuple[tuple[str, str], ...]] | None = None,
        admin: AdminCalls | None = None,
        audit: AuditLog | None = None,
        show_names: bool = False,
        access: Access | None = None,
        incarnation: int = 0,
        membership: Callable[[], int] = int,
    ) -> None:
        """Listen at ``address``; port 0 takes a free one. ``OSError`` where that cannot be.

        ``service`` samples for trainers, ``view`` returns the view of its cluster (both or neither), and
        ``health`` the one that is told with its load (default: the same). ``announced`` takes announcements
        of servers (``Announcements.exchange``), ``admin`` has the calls of operators. ``show_names``: any
        caller may read the names of loaders, not only their job. ``access`` has the rights of tokens.
        ``incarnation`` tells this service from one that it replaces. ``membership`` returns the version that
        every reply carries; 0: none.
        """
        message_bytes = _PEER_MESSAGE_BYTES if service is None else service.limits.message_bytes
        max_calls = PEER_PORT.calls if service is None else service.limits.calls
        self._times = CallTimes()
        self._authenticated = AuthenticatedCalls(
            credentials,
            counters,
            audit or AuditLog(),
            self._times,
            message_bytes=message_bytes,
            max_calls=max_calls,
            access=access,
            membership=membership,
        )
        self._peer = peer = PeerCalls(
            counters, graph=graph, partitions=partitions, data_port=data_port, incarnation=incarnation
        )
        self._authenticated.add(SERVICE, peer.handlers, METHODS)
        reflected: tuple[str, ...] = ()
        self._ready_names: tuple[str, ...] = ()
        self._health = Health()
        self._certificate = ServedCertificate(credentials)
        if service is not None and view is not None:
            calls = GraphStoreServicer(
                service,
                peer,
                view=view,
                health=health or view,
                announced=announced,
                show_names=show_names,
            )
            self._authenticated.add(STORE_SERVICE, calls.handlers, STORE_METHODS)
            reflected = (SERVICE, STORE_SERVICE)
            if admin is not None:
                self._authenticated.add(ADMIN_SERVICE, admin.handlers, ADMIN_METHODS)
                reflected = (*reflected, ADMIN_SERVICE)
            self._ready_names = ("", STORE_SERVICE)
        self._health.set((SERVICE,) if self._ready_names else (SERVICE, ""), serving=True)
        self._health.set(self._ready_names, serving=False)
        public = PublicCalls(self._health, self._authenticated, self._times, reflected=reflected)
        options = [
            *_OPTIONS,
            ("grpc.max_receive_message_length", message_bytes),
            # The other half of the descriptors is for rings, files and the data port.
            ("grpc.max_allowed_incoming_connections", share_of_descriptors(2, CONTROL_PORT.connections)),
        ]
        most = self._authenticated.turns + PublicCalls.threads + _SPARE_THREADS
        self._threads = ThreadPool(most, "control")
        self._server: Any = grpc.server(
            self._threads,
            handlers=(self._authenticated, public),
            options=options,
            maximum_concurrent_rpcs=max_calls,
        )
        try:
            self.port = _listen(self._server, address, self._certificate)
            self._threads.start_first()  # An error of ``submit`` would end the thread of gRPC that calls it.
            self._server.start()
        except BaseException:
            self.close()
            raise

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads of this library that live until ``close``. gRPC's own are checked by calls to the port."""
        return (self._times.thread,)

    def set_serving(self, serving: bool) -> None:
        """Set the health that trainers and probes see. Does nothing after ``close``."""
        self._health.set(self._ready_names, serving)

    def announce(self, partitions: Iterable[int], *, repairing: Iterable[int] = ()) -> None:
        """Describe the service as one of these partitions from now on.

        Files of ``repairing`` lie here, too, and are not served meanwhile.
        """
        self._peer.announce(partitions, repairing=repairing)

    def renew(self, credentials: Credentials) -> None:
        """Use other certificates and tokens from now on. Raises as ``ServedCertificate.replace``."""
        self._certificate.replace(credentials)
        self._authenticated.renew(credentials)

    def close(self) -> None:
        """Stop serving, and cancel calls under way. Closing twice is fine."""
        self._health.close()
        if not _stop(self._server):
            _LOGGER.warning("calls did not end within %g s", _STOP_S)
        self._times.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _stop(server: Any) -> bool:
    """Stop a server of gRPC. Return whether its calls ended in time."""
    return bool(server.stop(grace=_GRACE_S).wait(_STOP_S))


def _listen(server: Any, address: Address, certificate: ServedCertificate) -> int:
    try:
        secure = certificate.grpc_server_credentials()
        if secure is None:
            return int(server.add_insecure_port(str(address)))
        return int(server.add_secure_port(str(address), secure))
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None
