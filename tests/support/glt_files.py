"""Writer of the directories that GLT's partitioners write: the same files, with the same things in them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from gigl_loader.arrays import Int64Array
from gigl_loader.graph import EdgeType, NodeType
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable

CHUNK = 16
"""Rows that are pickled at once, as the partitioners' ``chunk_size``."""


@dataclass(frozen=True)
class GltGraph:
    """A graph as it is given to GLT: node ids are 0..N-1, edge ids are places in ``edges``."""

    num_nodes: Mapping[NodeType, int]
    edges: Mapping[EdgeType, torch.Tensor]
    x: Mapping[NodeType, torch.Tensor] = field(default_factory=dict)
    edge_attr: Mapping[EdgeType, torch.Tensor] = field(default_factory=dict)
    weights: Mapping[EdgeType, torch.Tensor] = field(default_factory=dict)

    @property
    def homogeneous(self) -> bool:
        return set(self.num_nodes) == {HOMOGENEOUS_NODE}

    def tables(self) -> GraphTables:
        """Return what a graph is built from without GLT."""
        edges = {}
        for kind, ends in self.edges.items():
            columns = {"src": ends[0], "dst": ends[1]}
            if kind in self.edge_attr:
                columns["edge_attr"] = self.edge_attr[kind]
            if kind in self.weights:
                columns["weight"] = self.weights[kind]
            edges[kind] = ArrayTable(str(kind), {name: value.numpy() for name, value in columns.items()})
        nodes = {
            kind: NodeTable(
                ArrayTable(kind, {"x": self.x[kind].numpy()}) if kind in self.x else None, count=count
            )
            for kind, count in self.num_nodes.items()
        }
        return GraphTables(edges, nodes, weights=dict.fromkeys(self.weights, ("weight",)))


def homogeneous(*, num_nodes: int = 60, num_edges: int = 300) -> GltGraph:
    draws = torch.Generator().manual_seed(0)
    return GltGraph(
        {HOMOGENEOUS_NODE: num_nodes},
        {HOMOGENEOUS_EDGE: torch.randint(num_nodes, (2, num_edges), generator=draws)},
        {HOMOGENEOUS_NODE: torch.rand(num_nodes, 5, generator=draws)},
        {HOMOGENEOUS_EDGE: torch.rand(num_edges, 3, generator=draws)},
        {HOMOGENEOUS_EDGE: torch.rand(num_edges, generator=draws)},
    )


def heterogeneous() -> GltGraph:
    """Return a graph of which one type of nodes, and one of edges, has no features."""
    draws = torch.Generator().manual_seed(1)
    buys, knows = ("user", "buys", "item"), ("user", "knows", "user")
    return GltGraph(
        {"user": 40, "item": 30},
        {
            buys: torch.stack([torch.randint(size, (200,), generator=draws) for size in (40, 30)]),
            knows: torch.randint(40, (2, 90), generator=draws),
        },
        {"user": torch.rand(40, 4, generator=draws)},
        {knows: torch.rand(90, 2, generator=draws)},
    )


class BookAssigner:
    """Assigns nodes by arrays."""

    name = "glt"
    ascending = False

    def __init__(self, books: Mapping[NodeType, torch.Tensor]) -> None:
        self._books = books

    def assign(self, node_type: NodeType, ids: Int64Array, num_partitions: int) -> Int64Array:
        return np.asarray(self._books[node_type].numpy()[ids])


def write_glt(
    root: Path, graph: GltGraph, *, num_partitions: int = 2, cached: bool = False, shuffled: bool = False
) -> BookAssigner:
    """Write the directory, with random partition books; return them.

    ``cached`` writes the lists of all partitions to one place. ``shuffled`` brings features of edges into
    another order than the edges, as GLT's distributed partitioner may.
    """
    draws = torch.Generator().manual_seed(2)
    types = {"node_types": None, "edge_types": None}
    if not graph.homogeneous:
        types = {"node_types": list(graph.num_nodes), "edge_types": list(graph.edges)}  # type: ignore[dict-item]
    root.mkdir()
    meta = {"num_parts": num_partitions, "data_cls": "homo" if graph.homogeneous else "hetero", **types}
    (root / "META").write_bytes(pickle.dumps(meta, pickle.HIGHEST_PROTOCOL))
    books = {}
    for node_type, count in graph.num_nodes.items():
        books[node_type] = torch.randint(num_partitions, (count,), generator=draws)
        _save(_book(root, graph, "node_pb", node_type), books[node_type])
        for part in range(num_partitions):
            ids = torch.nonzero(books[node_type] == part).flatten()
            if node_type in graph.x:
                folder = _of_type(root / f"part{part}/node_feat", graph, node_type)
                _append(folder, ids, graph.x[node_type])
    for edge_type, ends in graph.edges.items():
        edge_book = books[edge_type[0]][ends[0]]
        if not cached or edge_type in graph.edge_attr:
            _save(_book(root, graph, "edge_pb", edge_type), edge_book)
        parts = [torch.nonzero(edge_book == part).flatten() for part in range(num_partitions)]
        for folder, ids in _lists(root, parts, cached=cached):
            _write_edges(_of_type(folder, graph, edge_type), graph, edge_type, ids, cached=cached)
        for part, ids in enumerate(parts):
            if edge_type in graph.edge_attr:
                order = torch.randperm(len(ids), generator=draws) if shuffled else torch.arange(len(ids))
                folder = _of_type(root / f"part{part}/edge_feat", graph, edge_type)
                _append(folder, ids[order], graph.edge_attr[edge_type])
    return BookAssigner(books)


def _lists(root: Path, parts: list[torch.Tensor], *, cached: bool) -> Iterator[tuple[Path, torch.Tensor]]:
    if cached:
        yield root / "graph", torch.cat(parts)
        return
    for part, ids in enumerate(parts):
        yield root / f"part{part}/graph", ids


def _write_edges(
    folder: Path, graph: GltGraph, edge_type: EdgeType, ids: torch.Tensor, *, cached: bool
) -> None:
    ends = graph.edges[edge_type]
    _save(folder / "rows.pt", ends[0][ids])
    _save(folder / "cols.pt", ends[1][ids])
    if not cached or edge_type in graph.edge_attr:
        _save(folder / "eids.pt", ids)
    if edge_type in graph.weights:
        _save(folder / "weights.pt", graph.weights[edge_type][ids])


def _append(folder: Path, ids: torch.Tensor, rows: torch.Tensor) -> None:
    folder.mkdir(parents=True)
    with (folder / "feats.pkl").open("ab") as features, (folder / "ids.pkl").open("ab") as named:
        for chunk in torch.split(ids, CHUNK):
            pickle.dump(rows[chunk], features)
            pickle.dump(chunk.clone(), named)


def _save(path: Path, tensor: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensor, path)


def _of_type(folder: Path, graph: GltGraph, kind: NodeType | EdgeType) -> Path:
    return folder if graph.homogeneous else folder / _name(kind)


def _book(root: Path, graph: GltGraph, book: str, kind: NodeType | EdgeType) -> Path:
    return root / (f"{book}.pt" if graph.homogeneous else f"{book}/{_name(kind)}.pt")


def _name(kind: NodeType | EdgeType) -> str:
    return kind if isinstance(kind, str) else "__".join(kind)
