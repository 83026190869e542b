"""Writes the nodes of one type: ids, columns by position, splits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.graph.node_ids import Directory
from gigl_loader.graph.paths import ids_path, nodes_path, splits_path
from gigl_loader.graph.schema import Column, NodeSchema, NodeType
from gigl_loader.partition.ids import assign, find_all, node_ids_of
from gigl_loader.partition.job import Job, PartFiles
from gigl_loader.partition.spill import Spill, kind_of, scatter
from gigl_loader.partition.splits import SplitMarks, mark_splits
from gigl_loader.partition.table import NODE_ROLES, GraphTables, NodeTable, Table, data_columns
from gigl_loader.tensors import ArraySpec, spec_of

__all__ = ["bucket_cuts", "build_nodes"]


_COLUMN = "column:"


def build_nodes(job: Job, tables: GraphTables, node_type: NodeType) -> tuple[NodeSchema, Directory]:
    """Write all files of a node type; return its schema, and where its nodes lie."""
    entry = tables.nodes.get(node_type, NodeTable())
    ids = node_ids_of(job, tables, node_type)
    if job.num_partitions > 1 and not job.assigner.ascending:
        job.budget.require(36 * ids.count, f"assigning the {ids.count:,} nodes of type {node_type!r}")
    directory, bounds = assign(ids, node_type, job.assigner, job.num_partitions)
    job.hold(directory.nbytes, f"the directory of the {ids.count:,} nodes of type {node_type!r}")
    _write_ids(job, node_type, directory)
    columns: dict[str, Column] = {}
    if entry.rows is not None:
        build = _ColumnBuild(job, node_type, entry.rows, directory=directory, bounds=bounds)
        build.run(in_order=ids.in_order)
        columns = build.columns
    marks = mark_splits(job, node_type, entry, directory)
    _write_splits(job, node_type, marks, bounds)
    schema = NodeSchema(
        count=ids.count, bounds=bounds, ids=directory.kind, columns=columns, splits=marks.sizes()
    )
    return schema, directory


def bucket_cuts(bounds: tuple[int, ...], step: int) -> tuple[Int64Array, Int64Array]:
    """Cut positions into buckets of at most ``step``, none across partitions.

    Returns where each bucket begins and the partition that it lies in.
    """
    starts = [np.arange(low, high, step) for low, high in pairwise(bounds) if low < high]
    cuts = np.concatenate([*starts, np.empty(0, dtype=np.int64)]).astype(np.int64)
    return cuts, np.searchsorted(np.array(bounds), cuts, side="right") - 1


def _write_ids(job: Job, node_type: NodeType, directory: Directory) -> None:
    arrays = directory.arrays()
    if not arrays:
        return
    writer = job.create(ids_path(node_type), {name: spec_of(array) for name, array in arrays.items()})
    for name, array in arrays.items():
        writer.append(name, array)
    job.finish(writer)


class _ColumnBuild:
    """Writes the columns of one node type."""

    def __init__(
        self, job: Job, node_type: NodeType, table: Table, *, directory: Directory, bounds: tuple[int, ...]
    ) -> None:
        self.columns = data_columns(table, NODE_ROLES)
        self._job = job
        self._node_type = node_type
        self._table = table
        self._directory = directory
        self._bounds = bounds
        self._files = PartFiles(job, lambda part: nodes_path(part, node_type), self._specs)

    def run(self, *, in_order: bool) -> None:
        """Write all. ``in_order``: the rows of the table come by ascending node id."""
        if not self.columns:
            return
        if in_order and self._directory.ascending:
            self._stream()
        else:
            self._shuffle()
        self._files.close()

    def _specs(self, part: int) -> dict[str, ArraySpec]:
        rows = self._bounds[part + 1] - self._bounds[part]
        return {name: column.spec(rows) for name, column in self.columns.items()}

    def _stream(self) -> None:
        """Copy rows that come in the order of their positions."""
        advance = self._job.track(f"nodes {self._node_type}: columns", self._table.num_rows)
        row_bytes = sum(column.row_bytes for column in self.columns.values())
        position = part = 0
        for chunk in self._table.read(list(self.columns), self._job.budget.copy_rows(row_bytes)):
            start, size = 0, len(next(iter(chunk.values())))
            while start < size:
                while self._bounds[part + 1] == position:
                    part += 1
                stop = min(size, start + self._bounds[part + 1] - position)
                for name, array in chunk.items():
                    self._files.of(part).append(name, array[start:stop])
                position, start = position + stop - start, stop
            advance(size)

    def _shuffle(self) -> None:
        """Bring rows into the order of their positions, by way of buckets."""
        widest = max(column.row_bytes for column in self.columns.values())
        cuts, parts = bucket_cuts(self._bounds, self._job.budget.node_bucket_rows(widest))
        spill = self._spread(cuts)
        advance = self._job.track(f"nodes {self._node_type}: writing columns", self._table.num_rows)
        for bucket, (low, part) in enumerate(zip(cuts.tolist(), parts.tolist(), strict=True)):
            positions = spill.take(bucket, "position")
            order = np.empty(len(positions), dtype=np.int64)
            order[positions - low] = np.arange(len(positions))
            for name, column in self.columns.items():
                rows = spill.take(bucket, _COLUMN + name)
                step = self._job.budget.copy_rows(column.row_bytes)
                for start in range(0, len(order), step):
                    self._files.of(part).append(name, rows[order[start : start + step]])
                del rows
            spill.drop(bucket)
            advance(len(order))

    def _spread(self, cuts: Int64Array) -> Spill:
        kinds = {_COLUMN + name: kind_of(column) for name, column in self.columns.items()}
        spill = self._job.spill({"position": (np.dtype(np.int64), ()), **kinds}, self._table.num_rows)
        advance = self._job.track(f"nodes {self._node_type}: reading columns", self._table.num_rows)
        for positions, chunk in self._placed():
            buckets = None
            if len(cuts) > 1:
                buckets = np.searchsorted(cuts, positions, side="right").astype(np.uint32) - np.uint32(1)
            scatter(spill, buckets, {"position": positions, **chunk})
            advance(len(positions))
        return spill

    def _placed(self) -> Iterator[tuple[Int64Array, dict[str, Array]]]:
        """Yield chunks of the columns with the position of each row."""
        names = [*self.columns, *(["id"] if "id" in self._table.columns else [])]
        rows = self._job.budget.chunk_rows(sum(column.row_bytes for column in self.columns.values()))
        row = 0
        for chunk in self._table.read(names, rows):
            size = len(chunk[names[0]])
            ids = chunk["id"] if "id" in chunk else np.arange(row, row + size)
            positions = find_all(
                self._directory, ids, node_type=self._node_type, table=self._table, name="id", first_row=row
            )
            yield positions, {_COLUMN + name: chunk[name] for name in self.columns}
            row += size


def _write_splits(job: Job, node_type: NodeType, marks: SplitMarks, bounds: tuple[int, ...]) -> None:
    if not marks.names:
        return

    def specs(part: int) -> dict[str, ArraySpec]:
        sizes = marks.sizes(bounds[part], bounds[part + 1])
        return {name: ArraySpec("I64", (size,)) for name, size in sizes.items()}

    files = PartFiles(job, lambda part: splits_path(part, node_type), specs)
    for part in range(job.num_partitions):
        for name in marks.names:
            for positions in marks.members(name, bounds[part], bounds[part + 1]):
                files.of(part).append(name, positions)
    files.close()
