"""Codes of values: scales and zero points for a range, and the packed rows of quantised columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.graph.quantization import HEADER_BYTES

if TYPE_CHECKING:
    from gigl_loader.arrays import Array, Bytes, Float32Array, Float64Array
    from gigl_loader.graph.quantization import Quantization
    from gigl_loader.graph.schema import Column

__all__ = ["as_floats", "encode", "scales_of"]

_BLOCK_VALUES = 1 << 16
"""Values that are encoded at once: what is computed in float64 stays in the caches. 4 ns a value."""


def as_floats(array: Array, column: Column) -> Array:
    """Return rows of a column, [R, ...], as float32 or float64 [R, elements of a row]."""
    rows = array.reshape(len(array), math.prod(column.shape))
    if column.dtype == "BF16":
        return (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return rows.astype(np.float32) if column.dtype == "F16" else rows


def scales_of(low: Array, high: Array, how: Quantization) -> tuple[Float32Array, Float32Array]:
    """Return scales and zero points for values between ``low`` and ``high`` (finite, any shape).

    A scale is a step rounded down, so that a value lies within half a step of a code's. ``OverflowError``
    where float32 cannot hold a step.
    """
    low, high = low.astype(np.float64), high.astype(np.float64)
    zero_points = low.astype(np.float32)
    step = (high - low) / how.levels
    if (step > np.finfo(np.float32).max).any():
        raise OverflowError
    scales = step.astype(np.float32)
    scales = np.where(scales > step, np.nextafter(scales, np.float32(0)), scales)
    # Among subnormal numbers, rounding down may lose so much that codes do not reach the largest value.
    reached = zero_points + how.levels * scales.astype(np.float64)
    short = reached < high - scales.astype(np.float64) / 2
    return np.where(short, np.nextafter(scales, np.float32(np.inf)), scales), zero_points


def encode(values: Array, scales: Float32Array, zero_points: Float32Array, how: Quantization) -> Bytes:
    """Return the codes of values (floats [R, E]), packed: uint8 [R, bytes of a row].

    Scales and zero points are [E], or [R], which then begin the rows.
    """
    by_row = how.per == "row"
    rows, elements = values.shape
    packed = np.empty((rows, how.row_bytes(elements)), np.uint8)
    codes_of = packed[:, HEADER_BYTES:] if by_row else packed
    if by_row:
        packed[:, :HEADER_BYTES] = np.stack([scales, zero_points], axis=1).astype("<f4").view(np.uint8)
        scales, zero_points = scales[:, None], zero_points[:, None]
    # A scale of 0 has code 0 alone: its values are all the zero point.
    divisors = np.where(scales > 0, scales.astype(np.float64), np.inf)
    zeros = zero_points.astype(np.float64)
    step = max(_BLOCK_VALUES // elements, 1)
    for start in range(0, rows, step):
        block = slice(start, start + step)
        of_rows = block if by_row else slice(None)
        codes = _codes(values[block], divisors[of_rows], zeros[of_rows], how.levels)
        codes_of[block] = _packed(codes, how.bits)
    return packed


def _codes(values: Array, divisors: Float64Array, zeros: Float64Array, levels: int) -> Bytes:
    codes = values.astype(np.float64)
    codes -= zeros
    codes /= divisors
    np.rint(codes, out=codes)
    return np.clip(codes, 0, levels, out=codes).astype(np.uint8)


def _packed(codes: Bytes, bits: int) -> Bytes:
    """Return codes, uint8 [R, E], with as many in a byte as fit, the first in its lowest bits."""
    if bits == 8:
        return codes
    per_byte = 8 // bits
    packed = np.zeros((len(codes), -(-codes.shape[1] // per_byte)), np.uint8)
    for place in range(per_byte):
        of_place = codes[:, place::per_byte]
        packed[:, : of_place.shape[1]] |= of_place << np.uint8(place * bits)
    return packed
