"""Quantisation of columns: values as codes of a few bits, with a scale and a zero point.

The value of a code is ``zero_point + code * scale``, computed in float64 and rounded to float32. The product
is exact in float64, so that every machine and device gives the same bits.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gigl_loader import native
from gigl_loader.arrays import Array, Bytes, Float32Array, Float64Array

FLOATS = ("F16", "BF16", "F32", "F64")
"""Dtypes of columns that can be quantised."""

HEADER_BYTES = 8
"""Before the codes of a row that has a scale and a zero point of its own: both, F32, little-endian."""

_BITS: Mapping[str, int] = {"int8": 8, "uint4": 4, "uint2": 2, "uint1": 1}
MAX_ELEMENTS = 1 << 16
"""Elements of a row, each with a scale and a zero point in the schema: 512 KiB."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Bits of a code, and which values share a scale."""

    kind: str
    """``"int8"``, ``"uint4"``, ``"uint2"`` or ``"uint1"``. Codes are unsigned: 0 is the smallest value."""
    per: Literal["column", "row"] = "column"
    """``"column"``: a scale for each element of a row, over all rows. ``"row"``: one for each row, stored in
    it, for columns whose rows differ by orders of magnitude."""

    def __post_init__(self) -> None:
        if self.kind not in tuple(_BITS):
            raise ValueError(f"a column is quantised as one of {', '.join(_BITS)}, not {self.kind!r:.100}")
        if self.per not in ("column", "row"):
            raise ValueError(f"a column is quantised per 'column' or 'row', not {self.per!r:.100}")

    @classmethod
    def parse(cls, text: str) -> Quantization:
        """Return what ``"int8"``, ``"int8:per-row"`` or ``"int8:per-column"`` says, else ``ValueError``."""
        kind, colon, per = text.partition(":")
        if colon and per not in ("per-row", "per-column"):
            raise ValueError(f"{text!r:.100}: write {kind:.20}:per-row or {kind:.20}:per-column")
        return cls(kind, "row" if per == "per-row" else "column")

    def __str__(self) -> str:
        return f"{self.kind}:per-{self.per}"

    @property
    def bits(self) -> int:
        return _BITS[self.kind]

    @property
    def levels(self) -> int:
        """The largest code, and the number of steps from the smallest value to the largest."""
        return (1 << self.bits) - 1

    def row_bytes(self, elements: int) -> int:
        """Return the bytes of a row of so many values. Codes fill whole bytes."""
        header = HEADER_BYTES if self.per == "row" else 0
        return header + -(-elements * self.bits // 8)


@dataclass(frozen=True, slots=True)
class Quantized:
    """Stored form of a column that is quantised."""

    how: Quantization
    source: str
    """Dtype of the values that were quantised, for information."""
    scale: bytes = b""
    """Of each element of a row, F32 little-endian, where they are per column."""
    zero_point: bytes = b""
    """Value of code 0 for each element of a row, as ``scale``."""

    @property
    def scales(self) -> Float32Array:
        """Scales, float32 [elements of a row], or [0] where they are per row."""
        return np.frombuffer(self.scale, "<f4").astype(np.float32, copy=False)

    @property
    def zero_points(self) -> Float32Array:
        """Zero points, as ``scales``."""
        return np.frombuffer(self.zero_point, "<f4").astype(np.float32, copy=False)

    def decode(self, packed: Bytes, out: Float32Array) -> None:
        """Write the values of rows, uint8 [N, row bytes], to ``out``, float32 [N, elements of a row]."""
        by_column = self.how.per == "column"
        scales, zero_points = (
            each.astype(np.float64) if by_column else None for each in (self.scales, self.zero_points)
        )
        native.dequantize(packed, self.how.bits, scales, zero_points, out)

    def check(self, elements: int) -> None:
        """Raise ``ValueError`` unless this can be the form of rows of so many values."""
        if self.source not in FLOATS:
            raise ValueError(f"quantised values were one of {', '.join(FLOATS)}, not {self.source!r:.100}")
        if elements < 1:
            raise ValueError("rows without values cannot be quantised")
        if self.how.per == "column" and elements > MAX_ELEMENTS:
            raise ValueError(
                f"rows of {elements} values are quantised per row; at most {MAX_ELEMENTS} can be per column"
            )
        expected = 4 * elements if self.how.per == "column" else 0
        for name, data in (("scale", self.scale), ("zero_point", self.zero_point)):
            if len(data) != expected:
                raise ValueError(
                    f"{name} has {len(data)} bytes for rows of {elements} values, not {expected}"
                )
        largest = self.zero_points.astype(np.float64) + self.scales.astype(np.float64) * self.how.levels
        with np.errstate(over="ignore"):
            ends_finite = np.isfinite(self.zero_points) & np.isfinite(largest.astype(np.float32))
        if not (ends_finite & (self.scales >= 0)).all():
            raise ValueError("scales must not be negative, and all values finite")

    def to_json(self) -> dict[str, Any]:
        """Return JSON-able values."""
        scales = {"scale": self.scale, "zero_point": self.zero_point} if self.how.per == "column" else {}
        return {
            "kind": self.how.kind,
            "per": self.how.per,
            "source": self.source,
            **{name: base64.b64encode(data).decode() for name, data in scales.items()},
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Quantized:
        """Return what ``to_json`` wrote. ``ValueError``, ``KeyError`` or ``TypeError`` for other values."""
        return cls(
            Quantization(entry["kind"], entry["per"]),
            entry["source"],
            *(_decoded(entry, name) for name in ("scale", "zero_point")),
        )


def _decoded(entry: Mapping[str, Any], name: str) -> bytes:
    text = entry[name] if entry["per"] == "column" else ""
    if len(text) > 6 * MAX_ELEMENTS:
        raise ValueError(f"{name} has {len(text)} characters; at most {6 * MAX_ELEMENTS} are read")
    return base64.b64decode(text, validate=True)


_BLOCK_VALUES = 1 << 16
"""Values that are encoded at once: what is computed in float64 stays in the caches. 4 ns a value."""


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
