"""Plan of a build: how each table is read, and what becomes of its columns."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gigl_loader.cli.column_options import TableType
from gigl_loader.cli.console import say, table_console
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import Kind, Table
from gigl_loader.partition.refusals import quoted, type_text
from gigl_loader.partition.roles import relation_column
from gigl_loader.partition.sources import why_left_out
from gigl_loader.partition.table import SPLIT_MASKS, GraphTables, is_mask
from gigl_loader.partition.views import reader_of, sources_of

_OF_EDGES = "the ids that edges have"
_SHOWN = 12
"""Columns of a table in the line of a build."""
_SHOWN_CHARACTERS = 40
_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """What becomes of a column of a file."""

    column: str
    """Name in the file, or the first and the last of several."""
    role: str
    """``src``, ``dst``, ``id``, ``feature``, ...; of a column that is left out, why."""
    name: str
    """Name in the graph. Empty: it is left out."""
    dtype: str
    first: str
    """First value."""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table of the graph: its type, its files, and its columns in the order of the file."""

    type: str
    content: str
    """``nodes``, ``edges``, ``labels`` or ``split``."""
    files: str
    read_as: str
    columns: tuple[PlannedColumn, ...]


def plan_of(tables: GraphTables, *, values: bool = True) -> list[PlannedTable]:
    """Return the plan of all tables. ``values``: with the first ones, for which the files are read."""
    found: list[PlannedTable] = []
    for node_type, entry in tables.nodes.items():
        if entry.rows is not None:
            found.append(_planned(tables, node_type, "nodes", entry.rows, values=values))
        elif entry.count is not None:
            found.append(PlannedTable(node_type, "nodes", "", f"{entry.count:,} nodes", ()))
        else:
            found.append(PlannedTable(node_type, "nodes", "", _OF_EDGES, ()))
        for name, table in entry.splits.items():
            found.append(_planned(tables, node_type, f"split {name}", table, values=values))
    others = [name for name in tables.node_types if name not in tables.nodes]
    found += [PlannedTable(name, "nodes", "", _OF_EDGES, ()) for name in others]
    readers: set[int] = set()
    for kind, table in tables.edges.items():
        reverse = tables.reverses.get(kind)
        if id(reader_of(table)) in readers and reverse is not None:
            what = f"the edges of {type_text(reverse)} reversed"
            found.append(PlannedTable(type_text(kind), "edges", "", what, ()))
        else:
            found.append(_planned(tables, kind, "edges", table, values=values))
        readers.add(id(reader_of(table)))
    found += [_planned(tables, kind, "labels", table, values=values) for kind, table in tables.labels.items()]
    return found


def print_plan(plan: Sequence[PlannedTable]) -> None:
    """Print a table with a line for each column, those of equal ones together."""
    from rich.table import Table as Lines

    lines = Lines("type", "file", "read as", "column", "role", "name", "dtype", "first value")
    for table in plan:
        head = (f"{table.type} ({table.content})", table.files, table.read_as)
        for column in _together(table.columns) or [PlannedColumn("", "", "", "", "")]:
            lines.add_row(*head, column.column, column.role, column.name, column.dtype, column.first)
            head = ("", "", "")
        lines.add_section()
    table_console().print(lines)


def tell_plan(plan: Sequence[PlannedTable]) -> None:
    """Write a line for each table to standard error."""
    for table in plan:
        columns = _together(table.columns)
        kept = [_short(each) for each in columns if each.name]
        left = [each.column for each in columns if not each.name]
        more = f" and {len(kept) - _SHOWN} more" if len(kept) > _SHOWN else ""
        told = f": {', '.join(kept[:_SHOWN])}{more}" if kept else ""
        told += f"; left out: {', '.join(left[:_SHOWN])}" if left else ""
        files = f" from {table.files}" if table.files else ""
        say(
            f"gigl-loader: reads {table.content} of {table.type}{files} ({table.read_as}){told}",
            file=sys.stderr,
        )


def document(plan: Sequence[PlannedTable]) -> dict[str, Any]:
    """Return the plan as a JSON document."""
    return {"tables": [asdict(table) for table in plan]}


def _short(column: PlannedColumn) -> str:
    return column.name if column.name == column.column else f"{column.name}={quoted(column.column)}"


def _planned(
    tables: GraphTables, kind: TableType, content: str, table: Table, *, values: bool
) -> PlannedTable:
    reader = reader_of(table)
    first = _first_values(reader) if values else {}
    used: dict[str, PlannedColumn] = {}
    for name, held in table.columns.items():
        role, dtype = _role(tables, kind, content, table, name), _dtype(held)
        for source in sources_of(table, name):
            used[source] = PlannedColumn(source, role, name, dtype, first.get(source, ""))
    for name, held in reader.columns.items():
        if name not in used:
            why = f"left out: {why_left_out(name) or 'dropped'}"
            used[name] = PlannedColumn(name, why, "", _dtype(held), first.get(name, ""))
    order = {name: at for at, name in enumerate(reader.columns)}
    columns = sorted(used.values(), key=lambda each: order.get(each.column, len(order)))
    read_as = str(getattr(reader, "read_as", "arrays"))
    if content == "nodes" and "id" not in table.columns:
        read_as += ", ids are row numbers"
    return PlannedTable(type_text(kind), content, table.name, read_as, tuple(columns))


def _role(tables: GraphTables, kind: TableType, content: str, table: Table, name: str) -> str:
    fixed = {"id": "id", "split": "split"}
    if isinstance(kind, tuple):
        fixed = {relation_column(kind) or "": "relation", "id": "id", "src": "src", "dst": "dst"}
        fixed |= dict.fromkeys(tables.weights.get(kind, ()), "weight")
    elif content == "nodes":
        fixed |= {mask: "split" for mask in SPLIT_MASKS if is_mask(table, mask)}
    fixed |= dict.fromkeys(tables.times.get(kind, ()), "time")
    if name in fixed:
        return fixed[name]
    encoding = tables.encodings.get(kind, {}).get(name)
    role = "label" if name == ("y" if isinstance(kind, str) else "label") else "feature"
    if encoding is not None:
        role += ", one-hot" if encoding.one_hot else ", encoded"
    how = tables.quantize.get(kind, {}).get(name)
    return role if how is None else f"{role}, {how}"


def _dtype(kind: Kind) -> str:
    if not isinstance(kind, Column):
        return kind
    shape = f"[{','.join(map(str, kind.shape))}]" if kind.shape else ""
    return f"{kind.dtype}{shape}" + (f" {kind.unit}" if kind.unit else "")


def _first_values(reader: Table) -> dict[str, str]:
    """Return the first value of each column. A file that cannot be read is refused by the build."""
    names = [name for name in reader.columns if name]
    try:
        chunk: Mapping[str, Any] = next(iter(reader.read(names, 1)), {})
    except FormatError:
        return {}
    return {name: _shown(array[0], reader.columns[name]) for name, array in chunk.items() if len(array)}


def _shown(value: Any, kind: Kind) -> str:
    if value is np.ma.masked or (isinstance(value, np.ma.MaskedArray) and bool(value.mask.any())):
        return "missing"
    if isinstance(kind, Column) and kind.unit == "ns" and not kind.shape:
        return str(np.datetime64(int(value), "ns")).removesuffix(".000000000").removesuffix("T00:00:00")
    text = np.array2string(value, threshold=4, edgeitems=2) if isinstance(value, np.ndarray) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _together(columns: Sequence[PlannedColumn]) -> list[PlannedColumn]:
    """Return the columns with those of one role that are numbered as one: ``f0 .. f127``."""
    found: list[PlannedColumn] = []
    for group in _runs(columns):
        first, last = group[0], group[-1]
        if len(group) == 1:
            found.append(first)
        else:
            several = f"{first.column} .. {last.column}"
            name = first.name if first.name == last.name else f"{first.name} .. {last.name}"
            found.append(replace(first, column=several, name=name))
    return found


def _runs(columns: Sequence[PlannedColumn]) -> Iterator[list[PlannedColumn]]:
    run: list[PlannedColumn] = []
    for column in columns:
        if run and not _follows(run[-1], column):
            yield run
            run = []
        run.append(column)
    if run:
        yield run


def _follows(one: PlannedColumn, other: PlannedColumn) -> bool:
    """Return whether a column is the next of its kind: its name has the same text, and the next number."""
    found = _NUMBERED.fullmatch(one.column), _NUMBERED.fullmatch(other.column)
    if found[0] is None or found[1] is None or (one.role, one.dtype) != (other.role, other.dtype):
        return False
    plain = one.column == one.name and other.column == other.name
    same = found[0][1] == found[1][1] and int(found[0][2]) + 1 == int(found[1][2])
    return same and (plain or one.name == other.name)
