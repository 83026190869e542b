"""Splits: named ones of nodes, and those of edges by hash, which may be held out of the adjacency lists."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gigl_loader.arrays import Array, BoolArray, Int64Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.ids import Directory
from gigl_loader.graph.schema import Column, EdgeSplits, NodeType, held_out_list, type_name
from gigl_loader.partition.job import Job, run_on_shards
from gigl_loader.partition.readers import Table, first_rows, numbered, shards_of
from gigl_loader.partition.reversed_edges import with_equal_splits
from gigl_loader.partition.steps.ids import as_ids, find_all, require_integers
from gigl_loader.partition.table import SPLIT_MASKS, GraphTables, NodeTable, edge_roles, is_mask
from gigl_loader.partition.views import ChosenRows, ProjectedTable, Projection, TableView
from gigl_loader.splits import edges_by_split, hash_splits

_NUMBERED = ("train", "val", "test")
_MAX_SPLITS = 8
_ROWS = 1 << 20


class SplitMarks:
    """One bit per node and split: a byte per node, where there are splits at all."""

    def __init__(self, count: int) -> None:
        self.names: list[str] = []
        self._count = count
        self._bits = np.zeros(0, dtype=np.uint8)

    def mark(self, name: str, positions: Int64Array, what: str) -> None:
        """Add nodes to a split. ``what`` names the source, for the message about too many splits."""
        if name not in self.names:
            if len(self.names) == _MAX_SPLITS:
                raise FormatError(f"{what}: split {name!r} is the ninth; at most {_MAX_SPLITS} are possible")
            self.names.append(name)
        if len(self._bits) != self._count:
            self._bits = np.zeros(self._count, dtype=np.uint8)
        self._bits[positions] |= np.uint8(1 << self.names.index(name))

    def members(self, name: str, low: int, high: int) -> Iterator[Int64Array]:
        """Yield the positions of a split in ``[low, high)``, ascending, in pieces."""
        bit = np.uint8(1 << self.names.index(name))
        for start in range(low, high, _ROWS):
            yield np.flatnonzero(self._bits[start : min(start + _ROWS, high)] & bit) + start

    def sizes(self, low: int = 0, high: int | None = None) -> dict[str, int]:
        """Return the number of nodes of each split in ``[low, high)``."""
        high = self._count if high is None else high
        return {name: sum(map(len, self.members(name, low, high))) for name in sorted(self.names)}


def mark_splits(
    job: Job, node_type: NodeType, entry: NodeTable, directory: Directory, *, known: bool
) -> SplitMarks:
    """Collect the splits of a node type from its table and its lists of ids.

    ``UnknownIds`` for an unknown id, if all are to be ``known``; else it is left out.
    """
    marks = SplitMarks(directory.count)
    if entry.rows is not None:
        masks = {name: split for name, split in SPLIT_MASKS.items() if is_mask(entry.rows, name)}
        if masks or "split" in entry.rows.columns:
            _mark_rows(job, node_type, entry.rows, masks=masks, directory=directory, marks=marks)
    for split, table in entry.splits.items():
        if is_mask(table, "id"):
            _check_mask(table, directory, entry.added)
        else:
            require_integers(table, "id")
        marks.mark(split, np.empty(0, dtype=np.int64), table.name)
        for row, chunk in numbered(table, ["id"], job.budget.chunk_rows(8)):
            given = chunk["id"]
            ids = row + np.flatnonzero(given) if given.dtype == np.bool_ else given
            positions = find_all(
                directory, ids, node_type=node_type, table=table, name="id", first_row=row, known=known
            )
            found = positions[positions >= 0]
            job.runner.count_left_out(f"nodes {node_type}", "unknown ids", len(positions) - len(found))
            marks.mark(split, found, table.name)
    if entry.fractions:
        _mark_by_hash(node_type, entry.fractions, directory, marks)
    return marks


def _mark_by_hash(
    node_type: NodeType, fractions: Mapping[str, float], directory: Directory, marks: SplitMarks
) -> None:
    for start in range(0, max(directory.count, 1), _ROWS):
        positions = np.arange(start, min(start + _ROWS, directory.count))
        ids = directory.node_ids(positions)
        for name, which in hash_splits(ids, None, fractions, seed=0).items():
            marks.mark(name, positions[which], f"splits of {node_type}")


def _check_mask(table: Table, directory: Directory, added: int) -> None:
    """Raise ``FormatError`` unless a table has one boolean for each of the node ids ``0 .. N - 1``.

    Nodes that were ``added`` to those of the tables may have any ids.
    """
    if directory.kind == "sparse" and not added:
        raise FormatError(f"{table.name}: a mask needs node ids 0 .. N - 1, and these have gaps: give ids")
    if table.num_rows != directory.count - added:
        raise FormatError(
            f"{table.name}: a mask of {table.num_rows} rows for {directory.count - added} nodes"
        )


def _mark_rows(
    job: Job,
    node_type: NodeType,
    table: Table,
    *,
    masks: dict[str, str],
    directory: Directory,
    marks: SplitMarks,
) -> None:
    names = [name for name in ("id", "split") if name in table.columns] + list(masks)
    advance = job.track(f"nodes {node_type}: splits", table.num_rows)
    for row, chunk in numbered(table, names, job.budget.chunk_rows(64)):
        size = len(chunk[names[0]])
        ids = chunk.get("id", np.arange(row, row + size))
        positions = find_all(directory, ids, node_type=node_type, table=table, name="id", first_row=row)
        for mask, split in masks.items():
            marks.mark(split, positions[chunk[mask]], table.name)
        if "split" in chunk:
            _mark_values(table, chunk["split"], positions, row, marks)
        advance(size)


def _mark_values(table: Table, values: Array, positions: Int64Array, row: int, marks: SplitMarks) -> None:
    if values.dtype.kind in "iu":
        if (at := first_true((values < -1) | (values >= len(_NUMBERED)))) is not None:
            place = table.where("split", row + at)
            raise FormatError(f"{place}: {values[at]}, not -1 (none), 0 (train), 1 (val) or 2 (test)")
        for number, split in enumerate(_NUMBERED):
            if (members := positions[values == number]).size:
                marks.mark(split, members, table.name)
    elif values.dtype.kind in "UO":
        for value in np.unique(values):
            if value:
                marks.mark(str(value), positions[values == value], table.name)
    else:
        raise FormatError(f"{table.name}, column 'split': holds {values.dtype}, not names or numbers")


_EDGE_ROWS = 1 << 16


def hold_out_edges(job: Job, given: GraphTables) -> GraphTables:
    """Return the tables with the sizes of splits, and with the edges that are held out apart.

    Edges of splits that ``message_edges`` does not name are held out. Hidden lists have them, with their ids
    in the whole table. A type and its reverses have the same splits.
    """
    given = with_equal_splits(given)
    edges, splits, labels = dict(given.edges), dict(given.splits), dict(given.labels)
    for edge_type, rule in given.splits.items():
        table = given.edges[edge_type]
        held = set() if given.message_edges is None else set(rule.fractions) - set(given.message_edges)
        for name in ("src", "dst"):
            require_integers(table, name)
        step = f"edges {','.join(edge_type)}: splitting"
        found = run_on_shards(job, table, f"splits/{type_name(edge_type)}", step, partial(_count, rule))
        counts = {name: sum(each["counts"][name] for each in found) for name in rule.fractions}
        splits[edge_type] = replace(rule, counts=counts)
        num_held = sum(counts[name] for name in held)
        if held:
            edges[edge_type] = FilteredTable(
                table, rule, held, num_rows=table.num_rows - num_held, keeps=True
            )
            out = FilteredTable(table, rule, held, num_rows=num_held, keeps=False)
            pairs = {name: Projection((name,)) for name in edge_roles(edge_type)}
            labels[held_out_list(edge_type)] = ProjectedTable(out, pairs)
    return replace(given, edges=edges, splits=splits, labels=labels, message_edges=None)


class FilteredTable(ChosenRows):
    """The edges of a table that are held out, or those that are kept, with their ids in the whole table."""

    tested = ("src", "dst")

    def __init__(
        self, table: Table, rule: EdgeSplits, held: Collection[str], *, num_rows: int, keeps: bool
    ) -> None:
        """``held`` are the splits of edges that are held out. Those that are not are here if it ``keeps``."""
        super().__init__(table)
        self._rule, self._held, self._keeps = rule, held, keeps
        self._first_row = 0
        self._num_rows = num_rows
        self.columns = {"id": Column("I64"), **table.columns}

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def shards(self, rows: int) -> list[TableView]:
        """Return shards. Their ``num_rows`` are bounds: which rows they keep is known when they are read."""
        found = shards_of(self._table, rows)
        return [self._shard(shard, row) for shard, row in zip(found, first_rows(found), strict=False)]

    def _shard(self, table: Table, first_row: int) -> FilteredTable:
        shard = FilteredTable(table, self._rule, self._held, num_rows=table.num_rows, keeps=self._keeps)
        shard._first_row = self._first_row + first_row
        return shard

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        stored = [name for name in names if name in self._table.columns]
        for row, places, chunk in self._chosen(stored, rows):
            chosen = {name: chunk[name][places] for name in stored}
            yield {name: chosen[name] if name in chosen else self._first_row + row + places for name in names}

    def _is_chosen(self, chunk: Mapping[str, Array], first_row: int) -> BoolArray:
        found = np.full(len(chunk["src"]), self._keeps)
        for name, which in _by_split(self._rule, self._table, chunk, first_row).items():
            if name in self._held:
                found[which] = not self._keeps
        return found


def _count(rule: EdgeSplits, job: Job, shard: Table) -> dict[str, Any]:
    """Count the edges of a shard in each split."""
    counts = dict.fromkeys(rule.fractions, 0)
    for row, chunk in numbered(shard, ["src", "dst"], _EDGE_ROWS):
        for name, which in _by_split(rule, shard, chunk, row).items():
            counts[name] += int(np.count_nonzero(which))
        job.advance(len(chunk["src"]))
    return {"counts": counts, "rows": shard.num_rows}


def _by_split(
    rule: EdgeSplits, table: Table, chunk: Mapping[str, Array], first_row: int
) -> dict[str, BoolArray]:
    src, dst = (as_ids(table, name, chunk[name], first_row) for name in ("src", "dst"))
    return edges_by_split(rule, src, dst)
