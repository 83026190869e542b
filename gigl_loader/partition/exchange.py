"""Rows that the tasks of a stage hand to those of the next, by bucket.

Tasks of one process share a spill. Tasks of several write a file each: the arrays of a bucket side by side,
as they were appended; then an index, and 32 bytes that say where it lies. What is read is compared with its
CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from gigl_loader.arrays import Array, Bytes, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.native import crc32c
from gigl_loader.partition.spill import Kinds, RowWriter, Spill, row_bytes

if TYPE_CHECKING:
    from gigl_loader.partition.job import Job
    from gigl_loader.partition.scratch import Scratch, ScratchFile

__all__ = ["Exchange", "FileExchange", "SharedExchange"]

_MAGIC = b"gigl-run"
_TRAILER = struct.Struct("<8sQQQ")
"""Magic, first byte of the index, its rows, its checksum."""


class Exchange(Protocol):
    """Buckets of rows between the tasks of two stages."""

    def writer(self, job: Job, task: int) -> AbstractContextManager[RowWriter]:
        """Lend what takes the rows of a task. They count when the block ends without an exception."""

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


class _FileSpill:
    """Buckets in the files of all tasks that wrote. Taking and dropping leave the files as they are."""

    def __init__(self, scratch: Scratch, names: list[str], kinds: Kinds, begin: int, end: int) -> None:
        self._scratch = scratch
        self._kinds = dict(kinds)
        self._numbers = {name: number for number, name in enumerate(self._kinds)}
        self._segments: dict[int, list[_Segment]] = {}
        for name in names:
            index = _read_index(scratch, name, 3 + len(self._kinds))
            for bucket, rows, offset, *sums in index[(begin <= index[:, 0]) & (index[:, 0] < end)].tolist():
                self._segments.setdefault(bucket, []).append(
                    _Segment(name, self.size(bucket), rows, offset, sums)
                )

    def append(self, bucket: int, rows: Mapping[str, Array]) -> None:
        raise AssertionError("the rows of an exchange are written by its writers")

    def size(self, bucket: int) -> int:
        segments = self._segments.get(bucket)
        return segments[-1].first_row + segments[-1].num_rows if segments else 0

    def read(self, bucket: int, names: list[str], rows: int) -> Iterator[dict[str, Array]]:
        size = self.size(bucket)
        for start in range(0, size, rows):
            yield self._load(bucket, names, start, min(rows, size - start))

    def take(self, bucket: int, name: str) -> Array:
        return self._load(bucket, [name], 0, self.size(bucket))[name]

    def drop(self, bucket: int) -> None:
        pass

    def _load(self, bucket: int, names: list[str], start: int, count: int) -> dict[str, Array]:
        found = {name: np.empty((count, *self._kinds[name][1]), self._kinds[name][0]) for name in names}
        for segment in self._segments.get(bucket, ()):
            low = max(segment.first_row, start)
            high = min(segment.first_row + segment.num_rows, start + count)
            if low < high:
                self._read(
                    segment,
                    low - segment.first_row,
                    {name: array[low - start : high - start] for name, array in found.items()},
                )
        return found

    def _read(self, segment: _Segment, row: int, out: Mapping[str, Array]) -> None:
        """Fill the arrays with the rows of a segment from ``row`` on."""
        begin = segment.offset
        for name, kind in self._kinds.items():
            if name in out:
                view = out[name].reshape(-1).view(np.uint8)
                self._scratch.read(segment.file, begin + row * row_bytes(kind), view)
                whole = len(out[name]) == segment.num_rows
                if whole and crc32c(view) != segment.sums[self._numbers[name]]:
                    raise FormatError(f"{segment.file} of the scratch: {name} does not match its checksum")
            begin += segment.num_rows * row_bytes(kind)


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
    scratch.read(name, begin, out)
    return out
