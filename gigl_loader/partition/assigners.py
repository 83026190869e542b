"""Assigners: which partition owns a node."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Int64Array
from gigl_loader.graph.schema import NodeType

if TYPE_CHECKING:
    from gigl_loader.partition.job import Job
    from gigl_loader.partition.table import GraphTables

__all__ = [
    "ASSIGNERS",
    "AnyAssigner",
    "Assigner",
    "GraphAssigner",
    "HashAssigner",
    "Owners",
    "RangeAssigner",
    "assigner_named",
]


_TABLES = (".parquet", ".pq", ".npy", ".csv", ".tsv", ".gz")


class Assigner(Protocol):
    """Assigns nodes to partitions. Must depend on nothing but its arguments."""

    name: str
    """What ``graph.json`` remembers it by."""
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
    """What ``graph.json`` remembers it by."""

    def plan(self, job: Job, tables: GraphTables) -> Assigner:
        """Return an assigner that knows the owner of every node. All ids in ``tables`` are integers."""


AnyAssigner: TypeAlias = (
    str | os.PathLike[str] | Mapping[NodeType, str | os.PathLike[str]] | Assigner | GraphAssigner
)
"""An assigner, its name, or files of a table of owners: of the only node type, or by node type."""


@dataclass(slots=True)
class Owners:
    """Assigns nodes as it is told."""

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
    from gigl_loader.partition.ldg import LinearGreedyAssigner  # imports this module

    return LinearGreedyAssigner()


def _kaminpar() -> GraphAssigner:
    from gigl_loader.partition.kaminpar import KaMinParAssigner  # imports this module

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
    if isinstance(assigner, str) and not _is_file(assigner):
        raise ValueError(
            f"unknown assigner {assigner!r}; known: {', '.join(ASSIGNERS)}, or a table of owners "
            "(.parquet, .npy, .csv)"
        )
    if isinstance(assigner, (str, os.PathLike, Mapping)):
        from gigl_loader.partition.owner_tables import owners_from_files  # imports this module

        return owners_from_files(assigner)
    return assigner


def _is_file(text: str) -> bool:
    return Path(text).suffix in _TABLES or Path(text).exists()


def _mix64(ids: Int64Array) -> npt.NDArray[np.uint64]:
    """Mix by the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    bits = ids.astype(np.uint64)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits
