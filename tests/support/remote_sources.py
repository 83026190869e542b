"""Sources that storage servers in this process feed, of every kind, for the contract suite."""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client.cluster import Cluster
from gigl_client.source import RemoteSource
from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.connection import ConnectionPool
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.tokens import new_job
from gigl_loader.sampling.cached_columns import cached_columns
from gigl_loader.sampling.feature_cache import FeatureCache
from gigl_loader.sampling.frame_writer import Completion
from gigl_loader.sampling.partitioned import OwnerRows
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.window import WindowedSource
from gigl_server.config import ServeOptions
from gigl_server.sampling.service import SamplingService
from gigl_server.server import build_storage_server
from tests.support.faults import FaultPlan, FaultySampler
from tests.support.made import record_made
from tests.support.sources import PLAN, PLANS, drain, small_graph, small_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.source import BatchSource
    from gigl_server.server import StorageServer

_READY_S = 60.0
_NAMES = itertools.count()


@dataclass(eq=False)
class SmallCluster:
    """Servers of the small graph, one client of them, and what shall go wrong."""

    servers: list[StorageServer]
    graphs: list[Graph]
    """What each server opened."""
    services: list[SamplingService]
    """Of the servers, as they are now."""
    cluster: Cluster
    settings: dict[str, Any]
    monkeypatch: pytest.MonkeyPatch
    pools: list[ConnectionPool]
    """Of the servers' stores and of the client: connections to data ports."""
    faults: FaultPlan | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    """Closed, no server samples."""
    sampled: list[BatchRequest] = field(default_factory=list)
    """What servers were asked for, in the order in which they began."""

    def __post_init__(self) -> None:
        self.gate.set()
        open_sampler = BatchPlan.open

        def sabotaged(plan: BatchPlan, graph: Graph, *arguments: Any, **options: Any) -> Any:
            sampler = open_sampler(plan, graph, *arguments, **options)
            return _Sabotaged(sampler, self) if any(graph is each for each in self.graphs) else sampler

        self.monkeypatch.setattr(BatchPlan, "open", sabotaged)

    def settle(self) -> None:
        """Close connections that rest: how many are kept for a minute depends on how calls overlapped."""
        for pool in self.pools:
            pool.drop_idle()

    def service(self, server: int) -> SamplingService:
        return self.services[server]

    def stop(self, server: int) -> None:
        """End a server at once, and all that it has."""
        self.servers[server].close()

    def start(self, server: int) -> None:
        """Start a server again on its ports, which knows nothing of what was before."""
        endpoint, other = self.servers[server].endpoint, self.servers[server - 1].endpoint
        self.graphs[server] = _graph(len(self.servers), endpoint.partitions[0])
        self.servers[server], self.services[server] = _server(
            self.graphs[server],
            listen=endpoint.control_address,
            data_port=endpoint.data_port,
            peers=(other.control_address,) if len(self.servers) > 1 else (),
            **self.settings,
        )
        self.servers[server].wait_ready(_READY_S)

    def open(self, **options: Any) -> RemoteSource:
        """Open a source. Its producer is its own."""
        key = f"key {next(_NAMES)}"
        settings: dict[str, Any] = {"timeout_s": 20.0, "key": key, "name": key, **options}
        plan, schedule = settings.pop("plan", PLAN), settings.pop("schedule", small_schedule())
        return RemoteSource(self.cluster, plan, schedule, **settings)


@contextmanager
def served(count: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[SmallCluster]:
    """Serve the small graph from ``count`` servers of one partition each, and connect."""
    graph = small_graph(count)
    pools = record_made(monkeypatch, ConnectionPool)
    settings: dict[str, Any] = {"workers": 2, **options}
    servers: list[StorageServer] = []
    graphs = [_graph(count, part) for part in range(count)]
    services: list[SamplingService] = []
    for each in graphs:
        peers = tuple(server.endpoint.control_address for server in servers[:1])
        server, service = _server(each, listen="127.0.0.1:0", peers=peers, **settings)
        servers.append(server)
        services.append(service)
    for server in servers:
        server.wait_ready(_READY_S)
    cluster = Cluster(
        [server.endpoint for server in servers],
        schema=graph.schema,
        graph_digest=graph.manifest.digest,
        job=new_job(),
        caller=Caller(),
        timeout_s=20.0,
    )
    small = SmallCluster(servers, graphs, services, cluster, settings, monkeypatch, pools)
    try:
        _warm(small)
        yield small
    finally:
        small.gate.set()
        cluster.close()
        for server in small.servers:
            server.close()


def _graph(count: int, part: int) -> Graph:
    return Graph.open(small_graph(count).folder, parts=[part])


def _server(graph: Graph, **options: Any) -> tuple[StorageServer, SamplingService]:
    settings = ServeOptions(graph_dir="", partitions=graph.parts, **options)
    with pytest.MonkeyPatch.context() as patch:
        made = record_made(patch, SamplingService)
        server = build_storage_server(settings, graph=graph)
    return server, made[0]


def _warm(small: SmallCluster) -> None:
    """Have all connections opened, so that a test finds at its end what it found at its beginning."""
    for transport in ("ring", "network"):
        source = small.open(transport=transport)
        source.start_epoch(0)
        drain(source)
        source.close()


@dataclass(eq=False)
class _Sabotaged:
    """Samples as another does, but for what the cluster's faults and gate say at that moment."""

    sampler: Any
    small: SmallCluster
    bounds: Any = None

    @property
    def costs(self) -> Any:
        return self.sampler.costs

    @property
    def scratch_bytes(self) -> int:
        return int(self.sampler.scratch_bytes)

    def sample(self, request: BatchRequest) -> Any:
        self.small.sampled.append(request)
        assert self.small.gate.wait(_READY_S)
        faults = self.small.faults
        return (FaultySampler(self.sampler, faults) if faults else self.sampler).sample(request)


@dataclass(frozen=True)
class RemoteKind:
    """A number of servers, and how frames come from them."""

    servers: int
    transport: str
    rows: str
    plan: str = "nodes"
    small: SmallCluster | None = None
    windowed: bool = False
    """Features come in windows, into a cache of a third of them."""

    workers = 0
    """In this process."""

    def __str__(self) -> str:
        kind = f"{self.servers}-{self.transport}-{self.rows}{'-windowed' if self.windowed else ''}"
        return kind if self.plan == "nodes" else f"{kind}-{self.plan}"

    @property
    def factors(self) -> dict[str, str]:
        """The factors of a matrix that a kind stands for."""
        processes = "several" if self.servers > 1 else "1"
        rows = "windowed" if self.windowed else self.rows
        return {"source": self.transport, "rows": rows, "processes": processes, "plan": self.plan}

    def open(self, faults: FaultPlan | None = None, **options: Any) -> BatchSource:
        """Open a source over the small graph. ``options`` are of ``WorkerOptions``."""
        assert self.small is not None
        self.small.faults = faults
        concurrency = options.pop("worker_concurrency", 4)
        plan = PLANS[self.plan]
        source = self.small.open(
            plan=plan,
            schedule=small_schedule(self.plan),
            transport=self.transport,
            rows=self.rows,
            prefetch=concurrency,
            complete=not self.windowed,
            **options,
        )
        if not self.windowed:
            return source
        assert source.store is not None
        schema, channel = self.small.cluster.schema, options.get("channel_bytes", 4 << 30)
        reader = OwnerRows(source.store, "node", plan.columns.nodes["node"])
        cache = FeatureCache(cached_columns(schema, plan.columns, {"node": reader}), 200 * 100)
        return WindowedSource(source, Completion(schema, plan), cache, channel_bytes=channel, origin="wire")


REMOTE_KINDS = [
    RemoteKind(1, "ring", "auto"),
    RemoteKind(1, "network", "auto"),
    RemoteKind(2, "network", "direct"),
    RemoteKind(2, "network", "through"),
    RemoteKind(2, "ring", "auto"),
    RemoteKind(2, "network", "direct", "links"),
    RemoteKind(2, "ring", "auto", "anchors"),
    RemoteKind(2, "network", "direct", windowed=True),
    RemoteKind(1, "ring", "direct", windowed=True),
    *(RemoteKind(2, "network", "direct", plan, windowed=True) for plan in ("links", "anchors", "ppr")),
]
