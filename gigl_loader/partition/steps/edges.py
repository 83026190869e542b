"""Writes the edges of one type: adjacency lists in canonical order, and their columns.

An external bucket sort in two stages: tasks that read a shard of the table each spread its edges over buckets
of target positions; then tasks that write a partition each sort its buckets in memory, one after the other.

A bucket that is too big (a hub may have more edges than memory) is spread over smaller ones by
quantiles of the first key that tells its edges apart: target, neighbour, edge id, row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.ids import Directory
from gigl_loader.graph.manifest import DocumentWriter, edges_path, topology_path
from gigl_loader.graph.schema import Column, EdgeSchema, EdgeSplits, EdgeType, NodeSchema, NodeType, type_name
from gigl_loader.native import build_adjacency
from gigl_loader.partition.exchange import (
    Exchange,
    Kind,
    Kinds,
    Spill,
    bucket_numbers,
    kind_of,
    row_bytes,
    scatter,
)
from gigl_loader.partition.job import Budget, Job
from gigl_loader.partition.readers import Table
from gigl_loader.partition.stage import StageInfo, first_rows, numbered
from gigl_loader.partition.steps.ids import as_ids, find_all, require_integers
from gigl_loader.partition.steps.nodes import bucket_cuts
from gigl_loader.partition.steps.weights import check_weights, index_weights
from gigl_loader.partition.table import EDGE_ROLES, data_columns
from gigl_loader.tensors import STORAGE_DTYPES, ArraySpec

_SAMPLE_ROWS = 1 << 14
_KEYS = ["target", "neighbor", "edge_id"]


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A bucket that fits in memory."""

    spill: Spill
    bucket: int
    neighbors: Directory

    def sort(self, low: int, degrees: Int64Array) -> Int64Array:
        """Return the canonical order of the edges, and add them to the degrees of targets from ``low``."""
        (rows,) = self.spill.read(self.bucket, _KEYS, self.spill.size(self.bucket))
        targets, neighbors, edge_ids = _keys(rows, self.neighbors)
        targets -= low
        indptr = np.empty(len(degrees) + 1, dtype=np.int64)
        order = np.empty(len(targets), dtype=np.int64)
        build_adjacency(targets, neighbors, edge_ids, indptr, order)
        degrees += np.diff(indptr)
        return order

    def take(self, name: str) -> Array:
        """Return one array of the edges, in the order they came, and forget it."""
        return self.spill.take(self.bucket, name)

    def drop(self) -> None:
        """Forget the edges."""
        self.spill.drop(self.bucket)


class EdgeSorter:
    """Cuts buckets into leaves, in the order of the sort."""

    def __init__(self, job: Job, kinds: Kinds, neighbors: Directory, leaf_rows: int) -> None:
        """``kinds`` are the arrays of an edge; ``neighbors`` gives the node ids to sort by."""
        self._job = job
        self._kinds = kinds
        self._neighbors = neighbors
        self._leaf_rows = leaf_rows

    def leaves(self, spill: Spill, bucket: int) -> Iterator[Leaf]:
        """Yield pieces of at most ``leaf_rows`` edges: all of one come before all of the next."""
        size = spill.size(bucket)
        if size > self._leaf_rows:
            finer, pieces = self._spread(spill, bucket)
            for piece in range(pieces):
                yield from self.leaves(finer, piece)
        elif size:
            yield Leaf(spill, bucket, self._neighbors)

    def _spread(self, spill: Spill, bucket: int) -> tuple[Spill, int]:
        key, splitters = self._splitters(spill, bucket)
        finer = self._job.spill(self._kinds, spill.size(bucket))
        step = self._job.budget.chunk_rows(sum(map(row_bytes, self._kinds.values())))
        row = 0
        for rows in spill.read(bucket, list(self._kinds), step):
            keys = (*_keys(rows, self._neighbors), np.arange(row, row + len(rows["target"])))
            scatter(finer, np.searchsorted(splitters, keys[key]).astype(np.uint32), rows)
            row += len(rows["target"])
        spill.drop(bucket)
        return finer, len(splitters) + 1

    def _splitters(self, spill: Spill, bucket: int) -> tuple[int, Int64Array]:
        """Choose the first key with two values, and values that cut it into about equal pieces."""
        pieces = max(-(-3 * spill.size(bucket) // (2 * self._leaf_rows)), 2)
        samples, low, high = self._sampled_keys(spill, bucket)
        key = int(np.flatnonzero(low < high)[0])
        sample = np.sort(samples[key])
        quantiles = sample[np.arange(1, pieces) * len(sample) // pieces]
        splitters = np.unique(quantiles[quantiles < high[key]])
        return key, splitters if len(splitters) else low[key : key + 1]

    def _sampled_keys(self, spill: Spill, bucket: int) -> tuple[list[Int64Array], Int64Array, Int64Array]:
        """Return a sample of each key, and their smallest and largest values."""
        stride = max(spill.size(bucket) // _SAMPLE_ROWS, 1)
        samples: list[list[Int64Array]] = [[], [], [], []]
        low = np.full(4, np.iinfo(np.int64).max)
        high = np.full(4, np.iinfo(np.int64).min)
        row = 0
        for rows in spill.read(bucket, _KEYS, self._job.budget.chunk_rows(24)):
            keys = (*_keys(rows, self._neighbors), np.arange(row, row + len(rows["target"])))
            for number, values in enumerate(keys):
                low[number] = min(low[number], values.min())
                high[number] = max(high[number], values.max())
                samples[number].append(values[::stride].copy())
            row += len(keys[0])
        return [np.concatenate(pieces) for pieces in samples], low, high


def _keys(rows: Mapping[str, Array], neighbors: Directory) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return fresh arrays of target, neighbour's node id (or its rank) and edge id."""
    ids = rows["neighbor"].astype(np.int64)
    if not neighbors.ascending:
        ids = neighbors.node_ids(ids)
    return rows["target"].astype(np.int64), ids, rows["edge_id"].astype(np.int64)


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
    data = _Edges(edge_type, table, target, neighbor, data_columns(table, EDGE_ROLES), tuple(sorted(weights)))
    schema = _write_edges(job, data)
    for name in schema.weights:
        index_weights(job, edge_type, name, schema)
    return replace(schema, splits=splits)


@dataclass(frozen=True, slots=True)
class _Edges:
    """The edges of one type, and what is made of them."""

    edge_type: EdgeType
    table: Table
    target: _End
    neighbor: _End
    columns: Mapping[str, Column]
    weights: tuple[str, ...]

    def __str__(self) -> str:
        return ",".join(self.edge_type)

    def kinds(self) -> Kinds:
        """Return the arrays of the edges while they wait to be sorted."""
        for name in ("src", "dst"):
            require_integers(self.table, name)
        row_ids = np.dtype(np.int32 if self.table.num_rows < 2**31 else np.int64)
        kinds: dict[str, Kind] = {
            "target": (self.target.dtype, ()),
            "neighbor": (self.neighbor.dtype, ()),
            "edge_id": (row_ids, ()),
        }
        if "id" in self.table.columns:
            require_integers(self.table, "id")
            kinds["edge_id"] = (np.dtype(np.int64), ())
        for name, column in self.columns.items():
            kinds[_COLUMN + name] = kind_of(column)
        return kinds


def _write_edges(job: Job, data: _Edges) -> EdgeSchema:
    count, kinds = data.table.num_rows, data.kinds()
    budget = job.runner.task_budget(job, count)
    cuts, parts = bucket_cuts(data.target.nodes.bounds, _bucket_width(data, kinds, budget))
    shards = job.runner.shards(data.table)
    # Rows of a table with ids are not counted: the number of held-out edges in a shard is unknown.
    starts = [0] * len(shards) if "id" in data.table.columns else first_rows(shards)
    name = f"edges/{type_name(data.edge_type)}"
    exchange = job.runner.exchange(job, name, kinds, rows=count, num_writers=len(shards))
    read = StageInfo(
        name=f"{name}/read", step=f"edges {data}: reading", num_rows=count, num_tasks=len(shards)
    )
    found = job.runner.run(job, _SpreadStage(read, data, shards, starts, kinds, cuts, exchange))
    rows = sum(each["rows"] for each in found)
    if rows != count:
        raise FormatError(f"{data.table.name}: {rows} rows, {count} before: it changed")
    buckets = np.sum([each["buckets"] for each in found], axis=0, dtype=np.int64)
    sizes = np.bincount(parts, buckets, job.num_partitions).astype(np.int64)
    largest_id = max(each["largest_id"] for each in found)
    write = StageInfo(
        name=f"{name}/write", step=f"edges {data}: sorting", num_rows=count, num_tasks=job.num_partitions
    )
    sort = _SortStage(write, data, kinds, cuts, parts, exchange, tuple(sizes.tolist()), largest_id)
    job.runner.run(job, sort)
    exchange.drop(job)
    return EdgeSchema(
        count=count,
        wide_indices=data.neighbor.dtype == np.int64,
        columns=data.columns,
        weights=data.weights,
    )


def _leaf_rows(budget: Budget, kinds: Kinds) -> int:
    return budget.edge_bucket_rows(max(map(row_bytes, kinds.values())))


def _bucket_width(data: _Edges, kinds: Kinds, budget: Budget) -> int:
    """Targets per bucket, so that edges spread evenly would fill 3/4 of a leaf."""
    count, leaf_rows = data.table.num_rows, _leaf_rows(budget, kinds)
    buckets = 1 if count <= leaf_rows else -(-4 * count // (3 * leaf_rows))
    by_degrees = max(budget.total // 256, 1)
    return max(min(-(-data.target.nodes.count // buckets), by_degrees), 1)


@dataclass(frozen=True, slots=True)
class _SpreadStage:
    """Reads edges and spreads them over buckets of targets, a shard of the table a task."""

    info: StageInfo
    data: _Edges
    shards: Sequence[Table]
    first_rows: Sequence[int]
    kinds: Kinds
    cuts: Int64Array
    exchange: Exchange

    def run(self, job: Job, task: int) -> dict[str, Any]:
        table = self.shards[task]
        names = [name for name in (*EDGE_ROLES, *self.data.columns) if name in table.columns]
        step = job.budget.chunk_rows(sum(map(row_bytes, self.kinds.values())))
        num_rows = largest_id = 0
        sizes = np.zeros(max(len(self.cuts), 1), np.int64)
        with self.exchange.writer(job, task) as writer:
            for row, chunk in numbered(table, names, step):
                rows = self._converted(chunk, task, row)
                ids, count = rows["edge_id"], len(rows["target"])
                if count:
                    largest_id = max(largest_id, int(ids.max()), -1 - int(ids.min()))
                buckets = bucket_numbers(self.cuts, rows["target"])
                sizes += count if buckets is None else np.bincount(buckets, minlength=len(sizes))
                scatter(writer, buckets, rows)
                num_rows += count
                job.advance(count)
        return {"rows": num_rows, "buckets": sizes.tolist(), "largest_id": largest_id}

    def _converted(self, chunk: Mapping[str, Array], task: int, row: int) -> dict[str, Array]:
        data, table = self.data, self.shards[task]
        ends = {end.column: end for end in (data.target, data.neighbor)}
        found = {column: self._positions(ends[column], chunk, table, row) for column in ("src", "dst")}
        rows = {"target": found[data.target.column], "neighbor": found[data.neighbor.column]}
        if "id" in chunk:
            rows["edge_id"] = as_ids(table, "id", chunk["id"], row)
        else:
            first = self.first_rows[task] + row
            rows["edge_id"] = np.arange(first, first + len(rows["target"]), dtype=self.kinds["edge_id"][0])
        for name in data.columns:
            rows[_COLUMN + name] = chunk[name]
        for name in data.weights:
            check_weights(chunk[name], data.columns[name], partial(_where, table, name, row))
        return rows

    def _positions(self, end: _End, chunk: Mapping[str, Array], table: Table, row: int) -> Array:
        positions = find_all(
            end.directory,
            chunk[end.column],
            node_type=end.node_type,
            table=table,
            name=end.column,
            first_row=row,
        )
        return positions.astype(end.dtype, copy=False)


def _where(table: Table, column: str, first_row: int, row: int) -> str:
    return table.where(column, first_row + row)


@dataclass(frozen=True, slots=True)
class _SortStage:
    """Sorts the edges of buckets and writes the lists, a partition a task."""

    info: StageInfo
    data: _Edges
    kinds: Kinds
    cuts: Int64Array
    parts: Int64Array
    exchange: Exchange
    sizes: tuple[int, ...]
    """Edges of each partition."""
    largest_id: int

    def run(self, job: Job, part: int) -> dict[str, Any]:
        lists = job.create(topology_path(part, self.data.edge_type), self._specs(part))
        attributes = None
        if columns := self.data.columns:
            specs = {name: column.spec(self.sizes[part]) for name, column in columns.items()}
            attributes = job.create(edges_path(part, self.data.edge_type), specs)
        self._write(job, part, lists, attributes)
        for writer in filter(None, (lists, attributes)):
            job.finish(writer)
        return {"rows": self.sizes[part]}

    def _specs(self, part: int) -> dict[str, ArraySpec]:
        bounds, rows = self.data.target.nodes.bounds, self.sizes[part]
        return {
            "indptr": ArraySpec("I64", (bounds[part + 1] - bounds[part] + 1,)),
            "indices": ArraySpec("I64" if self.data.neighbor.dtype == np.int64 else "I32", (rows,)),
            "edge_ids": ArraySpec("I32" if self.largest_id < 2**31 else "I64", (rows,)),
        }

    def _write(self, job: Job, part: int, lists: DocumentWriter, attributes: DocumentWriter | None) -> None:
        first, end = np.searchsorted(self.parts, [part, part + 1]).tolist()
        spill = self.exchange.spill(job, first, end)
        sorter = EdgeSorter(job, self.kinds, self.data.neighbor.directory, _leaf_rows(job.budget, self.kinds))
        edge = self.data.target.nodes.bounds[part + 1]
        lists.append("indptr", np.zeros(1, dtype=np.int64))
        written = 0
        for bucket in range(first, end):
            low = int(self.cuts[bucket])
            high = int(self.cuts[bucket + 1]) if bucket + 1 < end else edge
            degrees = np.zeros(high - low, dtype=np.int64)
            for leaf in sorter.leaves(spill, bucket):
                order = leaf.sort(low, degrees)
                self._write_leaf(job, leaf, order=order, lists=lists, attributes=attributes)
                job.advance(len(order))
            ends = np.cumsum(degrees, out=degrees)
            ends += written
            lists.append("indptr", ends)
            written = int(ends[-1])

    def _write_leaf(
        self,
        job: Job,
        leaf: Leaf,
        *,
        order: Int64Array,
        lists: DocumentWriter,
        attributes: DocumentWriter | None,
    ) -> None:
        places = [(lists, name, array) for name, array in _TOPOLOGY.items()]
        if attributes is not None:
            places += [(attributes, _COLUMN + name, name) for name in self.data.columns]
        for writer, name, array in places:
            rows = leaf.take(name)
            dtype = STORAGE_DTYPES[writer.specs[array].dtype]
            step = job.budget.copy_rows(row_bytes(self.kinds[name]))
            for start in range(0, len(order), step):
                writer.append(array, rows[order[start : start + step]].astype(dtype, copy=False))
            del rows
        leaf.drop()
