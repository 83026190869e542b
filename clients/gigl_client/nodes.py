"""Queries about the nodes of a graph on storage servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gigl_client.vocabularies import fetch_vocabulary
from gigl_loader.rpc.remote_store import RemoteDirectory
from gigl_loader.sampling.store import EdgeList
from gigl_loader.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_client.cluster import Cluster
    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import EdgeType, NodeSchema, NodeType, VocabularyFile
    from gigl_loader.sharding import Share

_MAX_AT_ONCE = 16

Key = TypeVar("Key")
Result = TypeVar("Result")


class RemoteNodes:
    """Queries about nodes. Any server knows all ids; splits are known to the holders of the partitions."""

    def __init__(self, cluster: Cluster) -> None:
        """Queries go to any server that answers."""
        self._schema = cluster.schema
        self._assignment = cluster.assignment
        self._replicas = cluster.replicas
        self._digest = cluster.graph_digest
        self.directory = self._directory_of(None)
        """Of any server."""
        self._latest: tuple[Int64Array, Int64Array] | None = None
        """Positions and ids of the last split, because a loader requests its ids next, once."""

    def positions(self, node_type: NodeType, ids: Int64Array) -> Int64Array:
        """Return the position of each node id, int64 [N]. ``ValueError`` lists the first ten unknown ids."""
        self._known(node_type)
        return self.directory.locate(node_type, ids)

    def node_ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        """Return the node ids at ``positions``, int64 [N], in order."""
        nodes = self._known(node_type)
        if nodes.ids == "identity":
            return positions
        latest, self._latest = self._latest, None
        if latest is not None and latest[0] is positions:
            return latest[1]
        return self.directory.ids(node_type, positions)

    def all_positions(self, node_type: NodeType) -> Int64Array:
        """Return the positions of all nodes of a type, int64 [N], by ascending node id."""
        self._known(node_type)
        return self.directory.all_positions(node_type)

    def split_positions(self, node_type: NodeType, split: str) -> Int64Array:
        """Return a split's positions, int64 [N], by ascending node id. ``ValueError`` lists the splits."""
        self.check_split(node_type, split)
        parts = self._at_once(lambda parts: self._split_of(parts, node_type, split), self._assignment)
        return self._in_id_order(node_type, np.concatenate(parts))

    def all_edges(self, edge_type: EdgeType) -> EdgeList:
        """Return all edges of a type, by ascending edge id."""
        lists = self._at_once(
            lambda part: self._directory_of(part).edges(part, edge_type), range(self._schema.num_partitions)
        )
        return EdgeList.joined(lists)

    def vocabulary(self, file: VocabularyFile) -> tuple[str, ...]:
        """Return the texts of a vocabulary that lies in a file, from any server."""
        return fetch_vocabulary(self._replicas.connection(None), file, digest=self._digest)

    def of_servers(self, node_type: NodeType, split: str | None, share: Share) -> list[Int64Array]:
        """Return each server's part of a share: ids of nodes of ``split``, or of all, int64, ascending.

        A partition with several holders is counted for one of them.
        """
        self._known(node_type)
        if split is not None:
            self.check_split(node_type, split)

        def held(server: int) -> Int64Array:
            parts = self._assignment[server]
            if not parts or not share.needs(server, len(self._assignment)):
                return np.empty(0, np.int64)
            positions = (
                self._nodes_of(parts, node_type) if split is None else self._split_of(parts, node_type, split)
            )
            return np.sort(self.node_ids(node_type, positions))

        lists = self._at_once(held, range(len(self._assignment)))
        slices = share.slices([len(ids) for ids in lists])
        return [ids[which] for ids, which in zip(lists, slices, strict=True)]

    def check_split(self, node_type: NodeType, split: str) -> None:
        """Raise ``ValueError`` unless nodes of this type have that split."""
        known = self._known(node_type).splits
        if split not in known:
            listed = ", ".join(map(repr, known)) or "none"
            raise ValueError(f"nodes of type {node_type!r} have no split {split!r}; known: {listed}")

    def _directory_of(self, partition: int | None) -> RemoteDirectory:
        """Return the directory at the holders of a partition. ``None``: at any server."""
        connection = self._replicas.connection(partition)
        return RemoteDirectory(connection, schema=self._schema, digest=self._digest)

    def _split_of(self, partitions: Sequence[int], node_type: NodeType, split: str) -> Int64Array:
        parts = [self._directory_of(part).split(part, node_type, split) for part in partitions]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def _nodes_of(self, partitions: Sequence[int], node_type: NodeType) -> Int64Array:
        bounds = self._schema.nodes[node_type].bounds
        return np.concatenate(
            [np.arange(bounds[part], bounds[part + 1], dtype=np.int64) for part in partitions]
        )

    @staticmethod
    def _at_once(query: Callable[[Key], Result], keys: Sequence[Key]) -> list[Result]:
        """Return the result of ``query`` for each key. Queries run concurrently."""
        with ThreadPool(min(len(keys), _MAX_AT_ONCE)) as threads:
            return list(threads.map(query, keys))

    def _in_id_order(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        if self._known(node_type).ids == "identity":
            return np.sort(positions)
        ids = self.directory.ids(node_type, positions)
        order = np.argsort(ids, kind="stable")
        positions = positions[order]
        self._latest = (positions, ids[order])
        return positions

    def _known(self, node_type: NodeType) -> NodeSchema:
        nodes = self._schema.nodes
        if node_type not in nodes:
            listed = ", ".join(map(repr, nodes)) or "none"
            raise ValueError(f"unknown node type {node_type!r}; known: {listed}")
        return nodes[node_type]
