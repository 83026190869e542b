"""Rows of tensors in files of ``torch.save`` and of ``pickle.dump``, mapped into memory."""

from __future__ import annotations

import errno
import pickle
import pickletools
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import watch_map
from gigl_loader.graph.schema import Column
from gigl_loader.partition.glt.pickles import STORAGES, Source
from gigl_loader.partition.pyg import array_and_column
from gigl_loader.regular_files import open_regular
from gigl_loader.tensors import STORAGE_DTYPES

_MAX_STREAM = 1 << 20  # Tensors in one file: GLT appends one for every 10,000 rows.
_MAX_DIMENSIONS = 8
_MAX_DIRECTORY = 1 << 20  # Bytes of an archive's list of files. That of one tensor has 400.
_MAX_RECORD = 1 << 16  # Bytes of a file in an archive that holds no elements. The largest has 300.
_MAX_REFERENCES = 32  # To earlier values in a tensor's pickle, which needs none.
_NAMES = {"collections.OrderedDict", "torch._utils._rebuild_tensor_v2", "torch._tensor._rebuild_from_type_v2"}
_SUBCLASSES = "graphlearn_torch."


class Rows:
    """The rows of one column, in one or more mapped tensors of a file, one after the other."""

    def __init__(self, path: Path, column: Column, blocks: Sequence[Array]) -> None:
        """``blocks``: the bytes of the tensors, uint8 [rows, bytes of a row], which need no alignment."""
        self.path = path
        self.column = column
        self._blocks = blocks
        self._starts = np.array([0, *accumulate(len(block) for block in blocks)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def part(self, start: int, count: int) -> Rows:
        """Return ``count`` rows, from ``start`` on."""
        return Rows(self.path, self.column, self._between(start, start + count))

    def read(self, start: int, count: int) -> Array:
        """Return a copy of ``count`` rows, from ``start`` on."""
        out = self._empty(count)
        np.concatenate(self._between(start, start + count), out=_bytes_of(out, self.column))
        return out

    def take(self, rows: Int64Array) -> Array:
        """Return a copy of chosen rows."""
        out = self._empty(len(rows))
        out_bytes = _bytes_of(out, self.column)
        blocks = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(rows, kind="stable")  # Each page is then read once.
        for group in np.split(order, np.flatnonzero(np.diff(blocks[order])) + 1):
            if len(group):
                block = int(blocks[group[0]])
                out_bytes[group] = self._blocks[block][rows[group] - self._starts[block]]
        return out

    def _between(self, start: int, stop: int) -> list[Array]:
        """Return the parts of blocks that hold these rows, an empty one for no rows."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop))
        blocks = zip(self._blocks[first:last], self._starts[first:last].tolist(), strict=True)
        found = [block[max(start - begin, 0) : stop - begin] for block, begin in blocks]
        return found or [self._blocks[0][:0]]

    def _empty(self, count: int) -> Array:
        return np.empty((count, *self.column.shape), STORAGE_DTYPES[self.column.dtype])


def _bytes_of(rows: Array, column: Column) -> Array:
    """Return a view of contiguous rows as uint8 [rows, bytes of a row]."""
    return rows.reshape(-1).view(np.uint8).reshape(len(rows), column.row_bytes)


def tensor_stream(path: Path) -> Rows:
    """Map the tensors that ``pickle.dump`` appended to a file, as one. ``FormatError`` for anything else."""
    import torch

    size = path.stat().st_size
    if size == 0:
        raise FormatError(f"{path}: no tensor")
    # Python's mmap would keep a file descriptor, and a directory of many partitions has too many files.
    mapped = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    whole = mapped.numpy()
    watch_map(whole, whole, str(path))
    source = Source(whole.data)
    columns: list[Column] = []
    blocks: list[Array] = []
    while not source.at_end:
        if len(blocks) == _MAX_STREAM:
            raise FormatError(f"{path}: more than {_MAX_STREAM} tensors")
        try:
            dtype, array = source.load_tensor()
        except pickle.UnpicklingError as error:
            raise FormatError(f"{path}: {error}") from None
        _require_rows(path, array, contiguous=array.flags.c_contiguous)
        column = Column(dtype, array.shape[1:])
        if column != (columns or [column])[0]:
            raise FormatError(
                f"{path}: tensor {len(blocks)} holds {_said(column)} a row, those before {_said(columns[0])}"
            )
        columns = [column]
        blocks.append(_bytes_of(array, column))
    return Rows(path, columns[0], blocks)


def saved_tensor(path: Path) -> Rows:
    """Map the tensor that ``torch.save`` wrote. ``FormatError`` for anything else."""
    import torch

    try:
        subclasses, sizes = _inspected(path)
        # A context manager from PyTorch 2.5 on; before, there is only the function, which returns None.
        allow = getattr(torch.serialization, "safe_globals", torch.serialization.add_safe_globals)
        with allow([_tensor_class(name) for name in subclasses]) or nullcontext():
            tensor = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except FormatError:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:  # A place before the file, which damaged bytes may name.
            raise
        raise FormatError(f"{path}: not a file of torch.save, or cut off") from None
    except Exception as error:  # PyTorch and zipfile raise any of ten classes, some with pages of text.
        line = str(error).partition("\n")[0]
        raise FormatError(f"{path}: not a file of torch.save, or cut off: {line:.200}") from None
    if not isinstance(tensor, torch.Tensor):
        raise FormatError(f"{path}: holds no tensor")
    if tensor.untyped_storage().nbytes() not in sizes:
        raise FormatError(f"{path}: damaged: a tensor whose elements are not there, or fewer")
    _require_rows(path, tensor, contiguous=tensor.is_contiguous())
    array, column = array_and_column(tensor, str(path))
    block = _bytes_of(array, column)
    watch_map(block.base, block.reshape(-1), str(path))
    return Rows(path, column, [block])


def _inspected(path: Path) -> tuple[set[str], set[int]]:
    """Return the subclasses of tensors that a file of ``torch.save`` names, and the sizes of its storages.

    ``FormatError`` for what ``torch.load`` would let pass. It decompresses files of any size, takes elements
    from beyond a storage's end, swaps the bytes of a map in memory, and calls what allocates memory
    (``bytearray``) or takes for ever (the hash of tuples of tuples that share their parts). It reads the
    archive with another library: one that the two understand differently may still take memory.
    """
    names: set[str] = set()
    sizes = set()
    with open(open_regular(path), "rb") as file, zipfile.ZipFile(_SmallReads(file)) as archive:
        for entry in archive.infolist():
            if entry.compress_type:
                raise FormatError(f"{path}: not a file of torch.save: its archive is compressed")
            if "/data/" in entry.filename:
                sizes.add(entry.file_size)
            elif entry.file_size > _MAX_RECORD:
                raise FormatError(f"{path}: {entry.filename!r} in its archive is too large")
            elif entry.filename.endswith("/byteorder") and archive.read(entry) != b"little":
                raise FormatError(f"{path}: saved on a machine of another byte order")
            elif entry.filename.endswith("/data.pkl"):
                names |= _names_in(path, archive.read(entry))
    subclasses = {name for name in names - _NAMES if name.startswith(_SUBCLASSES)}
    for name in names - _NAMES - subclasses - set(STORAGES):
        raise FormatError(f"{path}: holds no tensor that is stored here: it names {name:.200}")
    return subclasses, sizes


def _names_in(path: Path, program: bytes) -> set[str]:
    names, references = set(), 0
    for opcode, argument, _ in pickletools.genops(program):
        references += opcode.name in ("BINGET", "LONG_BINGET")
        if opcode.name == "GLOBAL":
            names.add(str(argument).replace(" ", ".", 1))
    if references > _MAX_REFERENCES:
        raise FormatError(f"{path}: holds no tensor: its pickle refers to values {references} times")
    return names


def _tensor_class(name: str) -> type:
    """Return a stand-in for a subclass of tensors: GLT's partition book is one."""
    import torch

    module, _, kind = name.rpartition(".")
    return type(kind, (torch.Tensor,), {"__module__": module})


class _SmallReads:
    """A file of which only little can be read at once: ``zipfile`` reads whole lists of files."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(min(size, _MAX_DIRECTORY) if size >= 0 else _MAX_DIRECTORY + 1)
        if size > _MAX_DIRECTORY or len(data) > _MAX_DIRECTORY:
            raise ValueError("too many files in its archive")
        return data


def _require_rows(path: Path, tensor: Any, *, contiguous: bool) -> None:
    if not contiguous:
        raise FormatError(f"{path}: a tensor that is not contiguous: save tensor.contiguous()")
    if not tensor.ndim:
        raise FormatError(f"{path}: a single number, not a tensor of rows")
    if tensor.ndim > _MAX_DIMENSIONS:
        raise FormatError(f"{path}: a tensor of {tensor.ndim} dimensions, more than {_MAX_DIMENSIONS}")


def _said(column: Column) -> str:
    return f"{column.dtype} {list(column.shape)}"
