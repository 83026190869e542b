"""Life of a storage server: it joins a cluster, serves, drains and ends, and watches over its parts."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from gigl_loader.errors import StorageUnavailable
from gigl_loader.graph.graph import Graph
from gigl_loader.options import check_topology, check_verify
from gigl_loader.rpc.endpoint import is_local
from gigl_loader.threads import start_thread
from gigl_server.cluster.peers import PeerWatch
from gigl_server.composition import ServerParts
from gigl_server.partitions.adoption import open_graph
from gigl_server.partitions.pull import size_text
from gigl_server.ports.probe import watched_ports
from gigl_server.preflight import PORT_WAIT_S, wait_free
from gigl_server.supervision import Part, Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.endpoint import Address, Endpoint
    from gigl_loader.rpc.tokens import Token
    from gigl_server.config import ServeOptions

_LOGGER = logging.getLogger(__name__)
_LOOK_EVERY_S = 5.0
_JOIN_END_S = 10.0


def build_storage_server(
    options: ServeOptions,
    *,
    graph: Graph | None = None,
    credentials: Credentials | None = None,
    port_wait_s: float = PORT_WAIT_S,
    introduced: threading.Event | None = None,
) -> StorageServer:
    """Bind all ports and begin to join. Returns when the ports are open; sampling begins once it is ready.

    ``graph`` and ``credentials`` are used in place of the files that the options name. Raises ``ValueError``
    for invalid options and ``FormatError`` for a damaged graph, both before a port is bound; ``OSError``
    where a port cannot be bound, after ``port_wait_s`` where it is taken. With ``introduced``, which the
    first ``meet`` sets, the server does not become ready before.
    """
    credentials = credentials or options.load_credentials()
    credentials.check_reach(options.address)
    graph = _opened(options, graph, credentials)
    _check_server_proof(options.address, graph, credentials)
    wait_free(options.listening_addresses, port_wait_s)
    return StorageServer(options, graph, credentials, introduced)


class StorageServer:
    """Serves from when it is ready until it is drained or closed."""

    def __init__(
        self,
        options: ServeOptions,
        graph: Graph,
        credentials: Credentials,
        introduced: threading.Event | None = None,
    ) -> None:
        """Use ``build_storage_server``. Starts to join."""
        self.failure: Exception | None = None
        """Why this server will not become ready."""
        self.settled = threading.Event()
        """Set once the server is ready, or cannot become so."""
        self.died = threading.Event()
        """Set once a part of the server is dead: the process should end and be restarted."""
        self.failed = threading.Event()
        """Set with ``failure``: before the server is ready, or when damage of the graph is found later."""
        self._options = options
        self._ending = threading.Event()
        self._introduced = introduced
        self._lock, self._health_lock = threading.Lock(), threading.Lock()
        self._closed = False
        self._supervisor: Supervisor | None = None
        self._lost = ""
        """Last logged text about partitions without a reachable holder."""
        self.parts = ServerParts(
            options,
            graph,
            credentials,
            fault=lambda: self._supervisor.fault if self._supervisor else "",
            failed=self._fail,
            changed=self._tell_health,
        )
        _LOGGER.info(
            "starting: control port at %s, data port %d, partitions %s of %d, graph %s",
            self.parts.own.control_address,
            self.parts.own.data_port,
            list(graph.parts),
            graph.schema.num_partitions,
            graph.manifest.digest[:12],
        )
        self._thread = threading.Thread(target=self._live, name="cluster", daemon=True)
        try:
            start_thread(self._thread)
            self._supervise()
        except BaseException:
            self.parts.close()
            raise

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint of the server. Its ``host_index`` is the rank once the server is ready."""
        own = self.parts.own
        found = [each for each in self.parts.discovery.members if each.control_address == own.control_address]
        return found[0] if self.ready else own

    @property
    def ready(self) -> bool:
        return self.parts.readiness.ready

    @property
    def metrics_address(self) -> str:
        """``HOST:PORT`` of the metrics; empty where there are none."""
        return self.parts.metrics.address if self.parts.metrics else ""

    def meet(self, addresses: Sequence[str]) -> None:
        """Add addresses of further servers of the cluster."""
        for address in addresses:
            self.parts.discovery.expect(address)
        self._introduce()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the server is ready.

        Raises its failure, such as ``JoinRefused`` or ``StorageUnavailable``, or ``TimeoutError``.
        """
        if not self.settled.wait(timeout_s):
            raise TimeoutError(f"not ready after {timeout_s:g} s: {self.parts.readiness.view().reason}")
        if self.failure is not None:
            raise self.failure

    def renew(self, credentials: Credentials, *, metrics_tokens: Sequence[Token] = ()) -> None:
        """Use other certificates and tokens, and accept other tokens, from now on.

        Raises ``ValueError`` for changes that need a restart, ``OSError`` where the data port could not be
        reopened. After an error, nothing has changed.
        """
        self.parts.renew(credentials, metrics_tokens=metrics_tokens)

    def drain(self, timeout_s: float) -> bool:
        """Take no new requests; finish those under way, and let frames be fetched. ``False``: timeout."""
        self._ending.set()
        self._introduce()
        if self.parts.readiness.ends("draining"):
            _LOGGER.info("draining: %.3g s at most", timeout_s)
        self._tell_health()
        self.parts.discovery.close()
        done = self.parts.service.drain(timeout_s)
        if not done:
            _LOGGER.warning("batches were left when %.3g s were over; trainers ask again for them", timeout_s)
            self.parts.service.stop_batches("the server ends")
        return done

    def close(self) -> None:
        """End calls under way, and release ports, memory and threads. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._ending.set()
        self._introduce()
        if self._supervisor is not None:
            self._supervisor.close()
        self.parts.adopter.close(_JOIN_END_S)
        self.parts.repairer.close(_JOIN_END_S)
        self.parts.readiness.ends("it is closed")
        self.parts.discovery.close()
        self._thread.join(_JOIN_END_S)
        self.parts.close()
        if self.failure is None:  # Else the reason stays the last line, which supervisors show.
            _LOGGER.info("stopped")

    def __enter__(self) -> StorageServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _introduce(self) -> None:
        if self._introduced is not None:
            self._introduced.set()

    def _supervise(self) -> None:
        parts, options, metrics = self.parts, self._options, self.parts.metrics
        watched = [
            *watched_ports(
                parts.own,
                parts.control,
                parts.data,
                listen=(options.address, options.data_address),
                credentials=lambda: parts.credentials,
                graph=parts.digest,
            ),
            Part(name="the ring server", threads=lambda: (parts.ring_server.thread,)),
            Part(name="the sampling service", threads=lambda: parts.service.threads),
            Part(name="the metrics port", threads=lambda: (metrics.thread,) if metrics else ()),
            Part(name="the watch over other servers", threads=self._watching),
            Part(name="the repair of damaged files", threads=self._repairing),
        ]
        self._supervisor = Supervisor(watched, died=self._die, changed=self._tell_health)
        self._supervisor.start()

    def _watching(self) -> tuple[threading.Thread, ...]:
        return (self._thread,) if self.ready and not self._ending.is_set() else ()

    def _repairing(self) -> tuple[threading.Thread, ...]:
        return (self.parts.repairer.thread,) if self._watching() else ()

    def _die(self, fault: str) -> None:
        self.parts.readiness.ends(fault)
        self.died.set()

    def _live(self) -> None:
        """Join, then watch over the other servers."""
        try:
            watch = self._become_ready()
        except Exception as error:
            self._fail(error)
            return
        finally:
            self.settled.set()
        while not self._ending.is_set():
            self.parts.discovery.follow(_LOOK_EVERY_S)
            self.parts.discovery.changed.clear()
            watch.look(self._ending)
            self._tell_health()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.parts.readiness.ends(str(error))
        if not self._ending.is_set():
            _LOGGER.error("not ready: %s", str(error))  # As text: a log record must not keep its frames.
        self.failed.set()
        self._tell_health()

    def _become_ready(self) -> PeerWatch:
        fault = self.parts.peer_client.own_fault() if self.parts.credentials.certificate else None
        if fault is not None:
            _LOGGER.warning("others will refuse this server: %s", fault)
        self.parts.holdings.verify()
        if self._introduced is not None and not self._introduced.wait(self._options.join_timeout_s):
            raise StorageUnavailable("the parent process did not say which other servers there are")
        self.parts.discovery.run(self._options.join_timeout_s)
        self.parts.begin_to_sample()
        self._tell_health()
        if self.ready:
            _LOGGER.info(
                "ready: %s serves partitions %s%s, %d workers",
                self.endpoint,
                list(self.parts.holdings.graph.parts),
                _topology_text(self.parts.holdings.graph),
                self._options.num_workers,
            )
        parts = self.parts
        return PeerWatch(parts.discovery.membership, parts.digest, parts.peer_client.query)

    def _tell_health(self) -> None:
        """Set the port's health to the current readiness. The lock keeps concurrent changes in order."""
        with self._health_lock:
            self.parts.control.set_serving(self.parts.health().ready)
            lost = self.parts.discovery.without_holder if self.ready else ""
            if lost and not self._lost:
                _LOGGER.warning("not ready: %s. The other partitions are served", lost)
            elif self._lost and not lost and self.ready:
                _LOGGER.info("ready again: every partition has a holder that answers")
            self._lost = lost


def _check_server_proof(address: Address, graph: Graph, credentials: Credentials) -> None:
    """Raise ``ValueError`` where a trainer could pass for a server of partitions that are not held here.

    On loopback it is a warning: all callers are on this machine.
    """
    guarded = not credentials.is_open or bool(credentials.client_authority)
    if graph.is_whole or not guarded or credentials.proves_servers():
        return
    problem = (
        "nothing tells another server of this cluster from a trainer that passes itself off as one: give "
        "cluster_key_file, the same on all servers and on no trainer, or an authority that signs "
        "certificates for servers alone (tls_ca)"
    )
    if not is_local(address.host):
        raise ValueError(f"{address}: {problem}")
    _LOGGER.warning("%s", problem)


def _opened(options: ServeOptions, graph: Graph | None, credentials: Credentials) -> Graph:
    if graph is None:
        return open_graph(options, credentials)
    topology, parts = check_topology(options.topology), options.served or graph.parts
    if tuple(sorted(parts)) == graph.parts and (topology == "own" or graph.has_all_topology):
        return graph
    return Graph.open(graph.folder, parts=parts, topology=topology, verify=check_verify(options.verify))


def _topology_text(graph: Graph) -> str:
    if graph.is_whole or not graph.has_all_topology:
        return ""
    return f" and has the topology of all {graph.schema.num_partitions}, {size_text(graph.structure_bytes)}"
