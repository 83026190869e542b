"""Tables whose columns read as codes: the build stores them as any other column."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gigl_loader.arrays import Array, Bytes, Float32Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.quantization import Quantization, Quantized, encode, scales_of
from gigl_loader.graph.schema import Column, EdgeType, NodeType, type_name
from gigl_loader.partition.job import Job, nodes_or_edges, run_on_shards
from gigl_loader.partition.readers import Kind, Table, numbered
from gigl_loader.partition.table import GraphTables
from gigl_loader.partition.views import TableView


def as_floats(array: Array, column: Column) -> Array:
    """Return rows of a column, [R, ...], as float32 or float64 [R, elements of a row]."""
    rows = array.reshape(len(array), math.prod(column.shape))
    if column.dtype == "BF16":
        return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return rows.astype(np.float32) if column.dtype == "F16" else rows


_LARGEST = float(np.finfo(np.float32).max)


def quantize_columns(job: Job, given: GraphTables) -> GraphTables:
    """Return the tables with columns quantised as the tables say.

    A table with columns that are quantised per column is read once, for the smallest and the largest value of
    each element of a row. ``FormatError`` names the place of a value that is not finite.
    """
    edges, nodes = dict(given.edges), dict(given.nodes)
    for kind, columns in given.quantize.items():
        if isinstance(kind, str):
            rows = nodes[kind].rows
            assert rows is not None
            nodes[kind] = replace(nodes[kind], rows=_quantized(job, kind, rows, columns))
        else:
            edges[kind] = _quantized(job, kind, edges[kind], columns)
    return replace(given, edges=edges, nodes=nodes, quantize={})


def _quantized(
    job: Job, kind: NodeType | EdgeType, table: Table, columns: Mapping[str, Quantization]
) -> QuantizedTable:
    by_column = [name for name, how in columns.items() if how.per == "column"]
    ranges = _ranges(job, kind, table, by_column) if by_column else {}
    forms: dict[str, Column] = {}
    for name, how in columns.items():
        column = table.columns[name]
        assert isinstance(column, Column)
        scale = zero_point = b""
        if how.per == "column":
            try:
                scales, zero_points = scales_of(*ranges[name], how)
            except OverflowError:
                raise FormatError(
                    f"{table.name}, column {name!r}: a step of {how} is larger than float32 can hold"
                ) from None
            scale, zero_point = (each.astype("<f4").tobytes() for each in (scales, zero_points))
        try:
            forms[name] = replace(
                column, dtype="F32", quantized=Quantized(how, column.dtype, scale, zero_point)
            )
        except ValueError as error:
            raise FormatError(f"{table.name}, column {name!r}: {error}") from None
    return QuantizedTable(table, forms)


def _ranges(
    job: Job, kind: NodeType | EdgeType, table: Table, names: Sequence[str]
) -> dict[str, tuple[Array, Array]]:
    """Return the smallest and largest values of each column, [elements of a row] each; 0 without rows."""
    name = f"ranges/{'nodes' if isinstance(kind, str) else 'edges'}/{type_name(kind)}"
    step = f"{nodes_or_edges(kind)}: range of {', '.join(names)}"
    results = run_on_shards(job, table, name, step, partial(_ranges_in, names))
    found = [each["ranges"] for each in results if each["ranges"]]
    ranges = {}
    for name in names:
        column = table.columns[name]
        assert isinstance(column, Column)
        zeros = [0.0] * int(np.prod(column.shape))
        low, high = zip(*(each[name] for each in found), strict=True) if found else ([zeros], [zeros])
        dtype = np.float64 if column.dtype == "F64" else np.float32
        ranges[name] = np.min(low, axis=0).astype(dtype), np.max(high, axis=0).astype(dtype)
    return ranges


def _ranges_in(names: Sequence[str], job: Job, table: Table) -> dict[str, Any]:
    """Find the range of each element of a row of some columns in a shard."""
    columns = {name: column for name in names if isinstance(column := table.columns[name], Column)}
    step = job.budget.copy_rows(sum(each.row_bytes for each in columns.values()))
    found: dict[str, tuple[Array, Array]] = {}
    num_rows = 0
    for row, chunk in numbered(table, names, step):
        size = len(next(iter(chunk.values())))
        for name, column in columns.items() if size else ():
            values = as_floats(chunk[name], column)
            low, high = _extremes(table, name, values, axis=0, first_row=row)
            before = found.get(name, (low, high))
            found[name] = (np.minimum(before[0], low), np.maximum(before[1], high))
        num_rows += size
        job.advance(size)
    ranges = {name: [low.tolist(), high.tolist()] for name, (low, high) in found.items()}
    return {"rows": num_rows, "ranges": ranges}


def _extremes(table: Table, name: str, values: Array, *, axis: int, first_row: int) -> tuple[Array, Array]:
    """Return the smallest and largest values along an axis. ``FormatError`` for what float32 cannot hold."""
    low, high = values.min(axis=axis), values.max(axis=axis)
    if (low >= -_LARGEST).all() and (high <= _LARGEST).all():  # Of NaN, neither is true.
        return low, high
    wrong = ~(np.abs(values) <= _LARGEST)
    at = int(np.flatnonzero(wrong.any(axis=1))[0])
    value = values[at][wrong[at]][0]
    raise FormatError(
        f"{table.where(name, first_row + at)}: {value} cannot be quantised: not a finite float32"
    )


class QuantizedTable(TableView):
    """A table with some columns quantised.

    It reads fewer rows at once than asked for, as values take more memory than codes.
    """

    def __init__(self, table: Table, forms: Mapping[str, Column]) -> None:
        """``forms`` has the columns that are quantised."""
        super().__init__(table)
        self.columns = {**table.columns, **forms}
        self._forms = forms

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        stored, raw = (_row_bytes(columns, names) for columns in (self.columns, self._table.columns))
        return super().read(names, max(rows * stored // max(raw, 1), 1))

    def _values(self, name: str, array: Array, first_row: int) -> Array:
        form, column = self._forms.get(name), self._table.columns[name]
        if form is None:
            return array
        assert isinstance(column, Column)
        assert form.quantized is not None
        return self._encoded(name, as_floats(array, column), form.quantized, first_row)

    def _encoded(self, name: str, values: Array, form: Quantized, row: int) -> Bytes:
        if form.how.per == "column":
            return encode(values, form.scales, form.zero_points, form.how)
        low, high = _extremes(self._table, name, values, axis=1, first_row=row)
        scales, zero_points = self._scales(name, low, high, form.how, row)
        return encode(values, scales, zero_points, form.how)

    def _scales(
        self, name: str, low: Array, high: Array, how: Quantization, row: int
    ) -> tuple[Float32Array, Float32Array]:
        try:
            return scales_of(low, high, how)
        except OverflowError:
            at = int(np.argmax(high.astype(np.float64) - low))
            raise FormatError(
                f"{self.where(name, row + at)}: a step of {how} is larger than float32 can hold"
            ) from None


def _row_bytes(columns: Mapping[str, Kind], names: Sequence[str]) -> int:
    known = (columns[name] for name in names)
    return sum(each.row_bytes if isinstance(each, Column) else 8 for each in known)
