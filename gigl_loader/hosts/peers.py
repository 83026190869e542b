"""Peers of this host: the owners of all partitions, samplers that use them, and one cache of remote rows."""

from __future__ import annotations

import json
import logging
import os
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.graph.graph import Graph
from gigl_loader.logs import log_from_environment
from gigl_loader.retry import Deadline
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.holders import Holders
from gigl_loader.rpc.refusals import Contact
from gigl_loader.rpc.remote_store import replicated_stores
from gigl_loader.rpc.replicas import Replicas
from gigl_loader.rpc.requests import SplitRequest
from gigl_loader.sampling.costs import CostCounter
from gigl_loader.sampling.local_store import LocalStore, edges_of
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.plans import read_plan
from gigl_loader.sampling.row_cache import RowCache
from gigl_loader.sampling.store import EdgeList

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import EdgeType, NodeType
    from gigl_loader.rpc.remote_store import RemoteStore
    from gigl_loader.sampling.plan import BatchSampler
    from gigl_loader.sampling.store import NeighborStore
    from gigl_loader.workers.config import WorkerConfig

logger = logging.getLogger(__name__)


class SharedCache:
    """Memory file of a host's cache, kept open by the process that filled it."""

    def __init__(self, graph: Graph, peers: Peers, nbytes: int, *, timeout_s: float) -> None:
        """Fetch up to ``nbytes`` of rows of other hosts. ``StorageUnavailable`` if one does not respond."""
        with closing(peers.open_store(graph, timeout_s=timeout_s)) as store:
            self._fd = RowCache.create(graph, graph.parts, store.remote, nbytes)
        logger.info("%.1f MB of rows of other hosts are kept here", os.fstat(self._fd).st_size / 1e6)

    @property
    def path(self) -> str:
        """Path at which processes of this host and user can open the file. It vanishes with this process."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Close the file. Processes that have mapped it keep their map. Closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_cache(path: str, graph: Graph) -> RowCache | None:
    """Map the cache at ``path``. ``None`` if it is gone with its process: rows then cross the network."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        logger.warning("no cache of remote rows: %s", error)
        return None
    try:
        return RowCache.open(fd, graph)
    except FormatError as error:  # Another process may have that process id by now.
        logger.warning("no cache of remote rows: %s", error)
        return None
    finally:
        os.close(fd)


PEERS = "peers"
"""Key in the notes of a graph's reference, by which sampling processes find the peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Services of all hosts, including this one."""

    endpoints: tuple[Endpoint, ...]
    """Endpoints by host index."""
    host_index: int
    """Index of this host."""
    token: str = field(repr=False)
    insecure: bool = False
    """Allow plain text to other machines."""
    cache_path: str = ""
    """Path of the cache for rows of other hosts; empty without a cache."""

    @property
    def caller(self) -> Caller:
        """Credentials of this host as a caller of the other hosts."""
        return Caller(token=self.token, insecure=self.insecure)

    def replicas(self, *, timeout_s: float) -> Replicas:
        """Return connections to the other hosts that hold each partition. The caller closes them."""
        others = [each for each in self.endpoints if each.host_index != self.host_index]
        holders = Holders(others, key=f"host {self.host_index}")
        return Replicas(holders, self.caller, timeout_s=timeout_s, contact=Contact.ESTABLISHED)

    def open_store(self, graph: Graph, *, timeout_s: float, concurrency: int = 1) -> PartitionedStore:
        """Return a store of all partitions: local where ``graph`` has opened the partition, else remote.

        A request to a peer is retried for ``timeout_s`` seconds in total before the peer counts as gone.
        """
        local = {part: LocalStore(graph, part) for part in graph.parts}
        remote: dict[int, NeighborStore] = {
            **replicated_stores(
                self.replicas(timeout_s=timeout_s),
                _elsewhere(graph),
                schema=graph.schema,
                digest=graph.manifest.digest,
            )
        }
        cache = open_cache(self.cache_path, graph) if self.cache_path else None
        if cache is not None:
            remote = {part: cache.before(store, part) for part, store in remote.items()}
        return PartitionedStore(graph.schema, local=local, remote=remote, concurrency=concurrency)

    def split(self, graph: Graph, node_type: NodeType, name: str, *, timeout_s: float) -> Int64Array:
        """Return the positions of a split over all partitions, int64 [N], by ascending node id."""
        request = SplitRequest(node_type=node_type, split=name)
        parts = {part: graph.split_part(node_type, name, part) for part in graph.parts}
        with self._stores(graph, timeout_s) as stores:
            parts |= {part: store.split(request) for part, store in stores.items()}
        return graph.in_id_order(node_type, np.concatenate([parts[part] for part in sorted(parts)]))

    def edges(self, graph: Graph, edge_type: EdgeType, *, timeout_s: float) -> EdgeList:
        """Return all edges of a type over all partitions, by ascending edge id."""
        lists = [edges_of(graph, edge_type, part) for part in graph.parts]
        with self._stores(graph, timeout_s) as stores:
            return EdgeList.joined([*lists, *(store.edges(edge_type) for store in stores.values())])

    @contextmanager
    def _stores(self, graph: Graph, timeout_s: float) -> Iterator[dict[int, RemoteStore]]:
        """Lend a store of each partition that ``graph`` has not opened, by partition."""
        replicas = self.replicas(timeout_s=timeout_s)
        try:
            yield replicated_stores(
                replicas, _elsewhere(graph), schema=graph.schema, digest=graph.manifest.digest
            )
        finally:
            replicas.close()

    def stats(self, *, timeout_s: float) -> dict[int, dict[str, Any]]:
        """Return the counters of each host's service, by host index. ``timeout_s`` is for all together."""
        # Imported here: control calls need gRPC, 13 MB that sampling processes save.
        from gigl_loader.rpc.peer import peer_stats

        deadline = Deadline.after(timeout_s)
        found = {
            each.host_index: peer_stats(each, self.caller, timeout_s=deadline.left_s())
            for each in self.endpoints
        }
        return {
            host: {field.name: getattr(stats, field.name) for field in stats.DESCRIPTOR.fields}
            for host, stats in found.items()
        }

    def to_json(self) -> dict[str, Any]:
        endpoints = [json.loads(endpoint.to_json()) for endpoint in self.endpoints]
        plain = {name: getattr(self, name) for name in ("host_index", "token", "insecure", "cache_path")}
        return {"endpoints": endpoints, **plain}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Peers:
        """Return the peers that ``to_json`` wrote."""
        endpoints = tuple(Endpoint.from_json(json.dumps(each)) for each in document["endpoints"])
        return cls(**{**document, "endpoints": endpoints})


def _elsewhere(graph: Graph) -> list[int]:
    """Return the partitions that a graph has not opened."""
    return sorted(set(range(graph.schema.num_partitions)) - set(graph.parts))


def open_samplers(config: WorkerConfig) -> Sequence[BatchSampler]:
    """Return a sampler for each batch that the process samples at once. They share one store."""
    log_from_environment()
    graph = Graph.from_reference(config.reference)
    peers = Peers.from_json(config.reference[PEERS])
    store = peers.open_store(graph, timeout_s=config.timeout_s, concurrency=config.concurrency)
    costs = CostCounter(store.wire)
    plan, shared = read_plan(config.plan, graph.schema), config.take_shared()
    return [
        plan.open(graph, store, costs=costs, deferred=config.deferred, values=config.values, shared=shared)
        for _ in range(config.concurrency)
    ]
