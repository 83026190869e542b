"""Tables made of tables: combined, renamed, reversed, as label sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from gigl_loader.arrays import Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.reverses import reverse_name, reverses_of
from gigl_loader.graph.schema import Column, EdgeSplits, EdgeType
from gigl_loader.partition.readers import TEXT, Kind, Table
from gigl_loader.partition.readers.shards import numbered, shards_of, stamp_of
from gigl_loader.partition.table import GraphTables
from gigl_loader.tensors import STORAGE_DTYPES


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

    def shards(self, rows: int) -> list[TableView]:
        return [self._over(shard) for shard in shards_of(self._table, rows)]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        return self._table.read(names, rows)

    def where(self, column: str, row: int) -> str:
        return self._table.where(column, row)

    def blank(self, name: str) -> Array | None:
        """Return what fills a missing value of a column, of the shape of a row. ``None``: nothing does."""
        return blank_of(self._table, name)

    def source(self, name: str) -> str:
        """Return the name of a column in the file."""
        return source_of(self._table, name)

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
    return table.source(name) if isinstance(table, TableView) else name


def reader_of(table: Table) -> Table:
    """Return the table that reads the file, under all views."""
    return getattr(table, "reader", table)


def readers_of(table: Table) -> list[Table]:
    """Return all tables that read files, under all views."""
    return getattr(table, "readers", [table])


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

    def source(self, name: str) -> str:
        return source_of(self._table, self._projections[name].sources[0])

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


def with_reverse_edges(
    tables: GraphTables, reverses: Mapping[EdgeType, EdgeType] | None = None, *, undirected: bool = False
) -> GraphTables:
    """Return the tables with reversed edges, and with the types that are declared as reverses.

    ``reverses`` gives the type of the reversed edges for some types; both may be the same type, which then
    holds edges of both directions. A type that has a table keeps it: it is declared as the reverse.
    ``undirected`` does so for every type whose ends are of one type, and adds a type ``rev_...`` for every
    other, as PyG's ``ToUndirected`` does. A reversed edge has the columns and the ``id`` of its edge; without
    ``id``, those of another type have its row number, those of the same type follow it. It is in the split of
    its edge, and quantised as its edge is. An edge that the table has in both directions comes twice, a self
    loop too.

    ``ValueError`` for an unknown type, for ends that do not fit, for a reverse of two types, and for declared
    reverses with other splits.
    """
    wanted = dict(reverses or {})
    if undirected:
        for kind in sorted(tables.edges, key=lambda each: len(each[1])):
            if kind not in wanted.values():
                wanted.setdefault(kind, kind if kind[0] == kind[2] else reverse_name(kind))
    edges = dict(tables.edges)
    weights, times, splits = dict(tables.weights), dict(tables.times), dict(tables.splits)
    quantize, encode = dict(tables.quantize), dict(tables.encode)
    for kind, reverse in wanted.items():
        _check_reverse(tables, kind, reverse, wanted)
        if kind in splits or reverse in splits:
            splits |= _split_alike(kind, reverse, splits)
        if reverse in tables.edges and reverse != kind:
            continue
        edges[reverse] = _both_ways(tables.edges[kind]) if reverse == kind else _reversed(tables.edges[kind])
        if kind in weights:
            weights[reverse] = weights[kind]
        if kind in times:
            times[reverse] = times[kind]
        if kind in quantize:
            quantize[reverse] = quantize[kind]
        if kind in encode:
            encode[reverse] = encode[kind]
    declared = {reverse: kind for kind, reverse in wanted.items()} | wanted
    return replace(
        tables,
        edges=edges,
        weights=weights,
        times=times,
        splits=splits,
        quantize=quantize,
        encode=encode,
        reverses=declared,
    )


def with_declared_reverses(tables: GraphTables, reverses: Mapping[EdgeType, EdgeType]) -> GraphTables:
    """Return the tables with types declared as reverses of each other, or of themselves. None gets edges.

    ``ValueError`` for an unknown type, for ends that do not fit, and for a reverse of two types.
    """
    for kind, reverse in reverses.items():
        _check_reverse(tables, kind, reverse, reverses)
        if reverse not in tables.edges:
            raise ValueError(f"there are no edges of type {reverse}, the reverse of {kind}: add them first")
    return replace(tables, reverses={reverse: kind for kind, reverse in reverses.items()} | dict(reverses))


def with_equal_splits(tables: GraphTables) -> GraphTables:
    """Return the tables with the same splits for each type and its reverses, declared or by name.

    Else the reverse of a held-out edge would be among the messages. ``ValueError`` for splits that differ.
    """
    splits = dict(tables.splits)
    for kind in sorted(tables.edges, key=lambda each: (len(each[1]), each)):
        for reverse in reverses_of(kind, tables.edges, tables.reverses):
            if kind in splits or reverse in splits:
                splits |= _split_alike(kind, reverse, splits)
    return replace(tables, splits=splits)


_TURNED: Mapping[str, Literal["src,dst", "dst,src", "both"]]
_TURNED = {"src,dst": "dst,src", "dst,src": "src,dst", "both": "both"}


def _split_alike(
    kind: EdgeType, reverse: EdgeType, splits: Mapping[EdgeType, EdgeSplits]
) -> dict[EdgeType, EdgeSplits]:
    """Return the splits of a type and its reverse, of which one has splits."""
    rule = splits.get(kind, splits.get(reverse))
    assert rule is not None
    if kind == reverse:
        return {kind: replace(rule, hashed="both")}
    of_reverse = splits.get(reverse, rule)
    if (of_reverse.fractions, of_reverse.seed) != (rule.fractions, rule.seed):
        raise ValueError(f"{reverse} is the reverse of {kind}: both have the same splits, these differ")
    return {kind: rule, reverse: replace(rule, hashed=_TURNED[rule.hashed])}


def _check_reverse(
    tables: GraphTables, kind: EdgeType, reverse: EdgeType, wanted: Mapping[EdgeType, EdgeType]
) -> None:
    if kind not in tables.edges:
        known = ", ".join(map(str, tables.edges)) or "none"
        raise ValueError(f"no edges of type {kind} to reverse; known: {known}")
    if (reverse[0], reverse[2]) != (kind[2], kind[0]):
        raise ValueError(f"{reverse} is no reverse of {kind}: it must lead from {kind[2]!r} to {kind[0]!r}")
    of = {each for each, other in wanted.items() if other == reverse} | {wanted.get(reverse, kind)}
    if len(of) > 1:
        raise ValueError(
            f"{reverse} is the reverse of {' and of '.join(map(str, sorted(of)))}: name one of them"
        )


def _reversed(table: Table) -> Table:
    swapped = {"src": "dst", "dst": "src"}
    return ProjectedTable(table, {name: Projection((swapped.get(name, name),)) for name in table.columns})


def _both_ways(table: Table) -> Table:
    return chain([table, _reversed(table)])


def label_set(table: Table) -> Table:
    """Return a table of pairs without its other columns. ``FormatError`` without ``src`` or ``dst``."""
    for name in ("src", "dst"):
        if name not in table.columns:
            raise FormatError(f"{table.name}: no column {name!r}: labels have src (the anchor) and dst")
    return ProjectedTable(table, {name: Projection((name,)) for name in ("src", "dst")})
