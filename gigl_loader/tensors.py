"""Layout of named arrays in one flat buffer: the safetensors format, as a value.

Files of a graph and frames of a batch are both safetensors documents: an 8-byte little-endian
header length, a JSON header (``name -> dtype, shape, data_offsets``, and ``__metadata__``), then
the data. This module computes and checks layouts; it opens and writes nothing.

The order of the data is ours to choose. Arrays are sorted by the largest power of two (64 at most)
that divides their size, largest first. Then every offset is a multiple of its own array's
alignment, so all arrays are naturally aligned, wide rows start on a cache line, and no padding is
needed (the format allows none).
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gigl_loader.errors import FormatError
from gigl_loader.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

STORAGE_DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "U8": np.dtype(np.uint8),
        "I8": np.dtype(np.int8),
        "U16": np.dtype(np.uint16),
        "I16": np.dtype(np.int16),
        "F16": np.dtype(np.float16),
        "BF16": np.dtype(np.uint16),
        "U32": np.dtype(np.uint32),
        "I32": np.dtype(np.int32),
        "F32": np.dtype(np.float32),
        "U64": np.dtype(np.uint64),
        "I64": np.dtype(np.int64),
        "F64": np.dtype(np.float64),
    }
)
"""NumPy's view of each safetensors dtype. NumPy has no bfloat16: it is carried as its 16 bits."""


def as_float64(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float64]:
    """Return numbers, [N] or [N, 1], that are stored as a safetensors dtype as float64 [N]."""
    values = values.reshape(-1)
    if dtype == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


MAX_HEADER_BYTES = 16 << 20
"""A header of a file beyond this is refused. 16 MiB holds about 100,000 arrays. What arrives from another
process has lower limits: ``Layout.parse`` is told."""

_ALIGNMENT = 64
_MAX_DIMENSIONS = 32  # NumPy 1 has no more.
_MAX_ELEMENTS = 2**59  # Sizes of 0 aside, as NumPy counts: their bytes must fit 63 bits.
_SHOWN = 100
_SHOWN_SIZES = 8
_NAMES = {dtype: name for name, dtype in reversed(list(STORAGE_DTYPES.items())) if name != "BF16"}
_HEADER_LENGTH = struct.Struct("<Q")
_ENCODER = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Dtype (a safetensors name) and shape of one array."""

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in STORAGE_DTYPES:
            raise FormatError(f"unknown dtype {self.dtype!r}; known: {', '.join(STORAGE_DTYPES)}")
        if self.shape and min(self.shape) < 0:
            raise FormatError(f"negative size in shape {self.shape}")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * STORAGE_DTYPES[self.dtype].itemsize


def spec_of(array: npt.NDArray[Any]) -> ArraySpec:
    """Return the spec of a NumPy array. Raises ``FormatError`` for a dtype that safetensors lacks."""
    name = _NAMES.get(array.dtype)
    if name is None:
        raise FormatError(
            f"arrays of dtype {array.dtype} cannot be stored; known: {', '.join(STORAGE_DTYPES)}"
        )
    return ArraySpec(name, array.shape)


def as_rows(array: npt.NDArray[Any], row_bytes: int) -> npt.NDArray[np.uint8]:
    """View a C-contiguous array as uint8 [entries of its first axis, row_bytes], without a copy."""
    if row_bytes:
        return array.view(np.uint8).reshape(len(array), row_bytes)
    return np.empty((len(array), 0), np.uint8)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each array lies in a document, and the header that says so."""

    specs: Mapping[str, ArraySpec]
    offsets: Mapping[str, int]
    """First byte of each array, counted from the start of the document."""
    metadata: Mapping[str, str]
    header: bytes
    """The 8-byte length and the JSON header, padded with spaces to a multiple of 64 bytes."""
    nbytes: int
    """Size of the whole document."""

    @classmethod
    def plan(cls, specs: Mapping[str, ArraySpec], metadata: Mapping[str, str] | None = None) -> Layout:
        """Lay out arrays of these specs. Depends only on its arguments, not on their order."""
        metadata = dict(metadata or {})
        ordered = sorted(specs.items(), key=lambda item: (-_alignment(item[1].nbytes), item[0]))
        document: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        offsets = {}
        end = 0
        for name, spec in ordered:
            offsets[name] = end
            end += spec.nbytes
            document[name] = {
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "data_offsets": [offsets[name], end],
            }
        text = _ENCODER.encode(document).encode()
        size = -(-(len(text) + 8) // _ALIGNMENT) * _ALIGNMENT
        header = _HEADER_LENGTH.pack(size - 8) + text.ljust(size - 8)
        return cls(
            specs=dict(ordered),
            offsets={name: size + offset for name, offset in offsets.items()},
            metadata=metadata,
            header=header,
            nbytes=size + end,
        )

    @classmethod
    def parse(
        cls, buffer: npt.NDArray[np.uint8], *, what: str = "document", max_header: int = MAX_HEADER_BYTES
    ) -> Layout:
        """Read and check the header of a document that starts at ``buffer[0]``.

        ``buffer`` is 1-D uint8 and may be longer than the document. Every rule of the format is
        checked before anything is believed; a broken one raises ``FormatError`` naming ``what``. A
        header of more than ``max_header`` bytes is not read: one of hostile bytes takes 40 times its size.
        """
        size = _header_size(buffer, what, max_header)
        document = _header_document(bytes(buffer[8:size]), what, max_header)
        metadata = _metadata(document.pop("__metadata__", {}), what)
        specs: dict[str, ArraySpec] = {}
        spans: list[tuple[int, int, str]] = []
        for name, entry in document.items():
            specs[name], begin, end = _entry(name, entry, what)
            spans.append((begin, end, name))
        position = 0
        for begin, end, name in sorted(spans):
            if begin != position:
                raise FormatError(
                    f"{what}: {_shown(name)} starts at {begin}, the array before it ends at {position}"
                )
            position = end
        if size + position > len(buffer):
            raise FormatError(f"{what}: arrays end at byte {size + position} of a buffer of {len(buffer)}")
        offsets = {name: size + begin for begin, _, name in spans}
        return cls(specs, offsets, metadata, bytes(buffer[:size]), size + position)

    @classmethod
    def read(cls, buffer: npt.NDArray[np.uint8]) -> Layout:
        """Read the header of a document that ``plan`` laid out in a process of this program.

        Nothing is checked but that the document fits in ``buffer``. A fifth of the time of ``parse``.
        """
        (length,) = _HEADER_LENGTH.unpack_from(buffer.data)
        size = int(length) + _HEADER_LENGTH.size
        header = buffer[:size].tobytes()
        document = json.loads(header[_HEADER_LENGTH.size :].decode())
        metadata = document.pop("__metadata__", {})
        specs, offsets, nbytes = {}, {}, size
        for name, entry in document.items():
            begin, end = entry["data_offsets"]
            specs[name] = ArraySpec(entry["dtype"], tuple(entry["shape"]))
            offsets[name] = size + begin
            nbytes = max(nbytes, size + end)
        if nbytes > len(buffer):
            raise FormatError(f"document: arrays end at byte {nbytes} of a buffer of {len(buffer)}")
        return cls(specs, offsets, metadata, header, nbytes)

    def view(self, buffer: npt.NDArray[np.uint8], name: str) -> npt.NDArray[Any]:
        """Return array ``name`` of a document in ``buffer``, without a copy."""
        spec = self.specs[name]
        return np.ndarray(spec.shape, STORAGE_DTYPES[spec.dtype], buffer, self.offsets[name])


def _alignment(nbytes: int) -> int:
    return _ALIGNMENT if nbytes == 0 else min(nbytes & -nbytes, _ALIGNMENT)


def _header_size(buffer: npt.NDArray[np.uint8], what: str, max_header: int) -> int:
    if len(buffer) < 8:
        raise FormatError(f"{what}: {len(buffer)} bytes cannot hold the 8-byte header length")
    (length,) = _HEADER_LENGTH.unpack_from(buffer.data)
    if length > len(buffer) - 8:
        raise FormatError(f"{what}: a header of {length} bytes in a document of {len(buffer)}")
    if length > max_header:
        raise FormatError(f"{what}: a header of {length} bytes; at most {max_header} are read")
    return int(length) + 8


def _header_document(text: bytes, what: str, max_header: int) -> dict[str, Any]:
    document = read_json(text, what=f"{what}: the header", max_bytes=max_header)
    if not isinstance(document, dict):
        raise FormatError(f"{what}: the header is a {type(document).__name__}, not an object")
    return document


def _metadata(value: object, what: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise FormatError(f"{what}: __metadata__ must map strings to strings")
    return value


def _entry(name: str, entry: object, what: str) -> tuple[ArraySpec, int, int]:
    what = f"{what}: {_shown(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{what} needs exactly dtype, shape and data_offsets")
    dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORAGE_DTYPES:
        raise FormatError(f"{what} has unknown dtype {_shown(dtype)}")
    if isinstance(shape, list) and len(shape) > _MAX_DIMENSIONS:  # Before their product, which is quadratic.
        raise FormatError(f"{what} has {len(shape)} dimensions, which no array can have")
    if not _sizes(shape):
        raise FormatError(f"{what} has shape {_shown(shape)}, not a list of sizes")
    if not isinstance(span, list) or len(span) != 2 or not _sizes(span) or span[0] > span[1]:
        raise FormatError(f"{what} has data_offsets {_shown(span)}, not [begin, end]")
    spec = ArraySpec(dtype, tuple(shape))
    if spec.nbytes != span[1] - span[0]:
        raise FormatError(f"{what} needs {spec.nbytes} bytes, data_offsets hold {span[1] - span[0]}")
    if math.prod(filter(None, shape)) > _MAX_ELEMENTS:
        raise FormatError(f"{what} has shape {_shown(shape)}, which no array can have")
    return spec, span[0], span[1]


def _sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _shown(value: object) -> str:
    """Return a value for a message: the beginning of what may be long, printable, lists one level deep."""
    if isinstance(value, list):
        parts = ["..." if isinstance(item, (list, dict)) else _shown(item) for item in value[:_SHOWN_SIZES]]
        return f"[{', '.join(parts + ['...'] * (len(value) > _SHOWN_SIZES))}]"
    if isinstance(value, dict):
        return f"an object of {len(value)} entries"
    return ascii(value[:_SHOWN]) if isinstance(value, str) else repr(value)
