"""Peer service: both ports, the graph behind them, and their end."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.requests import Envelope
from gigl_server.counters import Counters
from gigl_server.logs import AuditLog
from gigl_server.ports.control import ControlService
from gigl_server.ports.data import DataPort
from gigl_server.ports.probe import ControlProbe, DataProbe
from gigl_server.ports.queries import Queries
from gigl_server.preflight import PORT_WAIT_S, wait_free
from gigl_server.supervision import Part, Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.credentials import Credentials


class PeerServer:
    """A service that runs until ``close``."""

    def __init__(
        self,
        endpoint: Endpoint,
        control: ControlService,
        data: DataPort,
        queries: Queries,
        *,
        probes: tuple[ControlProbe, DataProbe],
    ) -> None:
        self.endpoint = endpoint
        self.died = threading.Event()
        """Set once a part of the service is dead: the process should end and be restarted."""
        self._control = control
        self._data = data
        self._queries = queries
        parts = [
            Part(name="the control port", threads=lambda: control.threads, check=probes[0].check),
            Part(name="the data port", threads=lambda: data.threads, check=probes[1].check),
        ]
        self._supervisor = Supervisor(parts, died=lambda _: self.died.set())
        self._supervisor.start()

    def close(self) -> None:
        """Stop listening and end calls under way. Closing twice is fine."""
        self._supervisor.close()
        self._control.close()
        self._data.close()
        self._queries.close()

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
    host = _reachable(address, advertise)
    credentials.check_reach(address)
    data_address = replace(
        address, port=(address.port and address.port + 1) if data_port is None else data_port
    )
    wait_free((address, data_address), port_wait_s)
    counters, audit = Counters(), AuditLog()
    queries = Queries(graph, partitions, counters)
    data = DataPort(data_address, queries, counters, credentials, audit=audit)
    try:
        control = ControlService(
            address,
            credentials,
            counters,
            graph=graph.manifest.digest,
            partitions=partitions,
            data_port=data.port,
            audit=audit,
        )
    except BaseException:
        data.close()
        raise
    endpoint = Endpoint(
        host_index=host_index,
        host=host,
        control_port=control.port,
        data_port=data.port,
        partitions=tuple(sorted(partitions)),
        certificate=credentials.trusted,
    )
    ping = Envelope(graph=graph.manifest.digest, partition=partitions[0])
    probes = (
        ControlProbe(address, control.port, lambda: credentials, host=host),
        DataProbe(data_address, data.port, lambda: credentials, host=host, ping=ping),
    )
    return PeerServer(endpoint, control, data, queries, probes=probes)


def _reachable(address: Address, advertise: str | None) -> str:
    if advertise is not None:
        return Address(advertise, 1).host
    if address.is_wildcard:
        raise ValueError(
            f"{address} stands for every address of this host: say which one others shall use (advertise)"
        )
    return address.host
