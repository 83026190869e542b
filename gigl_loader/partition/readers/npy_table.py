"""Tables of ``.npy`` files: one file per column, read in pieces, never mapped."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import TEXT, Kind, as_texts, cut, file_stamp
from gigl_loader.tensors import STORAGE_DTYPES

logger = logging.getLogger(__name__)

_NAMES = {dtype: name for name, dtype in STORAGE_DTYPES.items() if name != "BF16"}


@dataclass(frozen=True, slots=True)
class _Run:
    """Bytes of a row: row r holds them at ``offset + r * stride``."""

    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class _File:
    """The header of a ``.npy`` file."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int


@dataclass(frozen=True, slots=True)
class _NpyColumn:
    """A column in a file: each row is one run of bytes, or in Fortran order one per element."""

    file: _File
    rows: int
    shape: tuple[int, ...]
    runs: tuple[_Run, ...]

    @property
    def kind(self) -> Kind:
        if self.file.dtype.kind in "US" and not self.shape:
            return TEXT
        name = _NAMES.get(self.file.dtype.newbyteorder("="))
        return str(self.file.dtype) if name is None else Column(name, self.shape)

    def read(self, file: BinaryIO, start: int, count: int) -> Array:
        size = math.prod(self.shape) // len(self.runs) if self.shape else 1
        pieces = [self._read_run(file, run, start, count, size) for run in self.runs]
        rows = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)
        if not rows.dtype.isnative:
            rows = rows.astype(rows.dtype.newbyteorder("="))
        return as_texts(rows.reshape(count, *self.shape))

    def _read_run(self, file: BinaryIO, run: _Run, start: int, count: int, size: int) -> Array:
        """Read ``size`` elements of each row, as an array [count, size]."""
        step = run.stride // self.file.dtype.itemsize
        if count == 0 or size == 0:
            return np.empty((count, size), dtype=self.file.dtype)
        values = np.empty((count - 1) * step + size, dtype=self.file.dtype)
        read_exactly(file, self.file.path, run.offset + start * run.stride, values)
        if step == size:
            return values.reshape(count, size)
        return np.lib.stride_tricks.as_strided(
            values, (count, size), (run.stride, self.file.dtype.itemsize)
        ).copy()


class NpyTable:
    """Columns of equal length, each in a ``.npy`` file."""

    read_as = ".npy"
    """How the table is read, for people."""

    def __init__(self, name: str, columns: Mapping[str, _NpyColumn]) -> None:
        self.name = name
        self._columns = dict(columns)
        self.columns: dict[str, Kind] = {key: column.kind for key, column in self._columns.items()}
        self.num_rows = self._length()
        self._first_row = 0

    @property
    def stamp(self) -> object:
        return [file_stamp(column.file.path) for column in self._columns.values()]

    def shards(self, rows: int) -> list[NpyTable]:
        return [self._span(begin, end) for begin, end in cut(self.num_rows, rows)]

    def _span(self, begin: int, end: int) -> NpyTable:
        shard = copy(self)
        shard._first_row, shard.num_rows = self._first_row + begin, end - begin
        return shard

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        files = {name: self._columns[name].file.path.open("rb", buffering=0) for name in names}
        end = self._first_row + self.num_rows
        try:
            for start in range(self._first_row, end, rows):
                count = min(rows, end - start)
                yield {name: self._columns[name].read(files[name], start, count) for name in names}
        finally:
            for file in files.values():
                file.close()

    def where(self, column: str, row: int) -> str:
        found = self._columns.get(column)
        name = self.name if found is None else found.file.path
        return f"{name}, column {column!r}, row {self._first_row + row}"

    def _length(self) -> int:
        first: _NpyColumn | None = None
        for column in self._columns.values():
            if first is None:
                first = column
            elif column.rows != first.rows:
                raise FormatError(
                    f"ragged columns: {first.file.path} has {first.rows} rows, "
                    f"{column.file.path} has {column.rows}"
                )
        return 0 if first is None else first.rows


def npy_table(name: str, paths: Mapping[str, Path]) -> NpyTable:
    """Return the table of these files by column name. The first axis of each array is the row."""
    return NpyTable(name, {column: _column(_header(path)) for column, path in paths.items()})


def edge_index_table(path: Path) -> NpyTable:
    """Return the columns ``src`` and ``dst`` of an array [2, E], as PyG has it, or [E, 2]."""
    file = _header(path)
    if len(file.shape) != 2 or 2 not in file.shape:
        way = f"numpy.save('edges.npy', numpy.load({str(path)!r})[:, :2]) keeps the first two columns"
        shape = f"shape {list(file.shape)}; an edge index is [2, E] or [E, 2]"
        raise FormatError(f"{path}: {shape}" + (f": {way}" if len(file.shape) == 2 else ""))
    size = file.dtype.itemsize
    by_end = file.shape[0] == 2
    if file.shape == (2, 2):
        logger.warning("%s: shape [2, 2] is read as [2, E]: two sources, then two destinations", path)
    rows = file.shape[1] if by_end else file.shape[0]
    apart = by_end != file.fortran  # all sources lie before all destinations
    runs = [
        _Run(file.offset + end * size * (rows if apart else 1), size * (1 if apart else 2)) for end in (0, 1)
    ]
    columns = {
        name: _NpyColumn(file, rows, (), (run,)) for name, run in zip(("src", "dst"), runs, strict=True)
    }
    return NpyTable(str(path), columns)


def _column(file: _File) -> _NpyColumn:
    if not file.shape:
        raise FormatError(f"{file.path}: a single number, not an array of rows")
    rows, *rest = file.shape
    size = file.dtype.itemsize
    runs: tuple[_Run, ...]
    if not file.fortran or len(file.shape) == 1:
        runs = (_Run(file.offset, size * math.prod(rest)),)
    elif len(rest) == 1:
        runs = tuple(_Run(file.offset + place * rows * size, size) for place in range(rest[0]))
    else:
        raise FormatError(f"{file.path}: {len(file.shape)}-D in Fortran order; save it in C order")
    return _NpyColumn(file, rows, tuple(rest), runs or (_Run(file.offset, 0),))


def _header(path: Path) -> _File:
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read(file)
        except (ValueError, KeyError) as error:
            raise FormatError(f"{path}: not a .npy file of numbers: {error}") from None
        offset = file.tell()
    if dtype.hasobject or dtype.names:
        first = (dtype.names or ("",))[0]
        way = f": save a file of each, numpy.save('{first}.npy', numpy.load({str(path)!r})[{first!r}])"
        raise FormatError(f"{path}: holds {dtype}, not numbers{way if first else ''}")
    needed = offset + math.prod(shape) * dtype.itemsize
    if path.stat().st_size < needed:
        raise FormatError(f"{path}: {path.stat().st_size} bytes, its header says {needed}: cut off")
    return _File(path, dtype, shape, fortran, offset)


def read_exactly(file: BinaryIO, path: Path, offset: int, out: Array) -> None:
    rest = out.reshape(-1).view(np.uint8).data
    while rest:
        count = os.preadv(file.fileno(), [rest], offset)
        if count == 0:
            raise FormatError(f"{path}: ends early, at byte {offset}")
        rest, offset = rest[count:], offset + count
