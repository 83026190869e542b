"""Assigners: which partition owns a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Int64Array
from gigl_loader.graph.schema import NodeType

__all__ = ["ASSIGNERS", "Assigner", "HashAssigner", "RangeAssigner", "assigner_named"]


class Assigner(Protocol):
    """Assigns nodes to partitions. Must depend on nothing but its arguments."""

    name: str
    """What ``graph.json`` remembers it by."""
    ascending: bool
    """Nodes of partition p have smaller ids than those of p + 1: then no directory is needed."""

    def assign(self, node_type: NodeType, ids: Int64Array, num_partitions: int) -> npt.NDArray[np.int64]:
        """Return the partition of each node. ``ids`` are all the nodes of the type, ascending."""


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


ASSIGNERS: Mapping[str, Callable[[], Assigner]] = {"range": RangeAssigner, "hash": HashAssigner}


def assigner_named(assigner: str | Assigner) -> Assigner:
    """Return the assigner of that name, or the one given."""
    if not isinstance(assigner, str):
        return assigner
    if assigner not in ASSIGNERS:
        raise ValueError(f"unknown assigner {assigner!r}; known: {', '.join(ASSIGNERS)}")
    return ASSIGNERS[assigner]()


def _mix64(ids: Int64Array) -> npt.NDArray[np.uint64]:
    """Mix by the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    bits = ids.astype(np.uint64)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return bits
