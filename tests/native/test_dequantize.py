"""Codes become the values that plain Python makes of them, bit for bit, in the kernel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings

from gigl_loader import native
from tests.support.quantised import packed_columns, values_of

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from gigl_loader.graph import Column


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
