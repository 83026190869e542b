"""Rows of a table in the order of the ids of another one."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from gigl_loader.arrays import Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import TEXT, Kind, Table, numbered
from gigl_loader.partition.readers.arrow_files import ArrowStreamTable
from gigl_loader.partition.readers.sql_table import alias, connected, shortened, sql_errors
from gigl_loader.partition.views import ProjectedTable, Projection, TableView
from gigl_loader.resources import free_memory, usable_cores
from gigl_loader.tensors import STORAGE_DTYPES

logger = logging.getLogger(__name__)

_ROWS = 1 << 16
_TEXTS = pa.large_string()
_TWICE = "SELECT id, min(place), max(place) FROM rows GROUP BY id HAVING count(*) > 1 ORDER BY 2 LIMIT 1"
_ID = "id of the row"
"""Column of a looked-up table that its view does not show."""


class LookedUpTable(TableView):
    """Rows of a table in the order of the ids of another one. A row that is not there has missing values.

    DuckDB sorts the rows on the disk, within a quarter of the free memory. They are kept in a temporary file.
    """

    def __init__(
        self, table: Table, other: Table, *, ids: tuple[str | None, str], drops_unknown: bool
    ) -> None:
        """``ids`` are the columns of ids, that of ``table`` ``None`` for its row numbers. ``FormatError`` for
        ids that come twice in ``other``, and for those that ``table`` lacks unless these are dropped."""
        columns = {name: kind for name, kind in other.columns.items() if name != ids[1]}
        found = _looked_up(table, other, ids, drops_unknown=drops_unknown)
        sources = {_ID: Projection(("id",))}
        for at, (name, kind) in enumerate(columns.items()):
            is_half = isinstance(kind, Column) and kind.dtype == "F16"  # DuckDB has none.
            sources[name] = Projection((alias(at),), dtype="F16" if is_half else None)
        super().__init__(ProjectedTable(found, sources))
        self.name = self._file = other.name
        self.columns = columns

    def sources(self, name: str) -> tuple[str, ...]:
        return (name,)

    def where(self, column: str, row: int) -> str:
        for first, chunk in numbered(self._table, [_ID], _ROWS):
            if row < first + len(chunk[_ID]):
                return f"{self._file}, column {column!r}, id {chunk[_ID][row - first]}"
        return f"{self._file}, column {column!r}"


def _looked_up(
    table: Table, other: Table, ids: tuple[str | None, str], *, drops_unknown: bool
) -> ArrowStreamTable:
    names = [name for name in other.columns if name != ids[1]]
    own, others = pa.int64() if ids[0] is None else _id_type(table, ids[0]), _id_type(other, ids[1])
    if (own == _TEXTS) != (others == _TEXTS):
        raise FormatError(
            f"{other.name}: ids are of the type {others}, but {own} in {table.name}: "
            f"--dtype {ids[1]}=text reads those of a text file as texts"
        )
    memory_bytes = free_memory().nbytes // 4
    with (
        tempfile.TemporaryDirectory(prefix="gigl-join-") as directory,
        connected(memory_bytes=memory_bytes, threads=usable_cores(), temporary=directory) as connection,
    ):
        try:
            _insert(connection, "ids", _ids(table, ids[0]))
            _insert(connection, "rows", _rows(other, ids[1], names))
            for value, *places in connection.execute(_TWICE).fetchall():
                first, last = (other.where(ids[1], place) for place in places)
                raise FormatError(f"{last}: id {value!r} is also in {first}")
            _check_unknown(connection, table, other, ids=ids, drops=drops_unknown)
            columns = ["ids.id", *map(alias, range(len(names)))]
            select = f"SELECT {', '.join(columns)} FROM ids LEFT JOIN rows USING (id) ORDER BY ids.place"
            return ArrowStreamTable(connection.sql(select), other.name)
        except sql_errors() as error:
            raise FormatError(f"{other.name}: cannot be looked up by id: {shortened(error)}") from None


def _check_unknown(
    connection: Any, table: Table, other: Table, *, ids: tuple[str | None, str], drops: bool
) -> None:
    """Raise ``FormatError`` for ids that the table lacks, or warn that they are left out."""
    unknown = "SELECT count(*), min(place) FROM rows ANTI JOIN ids USING (id)"
    [(count, place)] = connection.execute(unknown).fetchall()
    if not count:
        return
    numbers = " (row numbers: it has no column of ids)" if ids[0] is None else ""
    what = f"{count:,} of {other.num_rows:,} ids are not in {table.name}{numbers}"
    if drops and count < other.num_rows:
        logger.warning("%s: left out: %s", other.name, what)
        return
    likely = ids[0] is not None and 2 * count < other.num_rows
    advice = ": --unknown-ids drop leaves their rows out" if likely else ""
    if ids[0] is None and table.num_rows == other.num_rows:
        advice = ": if both have the same rows, give this file first, and the other one beside it"
    raise FormatError(f"{other.where(ids[1], place)}: {what}{advice}")


def _ids(table: Table, name: str | None) -> Iterator[Any]:
    """Yield the ids of a table, or its row numbers, as record batches."""
    if name is None:
        for begin in range(0, max(table.num_rows, 1), _ROWS):
            places = np.arange(begin, min(begin + _ROWS, table.num_rows))
            yield pa.record_batch({"place": places, "id": places})
        return
    none = {name: _no_rows(table.columns[name])}
    for row, chunk in chain([(0, none)], numbered(table, [name], _ROWS)):
        places = np.arange(row, row + len(chunk[name]))
        yield pa.record_batch({"place": places, "id": pa.array(chunk[name], _id_type(table, name))})


def _rows(table: Table, id_name: str, names: Sequence[str]) -> Iterator[Any]:
    """Yield the rows of a table as record batches: its ids, and its columns by their aliases"""
    dtype = _id_type(table, id_name)
    # The first batch has the types alone: a table may have no row.
    none = {name: _no_rows(table.columns[name]) for name in (id_name, *names)}
    for row, chunk in chain([(0, none)], numbered(table, [id_name, *names], _ROWS)):
        ids = chunk[id_name]
        missing = ids == "" if dtype == _TEXTS else np.ma.getmaskarray(ids)
        if (at := first_true(np.asarray(missing))) is not None:
            raise FormatError(f"{table.where(id_name, row + at)}: no id")
        columns = {alias(at): _arrow(table, name, chunk[name]) for at, name in enumerate(names)}
        places = np.arange(row, row + len(ids))
        yield pa.record_batch({"place": places, "id": pa.array(ids, dtype), **columns})


def _no_rows(kind: Kind) -> Array:
    if not isinstance(kind, Column):
        return np.empty(0, object)
    return np.empty((0, *kind.shape), STORAGE_DTYPES[kind.dtype])


def _id_type(table: Table, name: str) -> Any:
    kind = table.columns[name]
    if kind == TEXT:
        return _TEXTS
    if isinstance(kind, Column) and not kind.shape and STORAGE_DTYPES[kind.dtype].kind in "iu":
        return pa.from_numpy_dtype(STORAGE_DTYPES[kind.dtype])
    held = kind.dtype if isinstance(kind, Column) else kind
    raise FormatError(f"{table.name}, column {name!r}: ids are integers or texts, not {held}")


def _arrow(table: Table, name: str, array: Array) -> Any:
    """Return the values of a column of the Arrow type that is read as this column, missing ones as nulls."""
    kind = table.columns[name]
    if kind == TEXT:
        return pa.array([text or None for text in array.tolist()], _TEXTS)
    if not isinstance(kind, Column) or kind.dtype == "BF16":
        held = kind.dtype if isinstance(kind, Column) else kind
        raise FormatError(f"{table.name}, column {name!r}: {held} cannot be looked up by id")
    data = np.ma.getdata(array).astype(np.float32) if kind.dtype == "F16" else np.ma.getdata(array)
    found = pa.array(data.reshape(-1), mask=np.ma.getmaskarray(array).reshape(-1))
    if kind.unit is not None:
        found = found.view(pa.timestamp("ns"))
    for size in reversed(kind.shape):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found


def _insert(connection: Any, name: str, batches: Iterator[Any]) -> None:
    """Make a table of record batches."""
    for at, batch in enumerate(batches):
        relation = connection.from_arrow(pa.Table.from_batches([batch]))
        relation.insert_into(name) if at else relation.create(name)
