"""Columns as the kernels see them: rows of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_rows"]


def as_rows(array: npt.NDArray[Any], row_bytes: int) -> npt.NDArray[np.uint8]:
    """View a C-contiguous array as uint8 [entries of its first axis, row_bytes], without a copy."""
    if row_bytes:
        return array.view(np.uint8).reshape(len(array), row_bytes)
    return np.empty((len(array), 0), np.uint8)
