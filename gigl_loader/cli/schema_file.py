"""Schema files of relational tables: rows become nodes, foreign keys become edges.

The edge types are those of RelBench (Robinson et al., 2024): ``(table, f2p_COLUMN, referenced table)``, and
its reverse ``rev_f2p_COLUMN``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gigl_loader.arrays import Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import is_uri
from gigl_loader.graph.schema import Column, EdgeType, NodeType
from gigl_loader.partition.readers import TEXT, Kind, Table
from gigl_loader.partition.readers.arrow_files import ArrowStreamTable
from gigl_loader.partition.readers.text_format import CsvFormat
from gigl_loader.partition.refusals import quoted, type_text
from gigl_loader.partition.roles import Role
from gigl_loader.partition.sources import ColumnOptions, open_files
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from gigl_loader.cli.build_options import TableOptions

_KEYS = frozenset({"files", "primary_key", "foreign_keys", "time", "types"})
_TYPES = {"drop": ("drop", ""), "category": ("encode", ""), "one-hot": ("one_hot", "")}
"""Type of a column to the option that it stands for, and the end of the option's value."""
_TIME = "time"
_ROWS = 1 << 16
_MAX_EXACT = 1 << 53
"""Of the integers that are no smaller, float64 has only some."""


@dataclass(frozen=True, slots=True)
class RelationalTable:
    """Entry of a schema file."""

    name: str
    files: tuple[str, ...]
    primary_key: str | None
    """Column of ids. ``None``: ids are the row numbers."""
    foreign_keys: Mapping[str, str]
    """Column to the table that it refers to."""
    time: str | None
    """Column of times. The graph has it as ``time``."""
    types: Mapping[str, str]
    """Column to a dtype, or to one of ``_TYPES``."""

    def edge_type(self, column: str) -> EdgeType:
        """Return the type of the edges of a foreign key."""
        return self.name, f"f2p_{column}", self.foreign_keys[column]


def read_schema_file(path: Path) -> list[RelationalTable]:
    """Read the tables of a schema file. ``ValueError`` names what breaks a rule."""
    from gigl_server.config import read_yaml

    document = read_yaml(path)
    entries = document.get("tables")
    if not isinstance(entries, dict) or not entries or set(document) != {"tables"}:
        raise ValueError(f"{path} must have one entry, tables: a mapping from names to tables")
    tables = [_table(str(name), entry, path) for name, entry in entries.items()]
    check_keys(tables, path)
    return tables


def check_keys(tables: list[RelationalTable], path: Path) -> None:
    """Raise ``ValueError`` for a foreign key that refers to no table, or to one without a primary key."""
    by_name = {table.name: table for table in tables}
    for table in tables:
        for column, target in table.foreign_keys.items():
            what = f"{path}: table {table.name!r}, foreign key {column!r}"
            if target not in by_name:
                raise ValueError(f"{what} refers to {target!r}; known: {', '.join(by_name)}")
            if by_name[target].primary_key is None:
                raise ValueError(f"{what} refers to {target!r}, which has no primary_key")


def _table(name: str, entry: object, path: Path) -> RelationalTable:
    what = f"{path}: table {name!r}"
    if not name:
        raise ValueError(f"{what}: a table needs a name")
    if not isinstance(entry, dict) or "files" not in entry:
        raise ValueError(f"{what} must be a mapping with files and {', '.join(sorted(_KEYS - {'files'}))}")
    if unknown := sorted(set(map(str, entry)) - _KEYS):
        raise ValueError(f"{what}: unknown key {unknown[0]!r}; known: {', '.join(sorted(_KEYS))}")
    files = entry["files"] if isinstance(entry["files"], list) else [entry["files"]]
    for key in ("foreign_keys", "types"):
        if not isinstance(entry.get(key) or {}, dict):
            raise ValueError(f"{what}: {key} must be a mapping from columns")
    return RelationalTable(
        name,
        tuple(str(each) if is_uri(str(each)) else str(path.parent / str(each)) for each in files),
        _text(entry.get("primary_key")),
        {str(column): str(target) for column, target in (entry.get("foreign_keys") or {}).items()},
        _text(entry.get("time")),
        {str(column): str(kind) for column, kind in (entry.get("types") or {}).items()},
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def with_schema(options: TableOptions, tables: list[RelationalTable]) -> TableOptions:
    """Return the options with those that the tables stand for: their nodes, times and reverse edge types."""
    more: dict[str, list[str]] = {
        name: []
        for name in ("nodes", "rename", "drop", "dtypes", "encode", "one_hot", "times", "reverse", "row_ids")
    }
    for table in tables:
        scope = type_text(table.name)
        more["nodes"] += [f"{scope}={files}" for files in table.files]
        if table.primary_key is not None and table.primary_key != "id":
            more["rename"].append(f"{scope}:{quoted(table.primary_key)}=id")
        if table.primary_key is None:
            more["row_ids"].append(scope)
        if table.time is not None:
            more["times"].append(f"{scope}:{_TIME}")
            if table.time != _TIME:
                more["rename"].append(f"{scope}:{quoted(table.time)}={_TIME}")
        for column in table.foreign_keys:
            more["reverse"].append(type_text(table.edge_type(column)))
        for column, kind in {**table.types, **dict.fromkeys(table.foreign_keys, "drop")}.items():
            if column != table.primary_key:
                option, value = _TYPES.get(kind, ("dtypes", f"={kind}"))
                more[option].append(f"{scope}:{quoted(column)}{value}")
    merged: dict[str, Any] = {name: [*added, *getattr(options, name)] for name, added in more.items()}
    return replace(options, **merged)


def foreign_key_edges(
    tables: list[RelationalTable], csv_of: Callable[[NodeType, Role], CsvFormat]
) -> dict[EdgeType, Table]:
    """Return a table of edges for each foreign key: from the row to the row that it refers to.

    A row without a value in the column has no edge. ``csv_of`` returns the format of a table's CSV files.
    """
    return {
        table.edge_type(column): _edges(table, column, csv_of(table.name, "nodes"))
        for table in tables
        for column in table.foreign_keys
    }


def _edges(relational: RelationalTable, column: str, csv: CsvFormat) -> Table:
    ends = {"dst": column} | ({"src": relational.primary_key} if relational.primary_key else {})
    # One column may be both keys. Readers take either end for a column of ids.
    options = ColumnOptions(rename={name: end for end, name in ends.items()}, csv=csv)
    table = open_files(relational.files, role="edges", options=options)
    types = {"src": pa.int64(), "dst": pa.int64()}
    for end, name in ends.items():
        if name not in table.columns:
            known = ", ".join(map(repr, table.columns))
            raise ValueError(f"{table.name}: no column {name!r}, a key of the schema file; columns: {known}")
        types[end] = _type_of_ids(table.columns[name], f"{table.name}, column {name!r}")
    schema = pa.schema(types)
    reader = pa.RecordBatchReader.from_batches(schema, _batches(table, ends, schema))
    return ArrowStreamTable(reader, f"foreign key {column!r} of {relational.name}")


def _type_of_ids(kind: Kind, what: str) -> Any:
    if kind == TEXT:
        return pa.large_string()
    if isinstance(kind, Column) and not kind.shape and STORAGE_DTYPES[kind.dtype].kind in "iuf":
        return pa.int64()
    held = f"{kind.dtype} {list(kind.shape)}" if isinstance(kind, Column) else kind
    raise ValueError(f"{what} holds {held}: keys are integers or texts")


def _batches(table: Table, ends: Mapping[str, str], schema: Any) -> Iterator[Any]:
    """Yield the edges of the rows that have a value, as record batches. ``ends``: the column of each end."""
    row = 0
    for chunk in table.read([*dict.fromkeys(ends.values())], _ROWS):
        columns = {end: _ids(table, name, chunk[name], row) for end, name in ends.items()}
        count = len(next(iter(columns.values())))
        source = columns.get("src", np.ma.MaskedArray(np.arange(row, row + count)))
        target = columns["dst"]
        keep = ~np.ma.getmaskarray(target)
        if (missing := first_true(np.ma.getmaskarray(source) & keep)) is not None:
            raise FormatError(f"{table.where(ends['src'], row + missing)}: no primary key")
        kept = {"src": np.ma.getdata(source)[keep], "dst": np.ma.getdata(target)[keep]}
        yield pa.record_batch([pa.array(kept[field.name], field.type) for field in schema], schema)
        row += count


def _ids(table: Table, name: str, array: Array, row: int) -> np.ma.MaskedArray[Any, Any]:
    """Return ids, masked where there is none. Exports of pandas have integers as decimal numbers with NaN."""
    if array.dtype == object:
        return np.ma.MaskedArray(array, array == "")
    if array.dtype.kind != "f":
        return np.ma.asarray(array)
    found = np.ma.masked_invalid(array)
    whole = np.ma.filled(found, 0).astype(np.int64)
    if (wrong := first_true(~np.ma.getmaskarray(found) & (whole != np.ma.getdata(found)))) is not None:
        raise FormatError(f"{table.where(name, row + wrong)}: {array[wrong]} is no integer")
    if (wrong := first_true(np.abs(whole) >= _MAX_EXACT)) is not None:
        what = "is not exact as a decimal number: write the column as integers"
        raise FormatError(f"{table.where(name, row + wrong)}: {whole[wrong]} {what}")
    return np.ma.MaskedArray(whole, np.ma.getmaskarray(found))
