"""Columns of Arrow arrays as NumPy arrays. Readers share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigl_loader.arrays import Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import LIST_DELIMITER, TEXT, TEXT_LISTS, Kind, Table
from gigl_loader.tensors import STORAGE_DTYPES

Where = Callable[[int], str]

_NUMBERS = {
    pa.bool_(): "BOOL",
    pa.uint8(): "U8",
    pa.int8(): "I8",
    pa.uint16(): "U16",
    pa.int16(): "I16",
    pa.float16(): "F16",
    pa.uint32(): "U32",
    pa.int32(): "I32",
    pa.float32(): "F32",
    pa.uint64(): "U64",
    pa.int64(): "I64",
    pa.float64(): "F64",
}
LENGTHS: Kind = "lengths"
"""Lists of which only the lengths are read."""
_NANOSECONDS = {"d": 86_400 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True, slots=True)
class PaddedColumn(Column):
    """Lists of any length: zeros are added, or elements cut off, where they do not have that of ``shape``."""


def with_lengths(table: Table, lengths: Mapping[str, int | None]) -> Table:
    """Return a reader of Arrow, whose lists of numbers in these columns get that many elements."""
    reader: Any = table
    for name, length in lengths.items():
        kind = table.columns[name]
        if length is not None and isinstance(kind, Column) and len(kind.shape) == 1:
            reader.columns = {**reader.columns, name: PaddedColumn(kind.dtype, (length,), kind.unit)}
    return table


def is_ragged(dtype: Any) -> bool:
    """Return whether rows of this type may differ in length: then the first row says the width."""
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype))


def kind_of(dtype: Any, width: int = 0) -> Kind:
    """Return what a column of this Arrow type holds. ``width`` is that of lists of any length."""
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    if isinstance(dtype, pa.BaseExtensionType):
        inner = kind_of(dtype.storage_type)
        shape = getattr(dtype, "shape", None)
        return replace(inner, shape=tuple(shape)) if isinstance(inner, Column) and shape else inner
    if pa.types.is_timestamp(dtype) or pa.types.is_date(dtype):
        return Column("I64", unit="ns")
    if is_ragged(dtype) or pa.types.is_fixed_size_list(dtype):
        inner = kind_of(dtype.value_type)
        size = dtype.list_size if pa.types.is_fixed_size_list(dtype) else width
        if isinstance(inner, Column):
            return replace(inner, shape=(size, *inner.shape))
        return TEXT_LISTS if inner == TEXT else str(dtype)
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or str(dtype) == "string_view":
        return TEXT
    is_decimal = pa.types.is_decimal(dtype)
    number = ("F64" if dtype.scale > 0 else "I64") if is_decimal else _NUMBERS.get(dtype)
    return str(dtype) if number is None else Column(number)


def to_numpy(array: Any, kind: Kind, where: Where) -> Array:
    """Return the rows of an Arrow array. ``where(row)`` names a row of it for a message.

    Timestamps and dates become nanoseconds since 1970-01-01 UTC; those without a time zone count as UTC.
    Decimals become float64, those without a scale int64. Missing texts become empty, missing numbers are
    masked (``np.ma``), as are all numbers of a missing list.
    """
    if kind == LENGTHS:
        return np.asarray(pc.list_value_length(array).to_numpy(zero_copy_only=False))
    if not isinstance(kind, Column):
        array = _without_views(_joined(array) if kind == TEXT_LISTS else _decoded(array))
        texts = np.empty(len(array), dtype=object)
        try:
            texts[:] = array.fill_null("").to_pylist()
        except UnicodeDecodeError as error:
            raise FormatError(f"{where(0)} or later: {error}") from None
        return texts
    if len(array) == 0:
        return np.empty((0, *kind.shape), dtype=STORAGE_DTYPES[kind.dtype])
    if isinstance(kind, PaddedColumn):
        array = _padded(array, kind.shape[0])
    values = _values(array, kind.shape, where).reshape(len(array), *kind.shape)
    return values if isinstance(values, np.ma.MaskedArray) else np.ascontiguousarray(values)


def _joined(array: Any) -> Any:
    """Return the texts of each list as one text. Missing texts are empty."""
    flat = _without_views(array.flatten()).cast(pa.large_string()).fill_null("")
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    delimiter = pa.scalar(LIST_DELIMITER, pa.large_string())
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, flat), delimiter)


def _decoded(array: Any) -> Any:
    """Return the values of a dictionary array, or what is given."""
    if not pa.types.is_dictionary(array.type):
        return array
    return _without_views(array.dictionary).take(array.indices)


def _without_views(array: Any) -> Any:
    """Return views of texts, which Polars writes and Arrow hardly computes with, as texts."""
    return array.cast(pa.large_string()) if str(array.type) == "string_view" else array


def _values(array: Any, shape: tuple[int, ...], where: Where) -> Array:
    """Return all numbers of an array with rows of that shape, row after row."""
    if isinstance(array.type, pa.BaseExtensionType):
        return _values(array.storage, (math.prod(shape),) if shape else (), where)
    array = _decoded(array)
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64()) if array.type.scale > 0 else _integers(array, where)
    if is_ragged(array.type) or pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            return _values_of_some(array, shape, where)
        if is_ragged(array.type):
            _refuse_ragged(array, shape[0], where)
        return _values(array.flatten(), shape[1:], lambda row: where(row // max(shape[0], 1)))
    if array.null_count:
        zero = pa.Array.from_buffers(array.type, 1, [None, pa.py_buffer(bytes(16))])[0]
        mask = array.is_null().to_numpy(zero_copy_only=False)
        return np.ma.MaskedArray(_values(array.fill_null(zero), shape, where), mask)
    if array.type not in _NUMBERS:
        return _nanoseconds(array, where)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _values_of_some(array: Any, shape: tuple[int, ...], where: Where) -> Array:
    """Return all numbers of lists of which some are missing, masked."""
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    found = _values(array.drop_null(), shape, lambda row: where(int(rows[row])))
    width = math.prod(shape)
    values = np.zeros((len(array), width), found.dtype)
    missing = np.ones(values.shape, np.bool_)
    values[rows] = np.ma.getdata(found).reshape(-1, width)
    missing[rows] = np.ma.getmaskarray(found).reshape(-1, width)
    return np.ma.MaskedArray(values.reshape(-1), missing.reshape(-1))


def _integers(array: Any, where: Where) -> Any:
    """Return decimals without a scale as int64."""
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid:
        sizes = (abs(value or 0) for value in array.to_pylist())
        row = next(row for row, size in enumerate(sizes) if size > np.iinfo(np.int64).max)
        raise FormatError(f"{where(row)}: {array[row]} does not fit in int64: store it as a text") from None


def _nanoseconds(array: Any, where: Where) -> Array:
    """Return timestamps or dates as nanoseconds since 1970-01-01 UTC, int64."""
    is_days = pa.types.is_date32(array.type)
    unit = "d" if is_days else getattr(array.type, "unit", "ms")  # A date64 counts milliseconds.
    counts = np.asarray(array.view(pa.int32() if is_days else pa.int64())).astype(np.int64)
    longest = np.iinfo(np.int64).max // _NANOSECONDS[unit]
    if (row := first_true((counts > longest) | (counts < -longest))) is not None:
        value = array.slice(row, 1).cast(pa.string())[0].as_py()
        raise FormatError(
            f"{where(row)}: {value} lies outside 1677 to 2262, the range of nanoseconds in int64: "
            "leave the column out, or store a number (seconds, days)"
        )
    return counts * _NANOSECONDS[unit]


def _padded(array: Any, width: int) -> Any:
    """Return lists of ``width`` elements."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    flat, places = array.flatten(), np.arange(width)
    zero = pa.Array.from_buffers(flat.type, 1, [None, pa.py_buffer(bytes(16))])
    begins = np.cumsum(lengths) - lengths
    taken = np.where(places < lengths[:, None], begins[:, None] + places, len(flat))
    values = pa.concat_arrays([flat, zero]).take(pa.array(taken.reshape(-1)))
    offsets = pa.array(width * np.arange(len(array) + 1))
    return pa.LargeListArray.from_arrays(offsets, values, mask=array.is_null())


def _refuse_ragged(array: Any, width: int, where: Where) -> None:
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    if (row := first_true(lengths != width)) is not None:
        raise FormatError(
            f"{where(row)}: {lengths[row]} values, {width} in the first row "
            "(--vector COLUMN=LENGTH adds zeros, or cuts off what is longer)"
        )
