"""Triton kernels, interpreted on the CPU: the rows and values of PyTorch, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.loaders.dequantize import Dequantizer
from tests.support.quantised import packed_columns, values_of
from tests.support.triton_kernels import interpreted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.arrays import Bytes
    from gigl_loader.graph import Column

WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@pytest.fixture(scope="module")
def kernels() -> Iterator[Any]:
    with interpreted():
        from gigl_loader.device import row_kernels

        yield row_kernels


@st.composite
def split_rows(draw: st.DrawFn, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw rows of a table: which of them are on the device, which are wanted, and their places."""
    if not count:
        nothing = torch.empty(0, dtype=torch.int64)
        return nothing, nothing, nothing.to(torch.int32)
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    chosen = np.flatnonzero(random.random(count) < draw(st.sampled_from([0.0, 0.4, 1.0])))
    wanted = random.integers(0, count, draw(st.integers(0, 70)))
    number = np.searchsorted(chosen, wanted)
    is_here = np.isin(wanted, chosen)
    places = np.where(is_here, number, -1 - wanted).astype(np.int32)
    return torch.from_numpy(chosen), torch.from_numpy(wanted), torch.from_numpy(places)


@settings(max_examples=60)
@given(data=st.data(), word=st.sampled_from(WORDS), width=st.sampled_from([1, 2, 3, 7, 32, 600]))
def test_rows_of_both_memories_come_in_their_order(
    kernels: Any, data: st.DataObject, word: torch.dtype, width: int
) -> None:
    count = data.draw(st.integers(0, 40))
    random = torch.Generator().manual_seed(count)
    limits = torch.iinfo(word)
    rows = torch.randint(limits.min, limits.max, (count, width), generator=random, dtype=word)
    chosen, wanted, places = data.draw(split_rows(count))
    found = kernels.gather_rows(places, rows[chosen], rows)
    assert torch.equal(found, rows[wanted])


@settings(max_examples=80)
@given(data=st.data(), drawn=packed_columns())
def test_values_are_those_of_plain_python(
    kernels: Any, data: st.DataObject, drawn: tuple[Column, Bytes]
) -> None:
    column, packed = drawn
    codes, rows = Dequantizer(column), torch.from_numpy(packed)
    chosen, wanted, places = data.draw(split_rows(len(packed)))
    scales, zero_points = codes.scales_on(torch.device("cpu"))
    found = kernels.dequantize_rows(
        places,
        rows[chosen],
        rows,
        elements=codes.elements,
        bits=codes.bits,
        header_bytes=codes.header_bytes,
        scales=scales,
        zero_points=zero_points,
    )
    expected = values_of(packed, column).reshape(len(packed), codes.elements)[wanted.numpy()]
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy().view(np.uint32), expected.view(np.uint32))
