"""Writes the edges of one type: adjacency lists in canonical order, and their columns.

An external bucket sort: edges are spread over buckets of target positions as they are read; then
each bucket is sorted in memory and appended to the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.document import DocumentWriter
from gigl_loader.graph.node_ids import Directory
from gigl_loader.graph.paths import edges_path, topology_path
from gigl_loader.graph.schema import EdgeSchema, EdgeSplits, EdgeType, NodeSchema, NodeType
from gigl_loader.partition.edge_sort import EdgeSorter, Leaf
from gigl_loader.partition.ids import as_ids, find_all, require_integers
from gigl_loader.partition.job import Job, PartFiles
from gigl_loader.partition.nodes import bucket_cuts
from gigl_loader.partition.spill import Kind, Kinds, Spill, kind_of, row_bytes, scatter
from gigl_loader.partition.table import EDGE_ROLES, Table, data_columns
from gigl_loader.partition.weights import check_weights, index_weights
from gigl_loader.tensors import STORAGE_DTYPES, ArraySpec

__all__ = ["build_edges"]


_COLUMN = "column:"
_TOPOLOGY = {"neighbor": "indices", "edge_id": "edge_ids"}
"""Arrays of a topology file that are stored in adjacency order, by their name while they wait."""


@dataclass(frozen=True, slots=True)
class _End:
    """One end of the edges: its column, and the nodes that it names."""

    column: str
    node_type: NodeType
    nodes: NodeSchema
    directory: Directory

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of its positions: as narrow as the format has."""
        return np.dtype(np.int32 if self.nodes.count < 2**31 else np.int64)


def build_edges(
    job: Job,
    edge_type: EdgeType,
    table: Table,
    nodes: Mapping[NodeType, NodeSchema],
    directories: Mapping[NodeType, Directory],
    *,
    weights: Sequence[str] = (),
    splits: EdgeSplits | None = None,
    outward: bool = False,
) -> EdgeSchema:
    """Write all files of an edge type; return its schema.

    ``weights`` are columns to index. ``outward`` lists edges by source, whatever the graph's ``edge_dir`` is.
    """
    src = _End("src", edge_type[0], nodes[edge_type[0]], directories[edge_type[0]])
    dst = _End("dst", edge_type[2], nodes[edge_type[2]], directories[edge_type[2]])
    target, neighbor = (dst, src) if job.edge_dir == "in" and not outward else (src, dst)
    schema = _EdgeBuild(job, edge_type, table, target, neighbor, weights=weights).run()
    for name in schema.weights:
        index_weights(job, edge_type, name, schema)
    return replace(schema, splits=splits)


class _EdgeBuild:
    """The build of one edge type."""

    def __init__(
        self,
        job: Job,
        edge_type: EdgeType,
        table: Table,
        target: _End,
        neighbor: _End,
        *,
        weights: Sequence[str],
    ) -> None:
        self._job = job
        self._edge_type = edge_type
        self._name = ",".join(edge_type)
        self._table = table
        self._target = target
        self._neighbor = neighbor
        self._columns = data_columns(table, EDGE_ROLES)
        self._kinds = self._spilled_kinds()
        self._weights = sorted(weights)
        self._leaf_rows = job.budget.edge_bucket_rows(max(map(row_bytes, self._kinds.values())))
        self._sorter = EdgeSorter(job, self._kinds, neighbor.directory, self._leaf_rows)
        self._advance: Callable[[int], None] = lambda _: None
        self._largest_id = 0
        self._cuts, self._parts = bucket_cuts(target.nodes.bounds, self._bucket_width())

    def run(self) -> EdgeSchema:
        """Spread, sort, write."""
        count = self._table.num_rows
        spill = self._job.spill(self._kinds, count)
        self._spread(spill)
        self._advance = self._job.track(f"edges {self._name}: sorting", count)
        sizes = self._part_sizes(spill)
        topology = PartFiles(
            self._job,
            lambda part: topology_path(part, self._edge_type),
            lambda part: self._specs(part, sizes),
        )
        columns = PartFiles(
            self._job,
            lambda part: edges_path(part, self._edge_type),
            lambda part: {name: column.spec(sizes[part]) for name, column in self._columns.items()},
        )
        for part in range(self._job.num_partitions):
            self._write_part(spill, part, topology, columns)
        topology.close()
        if self._columns:
            columns.close()
        return EdgeSchema(
            count=count,
            wide_indices=self._neighbor.dtype == np.int64,
            columns=self._columns,
            weights=tuple(self._weights),
        )

    def _spilled_kinds(self) -> Kinds:
        for name in ("src", "dst"):
            require_integers(self._table, name)
        row_ids = np.dtype(np.int32 if self._table.num_rows < 2**31 else np.int64)
        kinds: dict[str, Kind] = {
            "target": (self._target.dtype, ()),
            "neighbor": (self._neighbor.dtype, ()),
            "edge_id": (row_ids, ()),
        }
        if "id" in self._table.columns:
            require_integers(self._table, "id")
            kinds["edge_id"] = (np.dtype(np.int64), ())
        for name, column in self._columns.items():
            kinds[_COLUMN + name] = kind_of(column)
        return kinds

    def _bucket_width(self) -> int:
        """Targets per bucket, so that edges spread evenly would fill 3/4 of a leaf."""
        count = self._table.num_rows
        buckets = 1 if count <= self._leaf_rows else -(-4 * count // (3 * self._leaf_rows))
        by_degrees = max(self._job.budget.total // 256, 1)
        return max(min(-(-self._target.nodes.count // buckets), by_degrees), 1)

    def _spread(self, spill: Spill) -> None:
        advance = self._job.track(f"edges {self._name}: reading", self._table.num_rows)
        row = 0
        total_bytes = sum(map(row_bytes, self._kinds.values()))
        names = [name for name in (*EDGE_ROLES, *self._columns) if name in self._table.columns]
        for chunk in self._table.read(names, self._job.budget.chunk_rows(total_bytes)):
            rows = self._converted(chunk, row)
            buckets = None
            if len(self._cuts) > 1:
                buckets = np.searchsorted(self._cuts, rows["target"], side="right").astype(np.uint32)
                buckets -= np.uint32(1)
            scatter(spill, buckets, rows)
            row += len(rows["target"])
            advance(len(rows["target"]))
        if row != self._table.num_rows:
            raise FormatError(f"{self._table.name}: {row} rows, {self._table.num_rows} before: it changed")

    def _converted(self, chunk: Mapping[str, Array], row: int) -> dict[str, Array]:
        ends = {end.column: end for end in (self._target, self._neighbor)}
        found = {column: self._positions(ends[column], chunk, row) for column in ("src", "dst")}
        rows = {"target": found[self._target.column], "neighbor": found[self._neighbor.column]}
        size = len(rows["target"])
        if "id" in chunk:
            rows["edge_id"] = as_ids(self._table, "id", chunk["id"], row)
            self._note_ids(rows["edge_id"])
        else:
            rows["edge_id"] = np.arange(row, row + size, dtype=self._kinds["edge_id"][0])
            self._largest_id = max(self._largest_id, row + size - 1)
        for name in self._columns:
            rows[_COLUMN + name] = chunk[name]
        for name in self._weights:
            where = partial(self._where, name, row)
            check_weights(chunk[name], self._columns[name], where)
        return rows

    def _where(self, column: str, first_row: int, row: int) -> str:
        return self._table.where(column, first_row + row)

    def _positions(self, end: _End, chunk: Mapping[str, Array], row: int) -> Array:
        positions = find_all(
            end.directory,
            chunk[end.column],
            node_type=end.node_type,
            table=self._table,
            name=end.column,
            first_row=row,
        )
        return positions.astype(end.dtype, copy=False)

    def _note_ids(self, ids: Int64Array) -> None:
        if len(ids):
            self._largest_id = max(self._largest_id, int(ids.max()), -1 - int(ids.min()))

    def _part_sizes(self, spill: Spill) -> list[int]:
        sizes = [0] * self._job.num_partitions
        for bucket, part in enumerate(self._parts.tolist()):
            sizes[part] += spill.size(bucket)
        return sizes

    def _specs(self, part: int, sizes: list[int]) -> dict[str, ArraySpec]:
        bounds = self._target.nodes.bounds
        rows = sizes[part]
        return {
            "indptr": ArraySpec("I64", (bounds[part + 1] - bounds[part] + 1,)),
            "indices": ArraySpec("I64" if self._neighbor.dtype == np.int64 else "I32", (rows,)),
            "edge_ids": ArraySpec("I32" if self._largest_id < 2**31 else "I64", (rows,)),
        }

    def _write_part(self, spill: Spill, part: int, topology: PartFiles, columns: PartFiles) -> None:
        bounds = self._target.nodes.bounds
        lists = topology.of(part)
        attributes = columns.of(part) if self._columns else None
        lists.append("indptr", np.zeros(1, dtype=np.int64))
        written = 0
        for bucket in np.flatnonzero(self._parts == part).tolist():
            low = int(self._cuts[bucket])
            high = int(self._cuts[bucket + 1]) if bucket + 1 < len(self._cuts) else bounds[-1]
            degrees = np.zeros(min(high, bounds[part + 1]) - low, dtype=np.int64)
            for leaf in self._sorter.leaves(spill, bucket):
                order = leaf.sort(low, degrees)
                self._write_leaf(leaf, order, lists, attributes)
                self._advance(len(order))
            ends = np.cumsum(degrees, out=degrees)
            ends += written
            lists.append("indptr", ends)
            written = int(ends[-1])

    def _write_leaf(
        self, leaf: Leaf, order: Int64Array, lists: DocumentWriter, attributes: DocumentWriter | None
    ) -> None:
        for name, array in _TOPOLOGY.items():
            self._append(leaf, name, order, lists, array)
        for name in self._columns:
            assert attributes is not None
            self._append(leaf, _COLUMN + name, order, attributes, name)
        leaf.drop()

    def _append(self, leaf: Leaf, name: str, order: Int64Array, writer: DocumentWriter, array: str) -> None:
        rows = leaf.take(name)
        dtype = STORAGE_DTYPES[writer.specs[array].dtype]
        step = self._job.budget.copy_rows(row_bytes(self._kinds[name]))
        for start in range(0, len(order), step):
            writer.append(array, rows[order[start : start + step]].astype(dtype, copy=False))
