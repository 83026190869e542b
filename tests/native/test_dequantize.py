"""Codes become the values that plain Python makes of them, bit for bit, in the kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings

from gigl_loader import native
from gigl_loader.graph import Column
from gigl_loader.graph.quantization import Quantization, Quantized
from tests.support.quantised import KINDS, packed_columns, values_of

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes


@settings(max_examples=120)
@given(packed_columns())
def test_the_kernel_gives_the_values_of_plain_python(drawn: tuple[Column, Bytes]) -> None:
    column, packed = drawn
    assert column.quantized is not None
    form = column.quantized
    by_column = form.how.per == "column"
    scales, zero_points = (
        np.asarray(each, np.float64) if by_column else None for each in (form.scales, form.zero_points)
    )
    out = np.empty((len(packed), math.prod(column.shape)), np.float32)
    native.dequantize(packed, form.how.bits, scales, zero_points, out)
    expected = values_of(packed, column).reshape(out.shape)
    assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per", ["column", "row"])
@pytest.mark.parametrize("elements", [16, 48, 1040])
@pytest.mark.parametrize("offset", [0, 4])
def test_large_outputs_are_the_same_wherever_they_lie(
    kind: str, per: Literal["column", "row"], elements: int, offset: int
) -> None:
    """From 4 MB on, whole cache lines are written past the caches, where the processor can do so."""
    random, how = np.random.default_rng(elements), Quantization(kind, per)
    rows = (4 << 20) // (4 * elements) + 3
    some = random.integers(0, 256, (7, how.row_bytes(elements)), np.uint8)
    count = elements if per == "column" else 7
    scales, zeros = random.standard_normal((2, count)).astype(np.float32)
    form = Quantized(how, "F32", abs(scales).tobytes(), zeros.tobytes())
    if per == "row":
        some[:, :8] = np.stack([abs(scales), zeros], axis=1).view(np.uint8)
        form = Quantized(how, "F32")
    memory = np.zeros(rows * elements + 32, np.float32)
    start = -memory.ctypes.data % 64 // 4 + offset
    out = memory[start : start + rows * elements].reshape(rows, elements)
    picked = random.integers(0, 7, rows)
    form.decode(some[picked], out)
    expected = values_of(some, Column("F32", (elements,), None, form))
    assert np.array_equal(out.view(np.uint32), expected.view(np.uint32)[picked])
    assert not memory[:start].any()
    assert not memory[start + rows * elements :].any()


def _arguments(**changes: Any) -> list[Any]:
    arguments = {
        "packed": np.zeros((3, 5), np.uint8),
        "bits": 8,
        "scales": np.zeros(5),
        "zero_points": np.zeros(5),
        "out": np.zeros((3, 5), np.float32),
    }
    return [*{**arguments, **changes}.values()]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"bits": 3}, ValueError, "codes have 8, 4, 2 or 1 bits"),
        ({"bits": 4}, ValueError, "packed rows have another size"),
        ({"packed": np.zeros((2, 5), np.uint8)}, ValueError, "packed and out differ in length"),
        ({"packed": np.zeros((3, 6), np.uint8)}, ValueError, "packed rows have another size"),
        ({"scales": None}, ValueError, "scales and zero points come together"),
        ({"scales": None, "zero_points": None}, ValueError, "packed rows have another size"),
        (
            {"scales": np.zeros(4)},
            ValueError,
            "a scale and a zero point are needed for each value",
        ),
        ({"zero_points": np.zeros(6)}, ValueError, "a scale and a zero point are needed"),
        ({"scales": np.zeros(5, np.float32)}, TypeError, "incompatible function arguments"),
        ({"packed": np.zeros((3, 10), np.uint8)[:, ::2]}, TypeError, "incompatible function arguments"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        native.dequantize(*_arguments(**changes))
