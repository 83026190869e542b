"""A graph that storage servers hold, and the batches that they make of it."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import torch

from gigl_client.channel_config import check_ways
from gigl_client.cluster import connect_cluster
from gigl_client.nodes import RemoteNodes
from gigl_client.producers import ProducerCreator
from gigl_client.server_load import loads_of
from gigl_client.sharding import read_share
from gigl_client.source import RemoteSource
from gigl_loader.group import RankGroup
from gigl_loader.options import MAX_KEY
from gigl_loader.rpc.credentials import Caller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from gigl_client.cluster import Cluster
    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType, StoreOptions
    from gigl_loader.sampling.source import BatchSource, SourceRequest


__all__ = ["RemoteDistDataset"]

_PREFETCH_SIZE = 4
_MAX_SHARES = 64
"""A server grants a channel no more."""


class RemoteDistDataset:
    """A graph on storage servers, for trainers that hold none of it.

    Made by :meth:`connect`. Loaders take it where they take a ``DistDataset``, and give the same batches.
    It is a context manager. It keeps what its loaders have on the servers alive; servers reclaim what a
    process that died had there.
    """

    def __init__(self, cluster: Cluster, *, transport: str = "auto", rows: str = "auto") -> None:
        """Use :meth:`connect`."""
        self._cluster = cluster
        self._transport, self._rows = transport, rows
        self._leaders = ProducerCreator(cluster)
        group = RankGroup.current()
        self._nodes = RemoteNodes(cluster, first=0 if group is None else group.rank)
        self._sources: weakref.WeakSet[RemoteSource] = weakref.WeakSet()

    @classmethod
    def connect(
        cls,
        addresses: str | Sequence[str],
        *,
        credentials: Caller | None = None,
        transport: Literal["auto", "ring", "flight"] = "auto",
        rows: Literal["auto", "direct", "through"] = "auto",
        timeout: float = 300.0,
    ) -> RemoteDistDataset:
        """Connect to all servers of a cluster. Every rank of a process group calls this.

        ``addresses``
            ``"HOST:PORT"`` of any one server, or of several, in case that one is down. The others are
            found.
        ``credentials``
            A ``Caller``: token, certificates, and whom to trust. By default what the environment names
            (``Caller.from_environment``: ``GIGL_TOKEN_FILE``, ``GIGL_TLS_CA``), else no token and plain text.
            Plain text to other machines is refused unless the caller says ``insecure=True``.
        ``transport``
            How batches come: ``"ring"`` through memory shared with servers, all of which must be on this
            machine, ``"flight"`` over the network; ``"auto"`` chooses for each server.
        ``rows``
            Whether feature rows come from their owners (``"direct"``), or with the batch, through the
            server that sampled it (``"through"``). ``"auto"`` chooses.
        ``timeout``
            Seconds to wait for servers that are not ready, now and whenever nodes are asked for.

        Raises ``StorageUnavailable`` when the time is over, with a server and why it is not ready.
        ``ValueError`` at once for another version, unequal graphs, certificates that are not good or
        options that make no sense, ``SamplingError`` for a token that is not right.
        """
        if not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        check_ways(transport, rows)
        caller = Caller.from_environment() if credentials is None else credentials
        if not isinstance(caller, Caller):
            raise TypeError(f"credentials must be a gigl_client.Caller, got a {type(caller).__name__}")
        cluster = connect_cluster(addresses, caller, timeout_s=timeout)
        return cls(cluster, transport=transport, rows=rows)

    @property
    def num_servers(self) -> int:
        """Storage servers. Their ranks are ``0 .. num_servers - 1``, by ascending smallest partition."""
        return len(self._cluster.servers)

    @property
    def schema(self) -> GraphSchema:
        """Types, sizes, columns and splits."""
        return self._cluster.schema

    @property
    def node_types(self) -> list[NodeType]:
        return list(self.schema.nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        return list(self.schema.edges)

    @property
    def edge_dir(self) -> Literal["in", "out"]:
        """``"in"`` follows edges to their sources (as message passing wants), ``"out"`` to their targets."""
        return self.schema.edge_dir

    @property
    def num_nodes(self) -> int:
        """Nodes of all types; ``schema.nodes[node_type].count`` has each."""
        return sum(nodes.count for nodes in self.schema.nodes.values())

    @property
    def num_edges(self) -> int:
        """Edges of all types; ``schema.edges[edge_type].count`` has each."""
        return sum(edges.count for edges in self.schema.edges.values())

    @property
    def graph_digest(self) -> str:
        """Equal for graphs with the same contents, however this process came by them."""
        return self._cluster.graph_digest

    def positions(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array:
        """Return the positions of these nodes, in order. ``ValueError`` names the first ten unknown."""
        self._cluster.check_usable()
        return self._nodes.positions(node_type, node_ids)

    def node_ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        """Return the node ids at these positions, in order."""
        self._cluster.check_usable()
        return self._nodes.node_ids(node_type, positions)

    def all_positions(self, node_type: NodeType) -> Int64Array:
        """Return the positions of all nodes of a type, by ascending node id."""
        self._cluster.check_usable()
        return self._nodes.all_positions(node_type)

    def split_positions(self, node_type: NodeType, split: str) -> Int64Array:
        """Return the positions of a split, by ascending node id. ``ValueError`` lists the known splits."""
        self._cluster.check_usable()
        return self._nodes.split_positions(node_type, split)

    def fetch_node_ids(
        self,
        split: str | None = None,
        node_type: NodeType | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        balance: Literal["servers", "seeds"] = "servers",
    ) -> dict[int, torch.Tensor]:
        """Return the ids of nodes by the rank of the server that holds them: an entry for every server.

        Of a split, or all nodes of a type; ascending. A loader takes the whole mapping as
        ``input_nodes``, with ``sharding="none"`` where it is one rank's share.

        ``rank``, ``world_size``
            Take this rank's share only; together or not at all. Shares cover every node once.
        ``balance``
            ``"servers"`` gives ranks as many servers, ``"seeds"`` as many nodes.
        """
        self._cluster.check_usable()
        share = read_share(rank, world_size, balance)
        lists = self._nodes.of_servers(self._node_type(node_type), split, share)
        return {server: torch.from_numpy(ids.copy()) for server, ids in enumerate(lists)}

    def partition_of(self, ids: torch.Tensor, node_type: NodeType | None = None) -> torch.Tensor:
        """Return the partition that owns each node, int64. ``ValueError`` with the first ten unknown ids."""
        self._cluster.check_usable()
        array = np.ascontiguousarray(torch.as_tensor(ids).cpu().numpy())
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise TypeError(f"node ids must be a 1-D tensor of integers, got {array.dtype} {array.shape}")
        return torch.from_numpy(self._nodes.owners(self._node_type(node_type), array.astype(np.int64)))

    def server_stats(self, *, timeout: float = 10.0) -> dict[int, dict[str, Any]]:
        """Return how each server does, by its rank: threads, queues, bytes and, of this job, channels.

        Of one that does not answer within ``timeout`` seconds, ``{"error": why}``.
        """
        self._cluster.check_usable()
        return loads_of(self._cluster.servers, timeout)

    def check_options(self, store: StoreOptions) -> None:
        """All options have a meaning here."""

    def open_source(self, request: SourceRequest) -> BatchSource:
        """Return where the batches of a loader come from: its producer on every server.

        The first rank of a loader creates its producers; the others wait for it, and fail as it fails.
        """
        self._cluster.check_usable()
        prefetch = request.store.prefetch_size
        if not request.num_workers and prefetch is not None:
            raise ValueError(
                f"prefetch_size={prefetch} with num_workers=0, which asks for a batch when it is needed: "
                "leave one of them out"
            )
        if request.num_workers > _MAX_SHARES:
            raise ValueError(
                f"num_workers={request.num_workers}: a loader's share of a server's threads is at most "
                f"{_MAX_SHARES}"
            )
        source = RemoteSource(
            self._cluster,
            request.plan,
            request.schedule,
            key=self._leaders.produce(request),
            name=f"{request.name[:MAX_KEY]} rank {request.topology.rank}",
            share=max(request.num_workers, 1),
            prefetch=(prefetch or _PREFETCH_SIZE) if request.num_workers else 0,
            in_order=request.workers.in_order,
            channel_bytes=request.workers.channel_bytes,
            transport=self._transport,
            rows=self._rows,
            timeout_s=request.timeout_s,
        )
        try:
            source.wait_until_up(request.timeout_s)
        except BaseException:
            source.close()
            raise
        self._sources.add(source)
        return source

    def close(self) -> None:
        """Close what loaders still have, and disconnect. Closing twice is fine.

        Batches that were received stay valid. A dataset that nobody closes is closed like this when it and
        its loaders are collected.
        """
        while self._sources:
            self._sources.pop().close()
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _node_type(self, node_type: NodeType | None) -> NodeType:
        if node_type is not None:
            return node_type
        if len(self.node_types) > 1:
            raise ValueError(f"node_type must be one of {', '.join(self.node_types)}")
        return self.node_types[0]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RemoteDistDataset cannot be pickled: connect in the process that uses it")

    def __repr__(self) -> str:
        return (
            f"RemoteDistDataset({self.num_servers} servers, {self.num_nodes:,} nodes of "
            f"{len(self.node_types)} types, {self.num_edges:,} edges of {len(self.edge_types)} types, "
            f"edge_dir={self.edge_dir!r})"
        )
