"""Ids: of nodes, read from tables, collected, and turned into positions; of edges, checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Array, Int64Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.ids import Directory, TextIds
from gigl_loader.graph.schema import Column, EdgeType, NodeType, type_name
from gigl_loader.partition.assigners import Assigner, RangeAssigner
from gigl_loader.partition.exchange import FileExchange
from gigl_loader.partition.job import Job, Results, Stage
from gigl_loader.partition.readers import Table, numbered
from gigl_loader.partition.table import GraphTables, is_mask
from gigl_loader.partition.views import TableView
from gigl_loader.tensors import STORAGE_DTYPES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class NodeIds:
    """The ids of one node type."""

    count: int
    ascending: Int64Array | None
    """All ids, ascending. ``None`` where they are 0..count-1."""
    in_order: bool = True
    """The rows of the node table come by ascending id."""


NO_ID = (
    "no id: nothing, or a word for it, such as NULL: leave the rows out, as by SELECT * FROM ... WHERE ... "
    "IS NOT NULL, or --dtype NAME=text reads the words as ids"
)
_AS_TEXTS = "--dtype NAME=text reads ids as texts, in all columns that name these nodes"


def require_integers(table: Table, name: str) -> None:
    """Raise ``FormatError`` unless a column exists and holds one integer per row."""
    if name not in table.columns:
        known = ", ".join(map(repr, table.columns)) or "none"
        raise FormatError(f"{table.name}: no column {name!r}; columns: {known}")
    column = table.columns[name]
    if not isinstance(column, Column):
        raise FormatError(f"{table.name}, column {name!r}: holds {column}, not integers")
    if column.shape or STORAGE_DTYPES[column.dtype].kind not in "iu" or column.dtype == "BF16":
        _refuse_nan(table, name, column)
        shape = f" {list(column.shape)} a row" if column.shape else ""
        raise FormatError(f"{table.name}, column {name!r}: holds {column.dtype}{shape}, not integers")


def _refuse_nan(table: Table, name: str, column: Column) -> None:
    if column.shape or STORAGE_DTYPES[column.dtype].kind != "f":
        return
    for row, chunk in numbered(table, [name], 1 << 20):
        if (at := first_true(np.isnan(chunk[name]))) is not None:
            raise FormatError(f"{table.where(name, row + at)}: NaN, not an integer")


def as_ids(table: Table, name: str, values: Array, first_row: int) -> Int64Array:
    """Return integers as int64. ``FormatError`` naming the row where one is too large."""
    if values.dtype == np.uint64 and (row := first_true(values > np.iinfo(np.int64).max)) is not None:
        raise FormatError(
            f"{table.where(name, first_row + row)}: {values[row]} does not fit in int64: {_AS_TEXTS}"
        )
    return values.astype(np.int64, copy=False)


class UnknownIds(FormatError):
    """A table names a node that the table of its type does not have."""


class NumberedTable(TableView):
    """A table whose columns of texts read as node ids."""

    def __init__(
        self, table: Table, texts: Mapping[str, TextIds], types: Mapping[str, NodeType], *, known: bool = True
    ) -> None:
        """``texts`` gives the known texts by column, ``types`` the node types of those for messages.

        Unknown texts read as -1, or with ``known`` are ``UnknownIds``.
        """
        super().__init__(table)
        self._known = known
        self._texts = dict(texts)
        self._types = dict(types)
        self.columns = {**table.columns, **dict.fromkeys(texts, Column("I64"))}

    def _values(self, name: str, array: Array, first_row: int) -> Array:
        if name not in self._texts:
            return array
        numbers = self._texts[name].find(array.tolist())
        unknown = np.flatnonzero(numbers < 0)
        for at in unknown.tolist():
            if not array[at]:
                raise FormatError(f"{self.where(name, first_row + at)}: {NO_ID}")
            if self._known:
                what = f"unknown node id {array[at]!r} of type {self._types[name]!r}"
                raise UnknownIds(f"{self.where(name, first_row + at)}: {what}")
        return numbers


def find_all(
    directory: Directory,
    values: Array,
    *,
    node_type: NodeType,
    table: Table,
    name: str,
    first_row: int,
    known: bool = True,
) -> Int64Array:
    """Return the positions of node ids, -1 for unknown ones. With ``known``, these are ``UnknownIds``."""
    ids = as_ids(table, name, values, first_row)
    positions = directory.find(ids)
    if known and (row := first_true(positions < 0)) is not None:
        raise UnknownIds(
            f"{table.where(name, first_row + row)}: unknown node id {ids[row]} of type {node_type!r}"
        )
    return positions


def node_ids_of(job: Job, tables: GraphTables, node_type: NodeType) -> NodeIds:
    """Return the ids of a node type: from its table, its count, or the edges that mention it."""
    entry = tables.nodes.get(node_type)
    if entry is not None and entry.rows is not None and "id" in entry.rows.columns:
        return _from_column(job, entry.rows, node_type)
    if entry is not None and entry.rows is not None:
        return NodeIds(entry.rows.num_rows, None)
    if entry is not None and entry.count is not None:
        return NodeIds(entry.count, None)
    return named_ids(job, tables, node_type)


def _from_column(job: Job, table: Table, node_type: NodeType) -> NodeIds:
    require_integers(table, "id")
    count = table.num_rows
    job.budget.require(8 * count, f"checking the {count:,} ids of node type {node_type!r}")
    advance = job.track(f"nodes {node_type}: ids", count)
    ids = np.empty(count, dtype=np.int64)
    for row, chunk in numbered(table, ["id"], job.budget.chunk_rows(8)):
        values = as_ids(table, "id", chunk["id"], row)
        ids[row : row + len(values)] = values
        advance(len(values))
    in_order = bool((ids[1:] > ids[:-1]).all())
    if not in_order:
        job.budget.require(24 * count, f"sorting the {count:,} ids of node type {node_type!r}")
        ids = _sorted_unique(table, ids)
    if count == 0 or (ids[0] == 0 and ids[-1] == count - 1):
        return NodeIds(count, None, in_order)
    return NodeIds(count, ids, in_order)


def _sorted_unique(table: Table, ids: Int64Array) -> Int64Array:
    by_id = np.argsort(ids, kind="stable")
    ordered = ids[by_id]
    twins = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twins):
        row = int(by_id[twins + 1].min())
        raise FormatError(f"{table.where('id', row)}: node id {ids[row]} occurs a second time")
    return ordered


def named_ids(job: Job, tables: GraphTables, node_type: NodeType) -> NodeIds:
    """Return the ids of a type that edges name. Where unknown ids are added, splits count as well."""
    seen = _IdSet(job, node_type)
    for edge_type, table in tables.lists.items():
        names = [name for end, name in ((edge_type[0], "src"), (edge_type[2], "dst")) if end == node_type]
        for name in names:
            require_integers(table, name)
        if names:
            _collect(job, seen, table, names, f"ids/{type_name(node_type)}/{type_name(edge_type)}")
    splits = tables.nodes[node_type].splits if node_type in tables.nodes else {}
    for table in splits.values() if tables.unknown_ids == "add" else ():
        if not is_mask(table, "id"):
            for row, chunk in numbered(table, ["id"], job.budget.chunk_rows(8)):
                seen.add(as_ids(table, "id", chunk["id"], row))
    ids = seen.ascending()
    if len(ids) == 0 or (ids[0] == 0 and ids[-1] == len(ids) - 1):
        return NodeIds(len(ids), None)
    return NodeIds(len(ids), ids)


def _collect(job: Job, seen: _IdSet, table: Table, columns: Sequence[str], name: str) -> None:
    """Add the ids of some columns: read here if there is one shard, else left by tasks."""
    shards, step = job.runner.shards(table), f"nodes {seen.node_type}: ids in edges"
    if len(shards) == 1:
        for ids in _ids_in(shards[0], columns, job, job.track(step, table.num_rows)):
            seen.add(ids)
        return
    exchange = FileExchange(f"rows/{name}", {"id": (np.dtype(np.int64), ())}, len(shards))
    run = partial(
        _leave_distinct, exchange=exchange, node_type=seen.node_type, shards=shards, columns=columns
    )
    job.runner.run(job, Stage(name, step, table.num_rows, len(shards), run))
    # They stay until the build ends: one that is resumed reads them again.
    for chunk in exchange.spill(job, 0, 1).read(0, ["id"], job.budget.chunk_rows(16)):
        seen.add(chunk["id"])


def _leave_distinct(
    job: Job,
    task: int,
    *,
    exchange: FileExchange,
    node_type: NodeType,
    shards: Sequence[Table],
    columns: Sequence[str],
) -> Results:
    """Leave the distinct ids of a shard in the exchange."""
    seen, count = _IdSet(job, node_type), 0
    for ids in _ids_in(shards[task], columns, job, job.advance):
        seen.add(ids)
        count += len(ids)
    with exchange.writer(job, task) as writer:
        writer.append(0, {"id": seen.ascending()})
    return {"rows": count // len(columns)}


def _ids_in(
    table: Table, columns: Sequence[str], job: Job, advance: Callable[[int], None]
) -> Iterator[Int64Array]:
    """Yield the ids of a shard, checked."""
    for row, chunk in numbered(table, columns, job.budget.chunk_rows(16)):
        for name in columns:
            yield as_ids(table, name, chunk[name], row)
        advance(len(chunk[columns[0]]))


class _IdSet:
    """Distinct ids: one byte per possible id while they are small, else a sorted array."""

    def __init__(self, job: Job, node_type: NodeType) -> None:
        self._job = job
        self.node_type = node_type
        self._limit = job.budget.total // 8
        self._flags: npt.NDArray[np.bool_] | None = np.zeros(0, dtype=np.bool_)
        self._sorted = np.empty(0, dtype=np.int64)

    def add(self, ids: Int64Array) -> None:
        if len(ids) == 0:
            return
        if self._flags is not None and int(ids.min()) >= 0 and int(ids.max()) < self._limit:
            if int(ids.max()) >= len(self._flags):
                grown = np.zeros(min(2 * int(ids.max()) + 1, self._limit), dtype=np.bool_)
                grown[: len(self._flags)] = self._flags
                self._flags = grown
            self._flags[ids] = True
            return
        self._forget_flags()
        fresh = np.unique(ids)
        if len(self._sorted):
            at = np.minimum(np.searchsorted(self._sorted, fresh), len(self._sorted) - 1)
            fresh = fresh[self._sorted[at] != fresh]
        if len(fresh):
            count = len(self._sorted) + len(fresh)
            self._job.budget.require(24 * count, f"collecting the ids of node type {self.node_type!r}")
            self._sorted = np.union1d(self._sorted, fresh)

    def ascending(self) -> Int64Array:
        self._forget_flags()
        return self._sorted

    def _forget_flags(self) -> None:
        if self._flags is not None:
            self._sorted = np.flatnonzero(self._flags)
            self._flags = None


def assign(
    ids: NodeIds, node_type: NodeType, assigner: Assigner, num_partitions: int
) -> tuple[Directory, tuple[int, ...]]:
    """Return which id lies where, and the bounds of the partitions.

    Within a partition, nodes lie by ascending id, whatever the order of the table.
    """
    if num_partitions == 1 or isinstance(assigner, RangeAssigner):
        bounds = tuple(RangeAssigner.bounds(ids.count, num_partitions).tolist())
        return Directory(ids.count, ids.ascending), bounds
    every = np.arange(ids.count) if ids.ascending is None else ids.ascending
    parts = np.asarray(assigner.assign(node_type, every, num_partitions))
    if parts.shape != (ids.count,) or parts.dtype.kind not in "iu":
        raise ValueError(
            f"assigner {assigner.name!r} gave {parts.dtype} {list(parts.shape)} for {ids.count} nodes"
        )
    if ids.count and not 0 <= int(parts.min()) <= int(parts.max()) < num_partitions:
        raise ValueError(f"assigner {assigner.name!r} gave a partition outside 0..{num_partitions - 1}")
    bounds = (0, *np.cumsum(np.bincount(parts, minlength=num_partitions)).tolist())
    if bool((parts[1:] >= parts[:-1]).all()):
        return Directory(ids.count, ids.ascending), bounds
    small = parts.astype(np.uint16 if num_partitions <= 1 << 16 else np.int64)
    del parts, every
    order = np.argsort(small, kind="stable")
    dtype = np.dtype(np.int32 if ids.count < 2**31 else np.int64)
    places: npt.NDArray[Any] = np.empty(ids.count, dtype=dtype)
    places[order] = np.arange(ids.count, dtype=dtype)
    if ids.ascending is None:
        return Directory(ids.count, order, None, places), bounds
    return Directory(ids.count, ids.ascending[order], ids.ascending, places), bounds


def warn_of_repeated_edge_ids(job: Job, edge_type: EdgeType, table: Table, *, times: int = 1) -> None:
    """Log the first edge id that more than ``times`` rows of a table have.

    Ids that ascend are read once, with no memory. Others are sorted, in as many shares as fit in memory.
    """
    if "id" not in table.columns:
        return
    require_integers(table, "id")
    count = table.num_rows
    step, last = job.budget.chunk_rows(8), np.iinfo(np.int64).min
    for _, ids in _edge_ids(table, step):
        if len(ids) and not (ids[0] > last and bool((ids[1:] > ids[:-1]).all())):
            break
        last = int(ids[-1]) if len(ids) else last
    else:
        return
    shares = -(-8 * count // max(job.budget.total // 4, 1))
    advance = job.track(f"edges {','.join(edge_type)}: ids", shares * count)
    for share in range(shares):
        pieces = []
        for _, ids in _edge_ids(table, step):
            pieces.append(ids[ids % shares == share])
            advance(len(ids))
        found = np.concatenate(pieces)
        found.sort()
        twins = np.flatnonzero(found[times:] == found[: max(len(found) - times, 0)])
        if len(twins):
            _warn(table, int(found[twins[0]]), step, times)
            advance((shares - share - 1) * count)
            return


def _edge_ids(table: Table, step: int) -> Iterator[tuple[int, Int64Array]]:
    for row, chunk in numbered(table, ["id"], step):
        yield row, as_ids(table, "id", chunk["id"], row)


def _warn(table: Table, edge_id: int, step: int, times: int) -> None:
    rows = [row + int(at) for row, ids in _edge_ids(table, step) for at in np.flatnonzero(ids == edge_id)]
    logger.warning(
        "%s: edge id %d comes again, and others may: batches do not tell these edges apart by e_id",
        table.where("id", rows[times]),
        edge_id,
    )
