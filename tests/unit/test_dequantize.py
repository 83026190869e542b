"""Values of quantised columns: by the kernel and by torch operations, bit for bit those of plain Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from hypothesis import given, settings

from gigl_loader.loaders.dequantize import Dequantizer
from tests.support.quantised import packed_columns, values_of

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from gigl_loader.graph import Column


@settings(max_examples=120, deadline=None)
@given(packed_columns())
def test_kernel_and_torch_give_the_values_of_plain_python(drawn: tuple[Column, Bytes]) -> None:
    column, packed = drawn
    expected, dequantizer = values_of(packed, column).view(np.uint32), Dequantizer(column)
    by_kernel = dequantizer.on_host(packed, lambda nbytes: np.empty(nbytes, np.uint8))
    by_torch = dequantizer.on_device(torch.from_numpy(packed))
    for found in (by_kernel, by_torch):
        assert found.dtype == torch.float32
        assert np.array_equal(found.numpy().view(np.uint32), expected)
