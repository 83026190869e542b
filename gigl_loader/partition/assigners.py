"""Assigners: which partition owns a node; and measures of the partitionings that they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Int64Array
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.manifest import Document, topology_path
from gigl_loader.graph.schema import EdgeType, NodeType
from gigl_loader.partition.job import Job
from gigl_loader.partition.table import GraphTables

_TABLES = (".parquet", ".pq", ".npy", ".csv", ".tsv", ".gz")


class Assigner(Protocol):
    """Assigns nodes to partitions. Must depend on nothing but its arguments."""

    name: str
    """Name in ``graph.json``."""
    ascending: bool
    """Nodes of partition p have smaller ids than those of p + 1: then no directory is needed."""

    def assign(
        self, node_type: NodeType, ids: Int64Array, num_partitions: int
    ) -> npt.NDArray[np.integer[Any]]:
        """Return the partition of each node. ``ids`` are all the nodes of the type, ascending."""


@runtime_checkable
class GraphAssigner(Protocol):
    """Assigns nodes by more than their ids. ``plan`` is called once, before nodes and edges are written."""

    name: str
    """Name in ``graph.json``."""

    def plan(self, job: Job, tables: GraphTables) -> Assigner:
        """Return an assigner that knows the owner of every node. All ids in ``tables`` are integers."""


AnyAssigner: TypeAlias = (
    str | os.PathLike[str] | Mapping[NodeType, str | os.PathLike[str]] | Assigner | GraphAssigner
)
"""An assigner, its name, or files of a table of owners: of the only node type, or by node type."""


@dataclass(slots=True)
class Owners:
    """Assigner with the partition of every node in memory."""

    name: str
    parts: Mapping[NodeType, npt.NDArray[np.integer[Any]]]
    """By type: the partition of each node, by ascending id, [N]."""
    ascending: bool = False

    def assign(
        self, node_type: NodeType, ids: Int64Array, num_partitions: int
    ) -> npt.NDArray[np.integer[Any]]:
        return self.parts[node_type]


class RangeAssigner:
    """Cuts the ascending ids into ranges whose sizes differ by at most one."""

    name: str = "range"
    ascending: bool = True

    def assign(self, node_type: NodeType, ids: Int64Array, num_partitions: int) -> Int64Array:
        sizes = np.diff(self.bounds(len(ids), num_partitions))
        return np.repeat(np.arange(num_partitions), sizes)

    @staticmethod
    def bounds(count: int, num_partitions: int) -> Int64Array:
        """Return where each range begins, and the end."""
        return np.arange(num_partitions + 1, dtype=np.int64) * count // num_partitions


class HashAssigner:
    """Assigns by a hash of the node id: balanced whatever the ids mean, and stable when nodes come."""

    name: str = "hash"
    ascending: bool = False

    def assign(self, node_type: NodeType, ids: Int64Array, num_partitions: int) -> Int64Array:
        return (_mix64(ids) % np.uint64(num_partitions)).astype(np.int64)


def _ldg() -> GraphAssigner:
    from gigl_loader.partition.locality import LinearGreedyAssigner  # imports this module

    return LinearGreedyAssigner()


def _kaminpar() -> GraphAssigner:
    from gigl_loader.partition.locality import KaMinParAssigner  # imports this module

    return KaMinParAssigner()


ASSIGNERS: Mapping[str, Callable[[], Assigner | GraphAssigner]] = {
    "range": RangeAssigner,
    "hash": HashAssigner,
    "ldg": _ldg,
    "kaminpar": _kaminpar,
}


def assigner_named(assigner: AnyAssigner) -> Assigner | GraphAssigner:
    """Return the assigner of that name or by these tables, or the one given."""
    if isinstance(assigner, str) and assigner in ASSIGNERS:
        return ASSIGNERS[assigner]()
    if isinstance(assigner, str) and not (Path(assigner).suffix in _TABLES or Path(assigner).exists()):
        raise ValueError(
            f"unknown assigner {assigner!r}; known: {', '.join(ASSIGNERS)}, or a table of owners "
            "(.parquet, .npy, .csv)"
        )
    if isinstance(assigner, (str, os.PathLike, Mapping)):
        from gigl_loader.partition.owner_tables import owners_from_files  # imports this module

        return owners_from_files(assigner)
    return assigner


def _mix64(ids: Int64Array) -> npt.NDArray[np.uint64]:
    """Mix by the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    bits = ids.astype(np.uint64)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits


_ROWS = 1 << 21
"""Edges to look at at once: 50 MB."""


@dataclass(frozen=True, slots=True)
class EdgeQuality:
    """Distribution of the edges of one type over the partitions of a graph."""

    per_part: tuple[int, ...]
    """Edges by the partition that lists them."""
    cut: int
    """Edges whose ends lie in two partitions."""

    @property
    def cut_share(self) -> float:
        """Part of all edges that is cut, from 0 to 1."""
        return self.cut / max(sum(self.per_part), 1)

    @property
    def balance(self) -> float:
        """Edges of the largest partition over the mean: 1 is even."""
        return balance_of(self.per_part)


def balance_of(sizes: Sequence[int]) -> float:
    """Return the largest size over the mean, 1 where all are 0."""
    return max(sizes) * len(sizes) / max(sum(sizes), 1) if any(sizes) else 1.0


def edge_quality(graph: Graph, edge_type: EdgeType) -> EdgeQuality:
    """Count the edges of a type. Reads all lists, in bounded memory, unless there is one partition.

    All partitions of the graph must be opened. ``FormatError`` for a damaged file.
    """
    parts = range(graph.schema.num_partitions)
    sizes = tuple(len(graph.topology(edge_type, part)["indices"]) for part in parts)
    if len(sizes) == 1:
        return EdgeQuality(sizes, 0)
    bounds = graph.bounds(graph.schema.neighbor_type(edge_type))
    cut = sum(
        _count_outside(graph, edge_type, part, (int(bounds[part]), int(bounds[part + 1]))) for part in parts
    )
    return EdgeQuality(sizes, cut)


def _count_outside(graph: Graph, edge_type: EdgeType, part: int, own: tuple[int, int]) -> int:
    """Return how many neighbours in the lists of a partition have positions outside ``own``."""
    name = topology_path(part, edge_type)
    record, found, start = graph.manifest.files[name], 0, 0
    while True:
        # Opened anew for each piece: a map that stays open would grow by every page that is read.
        positions = Document(graph.folder, name, record).array("indices")[start : start + _ROWS]
        if not len(positions):
            return found
        found += int(np.count_nonzero((positions < own[0]) | (positions >= own[1])))
        start += len(positions)
