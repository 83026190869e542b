"""Writes the edges of one type: adjacency lists in canonical order, and their columns.

An external bucket sort in two stages: tasks that read a shard of the table each spread its edges over buckets
of target positions; then tasks that write a partition each sort its buckets in memory, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.ids import Directory
from gigl_loader.graph.manifest import edges_path, topology_path
from gigl_loader.graph.schema import Column, EdgeSchema, EdgeSplits, EdgeType, NodeSchema, NodeType, type_name
from gigl_loader.partition.exchange import (
    Exchange,
    Kind,
    Kinds,
    bucket_numbers,
    kind_of,
    row_bytes,
    scatter,
)
from gigl_loader.partition.job import Budget, Job, Stage
from gigl_loader.partition.readers import Table, first_rows, numbered
from gigl_loader.partition.roles import relation_column
from gigl_loader.partition.steps.edge_sorter import DistinctPairs, EdgeSorter, Leaf
from gigl_loader.partition.steps.ids import as_ids, find_all, require_integers
from gigl_loader.partition.steps.index import check_weights, index_weights
from gigl_loader.partition.steps.nodes import bucket_cuts
from gigl_loader.partition.table import data_columns, edge_roles, of_relation
from gigl_loader.splits import edges_by_split
from gigl_loader.tensors import STORAGE_DTYPES, ArraySpec

_COLUMN = "column:"
_RELATION = "relation"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDrops:
    """Edges that are left out."""

    unknown: bool = False
    """Those with an end that is no node."""
    self_loops: bool = False
    duplicates: bool = False

    @property
    def any(self) -> bool:
        return self.unknown or self.self_loops or self.duplicates


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEdges:
    """An edge type whose files are written."""

    schema: EdgeSchema
    split_counts: Mapping[str, int] | None
    """Edges in each split, if they were counted."""


def build_edges(
    job: Job,
    edge_type: EdgeType,
    table: Table,
    nodes: Mapping[NodeType, NodeSchema],
    directories: Mapping[NodeType, Directory],
    *,
    weights: Sequence[str] = (),
    splits: EdgeSplits | None = None,
    relations: Sequence[str] | None = None,
    drops: EdgeDrops = EdgeDrops(),
    outward: bool = False,
) -> dict[EdgeType, BuiltEdges]:
    """Write all files of an edge type, or of all types of a relation column; return their schemas.

    ``weights`` are columns to index. ``relations`` are the texts of the relation column. With them or with
    ``drops``, edges are counted by ``splits`` as they are written: the table has another number of them.
    ``outward`` lists edges by source, whatever the graph's ``edge_dir`` is.
    """
    src = _End("src", edge_type[0], nodes[edge_type[0]], directories[edge_type[0]])
    dst = _End("dst", edge_type[2], nodes[edge_type[2]], directories[edge_type[2]])
    target, neighbor = (dst, src) if job.edge_dir == "in" and not outward else (src, dst)
    data = _Edges(
        edge_type,
        table,
        target,
        neighbor,
        data_columns(table, edge_roles(edge_type)),
        tuple(sorted(weights)),
        None if relations is None else tuple(relations),
        drops,
        splits if drops.any or relations is not None else None,
    )
    found = _write_edges(job, data)
    for each, built in found.items():
        for name in built.schema.weights:
            index_weights(job, each, name, built.schema)
    return found


@dataclass(frozen=True, slots=True)
class _Edges:
    """The edges of one table, and what is made of them."""

    edge_type: EdgeType
    table: Table
    target: _End
    neighbor: _End
    columns: Mapping[str, Column]
    weights: tuple[str, ...]
    relations: tuple[str, ...] | None
    """Texts of the relation column, ascending. Each makes a type."""
    drops: EdgeDrops
    splits: EdgeSplits | None
    """Splits by which edges are counted as they are written."""

    def __str__(self) -> str:
        return ",".join(self.edge_type)

    @property
    def types(self) -> list[EdgeType]:
        if self.relations is None:
            return [self.edge_type]
        return [of_relation(self.edge_type, text) for text in self.relations]

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


def _write_edges(job: Job, data: _Edges) -> dict[EdgeType, BuiltEdges]:
    count, kinds = data.table.num_rows, data.kinds()
    budget = job.runner.task_budget(job, count)
    cuts, parts = bucket_cuts(data.target.nodes.bounds, _bucket_width(data, kinds, budget))
    shards = job.runner.shards(data.table)
    # Rows of a table with ids are not counted: the number of held-out edges in a shard is unknown.
    starts = [0] * len(shards) if "id" in data.table.columns else first_rows(shards)
    name = f"edges/{type_name(data.edge_type)}"
    exchange = job.runner.exchange(job, name, kinds, rows=count, num_writers=len(shards))
    spread = _Spread(data, shards, starts, kinds, cuts, exchange)
    stage = Stage(f"{name}/read", f"edges {data}: reading", count, len(shards), spread.run)
    found = job.runner.run(job, stage)
    rows = sum(each["rows"] for each in found)
    if rows != count:
        raise FormatError(f"{data.table.name}: {rows} rows, {count} before: it changed")
    for what in ("unknown ids", "self-loops"):
        job.runner.count_left_out(f"edges {data}", what, sum(each[what] for each in found))
    buckets = np.array([each["buckets"] for each in found], np.int64).sum(axis=0)
    largest_id = max(each["largest_id"] for each in found)
    built = {}
    for number, edge_type in enumerate(data.types):
        first = number * max(len(cuts), 1)
        of_type = buckets[first : first + max(len(cuts), 1)]
        sizes = np.bincount(parts, of_type[: len(parts)], job.num_partitions).astype(np.int64)
        sort = _Sort(edge_type, data, kinds, cuts, parts, exchange, first, tuple(sizes.tolist()), largest_id)
        built[edge_type] = _sorted_edges(job, sort)
    exchange.drop(job)
    return built


def _sorted_edges(job: Job, sort: _Sort) -> BuiltEdges:
    data, name = sort.data, f"edges/{type_name(sort.edge_type)}/write"
    step = f"edges {','.join(sort.edge_type)}: sorting"
    found = job.runner.run(job, Stage(name, step, sum(sort.sizes), job.num_partitions, sort.run))
    count = sum(each["edges"] for each in found)
    job.runner.count_left_out(f"edges {data}", "duplicates", sum(sort.sizes) - count)
    schema = EdgeSchema(
        count=count,
        wide_indices=data.neighbor.dtype == np.int64,
        columns=data.columns,
        weights=data.weights,
    )
    if data.splits is None:
        return BuiltEdges(schema=schema, split_counts=None)
    counts = {name: sum(each["splits"][name] for each in found) for name in data.splits.fractions}
    return BuiltEdges(schema=schema, split_counts=counts)


def _leaf_rows(budget: Budget, kinds: Kinds) -> int:
    return budget.edge_bucket_rows(max(map(row_bytes, kinds.values())))


def _bucket_width(data: _Edges, kinds: Kinds, budget: Budget) -> int:
    """Targets per bucket, so that edges spread evenly would fill 3/4 of a leaf."""
    count, leaf_rows = data.table.num_rows, _leaf_rows(budget, kinds)
    buckets = 1 if count <= leaf_rows else -(-4 * count // (3 * leaf_rows))
    by_degrees = max(budget.total // 256, 1)
    return max(min(-(-data.target.nodes.count // buckets), by_degrees), 1)


@dataclass(frozen=True, slots=True)
class _Spread:
    """Reads edges and spreads them over buckets of targets, a shard of the table a task.

    Each relation of a table has as many buckets, one relation after the other.
    """

    data: _Edges
    shards: Sequence[Table]
    first_rows: Sequence[int]
    kinds: Kinds
    cuts: Int64Array
    exchange: Exchange

    def run(self, job: Job, task: int) -> dict[str, Any]:
        table, data = self.shards[task], self.data
        wanted = (*edge_roles(data.edge_type), *data.columns)
        step = job.budget.chunk_rows(sum(map(row_bytes, self.kinds.values())))
        num_rows = largest_id = 0
        left_out = {"unknown ids": 0, "self-loops": 0}
        of_relation = max(len(self.cuts), 1)
        sizes = np.zeros(of_relation * (1 if data.relations is None else len(data.relations)), np.int64)
        with self.exchange.writer(job, task) as writer:
            for row, chunk in numbered(table, [name for name in wanted if name in table.columns], step):
                size = len(chunk["src"])
                rows = self._kept(self._converted(chunk, task, row), left_out)
                ids, count = rows["edge_id"], len(rows["target"])
                if count:
                    largest_id = max(largest_id, int(ids.max()), -1 - int(ids.min()))
                buckets = bucket_numbers(self.cuts, rows["target"])
                if data.relations is not None:
                    of_type = rows.pop(_RELATION) * np.uint32(of_relation)
                    buckets = of_type if buckets is None else of_type + buckets
                if buckets is None:
                    sizes[0] += count
                else:
                    sizes += np.bincount(buckets, minlength=len(sizes))
                scatter(writer, buckets, rows)
                num_rows += size
                job.advance(size)
        return {"rows": num_rows, "buckets": sizes.tolist(), "largest_id": largest_id, **left_out}

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
            check_weights(chunk[name], data.columns[name], name, row, table.where)
        if data.relations is not None:
            column = relation_column(data.edge_type)
            assert column is not None
            numbers = {text: number for number, text in enumerate(data.relations)}
            rows[_RELATION] = np.array([numbers[text] for text in chunk[column].tolist()], np.uint32)
        return rows

    def _kept(self, rows: dict[str, Array], left_out: dict[str, int]) -> dict[str, Array]:
        """Return the edges that are not left out, and count those that are."""
        drops, src, dst = self.data.drops, rows["target"], rows["neighbor"]
        unknown = (src < 0) | (dst < 0) if drops.unknown else np.zeros(len(src), np.bool_)
        loops = (src == dst) & ~unknown if drops.self_loops else np.zeros(len(src), np.bool_)
        left_out["unknown ids"] += int(np.count_nonzero(unknown))
        left_out["self-loops"] += int(np.count_nonzero(loops))
        kept = ~(unknown | loops)
        return rows if kept.all() else {name: array[kept] for name, array in rows.items()}

    def _positions(self, end: _End, chunk: Mapping[str, Array], table: Table, row: int) -> Array:
        positions = find_all(
            end.directory,
            chunk[end.column],
            node_type=end.node_type,
            table=table,
            name=end.column,
            first_row=row,
            known=not self.data.drops.unknown,
        )
        return positions.astype(end.dtype, copy=False)


@dataclass(frozen=True, slots=True)
class _Sort:
    """Sorts the edges of buckets and writes the lists of one type, a partition a task."""

    edge_type: EdgeType
    data: _Edges
    kinds: Kinds
    cuts: Int64Array
    parts: Int64Array
    exchange: Exchange
    first_bucket: int
    sizes: tuple[int, ...]
    """Edges of each partition, with those that turn out to be duplicates."""
    largest_id: int

    def run(self, job: Job, part: int) -> dict[str, Any]:
        counts = dict.fromkeys(self.data.splits.fractions if self.data.splits is not None else (), 0)
        size = self.sizes[part]
        if self.data.drops.duplicates:
            # The header of a file has the number of edges, which is known at last.
            waiting = _WaitingArrays(job, self._specs(part, size), size)
            size = self._write(job, part, waiting.append, counts)
            files = _ListFiles(job, part, self.edge_type, self._specs(part, size))
            waiting.move(files.append)
        else:
            files = _ListFiles(job, part, self.edge_type, self._specs(part, size))
            self._write(job, part, files.append, counts)
        files.close()
        return {"rows": self.sizes[part], "edges": size, "splits": counts}

    def _specs(self, part: int, rows: int) -> dict[str, ArraySpec]:
        bounds = self.data.target.nodes.bounds
        return {
            "indptr": ArraySpec("I64", (bounds[part + 1] - bounds[part] + 1,)),
            "indices": ArraySpec("I64" if self.data.neighbor.dtype == np.int64 else "I32", (rows,)),
            "edge_ids": ArraySpec("I32" if self.largest_id < 2**31 else "I64", (rows,)),
            **{_COLUMN + name: column.spec(rows) for name, column in self.data.columns.items()},
        }

    def _write(
        self, job: Job, part: int, append: Callable[[str, Array], None], counts: dict[str, int]
    ) -> int:
        """Write all arrays of a partition; return the number of edges, and add them to those of splits."""
        first, end = np.searchsorted(self.parts, [part, part + 1]).tolist()
        spill = self.exchange.spill(job, self.first_bucket + first, self.first_bucket + end)
        sorter = EdgeSorter(job, self.kinds, self.data.neighbor.directory, _leaf_rows(job.budget, self.kinds))
        edge = self.data.target.nodes.bounds[part + 1]
        append("indptr", np.zeros(1, dtype=np.int64))
        written = 0
        for bucket in range(first, end):
            low = int(self.cuts[bucket])
            high = int(self.cuts[bucket + 1]) if bucket + 1 < end else edge
            degrees = np.zeros(high - low, dtype=np.int64)
            pairs = DistinctPairs() if self.data.drops.duplicates else None
            for leaf in sorter.leaves(spill, self.first_bucket + bucket):
                size = leaf.spill.size(leaf.bucket)
                order = leaf.sort(low, degrees, pairs)
                self._count(leaf, order, counts)
                self._write_leaf(job, leaf, part, order=order, append=append)
                job.advance(size)
            ends = np.cumsum(degrees, out=degrees)
            ends += written
            append("indptr", ends)
            written = int(ends[-1])
        return written

    def _count(self, leaf: Leaf, order: Int64Array, counts: dict[str, int]) -> None:
        """Add the edges of a leaf to the sizes of their splits."""
        if self.data.splits is None:
            return
        names = {"target": self.data.target, "neighbor": self.data.neighbor}
        (rows,) = leaf.spill.read(leaf.bucket, list(names), leaf.spill.size(leaf.bucket))
        ends = {
            end.column: end.directory.node_ids(rows[name][order].astype(np.int64))
            for name, end in names.items()
        }
        for name, which in edges_by_split(self.data.splits, ends["src"], ends["dst"]).items():
            counts[name] += int(np.count_nonzero(which))

    def _write_leaf(
        self, job: Job, leaf: Leaf, part: int, *, order: Int64Array, append: Callable[[str, Array], None]
    ) -> None:
        specs = self._specs(part, 0)
        for name in (*_TOPOLOGY, *(_COLUMN + name for name in self.data.columns)):
            rows, array = leaf.take(name), _TOPOLOGY.get(name, name)
            dtype = STORAGE_DTYPES[specs[array].dtype]
            step = job.budget.copy_rows(row_bytes(self.kinds[name]))
            for start in range(0, len(order), step):
                append(array, rows[order[start : start + step]].astype(dtype, copy=False))
            del rows
        leaf.drop()


class _ListFiles:
    """Writer of the files of one edge type in one partition: lists, and columns where there are any."""

    def __init__(self, job: Job, part: int, edge_type: EdgeType, specs: Mapping[str, ArraySpec]) -> None:
        self._job = job
        columns = {name[len(_COLUMN) :]: spec for name, spec in specs.items() if name.startswith(_COLUMN)}
        lists = {name: spec for name, spec in specs.items() if not name.startswith(_COLUMN)}
        self._lists = job.create(topology_path(part, edge_type), lists)
        self._columns = job.create(edges_path(part, edge_type), columns) if columns else None

    def append(self, name: str, rows: Array) -> None:
        """Write the next rows of an array."""
        if self._columns is not None and name.startswith(_COLUMN):
            self._columns.append(name[len(_COLUMN) :], rows)
        else:
            self._lists.append(name, rows)

    def close(self) -> None:
        for writer in filter(None, (self._lists, self._columns)):
            self._job.finish(writer)


class _WaitingArrays:
    """Arrays whose length is not known yet, in memory or on disk."""

    def __init__(self, job: Job, specs: Mapping[str, ArraySpec], rows: int) -> None:
        self._kinds = {name: (STORAGE_DTYPES[spec.dtype], spec.shape[1:]) for name, spec in specs.items()}
        self._spill = job.spill(self._kinds, rows)
        self._step = job.budget.copy_rows(max(map(row_bytes, self._kinds.values())))

    def append(self, name: str, rows: Array) -> None:
        self._spill.append(list(self._kinds).index(name), {name: rows})

    def move(self, append: Callable[[str, Array], None]) -> None:
        """Give all rows away."""
        for number, name in enumerate(self._kinds):
            for rows in self._spill.read(number, [name], self._step):
                append(name, rows[name])
            self._spill.drop(number)
