"""Codes become the values that plain Python makes of them, bit for bit, in the kernel and with torch."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import native
from gigl_loader.graph import Column
from gigl_loader.graph.quantization import Quantization, Quantized
from gigl_loader.loaders.dequantize import Dequantizer
from tests.support.quantised import values_of

KINDS = ["int8", "uint4", "uint2", "uint1"]


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    per=st.sampled_from(["column", "row"]),
    shape=st.sampled_from([(), (1,), (3,), (8,), (17,), (2, 5), (64,), (1030,)]),
    rows=st.integers(0, 5),
    magnitude=st.sampled_from([1e-40, 1e-3, 1.0, 1e6, 1e35]),
    seed=st.integers(0, 100),
)
def test_kernel_and_torch_give_the_values_of_plain_python(
    *,
    kind: str,
    per: Literal["column", "row"],
    shape: tuple[int, ...],
    rows: int,
    magnitude: float,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    how, elements = Quantization(kind, per), math.prod(shape)
    packed = random.integers(0, 256, (rows, how.row_bytes(elements)), np.uint8)
    count = elements if per == "column" else rows
    scales, zeros = (random.standard_normal((2, count)) * magnitude).astype(np.float32)
    if per == "row":
        packed[:, :8] = np.stack([abs(scales), zeros], axis=1).view(np.uint8)
        form = Quantized(how, "F32")
    else:
        form = Quantized(how, "F32", abs(scales).tobytes(), zeros.tobytes())
    column = Column("F32", shape, None, form)
    expected, dequantizer = values_of(packed, column).view(np.uint32), Dequantizer(column)
    by_kernel = dequantizer.on_host(packed, lambda nbytes: np.empty(nbytes, np.uint8))
    by_torch = dequantizer.on_device(torch.from_numpy(packed))
    for found in (by_kernel, by_torch):
        assert found.dtype == torch.float32
        assert np.array_equal(found.numpy().view(np.uint32), expected)


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
