"""Ids that no node table has: which they are, and nodes that are added for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.graph.ids import Directory, TextIds
from gigl_loader.graph.schema import Column, NodeType
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.job import Job
from gigl_loader.partition.missing_values import missing_label
from gigl_loader.partition.readers import TEXT, Kind, Table, cut, first_rows, numbered, shards_of
from gigl_loader.partition.refusals import OptionsNeeded, quoted
from gigl_loader.partition.steps.ids import named_ids, node_ids_of
from gigl_loader.partition.steps.text_ids import IdColumn, id_columns
from gigl_loader.partition.table import SPLIT_MASKS, GraphTables, NodeTable, is_mask, option_for
from gigl_loader.partition.views import TableView, blank_of, chain, reader_of
from gigl_loader.tensors import STORAGE_DTYPES

_SHOWN = 10
_ROWS = 1 << 16


def directories_of(job: Job, tables: GraphTables) -> dict[NodeType, Directory]:
    """Return the nodes of the types that have a table, or a number of nodes."""
    found = {}
    for node_type, entry in tables.nodes.items():
        if entry.rows is not None or entry.count is not None:
            ids = node_ids_of(job, tables, node_type)
            found[node_type] = Directory(ids.count, ids.ascending)
    return found


@dataclass(frozen=True, slots=True)
class UnknownColumn:
    """A column with unknown ids."""

    line: str
    """The first place, the number of rows, ten of the ids."""
    table: Table
    node_type: NodeType
    num_rows: int


def unknown_ids(
    given: GraphTables, texts: Mapping[NodeType, TextIds], directories: Mapping[NodeType, Directory]
) -> list[UnknownColumn]:
    """Return each column with unknown ids. ``given`` are the tables before texts were numbered by ``texts``.

    All ids are read.
    """
    found: dict[str, UnknownColumn] = {}
    for node_type, directory in directories.items():
        for column in id_columns(given, node_type) if node_type in given.nodes else ():
            if column.table is not given.nodes[node_type].rows and not column.is_mask:
                each = _unknown_in(column, node_type, texts.get(node_type), directory)
                found |= {} if each is None else {each.line: each}
    return list(found.values())


def unknown_refused(given: GraphTables, found: Sequence[UnknownColumn]) -> OptionsNeeded:
    """Return the refusal of unknown ids.

    It proposes to leave out their rows where ids come from a table and most rows of each table remain. Other
    ids are likely to mean something else than the nodes that are there.
    """
    lines = [each.line for each in found]
    lost: Counter[int] = Counter()  # By table, of which both ends may name unknown nodes.
    for each in found:
        lost[id(each.table)] += each.num_rows
    most = dict.fromkeys(
        each.table.name
        for each in found
        if 2 * lost[id(each.table)] > each.table.num_rows
        and not isinstance(reader_of(each.table), ArrayTable)
    )
    entries = {each.node_type: given.nodes[each.node_type] for each in found}
    counted = {
        key: each for key, each in entries.items() if each.rows is None or "id" not in each.rows.columns
    }
    for node_type, entry in counted.items():
        if entry.rows is None:
            lines.append(f"nodes of type {node_type!r} are 0 to {(entry.count or 0) - 1}")
        elif not isinstance(reader_of(entry.rows), ArrayTable):  # Whoever passes arrays has numbered nodes.
            rows = f"0 to {entry.rows.num_rows - 1}, the rows of {entry.rows.name}, which has no column 'id'"
            lines.append(f"nodes of type {node_type!r} are {rows}")
    lines += [f"most rows of {name} name unknown nodes: are these other ids?" for name in most]
    return OptionsNeeded(lines, [] if counted or most else ["--unknown-ids", "drop"])


def _unknown_in(
    column: IdColumn, node_type: NodeType, texts: TextIds | None, directory: Directory
) -> UnknownColumn | None:
    count, place = 0, ""
    shown: dict[str | int, None] = {}
    for row, chunk in numbered(column.table, [column.name], _ROWS):
        values = chunk[column.name]
        numbers = values.astype(np.int64, copy=False) if texts is None else texts.find(values.tolist())
        unknown = np.flatnonzero(directory.find(numbers) < 0)
        if len(unknown) and not count:
            place = column.table.where(column.name, row + int(unknown[0]))
        count += len(unknown)
        if len(shown) <= _SHOWN:
            shown |= dict.fromkeys(values[unknown].tolist())
    if not count:
        return None
    first, *rest = map(repr, shown)
    listed = ", ".join(rest[: _SHOWN - 1]) + (", ..." if len(shown) > _SHOWN else "")
    more = f" and in {count - 1:,} more rows" + (f": {listed}" if rest else "") if count > 1 else ""
    line = f"{place}: unknown node id {first} of type {node_type!r}{more}"
    return UnknownColumn(line, column.table, node_type, count)


def add_unknown_nodes(job: Job, tables: GraphTables, known: Mapping[NodeType, Directory]) -> GraphTables:
    """Return the tables with a node for each id that only edges, labels or splits name.

    ``known`` are the nodes that there are. Others come after them, by ascending id, with the fills of the
    columns. ``OptionsNeeded`` lists the columns without one.
    """
    nodes = dict(tables.nodes)
    for node_type, directory in known.items():
        named = named_ids(job, tables, node_type)
        ids = np.arange(named.count) if named.ascending is None else named.ascending
        added = ids[directory.find(ids) < 0]
        if len(added):
            job.budget.require(16 * (directory.count + len(added)), f"adding nodes of type {node_type!r}")
            nodes[node_type] = _with_added(tables, node_type, nodes[node_type], added)
    return replace(tables, nodes=nodes, unknown_ids="error")


def _with_added(tables: GraphTables, node_type: NodeType, entry: NodeTable, added: Int64Array) -> NodeTable:
    if entry.rows is None:
        assert entry.count is not None
        ids = np.concatenate([np.arange(entry.count), added])
        return replace(
            entry, rows=ArrayTable(f"nodes of {node_type}", {"id": ids}), count=None, added=len(added)
        )
    blanks = {name: _blank(entry.rows, name) for name in entry.rows.columns if name != "id"}
    if bare := [name for name, blank in blanks.items() if blank is None]:
        what = f"{len(added):,} nodes are added, which have no value of {', '.join(map(repr, bare))}"
        values = {"y": missing_label(entry.rows.columns["y"]) or "0"} if "y" in bare else {}
        fills = [option_for(tables, node_type, f"{quoted(name)}={values.get(name, 0)}") for name in bare]
        raise OptionsNeeded(
            [f"{entry.rows.name}: {what}"], [each for fill in fills for each in ("--fill", fill)]
        )
    first = entry.rows if "id" in entry.rows.columns else _RowIds(entry.rows)
    rest = _AddedRows(first, added, {name: blank for name, blank in blanks.items() if blank is not None})
    return replace(entry, rows=chain([first, rest]), count=None, added=len(added))


def _blank(table: Table, name: str) -> Array | None:
    """Return the value of an added node: in no split, else the fill of the column."""
    if name == "split":
        return np.array("", dtype=object) if table.columns[name] == TEXT else np.array(-1)
    return np.array(False) if name in SPLIT_MASKS and is_mask(table, name) else blank_of(table, name)


class _RowIds(TableView):
    """A node table without ids, with its row numbers as ids."""

    def __init__(self, table: Table, first_row: int = 0) -> None:
        super().__init__(table)
        self.columns: Mapping[str, Kind] = {"id": Column("I64"), **table.columns}
        self._first_row = first_row

    def shards(self, rows: int) -> list[TableView]:
        found = shards_of(self._table, rows)
        starts = first_rows(found)
        return [_RowIds(shard, self._first_row + row) for shard, row in zip(found, starts, strict=False)]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        stored = [name for name in names if name != "id"] or list(self._table.columns)[:1]
        for row, chunk in numbered(self._table, stored, rows):
            first = self._first_row + row
            ids = np.arange(first, first + len(chunk[stored[0]]))
            yield {name: ids if name == "id" else chunk[name] for name in names}


class _AddedRows:
    """Rows of nodes that their table does not have."""

    def __init__(self, table: Table, ids: Int64Array, blanks: Mapping[str, Array]) -> None:
        """``blanks`` gives the value of each column but ``id``, of the shape of a row."""
        self.name = f"nodes added to {table.name}"
        self.columns = table.columns
        self.num_rows = len(ids)
        self._table, self._ids, self._blanks = table, ids, dict(blanks)

    def shards(self, rows: int) -> list[_AddedRows]:
        spans = cut(self.num_rows, rows)
        return [_AddedRows(self._table, self._ids[begin:end], self._blanks) for begin, end in spans]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for begin, end in cut(self.num_rows, rows):
            yield {name: self._column(name, self._ids[begin:end]) for name in names}

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, column {column!r}, row {row}"

    def _column(self, name: str, ids: Int64Array) -> Array:
        kind, value = self.columns[name], ids if name == "id" else self._blanks[name]
        dtype = STORAGE_DTYPES[kind.dtype] if isinstance(kind, Column) else value.dtype
        return (
            ids.astype(dtype)
            if name == "id"
            else np.broadcast_to(value, (len(ids), *value.shape)).astype(dtype)
        )
