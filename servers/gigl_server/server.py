"""Storage server: its parts, and its states. It joins a cluster, serves, drains and ends."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.errors import StorageUnavailable
from gigl_loader.graph.graph import Graph
from gigl_loader.options import check_verify
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.reach import is_local
from gigl_loader.rpc.requests import Envelope
from gigl_loader.sampling.plans.custom import import_sampler
from gigl_server.access import Access
from gigl_server.audit import AuditLog
from gigl_server.bind_check import check_free
from gigl_server.certificate_renewal import check_renewal
from gigl_server.cluster.discovery import Discovery
from gigl_server.cluster.membership import incarnation_of_now
from gigl_server.cluster.peers import PeerClient, PeerWatch
from gigl_server.cluster.readiness import Readiness
from gigl_server.cluster.stores import ClusterStores
from gigl_server.counters import Counters
from gigl_server.frames.ring_server import RingServer
from gigl_server.limits import Limits
from gigl_server.opening import open_graph
from gigl_server.partitions.adoption import Adopter
from gigl_server.partitions.holders import Holders
from gigl_server.partitions.holdings import Holdings
from gigl_server.partitions.repair import Repairer
from gigl_server.ports.admin import AdminCalls
from gigl_server.ports.announcements import Announcements
from gigl_server.ports.control import ControlService
from gigl_server.ports.data import DataPort
from gigl_server.ports.metrics_port import MetricsPort
from gigl_server.ports.probe import ControlProbe, DataProbe
from gigl_server.ports.queries import Queries
from gigl_server.sampling.journal import Journal, default_path
from gigl_server.sampling.service import THREADS_PER_WORKER, SamplingService
from gigl_server.supervision import Part, Supervisor

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gigl_loader.rpc.address import Address
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.tokens import Token
    from gigl_server.cluster.readiness import View
    from gigl_server.config import ServeOptions
    from gigl_server.partitions.holders import Holder

__all__ = ["StorageServer", "build_storage_server"]

_LOGGER = logging.getLogger(__name__)
_LOOK_EVERY_S = 5.0
_JOIN_END_S = 10.0


def build_storage_server(
    options: ServeOptions, *, graph: Graph | None = None, credentials: Credentials | None = None
) -> StorageServer:
    """Bind both ports and begin to join. Returns when the ports are open; sampling begins once it is ready.

    ``graph`` and ``credentials`` replace those that the options name. Raises ``ValueError`` for invalid
    options and ``FormatError`` for a damaged graph, both before a port is bound; ``OSError`` where a port
    cannot be bound.
    """
    credentials = credentials or options.load_credentials()
    credentials.check_reach(options.address)
    graph = _opened(options, graph, credentials)
    _check_server_proof(options.address, graph, credentials)
    for address in (options.address, options.data_address):
        check_free(address)
    return StorageServer(options, graph, credentials)


class StorageServer:
    """Serves from when it is ready until it is drained or closed."""

    def __init__(self, options: ServeOptions, graph: Graph, credentials: Credentials) -> None:
        """Use ``build_storage_server``. Starts to join."""
        self.failure: Exception | None = None
        """Why this server will not become ready."""
        self.settled = threading.Event()
        """Set once the server is ready, or cannot become so."""
        self.died = threading.Event()
        """Set once a part of the server is dead: the process should end and be restarted."""
        self.failed = threading.Event()
        """Set with ``failure``: before the server is ready, or when damage of the graph is found later."""
        self._options, self._credentials = options, credentials
        self._ending = threading.Event()
        self._lock, self._health_lock = threading.Lock(), threading.Lock()
        self._closed = False
        self._stores: ClusterStores | None = None
        self._supervisor: Supervisor | None = None
        with ExitStack() as stack:
            self._compose(stack, graph)
            self._parts = stack.pop_all()
        _LOGGER.info(
            "starting: control port at %s, data port %d, partitions %s of %d, graph %s",
            self._own.control_address,
            self._own.data_port,
            list(graph.parts),
            graph.schema.num_partitions,
            graph.manifest.digest[:12],
        )
        self._thread = threading.Thread(target=self._live, name="cluster", daemon=True)
        self._thread.start()
        self._supervise()

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint of the server. Its ``host_index`` is the rank once the server is ready."""
        own = self._own.control_address
        found = [each for each in self._discovery.members if each.control_address == own]
        return found[0] if self.ready else self._own

    @property
    def ready(self) -> bool:
        return self._readiness.ready

    @property
    def metrics_address(self) -> str:
        """``HOST:PORT`` of the metrics; empty where there are none."""
        return self._metrics.address if self._metrics else ""

    def meet(self, addresses: Sequence[str]) -> None:
        """Add addresses of further servers."""
        for address in addresses:
            self._readiness.heard_of(address)

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the server is ready.

        Raises its failure, such as ``JoinRefused`` or ``StorageUnavailable``, or ``TimeoutError``.
        """
        if not self.settled.wait(timeout_s):
            raise TimeoutError(f"not ready after {timeout_s:g} s: {self._readiness.view().reason}")
        if self.failure is not None:
            raise self.failure

    def renew(self, credentials: Credentials, *, metrics_tokens: Sequence[Token] = ()) -> None:
        """Use other certificates and tokens, and accept other tokens, from now on.

        Raises ``ValueError`` for changes that need a restart, ``OSError`` where the data port could not be
        reopened. After an error, nothing has changed.
        """
        check_renewal(self._credentials, credentials)
        credentials = credentials.showing(self._credentials.token)
        before = self._credentials
        self._access.renew(credentials, before=before)
        try:
            self._data.renew(credentials)
        except OSError:
            self._access.renew(before)
            raise
        self._control.renew(credentials)
        self._access.renew(credentials)
        if self._metrics is not None:
            self._metrics.renew(credentials, metrics_tokens)
        self._credentials = credentials
        self._peer_client.renew(credentials.caller())
        if self._stores is not None:
            self._stores.renew(credentials.caller())

    def drain(self, timeout_s: float) -> bool:
        """Take no new requests; finish those under way, and let frames be fetched. ``False``: timeout."""
        self._ending.set()
        if self._readiness.ends("draining"):
            _LOGGER.info("draining: %g s at most", timeout_s)
        self._tell_health()
        self._discovery.close()
        done = self._service.drain(timeout_s)
        if not done:
            _LOGGER.warning("batches were left when %g s were over; trainers ask again for them", timeout_s)
        return done

    def close(self) -> None:
        """End calls under way, and release ports, memory and threads. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._ending.set()
        if self._supervisor is not None:
            self._supervisor.close()
        self._adopter.close(_JOIN_END_S)
        self._repairer.close(_JOIN_END_S)
        self._readiness.ends("it is closed")
        self._discovery.close()
        self._thread.join(_JOIN_END_S)
        self._parts.close()
        if self.failure is None:  # Else the reason stays the last line, which supervisors show.
            _LOGGER.info("stopped")

    def __enter__(self) -> StorageServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compose(self, stack: ExitStack, graph: Graph) -> None:
        """Make all parts. The last is closed first: ports close before the parts that serve their calls."""
        options, credentials = self._options, self._credentials
        metrics_tokens = options.load_metrics_tokens()
        counters, audit, self._readiness = Counters(), AuditLog(), Readiness()
        self._incarnation = incarnation_of_now()
        self._digest, name = graph.manifest.digest, Path(str(graph.folder)).resolve().name
        self._access = Access(credentials, graph=name, digest=self._digest)
        self._holdings = Holdings(graph, self, scrub_rate=options.scrub_rate)
        self._queries = queries = Queries(graph, graph.parts, counters, access=self._access)
        stack.callback(queries.close)
        self._service = SamplingService(
            graph,
            graph.parts,
            workers=options.num_workers,
            limits=_limits(options),
            counters=counters,
            journal=_journal(options),
            allowed_samplers=_importable(options.allow_samplers),
            grant_of=self._access.grant_of,
        )
        stack.callback(self._service.close)
        self._ring_server = RingServer(self._service.ring_of)
        stack.callback(self._ring_server.close)
        self._service.ring_door = self._ring_server.name
        self._data = DataPort(
            options.data_address,
            queries,
            counters,
            credentials,
            audit=audit,
            frames=self._service.frames,
            membership=self._readiness.membership_version,
        )
        stack.callback(self._data.close)
        self._metrics: MetricsPort | None = None
        if options.metrics:
            self._metrics = MetricsPort(
                options.metrics,
                service=self._service,
                counters=counters,
                view=self._health_view,
                audit=audit,
                tokens=metrics_tokens,
                tls=credentials if options.metrics_tls else None,
            )
            stack.callback(self._metrics.close)
        announcements = Announcements(credentials.cluster_key, self._readiness.heard_of, audit)
        self._adopter = Adopter(self._holdings, self._find_holders, counters)
        self._repairer = Repairer(self._holdings, self._find_holders, counters, failed=self._fail)
        self._control = ControlService(
            options.address,
            credentials,
            counters,
            graph=graph.manifest.digest,
            partitions=graph.parts,
            data_port=self._data.port,
            service=self._service,
            view=self._readiness.view,
            announced=announcements.exchange,
            admin=AdminCalls(self._adopter, announcements, self._readiness.view),
            audit=audit,
            show_names=options.show_names,
            access=self._access,
            incarnation=self._incarnation,
            membership=self._readiness.membership_version,
        )
        stack.callback(self._control.close)
        self._meet_others(self._data.port, graph)

    def _meet_others(self, data_port: int, graph: Graph) -> None:
        self._own = Endpoint(
            host_index=0,
            host=self._options.reachable_host,
            control_port=self._control.port,
            data_port=data_port,
            partitions=graph.parts,
            certificate=self._credentials.trusted,
            what="storage server",
            incarnation=self._incarnation,
        )
        digest = self._digest
        self._peer_client = PeerClient(
            self._own, self._credentials.caller(), graph=digest, cluster_key=self._credentials.cluster_key
        )
        self._discovery = Discovery(
            self._own,
            graph=digest,
            num_partitions=graph.schema.num_partitions,
            peers=self._options.peers,
            query=self._peer_client.query,
            check=self._peer_client.check,
        )
        self._peer_client.version = lambda: self._discovery.membership.version
        self._readiness.joins(self._discovery)

    def _supervise(self) -> None:
        own, options = self._own, self._options
        control = ControlProbe(options.address, own.control_port, lambda: self._credentials, host=own.host)
        data = DataProbe(
            options.data_address,
            own.data_port,
            lambda: self._credentials,
            host=own.host,
            ping=Envelope(graph=self._digest, partition=own.partitions[0]),
        )
        parts = [
            Part(name="the control port", threads=lambda: self._control.threads, check=control.check),
            Part(name="the data port", threads=lambda: self._data.threads, check=data.check),
            Part(name="the ring server", threads=lambda: (self._ring_server.thread,)),
            Part(name="the sampling service", threads=lambda: self._service.threads),
            Part(name="the metrics port", threads=lambda: (self._metrics.thread,) if self._metrics else ()),
            Part(name="the watch over other servers", threads=self._watching),
            Part(name="the repair of damaged files", threads=self._repairing),
        ]
        self._supervisor = Supervisor(parts, died=self._die, changed=self._tell_health)
        self._supervisor.start()

    def _watching(self) -> tuple[threading.Thread, ...]:
        return (self._thread,) if self.ready and not self._ending.is_set() else ()

    def _repairing(self) -> tuple[threading.Thread, ...]:
        return (self._repairer.thread,) if self._watching() else ()

    def _die(self, fault: str) -> None:
        self._readiness.ends(fault)
        self.died.set()

    def _health_view(self) -> View:
        """Return the view for probes: not ready while a part does not respond."""
        view = self._readiness.view()
        fault = (self._supervisor.fault if self._supervisor else "") or self._holdings.fault
        return replace(view, ready=False, reason=fault) if view.ready and fault else view

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
            self._discovery.follow(_LOOK_EVERY_S)
            self._discovery.changed.clear()
            self._tell_health()
            watch.look(self._ending)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._readiness.ends(str(error))
        if not self._ending.is_set():
            _LOGGER.error("not ready: %s", str(error))  # As text: a log record must not keep its frames.
        self.failed.set()
        self._tell_health()

    def _verify(self) -> None:
        """Verify what batches are drawn from, and begin with the rest. ``FormatError`` for damage."""
        verifier = self._holdings.graph.verifier
        verifier.check()
        if self._options.scrub_rate:
            verifier.scrub(self._options.scrub_rate)

    def _become_ready(self) -> PeerWatch:
        fault = self._peer_client.own_fault() if self._credentials.certificate else None
        if fault is not None:
            _LOGGER.warning("others will refuse this server: %s", fault)
        self._verify()
        self._discovery.run(self._options.join_timeout_s)
        membership, graph = self._discovery.membership, self._holdings.graph
        self._stores = stores = ClusterStores(
            graph,
            membership,
            self._credentials.caller(),
            concurrency=self._options.num_workers * THREADS_PER_WORKER,
            on_membership=self._discovery.heard,
        )
        self._service.make_ready(None if graph.is_whole else stores.open)
        self._readiness.is_ready(stores.traffic)
        self._repairer.start()
        self._tell_health()
        if self.ready:
            _LOGGER.info(
                "ready: %s serves partitions %s, %d workers",
                self.endpoint,
                list(graph.parts),
                self._options.num_workers,
            )
        return PeerWatch(membership, self._digest, self._peer_client.query)

    def use(self, graph: Graph, withdrawn: Collection[int]) -> None:
        """Serve other partitions (``Holdings``), to trainers and to other servers."""
        if self._stores is None or not self.ready:
            raise StorageUnavailable(f"this server is not ready: {self._readiness.view().reason}")
        before, self._stores.graph = self._stores.graph, graph
        try:
            self._service.hold(graph, None if graph.is_whole else self._stores.open)
        except BaseException:
            self._stores.graph = before
            raise
        self._queries.hold(graph, withdrawn)
        self._tell_health()

    def announce(self, partitions: Sequence[int], *, repairing: Sequence[int] = ()) -> None:
        """Tell servers and trainers that this server serves ``partitions`` from now on (``Holdings``).

        Files of ``repairing`` lie here, too: other servers may copy them. Call it when the ports serve them.
        """
        self._control.announce(partitions, repairing=repairing)
        self._discovery.announce(partitions)

    def _find_holders(self, partition: int | None) -> list[Holder]:
        """Return other servers that hold a partition; any, for ``None``. Raises as ``Holders.find``."""
        known = [member.control_address for member in self._discovery.members]
        holders = Holders(
            self._credentials.caller,
            cluster_key=self._credentials.cluster_key,
            certificate=self._credentials.trusted,
            own=self._own.control_address,
        )
        return holders.find([*known, *self._options.peers], partition=partition, digest=self._digest)

    def _tell_health(self) -> None:
        """Set the port's health to the current readiness. The lock keeps concurrent changes in order."""
        with self._health_lock:
            self._control.set_serving(self._health_view().ready)


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
    if options.served is None or tuple(sorted(options.served)) == graph.parts:
        return graph
    return Graph.open(graph.folder, parts=options.served, verify=check_verify(options.verify))


def _limits(options: ServeOptions) -> Limits:
    given = {} if options.memory is None else {"memory": options.memory}
    return Limits(lease_s=options.lease_s, frame_bytes=options.frame_memory, **given)


def _importable(samplers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of samplers whose classes are there. ``ValueError`` names the first that is not."""
    try:
        for sampler in samplers:
            import_sampler(sampler)
    except ValueError as error:
        raise ValueError(f"allow_sampler: {error}") from None
    return samplers


def _journal(options: ServeOptions) -> Journal:
    """Open the journal. ``ValueError`` where a journal named in the options cannot be opened."""
    path = options.journal or default_path(options.address.host, options.address.port)
    try:
        return Journal.open(path) if path else Journal.none()
    except OSError as error:
        if options.journal:
            raise ValueError(f"journal: {path} cannot be written: {error}") from None
        _LOGGER.warning("no journal: a batch that kills this server will not be known: %s", error)
        return Journal.none()
