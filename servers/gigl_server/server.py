"""Storage server: its parts, and its states. It joins a cluster, serves, drains and ends."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError
from gigl_loader.graph.graph import Graph, open_partitions
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
    from collections.abc import Sequence

    from gigl_loader.rpc.address import Address
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.tokens import Token
    from gigl_server.cluster.readiness import View
    from gigl_server.config import ServeOptions

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
    graph = _opened(options, graph)
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
        self._options, self._graph, self._credentials = options, graph, credentials
        self._ending = threading.Event()
        self._lock, self._health_lock = threading.Lock(), threading.Lock()
        self._closed = False
        self._stores: ClusterStores | None = None
        self._supervisor: Supervisor | None = None
        with ExitStack() as stack:
            self._compose(stack)
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

    def announce(self, partitions: Sequence[int]) -> None:
        """Tell servers and trainers that this server serves ``partitions`` from now on.

        Call it when the ports serve them.
        """
        self._control.announce(partitions)
        self._discovery.announce(partitions)

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

    def _compose(self, stack: ExitStack) -> None:
        """Make all parts. The last is closed first: ports close before the parts that serve their calls."""
        options, graph, credentials = self._options, self._graph, self._credentials
        metrics_tokens = options.load_metrics_tokens()
        counters, audit, self._readiness = Counters(), AuditLog(), Readiness()
        self._incarnation = incarnation_of_now()
        digest, name = graph.manifest.digest, Path(str(graph.folder)).resolve().name
        self._access = Access(credentials, graph=name, digest=digest)
        queries = Queries(graph, graph.parts, counters, access=self._access)
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
        self._control = ControlService(
            options.address,
            credentials,
            counters,
            graph=graph.manifest.digest,
            partitions=graph.parts,
            data_port=self._data.port,
            service=self._service,
            view=self._readiness.view,
            announced=Announcements(credentials.cluster_key, self._readiness.heard_of, audit).exchange,
            audit=audit,
            show_names=options.show_names,
            access=self._access,
            incarnation=self._incarnation,
            membership=self._readiness.membership_version,
        )
        stack.callback(self._control.close)
        self._meet_others(self._data.port)

    def _meet_others(self, data_port: int) -> None:
        self._own = Endpoint(
            host_index=0,
            host=self._options.reachable_host,
            control_port=self._control.port,
            data_port=data_port,
            partitions=self._graph.parts,
            certificate=self._credentials.trusted,
            what="storage server",
            incarnation=self._incarnation,
        )
        digest = self._graph.manifest.digest
        self._peer_client = PeerClient(
            self._own, self._credentials.caller(), graph=digest, cluster_key=self._credentials.cluster_key
        )
        self._discovery = Discovery(
            self._own,
            graph=digest,
            num_partitions=self._graph.schema.num_partitions,
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
            ping=Envelope(graph=self._graph.manifest.digest, partition=self._graph.parts[0]),
        )
        parts = [
            Part(name="the control port", threads=lambda: self._control.threads, check=control.check),
            Part(name="the data port", threads=lambda: self._data.threads, check=data.check),
            Part(name="the ring server", threads=lambda: (self._ring_server.thread,)),
            Part(name="the sampling service", threads=lambda: self._service.threads),
            Part(name="the metrics port", threads=lambda: (self._metrics.thread,) if self._metrics else ()),
            Part(name="the watch over other servers", threads=self._watching),
        ]
        self._supervisor = Supervisor(parts, died=self._die, changed=self._tell_health)
        self._supervisor.start()

    def _watching(self) -> tuple[threading.Thread, ...]:
        return (self._thread,) if self.ready and not self._ending.is_set() else ()

    def _die(self, fault: str) -> None:
        self._readiness.ends(fault)
        self.died.set()

    def _health_view(self) -> View:
        """Return the view for probes: not ready while a part does not respond."""
        view, fault = self._readiness.view(), self._supervisor.fault if self._supervisor else ""
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
        try:
            while not self._ending.is_set():
                self._discovery.follow(_LOOK_EVERY_S)
                self._discovery.changed.clear()
                self._graph.verifier.check()
                watch.look(self._ending)
        except FormatError as error:
            self._fail(error)
            self._tell_health()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._readiness.ends(str(error))
        if not self._ending.is_set():
            _LOGGER.error("not ready: %s", str(error))  # As text: a log record must not keep its frames.
        self.failed.set()

    def _verify(self) -> None:
        """Verify what batches are drawn from, and begin with the rest. ``FormatError`` for damage."""
        verifier = self._graph.verifier
        verifier.check()
        if self._options.scrub_rate:
            verifier.scrub(self._options.scrub_rate)

    def _become_ready(self) -> PeerWatch:
        fault = self._peer_client.own_fault() if self._credentials.certificate else None
        if fault is not None:
            _LOGGER.warning("others will refuse this server: %s", fault)
        self._verify()
        self._discovery.run(self._options.join_timeout_s)
        membership = self._discovery.membership
        self._stores = stores = ClusterStores(
            self._graph,
            membership,
            self._credentials.caller(),
            concurrency=self._options.num_workers * THREADS_PER_WORKER,
            on_membership=self._discovery.heard,
        )
        self._service.make_ready(None if self._graph.is_whole else stores.open)
        self._readiness.is_ready(stores.traffic)
        self._tell_health()
        if self.ready:
            _LOGGER.info(
                "ready: %s serves partitions %s, %d workers",
                self.endpoint,
                list(self._own.partitions),
                self._options.num_workers,
            )
        return PeerWatch(membership, self._graph.manifest.digest, self._peer_client.query)

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


def _opened(options: ServeOptions, graph: Graph | None) -> Graph:
    if graph is None:
        return open_partitions(options.graph_dir, options.partitions, verify=check_verify(options.verify))
    if options.partitions is None or tuple(sorted(options.partitions)) == graph.parts:
        return graph
    return Graph.open(graph.folder, parts=options.partitions, verify=check_verify(options.verify))


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
