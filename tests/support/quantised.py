"""Quantised columns in plain Python: values of packed rows, and steps."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gigl_loader.arrays import Array, Bytes, Float32Array
    from gigl_loader.graph import Column
    from gigl_loader.graph.quantization import Quantization

__all__ = ["allowed_error", "values_of"]


def values_of(packed: Bytes, column: Column) -> Float32Array:
    """Return the values of packed rows, float32 [N, ...], code by code."""
    form = column.quantized
    assert form is not None
    elements, bits = math.prod(column.shape), form.how.bits
    rows = []
    for row in packed:
        data, scales, zeros = row.tobytes(), form.scales.tolist(), form.zero_points.tolist()
        if form.how.per == "row":
            scale, zero = struct.unpack("<ff", data[:8])
            data, scales, zeros = data[8:], [scale] * elements, [zero] * elements
        number = int.from_bytes(data, "little")
        codes = [number >> bits * element & (1 << bits) - 1 for element in range(elements)]
        rows.append([zero + code * scale for code, scale, zero in zip(codes, scales, zeros, strict=True)])
    return np.array(rows, np.float64).astype(np.float32).reshape(len(packed), *column.shape)


def allowed_error(values: Array, how: Quantization) -> Array:
    """Return by how much each value, float64 [N, E], may be off: half a step, and the rounding to float32."""
    axis = 0 if how.per == "column" else 1
    low, high = values.min(axis=axis, keepdims=True), values.max(axis=axis, keepdims=True)
    last_place = np.maximum(np.abs(low), np.abs(high)) * 2.0**-23 + 2.0**-149
    return np.broadcast_to((high - low) / how.levels / 2 + last_place, values.shape)
