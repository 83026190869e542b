"""Rows are copied exactly, whatever their size, dtype, place and number of parts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import native

DTYPES = [np.float16, np.uint16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_]


def _rows(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.view(np.uint8).reshape(len(array), array.shape[1] * array.itemsize)


@settings(max_examples=150)
@given(
    dtype=st.sampled_from(DTYPES),
    width=st.sampled_from([1, 2, 3, 5, 8, 16, 33, 128]),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    picks=st.lists(st.integers(0, 10**6), max_size=40),
    offset=st.integers(0, 3),
)
def test_gather_equals_indexing(
    dtype: type[np.generic], width: int, counts: list[int], picks: list[int], offset: int
) -> None:
    total = sum(counts)
    column = np.random.default_rng(0).integers(0, 2, (total, width)).astype(dtype)
    bounds = np.cumsum([0, *counts])
    parts = [_rows(column[low:high]) for low, high in pairwise(bounds)]
    positions = np.array([pick % total for pick in picks] if total else [], np.int64)
    row_bytes = column.itemsize * width
    place = np.zeros(len(positions) * row_bytes + offset, np.uint8)[offset:]
    out = place.reshape(len(positions), row_bytes)
    native.gather(parts, bounds, positions, out)
    assert np.array_equal(out, _rows(column)[positions])


@pytest.mark.parametrize("width", [16, 32, 128, 100])
@pytest.mark.parametrize("offset", [0, 16, 4])
def test_large_gathers_that_bypass_the_caches_are_exact(width: int, offset: int) -> None:
    column = np.random.default_rng(1).random((3000, width), np.float32)
    positions = np.random.default_rng(2).integers(0, 3000, (8 << 20) // (4 * width))
    memory = np.zeros(len(positions) * width * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    out = memory[start : start + len(positions) * width * 4].reshape(len(positions), -1)
    native.gather([_rows(column)], np.array([0, 3000]), positions, out)
    assert np.array_equal(out.view(np.float32), column[positions])


@pytest.mark.parametrize("position", [-1, 5])
def test_a_position_outside_the_column_is_refused(position: int) -> None:
    column = np.zeros((5, 4), np.uint8)
    out = np.zeros((2, 4), np.uint8)
    with pytest.raises(ValueError, match=rf"position {position} lies outside \[0, 5\)"):
        native.gather([column], np.array([0, 5]), np.array([0, position]), out)


@pytest.mark.parametrize(
    ("parts", "bounds", "out", "rule"),
    [
        ([(5, 4)], [0, 5], (3, 4), "differ in length"),
        ([(5, 4)], [0, 5], (2, 3), "rows of the same size"),
        ([(5, 4)], [0, 4], (2, 4), "other rows than its bounds"),
        ([(5, 4)], [0, 5, 9], (2, 4), "one entry more"),
        ([(5, 4)], [1, 6], (2, 4), "start at 0"),
    ],
)
def test_gather_refuses_what_does_not_fit(
    parts: list[tuple[int, int]], bounds: list[int], out: tuple[int, int], rule: str
) -> None:
    arrays = [np.zeros(shape, np.uint8) for shape in parts]
    with pytest.raises(ValueError, match=rule):
        native.gather(arrays, np.array(bounds), np.zeros(2, np.int64), np.zeros(out, np.uint8))


@pytest.mark.parametrize("column", [np.full((2, 4), 1.5), np.zeros((2, 8), np.uint8)[:, ::2]])
def test_gather_converts_nothing(column: np.ndarray[Any, Any]) -> None:
    with pytest.raises(TypeError):
        native.gather([column], np.array([0, 2]), np.array([1]), np.zeros((1, 4), np.uint8))


def test_read_only_rows_are_read_and_a_read_only_output_is_refused() -> None:
    column = np.arange(8, dtype=np.uint8).reshape(2, 4)
    column.flags.writeable = False
    out = np.zeros((1, 4), np.uint8)
    native.gather([column], np.array([0, 2]), np.array([1]), out)
    assert out.tolist() == [[4, 5, 6, 7]]
    out.flags.writeable = False
    with pytest.raises(TypeError):
        native.gather([column], np.array([0, 2]), np.array([1]), out)


@pytest.mark.parametrize(
    ("colptr", "rule"),
    [([0, 1], "0 to the number of edges"), ([0, 3, 2], "must not fall"), ([], "at least one")],
)
def test_expand_edges_refuses_a_bad_colptr(colptr: list[int], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        native.expand_edges(np.zeros(2, np.int32), np.array(colptr, np.int64), np.zeros((2, 2), np.int64))
