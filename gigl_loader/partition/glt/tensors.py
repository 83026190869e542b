"""Rows of tensors in files of ``torch.save`` and of ``pickle.dump``, mapped into memory.

``torch.load`` does not read what GLT writes with ``pickle.dump``: plain pickles, in which a tensor's elements
are in the format that ``torch.save`` had before it wrote archives. The unpickler for them is Python's own,
with the instructions that plain values and tensors need. It imports nothing: a name is looked up in a short
table. It copies no elements: long bytes are views of the caller's buffer, which may be a mapped file.
"""

from __future__ import annotations

import errno
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import watch_map
from gigl_loader.graph.schema import Column
from gigl_loader.partition.pyg import array_and_column
from gigl_loader.regular_files import open_regular
from gigl_loader.tensors import STORAGE_DTYPES

STORAGES = {
    "torch.BFloat16Storage": "BF16",
    "torch.BoolStorage": "BOOL",
    "torch.ByteStorage": "U8",
    "torch.CharStorage": "I8",
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.IntStorage": "I32",
    "torch.LongStorage": "I64",
    "torch.ShortStorage": "I16",
}
"""Dtypes by the storage classes that PyTorch's pickles name."""

_MAX_TENSOR_BYTES = 1 << 14  # Of a tensor's pickle without its elements. It has 500.
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001


class DumpedTensor(NamedTuple):
    """A strided tensor in a pickle."""

    dtype: str
    array: Array
    """View of the pickle's buffer. bfloat16 is carried as uint16."""


class ByteSource:
    """Bytes that pickles are read from, one after the other.

    Raises ``pickle.UnpicklingError`` where they end early, or are no pickle of plain values and tensors.
    """

    def __init__(self, data: memoryview, max_bytes: int = _MAX_TENSOR_BYTES) -> None:
        """``max_bytes``: what one pickle may have besides the elements of tensors."""
        self.position = 0
        self._data = data
        self._max_bytes = max_bytes
        self._left = max_bytes

    @property
    def at_end(self) -> bool:
        return self.position == len(self._data)

    def load(self) -> Any:
        """Return what the next pickle holds, and move behind it.

        Containers and plain values are themselves, bytes are a ``memoryview``. Names without a meaning here
        are texts.
        """
        self._left = self._max_bytes
        try:
            return _Unpickler(self).load()
        except pickle.UnpicklingError:
            raise
        except Exception:  # An instruction raises anything where values do not fit it.
            raise pickle.UnpicklingError(f"damaged: no pickle ends near byte {self.position}") from None

    def load_tensor(self) -> DumpedTensor:
        """Return the tensor that the next pickle holds, and move behind it."""
        found = self.load()
        if not isinstance(found, _TensorCall):
            raise pickle.UnpicklingError("holds no tensor")
        return _tensor(found)

    def view(self, size: int) -> memoryview:
        """Pass over bytes, however many, and return a view of them."""
        if not 0 <= size <= len(self._data) - self.position:
            raise pickle.UnpicklingError(f"ends early: {size} bytes at byte {self.position}")
        self.position += size
        return self._data[self.position - size : self.position]

    def read(self, size: int) -> bytes:
        """Return bytes of instructions, numbers and texts, which count against the limit."""
        self._left -= size
        if self._left < 0:
            raise pickle.UnpicklingError(f"a pickle of more than {self._max_bytes} bytes without its tensors")
        return self.view(size).tobytes()

    def readline(self) -> bytes:
        found = bytearray()
        while not found.endswith(b"\n"):
            found += self.read(1)
        return bytes(found)


class _StorageCall(NamedTuple):
    """A call of ``torch.storage._load_from_bytes`` that a pickle asks for. It is never made."""

    data: Any


class _TensorCall(NamedTuple):
    """A call of ``torch._utils._rebuild_tensor_v2`` that a pickle asks for. It is never made."""

    storage: Any
    first: Any
    shape: Any
    strides: Any
    requires_grad: Any
    hooks: Any
    metadata: Any = None


class _StorageKey(NamedTuple):
    """Description of a storage whose elements follow later."""

    kind: Any
    name: Any
    place: Any
    count: Any
    view: Any


def _subclass_call(function: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """Record ``torch._tensor._rebuild_from_type_v2``: GLT's partition book, say, is a tensor as well."""
    return function(*arguments)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": lambda: None,  # The hooks of a tensor.
    "torch._tensor._rebuild_from_type_v2": _subclass_call,
    "torch._utils._rebuild_tensor_v2": _TensorCall,
    "torch.storage._load_from_bytes": _StorageCall,
}
"""Names that a pickle may call. All of them only note their arguments."""


_PythonUnpickler: Any = pickle._Unpickler  # Not the one in C, which would copy tensors.


class _Unpickler(_PythonUnpickler):  # type: ignore[misc]
    """Python's unpickler with fewer instructions.

    No instruction makes an object or sets an attribute, and the only calls are those of ``_FUNCTIONS``.
    """

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source)
        self._source = source

    def find_class(self, module: str, name: str) -> Any:
        """Return the function of a name, or the name itself, which cannot be called."""
        return _FUNCTIONS.get(f"{module}.{name}", f"{module}.{name}")

    def persistent_load(self, key: Any) -> _StorageKey:
        return _StorageKey(*key[1:])

    def _skip_frame(self) -> None:
        self.read(8)  # It says how much to read ahead, which a buffer makes needless.

    def _push_view(self, form: str) -> None:
        (size,) = struct.unpack(form, self.read(struct.calcsize(form)))
        self.append(self._source.view(size))

    def _set_item(self) -> None:
        value = self.stack.pop()
        self._set([self.stack.pop(), value])

    def _set(self, values: list[Any]) -> None:
        # Texts only: to hash tuples of tuples that share their parts may take for ever.
        if not all(isinstance(key, str) for key in values[::2]):
            raise pickle.UnpicklingError("a dict whose keys are not texts")
        self.stack[-1].update(zip(values[::2], values[1::2], strict=True))

    dispatch = {  # noqa: RUF012 - as in the base class
        **{
            code[0]: _PythonUnpickler.dispatch[code[0]]
            for code in (
                *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
                *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
                *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
                *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
                *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT),
                *(pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
                *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BINPERSID),
            )
        },
        pickle.FRAME[0]: _skip_frame,
        pickle.SHORT_BINBYTES[0]: lambda self: self._push_view("<B"),
        pickle.BINBYTES[0]: lambda self: self._push_view("<I"),
        pickle.BINBYTES8[0]: lambda self: self._push_view("<Q"),
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: lambda self: self._set(self.pop_mark()),
    }


def _tensor(call: _TensorCall) -> DumpedTensor:
    dtype, elements = _storage(call.storage)
    numbers = STORAGE_DTYPES[dtype]
    try:
        strides = [stride * numbers.itemsize for stride in call.strides]
        array = np.ndarray(call.shape, numbers, elements, call.first * numbers.itemsize, strides)
    except (TypeError, ValueError, OverflowError):  # NumPy checks that all elements lie in the buffer.
        size = len(elements)
        raise pickle.UnpicklingError(f"damaged: a tensor that does not fit its {size} bytes") from None
    return DumpedTensor(dtype, array)


def _storage(call: Any) -> tuple[str, memoryview]:
    """Return dtype and elements of a storage in the format before archives."""
    if not (isinstance(call, _StorageCall) and isinstance(call.data, memoryview)):
        raise pickle.UnpicklingError("damaged: a tensor without a storage")
    source = ByteSource(call.data)
    magic, version, system, stored, keys = (source.load() for _ in range(5))
    if magic != _LEGACY_MAGIC or version != _LEGACY_VERSION:
        raise pickle.UnpicklingError("a storage of an unknown format")
    if not (isinstance(system, dict) and system.get("little_endian") is True):
        raise pickle.UnpicklingError("saved on a machine of another byte order")
    if not (isinstance(stored, _StorageKey) and isinstance(stored.kind, str) and stored.view is None):
        raise pickle.UnpicklingError("damaged: a tensor without a storage")
    if stored.kind not in STORAGES:
        raise pickle.UnpicklingError(f"a tensor of {stored.kind}, which is not stored here")
    (count,) = struct.unpack("<q", source.read(8))
    if keys != [stored.name] or count != stored.count:
        raise pickle.UnpicklingError("damaged: a storage that is not the one it names")
    dtype = STORAGES[stored.kind]
    return dtype, source.view(count * STORAGE_DTYPES[dtype].itemsize)


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
    source = ByteSource(whole.data)
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
