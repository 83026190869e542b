"""Writes the nodes of one type: ids, columns by position, splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.graph.ids import Directory
from gigl_loader.graph.manifest import ids_path, nodes_path, splits_path
from gigl_loader.graph.schema import Column, NodeSchema, NodeType, type_name
from gigl_loader.partition.assigners import Assigner
from gigl_loader.partition.exchange import Exchange, bucket_numbers, kind_of, scatter
from gigl_loader.partition.job import Job, PartFiles, Results, Stage
from gigl_loader.partition.readers import Table, first_rows, numbered, read_span
from gigl_loader.partition.steps.ids import assign, find_all, node_ids_of
from gigl_loader.partition.steps.splits import SplitMarks, mark_splits
from gigl_loader.partition.table import NODE_ROLES, GraphTables, NodeTable, data_columns
from gigl_loader.tensors import ArraySpec

__all__ = ["bucket_cuts", "bucket_numbers", "build_nodes"]

_COLUMN = "column:"


def build_nodes(
    job: Job, tables: GraphTables, node_type: NodeType, assigner: Assigner
) -> tuple[NodeSchema, Directory]:
    """Write all files of a node type; return its schema, and where its nodes lie."""
    entry = tables.nodes.get(node_type, NodeTable())
    ids = node_ids_of(job, tables, node_type)
    if job.num_partitions > 1 and not assigner.ascending:
        job.budget.require(36 * ids.count, f"assigning the {ids.count:,} nodes of type {node_type!r}")
    directory, bounds = assign(ids, node_type, assigner, job.num_partitions)
    job.hold(directory.nbytes, f"the directory of the {ids.count:,} nodes of type {node_type!r}")
    if directory.ids is not None:
        job.write(ids_path(node_type), directory.arrays())
        job.runner.share(directory, ids_path(node_type))
    columns: dict[str, Column] = {}
    if entry.rows is not None:
        columns = data_columns(entry.rows, NODE_ROLES)
        if columns:
            data = _Columns(node_type, entry.rows, columns, directory, bounds)
            _write_columns(job, data, in_order=ids.in_order)
    marks = mark_splits(job, node_type, entry, directory, known=tables.unknown_ids != "drop")
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


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of one node type, and the order to bring their rows in."""

    node_type: NodeType
    table: Table
    columns: Mapping[str, Column]
    directory: Directory
    bounds: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return sum(column.row_bytes for column in self.columns.values())

    def specs(self, part: int) -> dict[str, ArraySpec]:
        rows = self.bounds[part + 1] - self.bounds[part]
        return {name: column.spec(rows) for name, column in self.columns.items()}

    def files(self, job: Job, parts: range) -> PartFiles:
        return PartFiles(job, parts, lambda part: nodes_path(part, self.node_type), self.specs)

    def run(self, job: Job, name: str, step: str, num_tasks: int, do: Callable[[Job, int], Results]) -> None:
        """Run a stage."""
        name, step = f"nodes/{type_name(self.node_type)}/{name}", f"nodes {self.node_type}: {step}"
        job.runner.run(job, Stage(name, step, self.table.num_rows, num_tasks, do))


def _write_columns(job: Job, data: _Columns, *, in_order: bool) -> None:
    """Write all columns. ``in_order``: the rows of the table come by ascending node id."""
    rows = data.table.num_rows
    shards = job.runner.shards(data.table)
    if in_order and data.directory.ascending:
        # A table that cannot be cut would be read by each task.
        step = 1 if len(shards) > 1 else job.num_partitions
        spans = [range(part, part + step) for part in range(0, job.num_partitions, step)]
        data.run(job, "copy", "columns", len(spans), _Copy(data, shards, first_rows(shards), spans).run)
        return
    widest = max(column.row_bytes for column in data.columns.values())
    cuts, parts = bucket_cuts(data.bounds, job.runner.task_budget(job, rows).node_bucket_rows(widest))
    kinds = {_COLUMN + name: kind_of(column) for name, column in data.columns.items()}
    exchange = job.runner.exchange(
        job,
        f"nodes/{type_name(data.node_type)}",
        {"position": (np.dtype(np.int64), ()), **kinds},
        rows=rows,
        num_writers=len(shards),
    )
    spread = _Spread(data, shards, first_rows(shards), exchange, cuts)
    data.run(job, "read", "reading columns", len(shards), spread.run)
    place = partial(_place, data=data, exchange=exchange, cuts=cuts, parts=parts)
    data.run(job, "write", "writing columns", job.num_partitions, place)
    exchange.drop(job)


@dataclass(frozen=True, slots=True)
class _Copy:
    """Copies rows that come in the order of their positions, some partitions a task."""

    data: _Columns
    shards: Sequence[Table]
    first_rows: Sequence[int]
    parts: Sequence[range]

    def run(self, job: Job, task: int) -> dict[str, Any]:
        parts, bounds = self.parts[task], self.data.bounds
        files = self.data.files(job, parts)
        part, position, end = parts.start, bounds[parts.start], bounds[parts.stop]
        for chunk in read_span(
            self.shards,
            self.first_rows,
            position,
            end,
            names=list(self.data.columns),
            rows=job.budget.copy_rows(self.data.row_bytes),
        ):
            start, size = 0, len(next(iter(chunk.values())))
            while start < size:
                while bounds[part + 1] == position:
                    part += 1
                stop = min(size, start + bounds[part + 1] - position)
                for name, array in chunk.items():
                    files.of(part).append(name, array[start:stop])
                position, start = position + stop - start, stop
            job.advance(size)
        files.close()
        return {"rows": end - bounds[parts.start]}


@dataclass(frozen=True, slots=True)
class _Spread:
    """Spreads rows over buckets of positions, a shard of the table a task."""

    data: _Columns
    shards: Sequence[Table]
    first_rows: Sequence[int]
    exchange: Exchange
    cuts: Int64Array

    def run(self, job: Job, task: int) -> dict[str, Any]:
        rows = 0
        with self.exchange.writer(job, task) as writer:
            for positions, chunk in self._placed(job, task):
                scatter(writer, bucket_numbers(self.cuts, positions), {"position": positions, **chunk})
                job.advance(len(positions))
                rows += len(positions)
        return {"rows": rows}

    def _placed(self, job: Job, task: int) -> Iterator[tuple[Int64Array, dict[str, Array]]]:
        """Yield chunks of the columns with the position of each row."""
        table, columns = self.shards[task], self.data.columns
        names = [*columns, *(["id"] if "id" in table.columns else [])]
        for row, chunk in numbered(table, names, job.budget.chunk_rows(self.data.row_bytes)):
            first = self.first_rows[task] + row
            ids = chunk["id"] if "id" in chunk else np.arange(first, first + len(chunk[names[0]]))
            positions = find_all(
                self.data.directory,
                ids,
                node_type=self.data.node_type,
                table=table,
                name="id",
                first_row=row,
            )
            yield positions, {_COLUMN + name: chunk[name] for name in columns}


def _place(
    job: Job, part: int, *, data: _Columns, exchange: Exchange, cuts: Int64Array, parts: Int64Array
) -> Results:
    """Bring the rows of the buckets of a partition into the order of their positions."""
    files = data.files(job, range(part, part + 1))
    begin, end = np.searchsorted(parts, [part, part + 1]).tolist()
    spill = exchange.spill(job, begin, end)
    for bucket in range(begin, end):
        positions = spill.take(bucket, "position")
        order = np.empty(len(positions), dtype=np.int64)
        order[positions - cuts[bucket]] = np.arange(len(positions))
        for name, column in data.columns.items():
            rows = spill.take(bucket, _COLUMN + name)
            step = job.budget.copy_rows(column.row_bytes)
            for start in range(0, len(order), step):
                files.of(part).append(name, rows[order[start : start + step]])
            del rows
        spill.drop(bucket)
        job.advance(len(order))
    files.close()
    return {"rows": data.bounds[part + 1] - data.bounds[part]}


def _write_splits(job: Job, node_type: NodeType, marks: SplitMarks, bounds: tuple[int, ...]) -> None:
    if not marks.names:
        return

    def specs(part: int) -> dict[str, ArraySpec]:
        sizes = marks.sizes(bounds[part], bounds[part + 1])
        return {name: ArraySpec("I64", (size,)) for name, size in sizes.items()}

    files = PartFiles(job, range(job.num_partitions), lambda part: splits_path(part, node_type), specs)
    for part in range(job.num_partitions):
        for name in marks.names:
            for positions in marks.members(name, bounds[part], bounds[part + 1]):
                files.of(part).append(name, positions)
    files.close()
