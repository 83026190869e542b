"""Tables side by side: columns of several tables, of the same rows or of rows that have the same ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.partition.missing_values import FilledTable
from gigl_loader.partition.readers import Table, first_rows, read_span, shards_of, stamp_of
from gigl_loader.partition.views import TableView, readers_of


def side_by_side(
    tables: Sequence[Table],
    *,
    fill: Mapping[str, str] | None = None,
    unknown_ids: Literal["error", "drop"] = "error",
) -> Table:
    """Return a table with the columns of all tables and the rows of the first.

    A table without a column ``id`` has the same rows in the same order. One with a column ``id`` has rows of
    some ids of the first table, which are its row numbers where it has no column ``id``. Rows without one
    have missing values, in place of which come those of ``fill`` (``{"y": "-1"}``) as of ``--fill``. Ids that
    the first table lacks are refused, or with ``"drop"`` left out.

    ``FormatError`` for tables whose numbers of rows differ, a column of two tables, an id that comes twice.
    """
    found, *others = tables
    for other in others:
        both = ("id" if "id" in found.columns else None), ("id" if "id" in other.columns else None)
        found = beside(found, other, ids=both, drops_unknown=unknown_ids == "drop")
    ids = [name for name in ("id", "src", "dst") if name in found.columns]
    return FilledTable(found, fill or {}, used=list(found.columns), ids=ids, labels=("y", "label"))


def beside(
    table: Table, other: Table, *, ids: tuple[str | None, str | None], drops_unknown: bool = False
) -> Table:
    """Return a table with the columns of another one beside its own: by id, or by row if that one has no ids.

    ``ids`` are the columns of ids of both, that of ``table`` ``None`` for its row numbers.
    """
    own, of_other = ids
    if of_other is not None:
        from gigl_loader.partition.lookup import LookedUpTable

        other = LookedUpTable(table, other, ids=(own, of_other), drops_unknown=drops_unknown)
    if both := [name for name in table.columns if name in other.columns]:
        raise FormatError(
            f"column {both[0]!r} is in {table.name} and in {other.name}: leave it out of one of them"
        )
    if table.num_rows != other.num_rows:
        raise FormatError(
            f"{table.name} has {table.num_rows} rows, {other.name} has {other.num_rows}: "
            "files side by side have the same rows, or a column of ids"
        )
    return SideBySideTable(table, other)


class SideBySideTable(TableView):
    """Two tables of the same rows."""

    def __init__(self, table: Table, other: Table) -> None:
        super().__init__(table)
        self._other = other
        self.columns = {**table.columns, **other.columns}

    @property
    def stamp(self) -> object:
        return [stamp_of(self._table), stamp_of(self._other)]

    @property
    def readers(self) -> list[Table]:
        return [*readers_of(self._table), *readers_of(self._other)]

    def shards(self, rows: int) -> list[TableView]:
        """Return shards with the rows of those of the first table. One where a table cannot be cut."""
        own, others = shards_of(self._table, rows), shards_of(self._other, rows)
        if len(own) == 1 or len(others) == 1:
            return [self]
        bounds, starts = first_rows(own), first_rows(others)
        if bounds != starts:
            whole = (self._other, others, starts)
            others = [_Span(*whole, begin, end) for begin, end in pairwise(bounds)]
        return [SideBySideTable(*pair) for pair in zip(own, others, strict=True)]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        others = [name for name in names if name in self._other.columns]
        own = [name for name in names if name not in self._other.columns]
        if not own or not others:
            yield from (self._other if others else self._table).read(names, rows)
            return
        streams = (self._table.read(own, rows), self._other.read(others, rows))
        for left, right in zip(*(_exactly(each, rows) for each in streams), strict=True):
            yield {name: left[name] if name in left else right[name] for name in names}

    def where(self, column: str, row: int) -> str:
        return (self._other if column in self._other.columns else self._table).where(column, row)


class _Span(TableView):
    """Rows ``[begin, end)`` of a table, from its shards."""

    def __init__(
        self, table: Table, shards: Sequence[Table], bounds: Sequence[int], begin: int, end: int
    ) -> None:
        super().__init__(table)
        self._shards, self._bounds = shards, bounds
        self._begin, self._end = begin, end

    @property
    def num_rows(self) -> int:
        return self._end - self._begin

    def shards(self, rows: int) -> list[TableView]:
        return [self]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        yield from read_span(self._shards, self._bounds, self._begin, self._end, names=names, rows=rows)

    def where(self, column: str, row: int) -> str:
        return self._table.where(column, self._begin + row)


def _exactly(chunks: Iterator[dict[str, Array]], rows: int) -> Iterator[dict[str, Array]]:
    """Yield chunks of exactly ``rows`` rows, the last of fewer."""
    held: list[dict[str, Array]] = []
    count = 0
    for chunk in chunks:
        held.append(chunk)
        count += len(next(iter(chunk.values())))
        if count >= rows:
            whole = _concatenated(held)
            yield {name: array[:rows] for name, array in whole.items()}
            held, count = [{name: array[rows:] for name, array in whole.items()}], count - rows
    if count:
        yield _concatenated(held)


def _concatenated(chunks: Sequence[dict[str, Array]]) -> dict[str, Array]:
    if len(chunks) == 1:
        return chunks[0]
    found = {}
    for name in chunks[0]:
        arrays = [chunk[name] for chunk in chunks]
        masked = any(isinstance(array, np.ma.MaskedArray) for array in arrays)
        join: Callable[[list[Array]], Array] = np.ma.concatenate if masked else np.concatenate
        found[name] = join(arrays)
    return found
