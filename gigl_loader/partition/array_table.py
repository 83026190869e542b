"""Tables of arrays in memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace

import numpy as np

from gigl_loader.arrays import Array, Bytes
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.graph.times import nanoseconds
from gigl_loader.native import crc32c
from gigl_loader.partition.readers import TEXT, Kind, as_texts, cut
from gigl_loader.tensors import spec_of


class ArrayTable:
    """A table of arrays in memory."""

    def __init__(
        self, name: str, arrays: Mapping[str, Array], columns: Mapping[str, Column] | None = None
    ) -> None:
        """``arrays`` have a row per node or edge, [N, ...]: numbers, booleans, texts or dates, by column.

        ``columns`` may override the dtype of some arrays: ``BF16`` for uint16 that hold bfloat16.
        """
        self.name = name
        self._arrays: dict[str, Array] = {}
        self.columns: dict[str, Kind] = {}
        for key, given in arrays.items():
            array, unit = without_dates(np.asarray(given), f"{name}, column {key!r}")
            self._arrays[key] = array = as_texts(array)
            kind = _kind_of(name, key, array)
            self.columns[key] = replace(kind, unit=unit) if isinstance(kind, Column) else kind
        self.columns.update(columns or {})
        self.num_rows = _common_length(name, self._arrays)
        self._first_row = 0

    @property
    def stamp(self) -> object:
        return [(name, _stamp(array)) for name, array in self._arrays.items()]

    def shards(self, rows: int) -> list[ArrayTable]:
        return [self._span(begin, end) for begin, end in cut(self.num_rows, rows)]

    def _span(self, begin: int, end: int) -> ArrayTable:
        shard = copy(self)
        shard._arrays = {name: array[begin:end] for name, array in self._arrays.items()}
        shard._first_row, shard.num_rows = self._first_row + begin, end - begin
        return shard

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for start in range(0, self.num_rows, rows):
            yield {name: self._arrays[name][start : start + rows] for name in names}

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, column {column!r}, row {self._first_row + row}"


def without_dates(array: Array, what: str) -> tuple[Array, str | None]:
    """Return datetime64 as nanoseconds, int64, with their unit, and any other array as it is.

    ``FormatError`` names a date that nanoseconds cannot hold.
    """
    if array.dtype.kind != "M":
        return array, None
    try:
        return nanoseconds(array), "ns"
    except ValueError as error:
        raise FormatError(f"{what}: {error}") from None


def _stamp(array: Array) -> int:
    texts = array.dtype.kind == "O"
    return zlib.crc32("\0".join(array.tolist()).encode()) if texts else crc32c(bytes_of(array))


def _kind_of(table: str, name: str, array: Array) -> Kind:
    if array.ndim == 0:
        raise FormatError(f"{table}, column {name!r}: a single number, not an array of rows")
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.reshape(-1)):
        return TEXT
    try:
        return Column(spec_of(array).dtype, array.shape[1:])
    except FormatError as error:
        raise FormatError(f"{table}, column {name!r}: {error}") from None


def _common_length(table: str, arrays: Mapping[str, Array]) -> int:
    first: str | None = None
    for name, array in arrays.items():
        if first is None:
            first = name
        elif len(array) != len(arrays[first]):
            raise FormatError(
                f"{table}: ragged columns: {first!r} has {len(arrays[first])} rows, {name!r} has {len(array)}"
            )
    return 0 if first is None else len(arrays[first])


def bytes_of(array: Array) -> Bytes:
    """Return the bytes of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
