"""Tensors in files of ``torch.save`` and of ``pickle.dump``, found without PyTorch and read in pieces."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.glt.pickles import Call, Name, Persistent, Section, Span, read_pickle
from gigl_loader.partition.npy_table import read_exactly
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

_STORAGES = {
    "BFloat16Storage": "BF16",
    "BoolStorage": "BOOL",
    "ByteStorage": "U8",
    "CharStorage": "I8",
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "IntStorage": "I32",
    "LongStorage": "I64",
    "ShortStorage": "I16",
}
"""Dtypes by the storage classes of PyTorch that files name."""

_REBUILD = Name("torch._utils", "_rebuild_tensor_v2")
_REBUILD_SUBCLASS = Name("torch._tensor", "_rebuild_from_type_v2")
_FROM_BYTES = Name("torch.storage", "_load_from_bytes")
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_MAX_STEPS = 1000  # A tensor's pickle has 60.
_MAX_DIMENSIONS = 8
_MAX_SIZE = 1 << 40  # Of a tensor in any direction; a partition has no more edges.
_MAX_DIRECTORY = 1 << 20  # Bytes of a ZIP archive's list of files. That of one tensor has 400.
_GAP_BYTES = 32 << 10  # To read as much costs about what another call does.
_BLOCK_BYTES = 1 << 20
_MAX_STREAM = 1 << 20  # Tensors in one file: GLT appends one for every 10,000 rows.


class _Storage(NamedTuple):
    """Where the elements of a tensor are."""

    dtype: str
    span: Span


class _Tensor(NamedTuple):
    """A tensor in a file, in C order."""

    column: Column
    rows: int
    offset: int


class Rows:
    """The rows of one column, in one or more tensors of a file, one after the other."""

    def __init__(self, path: Path, tensors: Sequence[_Tensor]) -> None:
        """``FormatError`` where tensors differ in dtype or in the shape of a row."""
        self.path = path
        self._tensors = tensors
        self.column = tensors[0].column
        for number, tensor in enumerate(tensors):
            if tensor.column != self.column:
                raise FormatError(
                    f"{path}: tensor {number} holds {_said(tensor.column)} a row, those before "
                    f"{_said(self.column)}"
                )
        self._ends = list(accumulate(tensor.rows for tensor in tensors))

    def __len__(self) -> int:
        return self._ends[-1]

    def part(self, start: int, count: int) -> Rows:
        """Return ``count`` rows, from ``start`` on."""
        found: list[_Tensor] = []
        for tensor, end in zip(self._tensors, self._ends, strict=True):
            low = max(start - (end - tensor.rows), 0)
            rows = min(start + count - (end - tensor.rows), tensor.rows) - low
            if rows > 0:
                offset = tensor.offset + low * self.column.row_bytes
                found.append(_Tensor(self.column, rows, offset))
        return Rows(self.path, found or [_Tensor(self.column, 0, 0)])

    def open(self) -> BinaryIO:
        return self.path.open("rb", buffering=0)

    def read(self, file: BinaryIO, start: int, count: int) -> Array:
        """Return ``count`` rows from ``start`` on, read from what ``open`` returned."""
        out = self._empty(count)
        self._fill(file, start, out)
        return out

    def take(self, file: BinaryIO, rows: Int64Array) -> Array:
        """Return chosen rows. Those that lie near each other are read at once, with what is between them."""
        width = max(self.column.row_bytes, 1)
        order = np.argsort(rows, kind="stable")
        ordered, out = rows[order], self._empty(len(rows))
        apart = np.diff(ordered) > _GAP_BYTES // width
        cuts = np.flatnonzero(apart | (np.diff(ordered // max(_BLOCK_BYTES // width, 1)) > 0)) + 1
        for start, stop in pairwise([0, *cuts.tolist(), len(rows)] if len(rows) else []):
            first, last = int(ordered[start]), int(ordered[stop - 1])
            block = self.read(file, first, last - first + 1)
            out[order[start:stop]] = block[ordered[start:stop] - first]
        return out

    def _empty(self, count: int) -> Array:
        return np.empty((count, *self.column.shape), STORAGE_DTYPES[self.column.dtype])

    def _fill(self, file: BinaryIO, start: int, out: Array) -> None:
        which = bisect_right(self._ends, start)
        done = 0
        while done < len(out):
            tensor = self._tensors[which]
            row = start + done - (self._ends[which] - tensor.rows)
            count = min(tensor.rows - row, len(out) - done)
            if count and self.column.row_bytes:
                offset = tensor.offset + row * self.column.row_bytes
                read_exactly(file, self.path, offset, out[done : done + count])
            done += count
            which += 1


def saved_tensor(path: Path) -> Rows:
    """Return the tensor that ``torch.save`` wrote. ``FormatError`` for anything else."""
    with path.open("rb") as file:
        files = _archive(path, file)
        program = next((name for name in files if name.endswith("/data.pkl")), None)
        if program is None:
            raise FormatError(f"{path}: not a file of torch.save: it has no data.pkl")
        folder = program.removesuffix("data.pkl")
        order = files.get(f"{folder}byteorder")
        if order is not None and Section(path, file, order).read(min(order.size, 6)) != b"little":
            raise FormatError(f"{path}: saved on a machine of another byte order")

        def storage(key: Any) -> _Storage:
            return _persistent_storage(path, files, folder, key)

        section = Section(path, file, files[program])
        return Rows(path, [_tensor(path, read_pickle(section, max_steps=_MAX_STEPS), storage)])


def tensor_stream(path: Path) -> Rows:
    """Return the tensors that ``pickle.dump`` appended to a file, one after the other, as one."""
    with path.open("rb") as file:
        section = Section(path, file, Span(0, os.fstat(file.fileno()).st_size))

        def storage(key: Any) -> _Storage:
            return _dumped_storage(section, key)

        tensors: list[_Tensor] = []
        while not section.at_end:
            if len(tensors) == _MAX_STREAM:
                raise FormatError(f"{path}: more than {_MAX_STREAM} tensors")
            pickled = read_pickle(section, max_steps=_MAX_STEPS)
            after = section.position
            tensors.append(_tensor(path, pickled, storage))
            section.seek(after)
    if not tensors:
        raise FormatError(f"{path}: no tensor")
    return Rows(path, tensors)


def _tensor(path: Path, pickled: Any, storage: Callable[[Any], _Storage]) -> _Tensor:
    """Return the tensor that a pickle rebuilds. A subclass, as GLT's partition book, is a tensor as well."""
    if _is_call(pickled, _REBUILD_SUBCLASS, 4) and pickled.arguments[0] == _REBUILD:
        pickled = Call(*pickled.arguments[::2])
    if not _is_call(pickled, _REBUILD, 6, 7):
        raise FormatError(f"{path}: holds no tensor")
    where, first, shape, strides = pickled.arguments[:4]
    if not (
        _are_sizes((first,)) and _are_sizes(shape) and _are_sizes(strides) and len(shape) == len(strides)
    ):
        raise FormatError(f"{path}: damaged: a tensor whose sizes are no sizes")
    if not shape:
        raise FormatError(f"{path}: a single number, not a tensor of rows")
    if math.prod(shape) and not _is_dense(shape, strides):
        raise FormatError(f"{path}: a tensor that is not contiguous: save tensor.contiguous()")
    dtype, span = storage(where)
    size = STORAGE_DTYPES[dtype].itemsize
    if (first + math.prod(shape)) * size > span.size:
        raise FormatError(f"{path}: damaged: a tensor of {math.prod(shape)} elements in {span.size} bytes")
    return _Tensor(Column(dtype, tuple(shape[1:])), shape[0], span.offset + first * size)


def _is_call(value: Any, function: Name, *counts: int) -> bool:
    return (
        isinstance(value, Call)
        and isinstance(value.function, Name)
        and value.function == function
        and type(value.arguments) is tuple
        and len(value.arguments) in counts
    )


def _are_sizes(values: Any) -> bool:
    return (
        type(values) is tuple
        and len(values) <= _MAX_DIMENSIONS
        and all(type(value) is int and 0 <= value <= _MAX_SIZE for value in values)
    )


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    wanted = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != wanted:
            return False
        wanted *= size
    return True


def _persistent_storage(path: Path, files: dict[str, Span], folder: str, key: Any) -> _Storage:
    """Return a storage that is a file of the archive."""
    dtype, name, count = _described(path, key, 5)
    span = files.get(f"{folder}data/{name}")
    if span is None or count * STORAGE_DTYPES[dtype].itemsize > span.size:
        raise FormatError(f"{path}: damaged: storage {name!r} of {count} elements is not there, or shorter")
    return _Storage(dtype, span)


def _dumped_storage(section: Section, key: Any) -> _Storage:
    """Return a storage that lies in the bytes of a pickle, as PyTorch saved it before it used archives."""
    path = section.path
    if not (_is_call(key, _FROM_BYTES, 1) and isinstance(key.arguments[0], Span)):
        raise FormatError(f"{path}: damaged: a tensor without a storage")
    inner = section.part(key.arguments[0])
    magic, version, system, stored, keys = (read_pickle(inner, max_steps=_MAX_STEPS) for _ in range(5))
    if magic != _LEGACY_MAGIC or version != _LEGACY_VERSION:
        raise FormatError(f"{path}: a storage of an unknown format")
    if not (isinstance(system, dict) and system.get("little_endian") is True):
        raise FormatError(f"{path}: saved on a machine of another byte order")
    dtype, name, count = _described(path, stored, 6)
    if keys != [name]:
        raise FormatError(f"{path}: damaged: a storage that is not the one it names")
    (length,) = struct.unpack("<q", inner.read(8))
    if length != count:
        raise FormatError(f"{path}: damaged: a storage of {length} elements, not {count}")
    return _Storage(dtype, inner.skip(count * STORAGE_DTYPES[dtype].itemsize))


def _described(path: Path, value: Any, size: int) -> tuple[str, str, int]:
    """Return dtype, key and number of elements of a storage."""
    key = value.key if isinstance(value, Persistent) else None
    if type(key) is not tuple or len(key) != size or not isinstance(key[1], Name):
        raise FormatError(f"{path}: damaged: a tensor without a storage")
    kind, name, count = key[1], key[2], key[4]
    if kind.module != "torch" or kind.name not in _STORAGES:
        raise FormatError(f"{path}: a tensor of {kind.module}.{kind.name}, which is not stored here")
    if not isinstance(name, str) or not _are_sizes((count,)) or key[5:] not in ((), (None,)):
        raise FormatError(f"{path}: damaged: a storage whose size is no size")
    return _STORAGES[kind.name], name, count


class _SmallReads:
    """A file of which only little can be read at once: ``zipfile`` reads whole lists of files."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, _MAX_DIRECTORY) if size >= 0 else _MAX_DIRECTORY + 1)
        if size > _MAX_DIRECTORY or len(data) > _MAX_DIRECTORY:
            raise FormatError(f"{self._path}: not a file of torch.save: too many files in its archive")
        return data


def _archive(path: Path, file: BinaryIO) -> dict[str, Span]:
    """Return where the files of a ZIP archive lie. None of them is compressed."""
    try:
        listed = zipfile.ZipFile(_SmallReads(path, file)).infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error):
        raise FormatError(f"{path}: not a file of torch.save, or cut off") from None
    size = os.fstat(file.fileno()).st_size
    return {entry.filename: _entry(path, file, entry, size) for entry in listed}


def _entry(path: Path, file: BinaryIO, entry: zipfile.ZipInfo, size: int) -> Span:
    if not 0 <= entry.header_offset <= size:
        raise FormatError(f"{path}: damaged: file {entry.filename!r} of its archive lies outside")
    header = Section(path, file, Span(entry.header_offset, size - entry.header_offset))
    signature, name_size, extra_size = struct.unpack("<4s22xHH", header.read(30))
    if signature != b"PK\3\4" or entry.compress_type or entry.flag_bits & 1:
        raise FormatError(f"{path}: not a file of torch.save: its archive is compressed or damaged")
    header.skip(name_size + extra_size)
    return header.skip(entry.file_size)


def _said(column: Column) -> str:
    return f"{column.dtype} {list(column.shape)}"
