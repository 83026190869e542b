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
from gigl_loader.native import ReadOrder

DTYPES = [np.float16, np.uint16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_]
ORDERS = [ReadOrder.GIVEN, ReadOrder.ASCENDING, ReadOrder.MEASURED]
ORDERED_ROWS = 1 << 18  # kOrderedRows


def _rows(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return array.view(np.uint8).reshape(len(array), array.shape[1] * array.itemsize)


@settings(max_examples=200)
@given(
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3),
    width=st.sampled_from([1, 2, 3, 5, 8, 16, 33, 128]),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    picks=st.lists(st.integers(0, 10**6), max_size=40),
    offset=st.integers(0, 3),
    order=st.sampled_from(ORDERS),
)
def test_gather_equals_indexing(
    *,
    dtypes: list[type[np.generic]],
    width: int,
    counts: list[int],
    picks: list[int],
    offset: int,
    order: ReadOrder,
) -> None:
    total = sum(counts)
    bounds = np.cumsum([0, *counts])
    positions = np.array([pick % total for pick in picks] if total else [], np.int64)
    columns, expected, outs = [], [], []
    for number, dtype in enumerate(dtypes):
        column = np.random.default_rng(number).integers(0, 2, (total, width)).astype(dtype)
        columns.append([_rows(column[low:high]) for low, high in pairwise(bounds)])
        expected.append(_rows(column)[positions])
        row_bytes = column.itemsize * width
        place = np.zeros(len(positions) * row_bytes + offset, np.uint8)[offset:]
        outs.append(place.reshape(len(positions), row_bytes))
    native.gather(columns, bounds, positions, outs, order=order)
    assert all(np.array_equal(out, rows) for out, rows in zip(outs, expected, strict=True))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [16, 32, 128, 100])
@pytest.mark.parametrize("offset", [0, 16, 4])
def test_large_gathers_that_bypass_the_caches_are_exact(width: int, offset: int, order: ReadOrder) -> None:
    column = np.random.default_rng(1).random((3000, width), np.float32)
    positions = np.random.default_rng(2).integers(0, 3000, (8 << 20) // (4 * width))
    memory = np.zeros(len(positions) * width * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    out = memory[start : start + len(positions) * width * 4].reshape(len(positions), -1)
    native.gather([[_rows(column)]], np.array([0, 3000]), positions, [out], order=order)
    assert np.array_equal(out.view(np.float32), column[positions])


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_rows_are_put_in_order_some_at_a_time(width: int, extra: int) -> None:
    random = np.random.default_rng(width)
    column = random.integers(0, 256, (100_000, width), np.uint8)
    positions = random.integers(0, len(column), ORDERED_ROWS + extra)
    out = np.zeros((len(positions), width), np.uint8)
    bounds = np.array([0, 30_000, 30_000, 100_000])
    parts = [column[low:high] for low, high in pairwise(bounds)]
    native.gather([parts], bounds, positions, [out], order=ReadOrder.ASCENDING)
    assert np.array_equal(out, column[positions])


def test_copies_that_try_both_orders_are_exact() -> None:
    column = np.arange(20 << 20, dtype=np.int32).reshape(-1, 16)  # 80 MB: its order matters.
    bounds = np.array([0, len(column)])
    out = np.zeros((5 << 14, 64), np.uint8)
    for turn in range(10):  # The first eight take turns.
        positions = np.random.default_rng(turn).integers(0, len(column), len(out))
        native.gather([[_rows(column)]], bounds, positions, [out])
        assert np.array_equal(out.view(np.int32), column[positions])


def test_rows_beyond_four_billion_are_read_as_they_come() -> None:
    column, out = np.zeros((1 << 33, 0), np.uint8), np.zeros((2, 0), np.uint8)
    bounds = np.array([0, 1 << 33])
    native.gather([[column]], bounds, np.array([1 << 32, 0]), [out], order=ReadOrder.ASCENDING)
    with pytest.raises(ValueError, match=f"position {1 << 33} lies outside"):
        native.gather([[column]], bounds, np.array([0, 1 << 33]), [out], order=ReadOrder.ASCENDING)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("position", [-1, 5, 2**62])
def test_a_position_outside_the_column_is_refused(position: int, order: ReadOrder) -> None:
    column = np.zeros((5, 4), np.uint8)
    out = np.zeros((4, 4), np.uint8)
    with pytest.raises(ValueError, match=rf"position {position} lies outside \[0, 5\)"):
        native.gather([[column]], np.array([0, 5]), np.array([4, position, 0, -9]), [out], order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_position_outside_is_named_however_many_rows_there_are(order: ReadOrder) -> None:
    positions = np.zeros(2 * ORDERED_ROWS, np.int64)
    positions[[ORDERED_ROWS + 7, ORDERED_ROWS + 9]] = 6, 5
    out = np.zeros((len(positions), 4), np.uint8)
    with pytest.raises(ValueError, match="position 6 lies outside"):
        native.gather([[np.zeros((5, 4), np.uint8)]], np.array([0, 5]), positions, [out], order=order)


def test_the_order_that_took_less_time_is_kept_and_the_other_tried_again() -> None:
    for faster in (ReadOrder.GIVEN, ReadOrder.ASCENDING):
        measurements = native.OrderMeasurements()
        chosen = []
        for _ in range(200):
            chosen.append(measurements.next())
            measurements.add(chosen[-1], 5.0 if chosen[-1] == faster else 8.0)
        assert {*chosen[:2]} == {ReadOrder.GIVEN, ReadOrder.ASCENDING}
        assert 2 <= sum(each != faster for each in chosen[8:]) <= 4


def test_an_order_that_has_become_slower_is_left() -> None:
    measurements = native.OrderMeasurements()
    for turn in range(1000):
        order = measurements.next()
        slow = order == ReadOrder.ASCENDING if turn > 100 else order == ReadOrder.GIVEN
        measurements.add(order, 8.0 if slow else 5.0)
    chosen = [measurements.next() for _ in range(64)]
    assert chosen.count(ReadOrder.GIVEN) == 63


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
        native.gather([arrays], np.array(bounds), np.zeros(2, np.int64), [np.zeros(out, np.uint8)])


def test_every_column_needs_an_output() -> None:
    column, out = np.zeros((5, 4), np.uint8), np.zeros((2, 4), np.uint8)
    with pytest.raises(ValueError, match="as many columns as outputs"):
        native.gather([[column], [column]], np.array([0, 5]), np.zeros(2, np.int64), [out])


@pytest.mark.parametrize("column", [np.full((2, 4), 1.5), np.zeros((2, 8), np.uint8)[:, ::2]])
def test_gather_converts_nothing(column: np.ndarray[Any, Any]) -> None:
    with pytest.raises(TypeError):
        native.gather([[column]], np.array([0, 2]), np.array([1]), [np.zeros((1, 4), np.uint8)])


def test_read_only_rows_are_read_and_a_read_only_output_is_refused() -> None:
    column = np.arange(8, dtype=np.uint8).reshape(2, 4)
    column.flags.writeable = False
    out = np.zeros((1, 4), np.uint8)
    native.gather([[column]], np.array([0, 2]), np.array([1]), [out])
    assert out.tolist() == [[4, 5, 6, 7]]
    out.flags.writeable = False
    with pytest.raises(TypeError):
        native.gather([[column]], np.array([0, 2]), np.array([1]), [out])


@pytest.mark.parametrize(
    ("colptr", "rule"),
    [([0, 1], "0 to the number of edges"), ([0, 3, 2], "must not fall"), ([], "at least one")],
)
def test_expand_edges_refuses_a_bad_colptr(colptr: list[int], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        native.expand_edges(np.zeros(2, np.int32), np.array(colptr, np.int64), np.zeros((2, 2), np.int64))
