"""Dataset on storage servers: the graph that they hold, and sources of its batches."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from gigl_client.channels import MAX_IN_FLIGHT, check_ways
from gigl_client.cluster import connect_cluster, loads_of
from gigl_client.nodes import RemoteNodes
from gigl_client.producers import ProducerCreator
from gigl_client.source import RemoteSource
from gigl_loader.logs import log_from_environment
from gigl_loader.options import MAX_KEY
from gigl_loader.queries import GraphQueries
from gigl_loader.resources import free_memory
from gigl_loader.rpc.credentials import Caller
from gigl_loader.sampling.feature_memory import decide, sizes_in
from gigl_loader.sampling.store import EdgeList
from gigl_loader.sampling.window import owner_windows
from gigl_loader.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from typing_extensions import Self

    from gigl_client.cluster import Cluster
    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import (
        EdgeSchema,
        EdgeType,
        GraphSchema,
        NodeSchema,
        NodeType,
        VocabularyFile,
    )
    from gigl_loader.options import StoreOptions
    from gigl_loader.sampling.feature_memory import FeatureMemory
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.source import BatchSource, SourceRequest
    from gigl_loader.sharding import Share

_PREFETCH_SIZE = 4
_MAX_SHARES = 64
"""Limit of a server on the share of one channel."""
_CHANNEL_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """Sizes of a storage cluster and of the job that uses it. The names are GiGL's."""

    num_storage_nodes: int
    """Number of storage servers."""
    storage_addresses: tuple[str, ...]
    """``HOST:PORT`` of each server, by rank."""
    num_compute_nodes: int
    """Hosts with trainers. Without torchrun's variables, each rank counts as a host."""
    num_processes_per_compute: int
    compute_node_rank: int
    """Index of this host."""

    @property
    def num_cluster_nodes(self) -> int:
        return self.num_storage_nodes + self.num_compute_nodes

    @property
    def compute_cluster_world_size(self) -> int:
        """Number of trainers."""
        return self.num_compute_nodes * self.num_processes_per_compute


class RemoteDistDataset(GraphQueries):
    """A graph on storage servers, for trainers that hold no part of it.

    Made by :meth:`connect`. Loaders accept it in place of a ``DistDataset``, and give the same batches. It is
    a context manager. While it lives, it renews the leases of its loaders' channels; servers reclaim the
    channels of a process that died.
    """

    def __init__(self, cluster: Cluster, *, transport: str = "auto", rows: str = "auto") -> None:
        """Use :meth:`connect`."""
        self._cluster = cluster
        self._transport, self._rows = transport, rows
        self._leaders = ProducerCreator(cluster)
        self._queries = RemoteNodes(cluster)
        self._sources: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stores: weakref.WeakSet[PartitionedStore] = weakref.WeakSet()

    @classmethod
    def connect(
        cls,
        addresses: str | Sequence[str],
        *,
        credentials: Caller | None = None,
        transport: Literal["auto", "ring", "network", "flight"] = "auto",
        rows: Literal["auto", "direct", "through"] = "auto",
        timeout: float = 300.0,
    ) -> RemoteDistDataset:
        """Connect to all servers of a cluster. Every rank of a process group calls this.

        ``addresses``
            ``"HOST:PORT"`` of any one server, or of several, in case one is down. The remaining servers of
            the cluster are discovered.
        ``credentials``
            A ``Caller``: token, certificates, and trusted authorities. By default what the environment names
            (``Caller.from_environment``: ``GIGL_TOKEN_FILE``, ``GIGL_TLS_CA``), else no token and plain text.
            Plain text to other machines is refused unless the caller says ``insecure=True``.
        ``transport``
            ``"ring"`` receives batches through memory shared with the servers, all of which must be on this
            machine; ``"network"`` (older name: ``"flight"``) receives them over the network; ``"auto"``
            chooses for each server.
        ``rows``
            ``"direct"`` fetches feature rows from their owners (deferred features); ``"through"`` receives
            them with the batch, through the server that sampled it; ``"auto"`` chooses.
        ``timeout``
            Seconds to wait for servers that are not ready, now and in later queries about nodes.

        Raises ``StorageUnavailable`` after ``timeout``, with a server and the reason why it is not ready.
        Raises ``ValueError`` at once for another version, unequal graphs, invalid certificates or invalid
        options, and ``SamplingError`` for a wrong token.
        """
        log_from_environment()
        if not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        check_ways(transport, rows)
        caller = Caller.from_environment() if credentials is None else credentials
        if not isinstance(caller, Caller):
            raise TypeError(f"credentials must be a gigl_client.Caller, got a {type(caller).__name__}")
        cluster = connect_cluster(addresses, caller, timeout_s=timeout)
        return cls(cluster, transport=transport, rows=rows)

    @property
    def _nodes(self) -> RemoteNodes:
        """Queries about nodes. Raises where the dataset was closed, and in a forked child."""
        self._cluster.check_usable()
        return self._queries

    @property
    def num_servers(self) -> int:
        """Number of storage servers when the first rank connected.

        Their ranks are ``0 .. num_servers - 1``, by ascending partitions, then address.
        """
        return len(self._cluster.assignment)

    @property
    def schema(self) -> GraphSchema:
        """Types, sizes, columns and splits of the graph."""
        return self._cluster.schema

    @property
    def graph_digest(self) -> str:
        """Digest of the graph. Equal for graphs with the same contents, wherever they are stored."""
        return self._cluster.graph_digest

    # Names of GiGL's dataset of the same name

    @property
    def cluster_info(self) -> ClusterInfo:
        """Sizes of the cluster and of this job."""
        place = Topology.without_asking()
        by_host = place.num_hosts * place.local_world_size == place.world_size
        return ClusterInfo(
            num_storage_nodes=self.num_servers,
            storage_addresses=tuple(str(each.endpoint.control_address) for each in self._cluster.servers),
            num_compute_nodes=place.num_hosts if by_host else place.world_size,
            num_processes_per_compute=place.local_world_size if by_host else 1,
            compute_node_rank=place.host_index if by_host else place.rank,
        )

    def fetch_node_types(self) -> list[NodeType] | None:
        """Return ``get_node_types()``."""
        return self.get_node_types()

    def fetch_edge_types(self) -> list[EdgeType] | None:
        """Return ``get_edge_types()``."""
        return self.get_edge_types()

    def fetch_edge_dir(self) -> Literal["in", "out"]:
        """Return ``edge_dir``."""
        return self.edge_dir

    def fetch_node_feature_info(self) -> Any:
        """Return ``node_feature_info``."""
        return self.node_feature_info

    def fetch_edge_feature_info(self) -> Any:
        """Return ``edge_feature_info``."""
        return self.edge_feature_info

    def fetch_node_quantization_metadata(self) -> Any:
        """Return the ``Quantization`` of the column ``x`` of nodes, or ``None``. Batches have values."""
        return self._quantization(self.schema.nodes, "x")

    def fetch_edge_quantization_metadata(self) -> Any:
        """Return the ``Quantization`` of the column ``edge_attr`` of edges, or ``None``."""
        return self._quantization(self.schema.edges, "edge_attr")

    def fetch_edge_weights_registered(self) -> bool:
        """Return whether edges of any type can be drawn by weight (``weight_attr`` of loaders)."""
        return any(edges.weights for edges in self.schema.edges.values())

    def fetch_node_partition_book(self, node_type: NodeType | None = None) -> torch.Tensor:
        """Return the partition of each node ``0 .. N - 1``, int64 [N]. ``partition_of`` is that of a few.

        ``ValueError`` where node ids have gaps.
        """
        import torch

        kind = self._one_type(node_type)
        nodes = self.schema.nodes[kind]
        if nodes.ids == "sparse":
            raise ValueError(f"ids of nodes of type {kind!r} have gaps: partition_of(ids) takes some of them")
        return self.partition_of(torch.arange(nodes.count), kind)

    def fetch_edge_partition_book(self, edge_type: EdgeType | None = None) -> torch.Tensor:
        """Return the partition of each edge, by ascending edge id, int64 [E]. Reads all edges of the type."""
        import torch

        known = ", ".join(map(str, self.edge_types)) or "none"
        if edge_type is None and len(self.edge_types) == 1:
            [edge_type] = self.edge_types
        if edge_type not in self.edge_types:
            raise ValueError(f"edge_type must be one of {known}, got {edge_type!r:.200}")
        src, dst = self.all_edges(edge_type)
        owners = self._owners(self.schema.target_type(edge_type), dst if self.edge_dir == "in" else src)
        return torch.from_numpy(owners)

    def fetch_free_ports_on_storage_cluster(self, num_ports: int) -> NoReturn:
        """Raise ``TypeError``: no port has to be chosen."""
        raise TypeError("servers listen on ports of their own, which clients discover: leave the call out")

    def _quantization(self, types: Mapping[Any, NodeSchema | EdgeSchema], name: str) -> Any:
        columns = {kind: each.columns.get(name) for kind, each in types.items()}
        return self._by_type(
            {kind: each.quantized.how for kind, each in columns.items() if each and each.quantized}
        )

    def positions(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array:
        return self._nodes.positions(node_type, node_ids)

    def node_ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        """Return the node ids at ``positions``, int64 [N], in order."""
        return self._nodes.node_ids(node_type, positions)

    def all_positions(self, node_type: NodeType) -> Int64Array:
        """Return the positions of all nodes of a type, int64 [N], by ascending node id."""
        return self._nodes.all_positions(node_type)

    def _edge_list(self, edge_type: EdgeType) -> EdgeList:
        return self._nodes.all_edges(edge_type)

    def _open_store(self) -> PartitionedStore:
        self._cluster.check_usable()
        store = self._cluster.open_store(timeout_s=self._cluster.timeout_s)
        self._stores.add(store)
        return store

    @property
    def _is_on_this_host(self) -> bool:
        return False

    def _check_usable(self) -> None:
        self._cluster.check_usable()

    def split_positions(self, node_type: NodeType, split: str) -> Int64Array:
        """Return a split's positions, int64 [N], by ascending node id. ``ValueError`` lists the splits."""
        return self._nodes.split_positions(node_type, split)

    def server_stats(self, *, timeout: float = 10.0) -> dict[int, dict[str, Any]]:
        """Return the load of each server by rank: threads, queues, bytes, and this job's channels.

        ``{"error": reason}`` for a server that does not respond within ``timeout`` seconds.
        """
        self._cluster.check_usable()
        return loads_of(self._cluster.servers, timeout)

    def check_options(self, store: StoreOptions) -> None:
        """Accept any options: all of them apply to a graph store."""

    def open_source(self, request: SourceRequest) -> BatchSource:
        """Return the source of a loader's batches: its producer on every server.

        The first rank to open a loader creates its producers. Other ranks wait for it, and raise its error.
        """
        self._cluster.check_usable()
        prefetch = request.store.prefetch_size
        if not request.num_workers and prefetch is not None:
            raise ValueError(
                f"prefetch_size={prefetch} with num_workers=0, which asks for a batch when it is needed: "
                "leave one of them out"
            )
        if request.shared is not None:
            raise ValueError(
                "shared_tensors lie in the trainer's memory, which storage servers do not share: leave them "
                "out, or sample beside the trainer"
            )
        if request.num_workers > _MAX_SHARES:
            raise ValueError(
                f"num_workers={request.num_workers}: a loader's share of a server is at most {_MAX_SHARES}"
            )
        if request.num_workers and request.has_given_memory:
            request = replace(request, memory=self._feature_memory(request))
        source = RemoteSource(
            self._cluster,
            request.plan,
            request.schedule,
            key=self._leaders.produce(request),
            name=f"{request.name[:MAX_KEY]} rank {request.topology.rank}",
            share=max(request.num_workers, 1),
            interactive=request.interactive,
            prefetch=(prefetch or max(_PREFETCH_SIZE, 2 * request.num_workers)) if request.num_workers else 0,
            most=MAX_IN_FLIGHT if request.num_workers and prefetch is None else None,
            in_order=request.workers.in_order,
            channel_bytes=request.workers.channel_bytes or _CHANNEL_BYTES,
            transport=self._transport,
            rows=self._rows,
            complete=not request.has_deferred_features,
            values=request.values,
            timeout_s=request.timeout_s,
            rank=request.topology.rank,
            world_size=request.topology.world_size,
            spans=request.spans,
        )
        try:
            source.wait_until_up(request.timeout_s)
        except BaseException:
            source.close()
            raise
        found: BatchSource = source
        if source.store is not None and request.has_deferred_features:
            found = owner_windows(source, self.schema, request, source.store, graph_digest=self.graph_digest)
        self._sources.add(found)
        return found

    def _feature_memory(self, request: SourceRequest) -> FeatureMemory:
        """Return the decision of a cache of this host for the features of a loader's batches."""
        if self._rows == "through":
            raise ValueError(f'{", ".join(request.features.sizes)}: connect without rows="through"')
        return decide(
            sizes_in(request.plan.frame(self.schema), self.schema),
            request.features,
            where="elsewhere",
            free=free_memory(),
            ranks=request.topology.local_world_size,
        )

    def close(self) -> None:
        """Close the sources of all loaders, and disconnect. Closing twice is fine.

        Received batches stay valid. If not called, it happens when it and its loaders are collected.
        """
        while self._sources:
            self._sources.pop().close()
        while self._stores:
            self._stores.pop().close()
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _vocabulary(self, file: VocabularyFile) -> tuple[str, ...]:
        return self._nodes.vocabulary(file)

    def _texts(self, node_type: NodeType, node_ids: Int64Array) -> list[str]:
        return self._nodes.directory.texts(node_type, node_ids)

    def _find_texts(self, node_type: NodeType, texts: list[str]) -> Int64Array:
        return self._nodes.directory.find_texts(node_type, texts)

    def _ids_of_servers(self, node_type: NodeType, split: str | None, share: Share) -> list[Int64Array]:
        return self._nodes.of_servers(node_type, split, share)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RemoteDistDataset cannot be pickled: connect in the process that uses it")

    def __repr__(self) -> str:
        return (
            f"RemoteDistDataset({self.num_servers} servers, {self.num_nodes:,} nodes of "
            f"{len(self.node_types)} types, {self.num_edges:,} edges of {len(self.edge_types)} types, "
            f"edge_dir={self.edge_dir!r})"
        )
