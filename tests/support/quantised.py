"""Quantised columns in plain Python: values of packed rows, and steps."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from gigl_loader.graph import Column
from gigl_loader.graph.quantization import Quantization, Quantized

if TYPE_CHECKING:
    from gigl_loader.arrays import Array, Bytes, Float32Array

KINDS = ["int8", "uint4", "uint2", "uint1"]


@st.composite
def packed_columns(draw: st.DrawFn) -> tuple[Column, Bytes]:
    """Draw a quantised column and random rows of it, uint8 [N, row bytes]."""
    how = Quantization(draw(st.sampled_from(KINDS)), draw(st.sampled_from(["column", "row"])))
    shape = draw(st.sampled_from([(), (1,), (3,), (8,), (17,), (2, 5), (64,), (1030,)]))
    rows, magnitude = draw(st.integers(0, 5)), draw(st.sampled_from([1e-40, 1e-3, 1.0, 1e6, 1e35]))
    random = np.random.default_rng(draw(st.integers(0, 100)))
    elements = math.prod(shape)
    packed = random.integers(0, 256, (rows, how.row_bytes(elements)), np.uint8)
    count = elements if how.per == "column" else rows
    scales, zeros = (random.standard_normal((2, count)) * magnitude).astype(np.float32)
    if how.per == "column":
        return Column(
            "F32", shape, None, Quantized(how, "F32", abs(scales).tobytes(), zeros.tobytes())
        ), packed
    packed[:, :8] = np.stack([abs(scales), zeros], axis=1).view(np.uint8)
    return Column("F32", shape, None, Quantized(how, "F32")), packed


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
