"""Restricted unpickler of the files that GLT writes with ``pickle.dump``: plain values and tensors.

``torch.load`` does not read these files: they are plain pickles, in which ``pickle.dump`` puts a tensor's
elements in the format that ``torch.save`` had before it wrote archives. The unpickler is Python's own, with
the instructions that plain values and tensors need. It imports nothing: a name is looked up in a short table.
It copies no elements: long bytes are views of the caller's buffer, which may be a mapped file.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gigl_loader.arrays import Array
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


class Source:
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

    def __init__(self, source: Source) -> None:
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
    source = Source(call.data)
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
