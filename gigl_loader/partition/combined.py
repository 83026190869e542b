"""Tables made of tables: several files one after the other, and columns renamed, stacked or cast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.shards import shards_of, stamp_of
from gigl_loader.partition.table import TEXT, Kind, Table
from gigl_loader.tensors import STORAGE_DTYPES

__all__ = ["ChainedTable", "ProjectedTable", "Projection", "chain"]


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
    """Where a column comes from."""

    sources: tuple[str, ...]
    stacked: bool = False
    """Put the sources (numbers and vectors) side by side, as one vector per row."""
    dtype: str | None = None
    """Convert to this safetensors dtype."""


class ProjectedTable:
    """Chosen columns of another table, under other names."""

    def __init__(self, table: Table, projections: Mapping[str, Projection]) -> None:
        self.name = table.name
        self._table = table
        self._projections = dict(projections)
        self.columns: dict[str, Kind] = {
            name: _projected_kind(table, name, projection) for name, projection in self._projections.items()
        }

    @property
    def num_rows(self) -> int:
        return self._table.num_rows

    @property
    def stamp(self) -> object:
        return stamp_of(self._table)

    def shards(self, rows: int) -> list[ProjectedTable]:
        return [ProjectedTable(shard, self._projections) for shard in shards_of(self._table, rows)]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        sources = list(dict.fromkeys(key for name in names for key in self._projections[name].sources))
        row = 0
        for chunk in self._table.read(sources, rows):
            yield {name: self._column(chunk, name, row) for name in names}
            row += len(chunk[sources[0]])

    def where(self, column: str, row: int) -> str:
        projection = self._projections.get(column)
        return self._table.where(column if projection is None else projection.sources[0], row)

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
            wrong = np.flatnonzero((cast != array).reshape(len(array), -1).any(axis=1))
            if len(wrong):
                place = self.where(name, first_row + int(wrong[0]))
                raise FormatError(f"{place}: {array[wrong[0]]} is no {dtype}")
        return cast


def _require_same(first: Table, table: Table) -> None:
    for name in (*first.columns, *table.columns):
        kinds = first.columns.get(name), table.columns.get(name)
        if kinds[0] != kinds[1]:
            raise FormatError(
                f"{table.name}, column {name!r}: {_said(kinds[1])}, but {_said(kinds[0])} in {first.name}"
            )


def _said(kind: Kind | None) -> str:
    if kind is None:
        return "missing"
    if not isinstance(kind, Column):
        return kind
    return f"{kind.dtype} {list(kind.shape)}" + (f" in {kind.unit}" if kind.unit else "")


def _text_kind(table: Table, name: str, kind: Kind) -> Kind:
    """Return the kind of a column that is converted to texts: of integers, or of texts already."""
    integers = isinstance(kind, Column) and not kind.shape and STORAGE_DTYPES[kind.dtype].kind in "iu"
    if kind != TEXT and not integers:
        raise FormatError(f"{table.name}, column {name!r}: {_said(kind)} cannot be read as texts")
    return TEXT


def _projected_kind(table: Table, name: str, projection: Projection) -> Kind:
    kinds = [table.columns[source] for source in projection.sources]
    if not projection.stacked:
        kind = kinds[0]
        if projection.dtype == "TEXT":
            return _text_kind(table, name, kind)
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
