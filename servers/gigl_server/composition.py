"""Parts of a storage server: made in order, joined to each other, renewed together, and closed in reverse."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.sampling.plans.custom import import_sampler
from gigl_server.admission import Access, Limits
from gigl_server.certificate_renewal import check_renewal
from gigl_server.cluster.discovery import Discovery
from gigl_server.cluster.membership import Readiness, incarnation_of_now
from gigl_server.cluster.peers import PeerClient
from gigl_server.cluster.stores import ClusterStores
from gigl_server.counters import Counters
from gigl_server.frames.ring import RingServer
from gigl_server.logs import AuditLog
from gigl_server.memory import MemoryAccount
from gigl_server.partitions.adoption import Adopter
from gigl_server.partitions.file_sources import FileSourceFinder
from gigl_server.partitions.holdings import Holdings
from gigl_server.partitions.repair import Repairer
from gigl_server.ports.admin import AdminCalls, Announcements
from gigl_server.ports.control import ControlService
from gigl_server.ports.data import DataPort
from gigl_server.ports.metrics import MetricsPort
from gigl_server.ports.queries import Queries
from gigl_server.ports.sample_calls import SampleCalls
from gigl_server.sampling.journal import Journal, default_path
from gigl_server.sampling.service import THREADS_PER_WORKER, SamplingService

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.tokens import Token
    from gigl_server.cluster.membership import View
    from gigl_server.config import ServeOptions
    from gigl_server.partitions.file_sources import FileSource

_LOGGER = logging.getLogger(__name__)


class ServerParts:
    """Parts of one server. Both ports are open once it is made; sampling begins with ``begin_to_sample``."""

    def __init__(
        self,
        options: ServeOptions,
        graph: Graph,
        credentials: Credentials,
        *,
        fault: Callable[[], str],
        failed: Callable[[Exception], None],
        changed: Callable[[], None],
    ) -> None:
        """``fault`` returns which part does not respond, in one line; empty: none.

        ``failed`` is called with damage that cannot be repaired, ``changed`` after what the server holds has
        changed.
        """
        self.options, self.credentials = options, credentials
        self.digest = graph.manifest.digest
        self._fault, self._failed, self._changed = fault, failed, changed
        self._stores: ClusterStores | None = None
        with ExitStack() as stack:
            self._compose(stack, graph)
            self._closing = stack.pop_all()

    def _compose(self, stack: ExitStack, graph: Graph) -> None:
        """Make all parts. The last is closed first: ports close before the parts that serve their calls."""
        options, credentials = self.options, self.credentials
        metrics_tokens = options.load_metrics_tokens()
        self.memory = MemoryAccount(self._held_bytes)
        counters, audit, self.readiness = Counters(), AuditLog(), Readiness()
        incarnation, name = incarnation_of_now(), Path(str(graph.folder)).resolve().name
        self._access = Access(credentials, graph=name, digest=self.digest)
        self.holdings = Holdings(
            graph, self, scrub_rate=options.scrub_rate, scrub_every_s=options.scrub_every_s
        )
        self._queries = queries = Queries(graph, graph.parts, counters)
        stack.callback(queries.close)
        self.service = SamplingService(
            graph,
            workers=options.num_workers,
            limits=_limits(options),
            counters=counters,
            journal=_journal(options),
            allowed_samplers=_importable(options.allow_samplers),
            grant_of=self._access.grant_of,
        )
        stack.callback(self.service.close)
        self.ring_server = RingServer(self.service.ring_of)
        stack.callback(self.ring_server.close)
        self.service.ring_door = self.ring_server.name
        self.data = DataPort(
            options.data_address,
            queries,
            counters,
            credentials,
            audit=audit,
            access=self._access,
            samples=SampleCalls(
                self.service,
                counters,
                view=self.readiness.view,
                membership=self.readiness.membership_version,
            ),
            membership=self.readiness.membership_version,
        )
        stack.callback(self.data.close)
        self.metrics: MetricsPort | None = None
        if options.metrics:
            self.metrics = MetricsPort(
                options.metrics,
                service=self.service,
                counters=counters,
                view=self.health,
                memory=self.memory.read,
                certificate=lambda: self.credentials.certificate,
                audit=audit,
                tokens=metrics_tokens,
                tls=credentials if options.metrics_tls else None,
            )
            stack.callback(self.metrics.close)
        announcements = Announcements(credentials.cluster_key, self.readiness.heard_of, audit)
        self.adopter = Adopter(self.holdings, self._find_sources, counters)
        self.repairer = Repairer(self.holdings, self._find_sources, counters, failed=self._failed)
        self.control = ControlService(
            options.address,
            credentials,
            counters,
            graph=self.digest,
            partitions=graph.parts,
            data_port=self.data.port,
            service=self.service,
            view=self.readiness.view,
            health=self.health,
            announced=announcements.exchange,
            admin=AdminCalls(self.adopter, announcements, self.readiness.view),
            audit=audit,
            show_names=options.show_names,
            access=self._access,
            incarnation=incarnation,
            membership=self.readiness.membership_version,
        )
        stack.callback(self.control.close)
        self._meet_others(graph, incarnation)

    def _held_bytes(self) -> dict[str, int]:
        """Return the bytes of known objects, by kind of ``MemoryAccount``."""
        kinds = Counter(self.service.held_bytes())
        kinds.update(self.data.held_bytes())
        kinds["graph"] = self.holdings.graph.derived_bytes
        return dict(kinds)

    def _meet_others(self, graph: Graph, incarnation: int) -> None:
        self.own = Endpoint(
            host_index=0,
            host=self.options.reachable_host,
            control_port=self.control.port,
            data_port=self.data.port,
            partitions=graph.parts,
            certificate=self.credentials.trusted,
            what="storage server",
            incarnation=incarnation,
        )
        self.peer_client = PeerClient(
            self.own,
            self.credentials.caller(),
            graph=self.digest,
            cluster_key=self.credentials.cluster_key,
        )
        self.discovery = Discovery(
            self.own,
            graph=self.digest,
            num_partitions=graph.schema.num_partitions,
            peers=self.options.peers,
            query=self.peer_client.query,
            check=self.peer_client.check,
        )
        self.peer_client.version = lambda: self.discovery.membership.version
        self.readiness.joins(self.discovery)

    def health(self) -> View:
        """Return the view for probes: also not ready where a part or the last holder of a partition is lost.

        Trainers and other servers are served meanwhile, with what is there.
        """
        view = self.readiness.view()
        if not view.ready:
            return view
        fault = self._fault() or self.holdings.fault or self.discovery.without_holder
        return replace(view, ready=False, reason=fault) if fault else view

    def begin_to_sample(self) -> None:
        """Sample over the servers that were found, and be ready."""
        graph = self.holdings.graph
        self._stores = stores = ClusterStores(
            graph,
            self.discovery.membership,
            self.credentials.caller(),
            concurrency=self.options.num_workers * THREADS_PER_WORKER,
            on_membership=self.discovery.heard,
        )
        self.service.make_ready(None if graph.is_whole else stores.open)
        self.readiness.is_ready(stores.traffic)
        self.repairer.start()

    def use(self, graph: Graph, withdrawn: Collection[int]) -> None:
        """Serve other partitions (``Holdings``), to trainers and to other servers."""
        if self._stores is None or not self.readiness.ready:
            raise StorageUnavailable(f"this server is not ready: {self.readiness.view().reason}")
        before, self._stores.graph = self._stores.graph, graph
        try:
            self.service.hold(graph, None if graph.is_whole else self._stores.open)
        except BaseException:
            self._stores.graph = before
            raise
        self._queries.hold(graph, withdrawn)
        self._changed()

    def announce(self, partitions: Sequence[int], *, repairing: Sequence[int] = ()) -> None:
        """Tell servers and trainers that this server serves ``partitions`` from now on (``Holdings``).

        Files of ``repairing`` are here, too: other servers may copy them. Call it when the ports serve all.
        """
        self.control.announce(partitions, repairing=repairing)
        self.discovery.announce(partitions)

    def renew(self, credentials: Credentials, *, metrics_tokens: Sequence[Token]) -> None:
        """Use other certificates and tokens, and accept other tokens. Raises as ``StorageServer.renew``."""
        check_renewal(self.credentials, credentials)
        credentials = credentials.showing(self.credentials.token)
        before = self.credentials
        self._access.renew(credentials, before=before)
        try:
            self.data.renew(credentials)
        except OSError:
            self._access.renew(before)
            raise
        self.control.renew(credentials)
        self._access.renew(credentials)
        self.service.end_jobs(lambda owner: not self._access.allows(owner.token))
        if self.metrics is not None:
            self.metrics.renew(credentials, metrics_tokens)
        self.credentials = credentials
        self.peer_client.renew(credentials.caller())
        if self._stores is not None:
            self._stores.renew(credentials.caller())

    def close(self) -> None:
        """End calls under way, and release ports, memory and threads. Closing twice is fine."""
        self._closing.close()

    def _find_sources(self, partition: int | None) -> list[FileSource]:
        """Return other servers that hold a partition; any, for ``None``.

        Raises as ``FileSourceFinder.find``.
        """
        known = [member.control_address for member in self.discovery.members]
        finder = FileSourceFinder(
            self.credentials.caller,
            cluster_key=self.credentials.cluster_key,
            certificate=self.credentials.trusted,
            own=self.own.control_address,
        )
        return finder.find([*known, *self.options.peers], partition=partition, digest=self.digest)


def _limits(options: ServeOptions) -> Limits:
    given = {} if options.memory is None else {"memory": options.memory}
    return Limits(
        lease_s=options.lease_s,
        frame_bytes=options.frame_memory,
        shared_frame_bytes=options.shared_frame_memory,
        batch_s=options.max_batch_s,
        interactive_share=options.interactive_share,
        **given,
    )


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
