"""Tables made of tables: combined, renamed, reversed, as label sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from gigl_loader.arrays import Array, BoolArray, Int64Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column, EdgeType
from gigl_loader.partition.readers import TEXT, Kind, Table, numbered, shards_of, stamp_of
from gigl_loader.tensors import STORAGE_DTYPES

_ROWS = 1 << 16


class TableView:
    """A table over another one. Unless it says otherwise, it has the columns, rows and places of that one."""

    def __init__(self, table: Table) -> None:
        self.name = table.name
        self.columns: Mapping[str, Kind] = table.columns
        self._table = table

    @property
    def num_rows(self) -> int:
        return self._table.num_rows

    @property
    def stamp(self) -> object:
        return stamp_of(self._table)

    @property
    def reader(self) -> Table:
        """Table under all views; of several, the first."""
        return reader_of(self._table)

    @property
    def readers(self) -> list[Table]:
        """All tables under all views."""
        return readers_of(self._table)

    @property
    def given_type(self) -> EdgeType | None:
        """Type by which options name the table. ``None``: its own."""
        return getattr(self._table, "given_type", None)

    def shards(self, rows: int) -> list[TableView]:
        return [self._over(shard) for shard in shards_of(self._table, rows)]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for row, chunk in numbered(self._table, names, rows):
            yield {name: self._values(name, array, row) for name, array in chunk.items()}

    def _values(self, name: str, array: Array, first_row: int) -> Array:
        """Return what is read in place of the rows of a column, of which the first has this number."""
        return array

    def where(self, column: str, row: int) -> str:
        return self._table.where(column, row)

    def blank(self, name: str) -> Array | None:
        """Return what fills a missing value of a column, of the shape of a row. ``None``: nothing does."""
        return blank_of(self._table, name)

    def sources(self, name: str) -> tuple[str, ...]:
        """Return the names of the columns in the file that make a column."""
        return sources_of(self._table, name)

    def _over(self, table: Table) -> TableView:
        """Return the same view over a shard of the table."""
        view = copy(self)
        view.name, view._table = table.name, table
        return view


def blank_of(table: Table, name: str) -> Array | None:
    """Return what fills a missing value of a column, of the shape of a row. ``None``: nothing does."""
    return table.blank(name) if isinstance(table, TableView) else None


def source_of(table: Table, name: str) -> str:
    """Return the name that a column has in the file; of stacked columns, that of the first."""
    return sources_of(table, name)[0]


def sources_of(table: Table, name: str) -> tuple[str, ...]:
    """Return the names of the columns in the file that make a column: of a stacked one several."""
    return table.sources(name) if isinstance(table, TableView) else (name,)


def reader_of(table: Table) -> Table:
    """Return the table that reads the file, under all views."""
    return getattr(table, "reader", table)


def readers_of(table: Table) -> list[Table]:
    """Return all tables that read files, under all views."""
    return getattr(table, "readers", [table])


class ChosenRows(TableView):
    """Those rows of a table that some of its columns say."""

    tested: Sequence[str]
    """Columns that say whether a row is chosen."""

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for _, places, chunk in self._chosen(names, rows):
            if len(places):
                yield {name: chunk[name][places] for name in names}

    def where(self, column: str, row: int) -> str:
        numbers = (first + int(place) for first, places, _ in self._chosen([], _ROWS) for place in places)
        return self._table.where(column, next(islice(numbers, row, None)))

    def _chosen(self, names: Sequence[str], rows: int) -> Iterator[tuple[int, Int64Array, dict[str, Array]]]:
        """Yield for each chunk the number of its first row, the places of chosen rows, and its columns."""
        for first, chunk in numbered(self._table, list(dict.fromkeys([*self.tested, *names])), rows):
            yield first, np.flatnonzero(self._is_chosen(chunk, first)), chunk

    def _is_chosen(self, chunk: Mapping[str, Array], first_row: int) -> BoolArray:
        """Return which rows of a chunk are chosen, bool [R]."""
        raise NotImplementedError


class ChainedTable:
    """The rows of several tables with the same columns, one table after the other."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = list(tables)
        first = self._tables[0]
        self.name = f"{first.name} and {len(self._tables) - 1} more"
        self.columns: Mapping[str, Kind] = first.columns
        for table in self._tables[1:]:
            _require_same(first, table)

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self._tables)

    @property
    def stamp(self) -> object:
        return [stamp_of(table) for table in self._tables]

    @property
    def reader(self) -> Table:
        return reader_of(self._tables[0])

    @property
    def readers(self) -> list[Table]:
        return [reader for table in self._tables for reader in readers_of(table)]

    def shards(self, rows: int) -> list[Table]:
        return [shard for table in self._tables for shard in shards_of(table, rows)]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for table in self._tables:
            yield from table.read(names, rows)

    def where(self, column: str, row: int) -> str:
        for table in self._tables[:-1]:
            if row < table.num_rows:
                return table.where(column, row)
            row -= table.num_rows
        return self._tables[-1].where(column, row)


def chain(tables: Sequence[Table]) -> Table:
    """Return one table with the rows of all. There must be at least one.

    A table without rows may have other columns: a CSV file with a header alone says nothing of their types.
    """
    if any(table.columns != tables[0].columns for table in tables):
        tables = [table for table in tables if table.num_rows] or tables[:1]
    return tables[0] if len(tables) == 1 else ChainedTable(tables)


@dataclass(frozen=True, slots=True)
class Projection:
    """Sources of a column of a view."""

    sources: tuple[str, ...]
    stacked: bool = False
    """Put the sources (numbers and vectors) side by side, as one vector per row."""
    dtype: str | None = None
    """Convert to this safetensors dtype."""


class ProjectedTable(TableView):
    """Chosen columns of another table, under other names."""

    def __init__(self, table: Table, projections: Mapping[str, Projection]) -> None:
        super().__init__(table)
        self._projections = dict(projections)
        self.columns = {
            name: _projected_kind(table, name, projection) for name, projection in self._projections.items()
        }

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        sources = list(dict.fromkeys(key for name in names for key in self._projections[name].sources))
        for row, chunk in numbered(self._table, sources, rows):
            yield {name: self._column(chunk, name, row) for name in names}

    def where(self, column: str, row: int) -> str:
        projection = self._projections.get(column)
        return self._table.where(column if projection is None else projection.sources[0], row)

    def sources(self, name: str) -> tuple[str, ...]:
        projection = self._projections[name]
        return tuple(each for source in projection.sources for each in sources_of(self._table, source))

    def blank(self, name: str) -> Array | None:
        found = {source: blank_of(self._table, source) for source in self._projections[name].sources}
        chunk = {source: blank[None] for source, blank in found.items() if blank is not None}
        return None if len(chunk) < len(found) else np.asarray(self._column(chunk, name, 0)[0])

    def _column(self, chunk: Mapping[str, Array], name: str, first_row: int) -> Array:
        projection, kind = self._projections[name], self.columns[name]
        if not projection.stacked:
            array = chunk[projection.sources[0]]
        else:
            assert isinstance(kind, Column)
            dtype = STORAGE_DTYPES[kind.dtype]
            pieces = [chunk[key].astype(dtype).reshape(len(chunk[key]), -1) for key in projection.sources]
            array = np.concatenate(pieces, axis=1)
        if kind == TEXT and array.dtype != object:
            return array.astype(np.str_).astype(object)
        if projection.dtype is None or not isinstance(kind, Column):
            return array
        return self._cast(array, name, STORAGE_DTYPES[kind.dtype], first_row)

    def _cast(self, array: Array, name: str, dtype: np.dtype[Any], first_row: int) -> Array:
        if array.dtype == dtype:
            return array
        with np.errstate(invalid="ignore", over="ignore"):
            cast = array.astype(dtype)
        if dtype.kind in "iub":
            wrong = (cast != array).reshape(len(array), -1).any(axis=1)
            if name in ("src", "dst", "id"):
                wrong |= is_rounded(array)
            if (row := first_true(wrong)) is not None:
                raise FormatError(f"{self.where(name, first_row + row)}: {array[row]} is no {dtype}")
        return cast


def is_rounded(array: Array) -> Array:
    """Return which numbers are decimals so large that not every integer of their size is one."""
    if array.dtype.kind != "f":
        return np.zeros(array.shape, np.bool_)
    return np.abs(array) >= 2.0 ** (np.finfo(array.dtype).nmant + 1)


def _require_same(first: Table, table: Table) -> None:
    for name in (*first.columns, *table.columns):
        kinds = first.columns.get(name), table.columns.get(name)
        if kinds[0] != kinds[1]:
            names = {each.dtype for each in kinds if isinstance(each, Column)}
            advice = f" (--dtype {name}=float64)" if names == {"F32", "F64"} else ""
            here, there = _said(kinds[1]), _said(kinds[0])
            raise FormatError(f"{table.name}, column {name!r}: {here}, but {there} in {first.name}{advice}")


def _said(kind: Kind | None) -> str:
    if kind is None:
        return "missing"
    if not isinstance(kind, Column):
        return kind
    return f"{kind.dtype} {list(kind.shape)}" + (f" in {kind.unit}" if kind.unit else "")


def _projected_kind(table: Table, name: str, projection: Projection) -> Kind:
    kinds = [table.columns[source] for source in projection.sources]
    if not projection.stacked:
        kind = kinds[0]
        if projection.dtype == "TEXT":
            are_integers = isinstance(kind, Column) and not kind.shape and kind.dtype[0] in "IU"
            if kind != TEXT and not are_integers:
                raise FormatError(f"{table.name}, column {name!r}: {_said(kind)} cannot be read as texts")
            return TEXT
        return Column(projection.dtype, kind.shape) if projection.dtype and isinstance(kind, Column) else kind
    dtypes, width = [], 0
    for source, kind in zip(projection.sources, kinds, strict=True):
        if not isinstance(kind, Column) or len(kind.shape) > 1 or kind.dtype == "BF16":
            raise FormatError(
                f"{table.name}, column {source!r}: {_said(kind)} cannot be stacked into {name!r}"
            )
        dtypes.append(STORAGE_DTYPES[kind.dtype])
        width += math.prod(kind.shape)
    common = np.result_type(*dtypes)
    found = next(key for key, dtype in STORAGE_DTYPES.items() if dtype == common and key != "BF16")
    return Column(projection.dtype or found, (width,))


def label_set(table: Table) -> Table:
    """Return a table of pairs without its other columns. ``FormatError`` without ``src`` or ``dst``."""
    for name in ("src", "dst"):
        if name not in table.columns:
            raise FormatError(f"{table.name}: no column {name!r}: labels have src (the anchor) and dst")
    return ProjectedTable(table, {name: Projection((name,)) for name in ("src", "dst")})
