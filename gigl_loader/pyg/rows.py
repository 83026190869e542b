"""Selection of rows: an index of PyG's as row numbers, and the rows that come back as tensors."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigl_loader.loaders.dequantize import Dequantizer
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes, Int64Array
    from gigl_loader.graph.schema import Column

__all__ = ["RowSelection", "as_tensor"]


class RowSelection:
    """Rows of a tensor of ``count`` rows, as ``tensor[index]`` selects them along its first dimension.

    ``index`` is ``None`` for all rows, a slice, an integer, or a 1-D tensor or array of integers or of
    ``count`` booleans. ``IndexError`` for a row that does not exist, ``TypeError`` for another index.
    """

    def __init__(self, index: Any, count: int) -> None:
        self.is_single = False
        """An integer selects a row, without the dimension of rows."""
        self.rows: Int64Array = self._rows(index, count)
        """Row numbers, int64 [N], from 0."""

    def shape(self, column: Column) -> tuple[int, ...]:
        """Return the shape of the selected rows of a column."""
        return column.shape if self.is_single else (len(self.rows), *column.shape)

    def _rows(self, index: Any, count: int) -> Int64Array:
        if index is None:
            return np.arange(count, dtype=np.int64)
        if isinstance(index, slice):
            return np.arange(*index.indices(count), dtype=np.int64)
        array = self._array(index)
        if array.dtype == np.bool_:
            if len(array) != count:
                raise IndexError(f"a mask over {count} rows is needed, got one of {len(array)}")
            return np.flatnonzero(array).astype(np.int64, copy=False)
        rows = array.astype(np.int64, copy=False)
        wrong = rows[(rows < -count) | (rows >= count)]
        if len(wrong):
            raise IndexError(f"row {wrong[0]} of {count}")
        return np.where(rows < 0, rows + count, rows)

    def _array(self, index: Any) -> np.ndarray[Any, Any]:
        if isinstance(index, torch.Tensor):
            index = index.detach().cpu().numpy()
        if isinstance(index, (list, range)):
            index = np.asarray(index, np.int64 if not len(index) else None)
        if not isinstance(index, np.ndarray) or not index.ndim:
            try:
                index = np.array([operator.index(index)])
            except TypeError:
                raise TypeError(
                    "an index must be None, a slice, an integer, or a 1-D tensor of integers or booleans, "
                    f"got {index!r:.200}"
                ) from None
            self.is_single = True
        if index.ndim != 1 or index.dtype.kind not in "biu":
            raise TypeError(
                f"an index must be 1-D, of integers or booleans, got {index.dtype} {list(index.shape)}"
            )
        array: np.ndarray[Any, Any] = index
        return array


def as_tensor(rows: Bytes, column: Column, shape: tuple[int, ...]) -> torch.Tensor:
    """Return uint8 [N, row bytes] as a tensor of a column's dtype, without a copy. bfloat16 as such.

    The values of a quantised column are float32, in memory of their own.
    """
    if column.quantized is not None:
        values = Dequantizer(column).on_host(rows, lambda nbytes: np.empty(nbytes, np.uint8))
        return values.reshape(shape)
    array = rows.reshape(-1).view(STORAGE_DTYPES[column.dtype]).reshape(shape)
    if column.dtype == "BF16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
