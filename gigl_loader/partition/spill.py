"""Rows waiting to be sorted, kept apart by bucket, in memory or in files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.graph.schema import Column
from gigl_loader.native import find_buckets, order_by_bucket
from gigl_loader.tensors import STORAGE_DTYPES

__all__ = [
    "DiskSpill",
    "Kind",
    "Kinds",
    "MemorySpill",
    "RowWriter",
    "Spill",
    "bucket_numbers",
    "kind_of",
    "row_bytes",
    "scatter",
]

Rows = Mapping[str, Array]
Kind = tuple[np.dtype[Any], tuple[int, ...]]
Kinds = Mapping[str, Kind]
"""Dtype and row shape of each array."""


def kind_of(column: Column) -> Kind:
    """Return dtype and row shape of a column as it is stored."""
    spec = column.spec(0)
    return STORAGE_DTYPES[spec.dtype], spec.shape[1:]


def row_bytes(kind: Kind) -> int:
    """Return the size of one row."""
    return kind[0].itemsize * math.prod(kind[1])


class RowWriter(Protocol):
    """Takes rows by bucket."""

    def append(self, bucket: int, rows: Rows) -> None:
        """Add rows to a bucket. The arrays must not change afterwards."""


class Spill(Protocol):
    """Named arrays per bucket, appended in step and taken out once."""

    def append(self, bucket: int, rows: Rows) -> None:
        """Add rows to a bucket. The arrays must not change afterwards."""

    def size(self, bucket: int) -> int:
        """Return the number of rows in a bucket."""

    def read(self, bucket: int, names: list[str], rows: int) -> Iterator[dict[str, Array]]:
        """Yield the rows of a bucket in the order they came, at most ``rows`` at a time."""

    def take(self, bucket: int, name: str) -> Array:
        """Return one array of a bucket, whole, and forget it."""

    def drop(self, bucket: int) -> None:
        """Forget what is left of a bucket."""


class MemorySpill:
    """Keeps the arrays as they came."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = dict(kinds)
        self._pieces: dict[tuple[int, str], list[Array]] = {}
        self._sizes: dict[int, int] = {}

    def append(self, bucket: int, rows: Rows) -> None:
        for name, array in rows.items():
            assert (array.dtype, array.shape[1:]) == self._kinds[name], (name, array.dtype, array.shape)
            self._pieces.setdefault((bucket, name), []).append(array)
        self._sizes[bucket] = self.size(bucket) + len(next(iter(rows.values())))

    def size(self, bucket: int) -> int:
        return self._sizes.get(bucket, 0)

    def read(self, bucket: int, names: list[str], rows: int) -> Iterator[dict[str, Array]]:
        whole = {name: self._join(bucket, name) for name in names}
        for start in range(0, self.size(bucket), rows):
            yield {name: array[start : start + rows] for name, array in whole.items()}

    def take(self, bucket: int, name: str) -> Array:
        array = self._join(bucket, name)
        self._pieces.pop((bucket, name), None)
        return array

    def drop(self, bucket: int) -> None:
        for name in self._kinds:
            self._pieces.pop((bucket, name), None)

    def _join(self, bucket: int, name: str) -> Array:
        pieces = self._pieces.get((bucket, name), [])
        if len(pieces) == 1:
            return pieces[0]
        dtype, shape = self._kinds[name]
        joined = np.concatenate(pieces) if pieces else np.empty((0, *shape), dtype=dtype)
        if pieces:
            self._pieces[bucket, name] = [joined]
        return joined


class DiskSpill:
    """Keeps one file per bucket and array, opened only while it is used: their number has no limit."""

    def __init__(self, path: Path, kinds: Kinds) -> None:
        self._path = path
        self._kinds = dict(kinds)
        self._numbers = {name: number for number, name in enumerate(self._kinds)}
        self._sizes: dict[int, int] = {}
        path.mkdir(parents=True)

    def append(self, bucket: int, rows: Rows) -> None:
        for name, array in rows.items():
            assert (array.dtype, array.shape[1:]) == self._kinds[name], (name, array.dtype, array.shape)
            with self._file(bucket, name).open("ab", buffering=0) as file:
                _write_all(file.fileno(), array)
        self._sizes[bucket] = self.size(bucket) + len(next(iter(rows.values())))

    def size(self, bucket: int) -> int:
        return self._sizes.get(bucket, 0)

    def read(self, bucket: int, names: list[str], rows: int) -> Iterator[dict[str, Array]]:
        size = self.size(bucket)
        for start in range(0, size, rows):
            count = min(rows, size - start)
            yield {name: self._load(bucket, name, start, count) for name in names}

    def take(self, bucket: int, name: str) -> Array:
        array = self._load(bucket, name, 0, self.size(bucket))
        self._file(bucket, name).unlink(missing_ok=True)
        return array

    def drop(self, bucket: int) -> None:
        for name in self._kinds:
            self._file(bucket, name).unlink(missing_ok=True)

    def _file(self, bucket: int, name: str) -> Path:
        return self._path / f"{bucket}-{self._numbers[name]}"

    def _load(self, bucket: int, name: str, start: int, count: int) -> Array:
        dtype, shape = self._kinds[name]
        array = np.empty((count, *shape), dtype=dtype)
        if array.nbytes:
            view = array.reshape(-1).view(np.uint8)
            with self._file(bucket, name).open("rb", buffering=0) as file:
                file.seek(start * (array.nbytes // count))
                _read_all(file.fileno(), view)
        return array


def bucket_numbers(
    cuts: Int64Array, positions: npt.NDArray[np.int32] | Int64Array
) -> npt.NDArray[np.uint32] | None:
    """Return the bucket of each position, by where buckets begin. ``None`` where there is one."""
    return None if len(cuts) < 2 else find_buckets(cuts, positions)


def scatter(spill: RowWriter, buckets: npt.NDArray[np.uint32] | None, rows: Rows) -> None:
    """Append each row to its bucket, keeping the order. ``None`` puts all in bucket 0."""
    if buckets is None:
        spill.append(0, rows)
        return
    if len(buckets) == 0:
        return
    order, starts = order_by_bucket(buckets, int(buckets.max()) + 1)
    sorted_rows = {name: array[order] for name, array in rows.items()}
    for bucket, (start, end) in enumerate(pairwise(starts.tolist())):
        if start < end:
            spill.append(bucket, {name: array[start:end] for name, array in sorted_rows.items()})


def _write_all(fd: int, array: Array) -> None:
    view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while view:
        view = view[os.write(fd, view) :]


def _read_all(fd: int, view: npt.NDArray[np.uint8]) -> None:
    rest = view.data
    while rest:
        count = os.readv(fd, [rest])
        if count == 0:
            raise OSError("a temporary file ended early")
        rest = rest[count:]
