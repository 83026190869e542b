"""Exchange of rows between the tasks of one stage and of the next, by bucket, in memory or in files.

Tasks of one process share a spill. Tasks of several write a file each: the arrays of a bucket side by side,
as they were appended; then an index, and 32 bytes that say where it lies. What is read is compared with its
CRC-32C.
"""

from __future__ import annotations

import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Array, Bytes, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.native import crc32c, find_buckets, order_by_bucket
from gigl_loader.partition.output import Scratch, ScratchFile
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from gigl_loader.partition.job import Job


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
    """Writer of rows by bucket."""

    def append(self, bucket: int, rows: Rows) -> None:
        """Add rows to a bucket. The arrays must not change afterwards."""


class Spill(ABC):
    """Named arrays per bucket, appended in step and taken out once."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = dict(kinds)
        self._sizes: dict[int, int] = {}

    def append(self, bucket: int, rows: Rows) -> None:
        """Add rows to a bucket. The arrays must not change afterwards."""
        for name, array in rows.items():
            assert (array.dtype, array.shape[1:]) == self._kinds[name], (name, array.dtype, array.shape)
            self._keep(bucket, name, array)
        self._sizes[bucket] = self.size(bucket) + len(next(iter(rows.values())))

    def size(self, bucket: int) -> int:
        """Return the number of rows in a bucket."""
        return self._sizes.get(bucket, 0)

    def read(self, bucket: int, names: list[str], rows: int) -> Iterator[dict[str, Array]]:
        """Yield the rows of a bucket in the order they came, at most ``rows`` at a time."""
        size = self.size(bucket)
        for start in range(0, size, rows):
            yield {name: self._load(bucket, name, start, min(rows, size - start)) for name in names}

    def take(self, bucket: int, name: str) -> Array:
        """Return one array of a bucket, whole, and forget it."""
        array = self._load(bucket, name, 0, self.size(bucket))
        self._forget(bucket, name)
        return array

    def drop(self, bucket: int) -> None:
        """Forget what is left of a bucket."""
        for name in self._kinds:
            self._forget(bucket, name)

    @abstractmethod
    def _keep(self, bucket: int, name: str, array: Array) -> None: ...

    @abstractmethod
    def _load(self, bucket: int, name: str, start: int, count: int) -> Array: ...

    @abstractmethod
    def _forget(self, bucket: int, name: str) -> None: ...


class MemorySpill(Spill):
    """Keeps the arrays as they came, and joins them when they are read."""

    def __init__(self, kinds: Kinds) -> None:
        super().__init__(kinds)
        self._pieces: dict[tuple[int, str], list[Array]] = {}

    def _keep(self, bucket: int, name: str, array: Array) -> None:
        self._pieces.setdefault((bucket, name), []).append(array)

    def _load(self, bucket: int, name: str, start: int, count: int) -> Array:
        pieces = self._pieces.get((bucket, name))
        if not pieces:
            dtype, shape = self._kinds[name]
            return np.empty((0, *shape), dtype)
        if len(pieces) > 1:
            pieces[:] = [np.concatenate(pieces)]
        return pieces[0][start : start + count]

    def _forget(self, bucket: int, name: str) -> None:
        self._pieces.pop((bucket, name), None)


class DiskSpill(Spill):
    """Keeps one file per bucket and array, opened only while it is used: their number has no limit."""

    def __init__(self, path: Path, kinds: Kinds) -> None:
        super().__init__(kinds)
        self._path = path
        path.mkdir(parents=True)

    def _keep(self, bucket: int, name: str, array: Array) -> None:
        with self._file(bucket, name).open("ab", buffering=0) as file:
            view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            while view:
                view = view[os.write(file.fileno(), view) :]

    def _load(self, bucket: int, name: str, start: int, count: int) -> Array:
        dtype, shape = kind = self._kinds[name]
        size = count * math.prod(shape)
        if not size:
            return np.empty((count, *shape), dtype)
        found = np.fromfile(self._file(bucket, name), dtype, size, offset=start * row_bytes(kind))
        if len(found) < size:
            raise OSError("a temporary file ended early")
        return found.reshape(count, *shape)

    def _forget(self, bucket: int, name: str) -> None:
        self._file(bucket, name).unlink(missing_ok=True)

    def _file(self, bucket: int, name: str) -> Path:
        return self._path / f"{bucket}-{list(self._kinds).index(name)}"


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


_MAGIC = b"gigl-run"
_TRAILER = struct.Struct("<8sQQQ")
"""Magic, first byte of the index, its rows, its checksum."""


class Exchange(Protocol):
    """Buckets of rows between the tasks of two stages."""

    def writer(self, job: Job, task: int) -> AbstractContextManager[RowWriter]:
        """Yield the writer of a task's rows. They count when the block ends without an exception."""

    def spill(self, job: Job, begin: int, end: int) -> Spill:
        """Return the buckets ``[begin, end)`` with the rows of all tasks, in the order of the tasks."""

    def drop(self, job: Job) -> None:
        """Forget all rows."""


class SharedExchange:
    """A spill that the tasks of this process share, one after the other."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill

    @contextmanager
    def writer(self, job: Job, task: int) -> Iterator[RowWriter]:
        yield self._spill

    def spill(self, job: Job, begin: int, end: int) -> Spill:
        return self._spill

    def drop(self, job: Job) -> None:
        pass  # Buckets are dropped one by one.


@dataclass(frozen=True, slots=True)
class FileExchange:
    """A file of the build's scratch for each task that writes."""

    folder: str
    kinds: Kinds
    num_writers: int

    @contextmanager
    def writer(self, job: Job, task: int) -> Iterator[RowWriter]:
        file = job.scratch.create(self._name(task))
        try:
            writer = _FileWriter(file, self.kinds)
            yield writer
            writer.finish()
        except BaseException:
            file.abort()
            raise

    def spill(self, job: Job, begin: int, end: int) -> Spill:
        names = [self._name(task) for task in range(self.num_writers)]
        return _FileSpill(job.scratch, names, self.kinds, begin, end)

    def drop(self, job: Job) -> None:
        job.scratch.remove(self.folder)

    def _name(self, task: int) -> str:
        return f"{self.folder}/{task:06d}"


class _FileWriter:
    """Writes the rows of one task."""

    def __init__(self, file: ScratchFile, kinds: Kinds) -> None:
        self._file = file
        self._kinds = kinds
        self._index: list[list[int]] = []
        self._end = 0

    def append(self, bucket: int, rows: Mapping[str, Array]) -> None:
        entry = [bucket, len(next(iter(rows.values()))), self._end]
        for name, (dtype, shape) in self._kinds.items():
            array = rows[name]
            assert (array.dtype, array.shape[1:]) == (dtype, shape), (name, array.dtype, array.shape)
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            entry.append(crc32c(data))
            self._file.write(data)
            self._end += len(data)
        self._index.append(entry)

    def finish(self) -> None:
        index = np.array(self._index, np.int64).reshape(-1, 3 + len(self._kinds)).reshape(-1).view(np.uint8)
        self._file.write(index)
        self._file.write(_TRAILER.pack(_MAGIC, self._end, len(self._index), crc32c(index)))
        self._file.close()


class _Segment(NamedTuple):
    """Rows of a bucket that were appended at once."""

    file: str
    first_row: int
    """Of the segment, among the rows of its bucket."""
    num_rows: int
    offset: int
    sums: list[int]


class _FileSpill(Spill):
    """Buckets in the files of all tasks that wrote, which stay as they are."""

    def __init__(self, scratch: Scratch, names: list[str], kinds: Kinds, begin: int, end: int) -> None:
        super().__init__(kinds)
        self._scratch = scratch
        self._segments: dict[int, list[_Segment]] = {}
        for name in names:
            index = _read_index(scratch, name, 3 + len(self._kinds))
            for bucket, rows, offset, *sums in index[(begin <= index[:, 0]) & (index[:, 0] < end)].tolist():
                segment = _Segment(name, self.size(bucket), rows, offset, sums)
                self._segments.setdefault(bucket, []).append(segment)
                self._sizes[bucket] = segment.first_row + rows

    def _keep(self, bucket: int, name: str, array: Array) -> None:
        raise AssertionError("the rows of an exchange are written by its writers")

    def _load(self, bucket: int, name: str, start: int, count: int) -> Array:
        dtype, shape = self._kinds[name]
        found = np.empty((count, *shape), dtype)
        for segment in self._segments.get(bucket, ()):
            low = max(segment.first_row, start)
            high = min(segment.first_row + segment.num_rows, start + count)
            if low < high:
                self._fill(found[low - start : high - start], segment, low - segment.first_row, name)
        return found

    def _fill(self, out: Array, segment: _Segment, row: int, name: str) -> None:
        """Read the rows of a segment from ``row`` on."""
        at, view = list(self._kinds).index(name), out.reshape(-1).view(np.uint8)
        before = sum(map(row_bytes, list(self._kinds.values())[:at]))
        begin = segment.offset + segment.num_rows * before + row * row_bytes(self._kinds[name])
        self._scratch.read_into(segment.file, begin, view)
        if len(out) == segment.num_rows and crc32c(view) != segment.sums[at]:
            raise FormatError(f"{segment.file} of the scratch: {name} does not match its checksum")

    def _forget(self, bucket: int, name: str) -> None:
        pass


def _read_index(scratch: Scratch, name: str, width: int) -> Int64Array:
    """Return bucket, rows, first byte and checksums of each segment of a file, int64 [N, width]."""
    size = scratch.size(name)
    if size < _TRAILER.size:
        raise FormatError(f"{name} of the scratch: {size} bytes, cut off")
    trailer = _read(scratch, name, size - _TRAILER.size, _TRAILER.size)
    magic, begin, rows, checksum = _TRAILER.unpack(trailer.tobytes())
    if magic != _MAGIC or begin + rows * width * 8 + _TRAILER.size != size:
        raise FormatError(f"{name} of the scratch: not a file of rows, or cut off")
    index = _read(scratch, name, begin, rows * width * 8)
    if crc32c(index) != checksum:
        raise FormatError(f"{name} of the scratch: its index does not match its checksum")
    return index.view(np.int64).reshape(-1, width)


def _read(scratch: Scratch, name: str, begin: int, count: int) -> Bytes:
    out = np.empty(count, np.uint8)
    scratch.read_into(name, begin, out)
    return out
