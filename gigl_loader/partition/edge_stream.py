"""The edges of all types, by the places of their ends in one order of all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.graph.node_ids import Directory
from gigl_loader.partition.ids import find_all, node_ids_of, require_integers
from gigl_loader.partition.node_stream import NodeStream

if TYPE_CHECKING:
    import numpy.typing as npt

    from gigl_loader.arrays import Array
    from gigl_loader.graph.schema import EdgeType, NodeType
    from gigl_loader.partition.job import Job
    from gigl_loader.partition.table import GraphTables, Table

__all__ = ["EdgeStream"]


class EdgeStream:
    """What an assigner reads of a graph: which places of ``nodes`` an edge joins."""

    def __init__(self, job: Job, tables: GraphTables, assigner: str) -> None:
        """``assigner`` is its name, for progress."""
        self._job = job
        self._tables = tables
        self._assigner = assigner
        self._directories: dict[NodeType, Directory] = {}
        for node_type in tables.node_types:
            ids = node_ids_of(job, tables, node_type)
            self._directories[node_type] = Directory(ids.count, ids.ascending)
        job.budget.require(sum(each.nbytes for each in self._directories.values()), "the ids of all nodes")
        self.nodes = NodeStream({kind: each.count for kind, each in self._directories.items()})
        self.dtype: np.dtype[Any] = np.dtype(np.int32 if self.nodes.size < 2**31 else np.int64)
        """Of places."""
        self.num_edges = sum(table.num_rows for table in tables.edges.values())

    def read(self) -> Iterator[tuple[Array, Array]]:
        """Yield the later and the earlier end of edges, [E] each, without those from a node to itself."""
        for edge_type, table in self._tables.edges.items():
            for src, dst in self._read(edge_type, table):
                apart = src != dst
                yield np.maximum(src, dst)[apart], np.minimum(src, dst)[apart]

    def by_type(self, owners: npt.NDArray[np.uint16]) -> dict[NodeType, npt.NDArray[np.uint16]]:
        """Return the owners of each type by ascending node id, of those by place."""
        return {node_type: self.nodes.of_type(node_type, owners) for node_type in self._directories}

    def _read(self, edge_type: EdgeType, table: Table) -> Iterator[tuple[Array, Array]]:
        advance = self._job.track(
            f"edges {','.join(edge_type)}: reading for {self._assigner}", table.num_rows
        )
        for name in ("src", "dst"):
            require_integers(table, name)
        row = 0
        for chunk in table.read(["src", "dst"], self._job.budget.chunk_rows(16)):
            src, dst = (
                self._places(of, chunk[name], table, name, row)
                for of, name in ((edge_type[0], "src"), (edge_type[2], "dst"))
            )
            row += len(src)
            advance(len(src))
            yield src, dst

    def _places(self, node_type: NodeType, ids: Array, table: Table, name: str, row: int) -> Array:
        nodes = self._directories[node_type]
        ranks = find_all(nodes, ids, node_type=node_type, table=table, name=name, first_row=row)
        return self.nodes.places(node_type, ranks).astype(self.dtype, copy=False)
