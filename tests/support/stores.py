"""Graphs cut into partitions and the stores over them, of every kind, for the contract suite."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.row_cache import RowCache
from tests.support.peers import remote_stores

if TYPE_CHECKING:
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.store import NeighborStore
    from tests.support.oracle import Edge

PARTITIONS = 3
_COUNTS = {"item": 70, "user": 41}
_EDGE_TYPES: dict[EdgeType, int] = {
    ("item", "similar", "item"): 900,
    ("user", "likes", "item"): 600,
    ("user", "trusts", "user"): 300,
}


@dataclass(frozen=True)
class StoreKind:
    """A way to serve the partitions of a graph."""

    name: str
    serve: Callable[[Graph], Any]
    """A context manager of one store per partition."""

    def __str__(self) -> str:
        return self.name

    @contextmanager
    def open(self, graph: Graph) -> Iterator[list[NeighborStore]]:
        with self.serve(graph) as stores:
            yield stores


@contextmanager
def _local(graph: Graph) -> Iterator[list[NeighborStore]]:
    yield [LocalStore(graph, part) for part in range(graph.schema.num_partitions)]


@contextmanager
def _cached(graph: Graph) -> Iterator[list[NeighborStore]]:
    """Partitions 1 and 2 behind a cache that holds some of their rows."""
    stores: list[NeighborStore] = [LocalStore(graph, part) for part in range(graph.schema.num_partitions)]
    elsewhere = {part: stores[part] for part in range(1, len(stores))}
    fd = RowCache.create(graph, (0,), elsewhere, nbytes=2000)
    cache = RowCache.open(fd, graph)
    os.close(fd)
    yield [stores[0], *(cache.before(store, part) for part, store in elsewhere.items())]


STORE_KINDS = [
    StoreKind("local", _local),
    StoreKind("cached", _cached),
    StoreKind("remote", remote_stores),
]


@dataclass(frozen=True)
class StoreGraph:
    """A graph with the edges that it was made of, by node id."""

    name: str
    graph: Graph
    edges: Mapping[EdgeType, list[Edge]]

    def __str__(self) -> str:
        return self.name

    def target_type(self, edge_type: EdgeType) -> NodeType:
        return self.graph.schema.target_type(edge_type)

    def neighbor_type(self, edge_type: EdgeType) -> NodeType:
        return self.graph.schema.neighbor_type(edge_type)

    def node_ids(self, node_type: NodeType, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        ids = self.graph.node_ids(node_type)
        return positions if ids is None else ids[positions]

    def adjacency(self, edge_type: EdgeType) -> dict[int, list[tuple[int, int]]]:
        """Neighbours of each node id in canonical order: (neighbour's id, edge id)."""
        lists: dict[int, list[tuple[int, int]]] = {}
        for source, destination, edge in self.edges[edge_type]:
            ends = (source, destination) if self.graph.schema.edge_dir == "in" else (destination, source)
            lists.setdefault(ends[1], []).append((ends[0], edge))
        return {node: sorted(pairs) for node, pairs in lists.items()}

    def columns(self) -> dict[NodeType | EdgeType, tuple[str, ...]]:
        schema = self.graph.schema
        by_kind: dict[NodeType | EdgeType, tuple[str, ...]] = {
            node_type: tuple(nodes.columns) for node_type, nodes in schema.nodes.items()
        }
        return by_kind | {edge_type: tuple(edges.columns) for edge_type, edges in schema.edges.items()}

    def rows(self, kind: NodeType | EdgeType, part: int) -> npt.NDArray[np.int64]:
        """All that a ``FeatureRequest`` of a partition may name."""
        if isinstance(kind, str):
            low, high = self.graph.bounds(kind)[part : part + 2]
            return np.arange(low, high, dtype=np.int64)
        return np.arange(len(self.graph.topology(kind, part)["indices"]), dtype=np.int64)

    def stored(self, kind: NodeType | EdgeType, name: str, part: int) -> npt.NDArray[Any]:
        if isinstance(kind, str):
            return self.graph.node_column(kind, name, part)
        return self.graph.edge_column(kind, name, part)

    def row_bytes(self, kind: NodeType | EdgeType, name: str) -> int:
        schema = self.graph.schema
        columns = schema.nodes[kind].columns if isinstance(kind, str) else schema.edges[kind].columns
        return columns[name].row_bytes


def random_tables(*, sparse: bool, seed: int = 0) -> tuple[GraphTables, dict[EdgeType, list[Edge]]]:
    """Two node types with columns of several widths (0 bytes included) and three edge types."""
    random = np.random.default_rng(seed)
    ids = {node_type: _ids(random, count, sparse=sparse) for node_type, count in _COUNTS.items()}
    nodes = {
        node_type: NodeTable(
            ArrayTable(
                node_type,
                {
                    "id": ids[node_type],
                    "x": random.standard_normal((count, 16), dtype=np.float32),
                    "y": random.integers(0, 9, count),
                    "flag": random.integers(0, 2, count).astype(np.int8),
                    "none": np.empty((count, 0), np.float32),
                },
            )
        )
        for node_type, count in _COUNTS.items()
    }
    edges: dict[EdgeType, Any] = {}
    plain: dict[EdgeType, list[Edge]] = {}
    for edge_type, count in _EDGE_TYPES.items():
        # Squares make hubs: lists longer and shorter than any fanout.
        src = ids[edge_type[0]][(random.random(count) ** 3 * _COUNTS[edge_type[0]]).astype(int)]
        dst = ids[edge_type[2]][(random.random(count) ** 3 * _COUNTS[edge_type[2]]).astype(int)]
        edge_ids = random.permutation(count) + (2**40 if sparse else 0)
        weights = random.random((count, 3), np.float32)
        edges[edge_type] = ArrayTable("edges", {"src": src, "dst": dst, "id": edge_ids, "w": weights})
        plain[edge_type] = list(zip(src.tolist(), dst.tolist(), edge_ids.tolist(), strict=True))
    return GraphTables(edges=edges, nodes=nodes), plain


def _ids(random: np.random.Generator, count: int, *, sparse: bool) -> npt.NDArray[np.int64]:
    return random.permutation(10**12 + np.arange(count) ** 4) if sparse else np.arange(count)


@functools.cache
def _store_graph(
    assigner: Literal["range", "hash"], edge_dir: Literal["in", "out"], *, sparse: bool
) -> StoreGraph:
    tables, edges = random_tables(sparse=sparse)
    folder = MemoryFolder()
    build_graph(tables, folder, num_partitions=PARTITIONS, assigner=assigner, edge_dir=edge_dir)
    name = f"{assigner}-{edge_dir}-{'sparse' if sparse else 'dense'}"
    return StoreGraph(name, Graph.open(folder), edges)


def store_graphs() -> list[StoreGraph]:
    """Narrow and wide edge ids, ids equal to positions or not, both directions."""
    return [
        _store_graph("range", "in", sparse=False),
        _store_graph("hash", "out", sparse=False),
        _store_graph("hash", "in", sparse=True),
    ]
