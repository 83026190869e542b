"""Edges whose rows name the types of their ends, as in files of knowledge graphs: a table for each pair."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from gigl_loader.arrays import Array, BoolArray
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import EdgeType
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.readers import TEXT, Table, numbered
from gigl_loader.partition.views import ChosenRows, reader_of

_MAX_PAIRS = 1024
"""The table is read for each of them."""
_ROWS = 1 << 16


def tables_by_type(kind: EdgeType, table: Table) -> dict[EdgeType, Table]:
    """Return a table for each pair of types of ends that the rows name, in the order of the types.

    An end of ``kind`` is a column of types, with ``@``, or a type: ``("@x_type", "binds", "@y_type")``. Of
    arrays, which may be those of a graph, it is a column only where they have one. Without such an end, there
    is one table. The tables have no columns of types. ``FormatError`` for a missing column, one without
    texts, a row without a type, and more than 1,024 pairs.
    """
    columns = {end: kind[end][1:] for end in (0, 2) if kind[end].startswith("@") and len(kind[end]) > 1}
    names = list(dict.fromkeys(columns.values()))
    if not names or (isinstance(reader_of(table), ArrayTable) and table.columns.keys().isdisjoint(names)):
        return {kind: table}
    for name in names:
        held = table.columns.get(name)
        if held != TEXT:
            listed = ", ".join(map(repr, table.columns))
            what = "no such column" if held is None else f"no texts: read them as texts (--dtype {name}=text)"
            raise FormatError(f"{table.name}, column {name!r} of types: {what}; columns: {listed}")
    pairs: set[tuple[str, ...]] = set()
    for row, chunk in numbered(table, names, _ROWS):
        pairs.update(zip(*(chunk[name].tolist() for name in names), strict=True))
        for name in names:
            if "" in {pair[names.index(name)] for pair in pairs}:
                at = row + chunk[name].tolist().index("")
                raise FormatError(f"{table.where(name, at)}: no type")
        if len(pairs) > _MAX_PAIRS:
            raise FormatError(f"{table.name}: more than {_MAX_PAIRS} pairs of types in {' and '.join(names)}")
    found: dict[EdgeType, Table] = {}
    for pair in sorted(pairs):
        wanted = dict(zip(names, pair, strict=True))
        source, target = (wanted[columns[end]] if end in columns else kind[end] for end in (0, 2))
        found[source, kind[1], target] = RowsOfTypes(table, wanted, kind)
    return found


class RowsOfTypes(ChosenRows):
    """The rows of a table that have some texts in some columns, without these columns."""

    def __init__(self, table: Table, wanted: Mapping[str, str], given_type: EdgeType) -> None:
        super().__init__(table)
        self._given_type = given_type
        self._wanted = dict(wanted)
        self.tested = list(wanted)
        self.columns = {name: kind for name, kind in table.columns.items() if name not in wanted}

    @property
    def given_type(self) -> EdgeType:
        return self._given_type

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @cached_property
    def _num_rows(self) -> int:
        return sum(len(places) for _, places, _ in self._chosen([], _ROWS))

    def _is_chosen(self, chunk: Mapping[str, Array], first_row: int) -> BoolArray:
        mask = np.ones(len(chunk[self.tested[0]]), np.bool_)
        for name, text in self._wanted.items():
            mask &= chunk[name] == text
        return mask

    def _over(self, table: Table) -> RowsOfTypes:
        return RowsOfTypes(table, self._wanted, self._given_type)
