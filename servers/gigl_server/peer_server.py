"""Peer service: both ports, the graph behind them, and their end."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_server.config import data_address_of, reachable_host
from gigl_server.counters import Counters
from gigl_server.logs import AuditLog
from gigl_server.ports.control import ControlService
from gigl_server.ports.data import DataPort
from gigl_server.ports.probe import watched_ports
from gigl_server.ports.queries import Queries
from gigl_server.preflight import PORT_WAIT_S, wait_free
from gigl_server.supervision import Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.supervision import Part


class PeerServer:
    """A service that runs until ``close``."""

    def __init__(self, endpoint: Endpoint, ports: Sequence[Part], closing: ExitStack) -> None:
        """``closing`` closes the ports, and what is behind them."""
        self.endpoint = endpoint
        self.died = threading.Event()
        """Set once a part of the service is dead: the process should end and be restarted."""
        self._closing = closing
        self._supervisor = Supervisor(ports, died=lambda _: self.died.set())
        self._supervisor.start()

    def close(self) -> None:
        """Stop listening and end calls under way. Closing twice is fine."""
        self._supervisor.close()
        self._closing.close()

    def __enter__(self) -> PeerServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def build_server(
    graph: Graph,
    partitions: Sequence[int],
    listen: str,
    credentials: Credentials,
    *,
    advertise: str | None = None,
    data_port: int | None = None,
    host_index: int = 0,
    port_wait_s: float = PORT_WAIT_S,
) -> PeerServer:
    """Serve ``partitions`` of ``graph``. Returns when both ports are open.

    ``listen`` is ``HOST:PORT`` of the control port; data goes over the next port, or ``data_port``. Port 0
    selects free ports. Other hosts connect to ``advertise`` (a name or an address without a port), which is
    required where ``listen`` stands for all addresses of the host. Raises ``OSError`` where a port cannot be
    bound, after ``port_wait_s`` where it is taken, and ``ValueError`` for invalid arguments.
    """
    address = Address.parse(listen)
    host = reachable_host(address, advertise)
    credentials.check_reach(address)
    data_address = data_address_of(address, data_port)
    wait_free((address, data_address), port_wait_s)
    counters, audit, digest = Counters(), AuditLog(), graph.manifest.digest
    with ExitStack() as stack:
        queries = Queries(graph, partitions, counters)
        stack.callback(queries.close)
        data = DataPort(data_address, queries, counters, credentials, audit=audit)
        stack.callback(data.close)
        control = ControlService(
            address,
            credentials,
            counters,
            graph=digest,
            partitions=partitions,
            data_port=data.port,
            audit=audit,
        )
        stack.callback(control.close)
        endpoint = Endpoint(
            host_index=host_index,
            host=host,
            control_port=control.port,
            data_port=data.port,
            partitions=tuple(sorted(partitions)),
            certificate=credentials.trusted,
        )
        ports = watched_ports(
            endpoint,
            control,
            data,
            listen=(address, data_address),
            credentials=lambda: credentials,
            graph=digest,
        )
        return PeerServer(endpoint, ports, stack.pop_all())
