"""Columns of Arrow arrays as NumPy arrays. The readers of Parquet and CSV share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.table import Kind

__all__ = ["is_ragged", "kind_of", "to_numpy"]

Array = npt.NDArray[Any]
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


def is_ragged(dtype: Any) -> bool:
    """Return whether rows of this type may differ in length: then the first row says the width."""
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype))


def kind_of(dtype: Any, width: int = 0) -> Kind:
    """Return what a column of this Arrow type holds. ``width`` is that of lists of any length."""
    if isinstance(dtype, pa.BaseExtensionType):
        inner = kind_of(dtype.storage_type)
        shape = getattr(dtype, "shape", None)
        return Column(inner.dtype, tuple(shape)) if isinstance(inner, Column) and shape else inner
    if pa.types.is_timestamp(dtype) or pa.types.is_date64(dtype):
        return Column("I64")
    if pa.types.is_date32(dtype):
        return Column("I32")
    if is_ragged(dtype) or pa.types.is_fixed_size_list(dtype):
        inner = kind_of(dtype.value_type)
        size = dtype.list_size if pa.types.is_fixed_size_list(dtype) else width
        return Column(inner.dtype, (size, *inner.shape)) if isinstance(inner, Column) else str(dtype)
    if _is_text(dtype):
        return "text"
    return Column(_NUMBERS[dtype]) if dtype in _NUMBERS else str(dtype)


def to_numpy(array: Any, kind: Kind, where: Where) -> Array:
    """Return the rows of an Arrow array. ``where(row)`` names a row of it for a message.

    Missing floats become NaN, missing texts empty; a missing integer, boolean or list is refused.
    """
    if not isinstance(kind, Column):
        if pa.types.is_dictionary(array.type):
            array = array.cast(pa.string())
        return np.array(array.fill_null("").to_pylist(), dtype=np.str_)
    return (
        np.ascontiguousarray(_values(array, where).reshape(len(array), *kind.shape))
        if len(array)
        else (np.empty((0, *kind.shape), dtype=_dtype(array.type)))
    )


def _is_text(dtype: Any) -> bool:
    if pa.types.is_dictionary(dtype):
        return _is_text(dtype.value_type)
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype))


def _dtype(dtype: Any) -> Any:
    if isinstance(dtype, pa.BaseExtensionType):
        return _dtype(dtype.storage_type)
    if is_ragged(dtype) or pa.types.is_fixed_size_list(dtype):
        return _dtype(dtype.value_type)
    if dtype in _NUMBERS:
        return dtype.to_pandas_dtype()
    return np.int32 if pa.types.is_date32(dtype) else np.int64


def _values(array: Any, where: Where) -> Array:
    """Return all numbers of an array, row after row."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if is_ragged(array.type):
        _refuse_missing(array, where)
        lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != lengths[0])
        if len(wrong):
            raise FormatError(
                f"{where(int(wrong[0]))}: {lengths[wrong[0]]} values, {lengths[0]} in other rows"
            )
        return _inner(array, int(lengths[0]), where)
    if pa.types.is_fixed_size_list(array.type):
        _refuse_missing(array, where)
        return _inner(array, array.type.list_size, where)
    if not pa.types.is_floating(array.type):
        _refuse_missing(array, where)
    if array.type not in _NUMBERS:
        array = array.view(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _inner(array: Any, width: int, where: Where) -> Array:
    values = array.flatten()
    return (
        _values(values, lambda row: where(row // max(width, 1)))
        if len(values)
        else np.empty(0, dtype=_dtype(array.type))
    )


def _refuse_missing(array: Any, where: Where) -> None:
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise FormatError(f"{where(row)}: no value (null or NaN)")
