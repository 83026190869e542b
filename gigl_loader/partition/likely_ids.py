"""Columns that look like the ids of a node table in which no column is called ``id``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column, NodeType
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.readers import TEXT, Table, are_integers, numbered
from gigl_loader.partition.roles import own_names, squeezed
from gigl_loader.partition.table import SPLIT_MASKS, GraphTables
from gigl_loader.partition.views import reader_of, source_of

_ID_WORDS = frozenset({"id", "ids", "key", "index", "idx", "uid", "nid", "pk"})
_PANDAS_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
_CHUNK = 1 << 16
_DISTINCT = 1 << 22
"""Rows of a column that are compared with each other: 32 MiB."""


@dataclass(frozen=True, slots=True)
class LikelyIds:
    """A column that may be the ids."""

    name: str
    """Name in the table."""
    source: str
    """Name in the file."""
    usable: bool
    """It holds integers or texts, each once as far as the first rows tell."""


def likely_ids(tables: GraphTables, node_type: NodeType) -> LikelyIds | None:
    """Return the column that may be the ids of a node table without ``id``. ``None``: its rows are numbered.

    Candidates are columns named after the type or an end, index columns of pandas, columns with ``id`` or
    ``key`` in their names, and columns of integers that have most of the ids that edges name. Columns with
    repeated values refer to other tables, unless they are named after the type. A candidate that counts the
    rows from 0 ends the search: both readings give the same graph. So do arrays in memory, and
    ``NodeTable(row_ids=True)``.
    """
    entry = tables.nodes[node_type]
    if entry.rows is None or entry.row_ids or isinstance(reader_of(entry.rows), ArrayTable):
        return None
    own = _own_names(tables, node_type)
    is_end = any(node_type in (kind[0], kind[2]) for kind in tables.lists)
    for table, name in _candidates(tables, node_type, entry.rows):
        is_own, kind = squeezed(name) in own, table.columns[name]
        usable = are_integers(kind) or (kind == TEXT and not is_end)
        is_decimal = isinstance(kind, Column) and not kind.shape and kind.dtype in ("F32", "F64")
        reading = _reading(table, name) if usable or (is_own and is_decimal) else None
        if reading == "row numbers":
            return None
        if reading == "distinct" or (reading is not None and is_own):
            return LikelyIds(name, source_of(table, name), usable and reading == "distinct")
    return None


def likely_key(other: Table, names: Iterable[str], ids: Array) -> str | None:
    """Return the column, of ``names``, that is likely to have the ids that each row of a table is about.

    It has values of its own in each row, most of which are ``ids``, not in their order.
    """
    for name in names:
        is_role = squeezed(name) in ("y", "label", "split") or name in SPLIT_MASKS
        if is_role or not (other.columns[name] == TEXT or are_integers(other.columns[name])):
            continue
        values = _first_values(other, name)
        in_order = np.array_equal(values, ids[: len(values)])
        if not in_order and np.isin(values, ids).mean() > 0.5 and _reading(other, name) == "distinct":
            return name
    return None


def first_ids(table: Table, name: str | None) -> Array:
    """Return the first ids of a table: of the column ``name``, or the row numbers."""
    return np.arange(min(table.num_rows, _DISTINCT)) if name is None else _first_values(table, name)


def words_in(name: str) -> set[str]:
    """Return the words of a name in lower case: ``movieId`` and ``movie_id`` have two."""
    return set(re.split(r"[\W_]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))


def are_named_by_edges(tables: GraphTables, node_type: NodeType, table: Table, name: str) -> bool:
    """Return whether a column has most of the integers by which edges name nodes, as far as these tell."""
    ends = _ends(tables, node_type) if are_integers(table.columns[name]) else np.empty(0, np.int64)
    return not len(ends) or bool(np.isin(ends, _first_values(table, name)).mean() > 0.5)


def may_be_ids(table: Table, name: str) -> bool:
    """Return whether a column has integers or texts, each once as far as the first rows tell."""
    kind = table.columns[name]
    return (kind == TEXT or are_integers(kind)) and _reading(table, name) in ("row numbers", "distinct")


def _own_names(tables: GraphTables, node_type: NodeType) -> set[str]:
    """Return the names that ids of the type itself have, without case and punctuation."""
    ends = {
        squeezed(source_of(table, name))
        for kind, table in tables.lists.items()
        for end, name in ((kind[0], "src"), (kind[2], "dst"))
        if end == node_type and name in table.columns
    }
    return {"id", "nodeid"} | own_names(node_type) | ends


def _candidates(tables: GraphTables, node_type: NodeType, rows: Table) -> Iterator[tuple[Table, str]]:
    own, reader = _own_names(tables, node_type), reader_of(rows)
    by_name = [name for name in rows.columns if squeezed(name) in own or _ID_WORDS & words_in(name)]
    yield from ((rows, name) for name in sorted(by_name, key=lambda name: squeezed(name) not in own))
    used = {source_of(rows, name) for name in rows.columns}
    yield from (
        (reader, name) for name in reader.columns if _PANDAS_INDEX.fullmatch(name) and name not in used
    )
    others = [name for name, kind in rows.columns.items() if are_integers(kind) and name not in by_name]
    others = [name for name in others if source_of(rows, name) == name and name not in ("y", *SPLIT_MASKS)]
    ends = _ends(tables, node_type) if others else np.empty(0, np.int64)
    if len(ends):
        yield from ((rows, name) for name in others if np.isin(ends, _first_values(rows, name)).mean() > 0.5)


def _ends(tables: GraphTables, node_type: NodeType) -> Array:
    """Return distinct ids of the type that the first rows of each table of edges name."""
    found = [
        _first_values(table, name, _CHUNK)
        for kind, table in tables.lists.items()
        for end, name in ((kind[0], "src"), (kind[2], "dst"))
        if end == node_type and are_integers(table.columns.get(name))
    ]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


def _first_values(table: Table, name: str, rows: int = _DISTINCT) -> Array:
    found: list[Array] = []
    try:
        for row, chunk in numbered(table, [name], _CHUNK):
            found.append(np.asarray(chunk[name]))
            if row + len(found[-1]) >= rows:
                break
    except FormatError:
        pass  # The build reports it.
    return np.concatenate(found or [np.empty(0, np.int64)])


def _reading(table: Table, name: str) -> Literal["row numbers", "distinct", "repeated"] | None:
    """Return what the values are. ``None``: they cannot be read, which the build reports."""
    first: list[Array] = []
    counts = True
    try:
        for row, chunk in numbered(table, [name], _CHUNK):
            values = np.asarray(chunk[name])
            counts = counts and np.array_equal(values, np.arange(row, row + len(values)))
            if row < _DISTINCT:
                first.append(values)
            if not counts and (row >= _DISTINCT or len(np.unique(values)) < len(values)):
                break
    except FormatError:
        return None
    if counts:
        return "row numbers"
    values = np.concatenate(first)
    return "distinct" if len(np.unique(values)) == len(values) else "repeated"
