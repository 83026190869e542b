"""Rows are copied and values dealt out exactly, and what does not fit is refused."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import native
from gigl_loader.native import ReadOrder
from tests.support import oracle

ORDERS = [ReadOrder.GIVEN, ReadOrder.ASCENDING, ReadOrder.MEASURED]


@settings(max_examples=150)
@given(
    width=st.sampled_from([0, 1, 2, 3, 4, 8, 16, 64, 100]),
    source_rows=st.integers(1, 20),
    picks=st.lists(st.integers(0, 10**6), max_size=40),
    room=st.integers(0, 20),
    first=st.sampled_from([0, 7, 2**40]),
    seed=st.integers(0, 5),
    order=st.sampled_from(ORDERS),
)
def test_copy_rows_equals_indexing(
    *, width: int, source_rows: int, picks: list[int], room: int, first: int, seed: int, order: ReadOrder
) -> None:
    random = np.random.default_rng(seed)
    source = random.integers(0, 256, (source_rows, width), np.uint8)
    rows = np.array([pick % source_rows for pick in picks], np.int64)
    places = random.permutation(len(rows) + room)[: len(rows)]
    out, expected = (np.full((len(rows) + room, width), 7, np.uint8) for _ in range(2))
    expected[places] = source[rows]
    native.copy_rows(source, rows + first, places, out, first=first, order=order)
    assert np.array_equal(out, expected)
    native.copy_rows(source, rows + first, None, out, first=first, order=order)
    assert np.array_equal(out[: len(rows)], source[rows])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [16, 64, 512, 516])
@pytest.mark.parametrize("offset", [0, 16])
def test_large_copies_that_bypass_the_caches_are_exact(width: int, offset: int, order: ReadOrder) -> None:
    random = np.random.default_rng(1)
    source = random.integers(0, 256, (5000, width), np.uint8)
    count = (6 << 20) // width
    rows, places = random.integers(0, 5000, count), random.permutation(count)
    memory = np.zeros(count * width + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    out = memory[start : start + count * width].reshape(count, width)
    native.copy_rows(source, rows, places, out, order=order)
    assert np.array_equal(out[places], source[rows])


@settings(max_examples=150)
@given(
    width=st.sampled_from([0, 1, 2, 3, 4, 7, 8, 16, 100, 400, 512, 5000, 70_000]),
    count=st.integers(0, 400),
    offset=st.integers(0, 65),
    picked=st.booleans(),
    placed=st.booleans(),
    seed=st.integers(0, 5),
)
def test_a_checksum_that_goes_along_is_that_of_the_rows(
    *, width: int, count: int, offset: int, picked: bool, placed: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    count = min(count, (256 << 10) // max(width, 1))
    source = random.integers(0, 256, offset + count * width, np.uint8)[offset:].reshape(count, width)
    rows = random.integers(0, count, count) if picked and count else None
    places = random.permutation(count) if placed else None
    out, expected = (np.full((count, width), 7, np.uint8) for _ in range(2))
    native.copy_rows(source, rows, places, expected)
    found = native.copy_rows_crc(source, rows, places, out, 99)
    assert np.array_equal(out, expected)
    sent = source if rows is None else source[rows]
    assert found == native.crc32c_portable(sent.reshape(-1), 99)


@pytest.mark.parametrize("width", [16, 64, 512, 516])
@pytest.mark.parametrize("placed", [True, False])
def test_large_copies_with_a_checksum_are_exact(width: int, *, placed: bool) -> None:
    random = np.random.default_rng(1)
    source = random.integers(0, 256, (5000, width), np.uint8)
    count = (6 << 20) // width
    rows, places = random.integers(0, 5000, count), random.permutation(count)
    memory = np.zeros(count * width + 64, np.uint8)
    start = -memory.ctypes.data % 64
    out = memory[start : start + count * width].reshape(count, width)
    crc = native.copy_rows_crc(source, rows, places if placed else None, out, 0)
    assert np.array_equal(out[places] if placed else out, source[rows])
    assert crc == native.crc32c_portable(source[rows].reshape(-1))


def test_copies_without_rows_or_places_go_in_order() -> None:
    source = np.arange(12, dtype=np.uint8).reshape(3, 4)
    out = np.zeros((5, 4), np.uint8)
    native.copy_rows(source, None, None, out)
    assert np.array_equal(out[:3], source)
    native.copy_rows(source, None, np.array([4, 0, 2]), out)
    assert np.array_equal(out[[4, 0, 2]], source)


@pytest.mark.parametrize(
    ("rows", "places", "rule"),
    [
        ([5], [0], r"row 5 of \[2, 5\)"),
        ([1], [0], r"row 1 of \[2, 5\)"),
        ([-(2**63)], [0], "cannot be copied"),
        ([2], [3], r"place 3 of \[0, 3\)"),
        ([2], [-1], r"place -1"),
        ([2, 3], [0], "differ in length"),
        ([2, 2, 2, 2], None, r"place 3 of \[0, 3\)"),
    ],
)
def test_rows_and_places_outside_are_refused(rows: list[int], places: list[int] | None, rule: str) -> None:
    source, out = np.zeros((3, 8), np.uint8), np.zeros((3, 8), np.uint8)
    picked, placed = np.array(rows), None if places is None else np.array(places)
    for order in ORDERS:
        with pytest.raises(ValueError, match=rule):
            native.copy_rows(source, picked, placed, out, first=2, order=order)
    with pytest.raises(ValueError, match=rule):
        native.copy_rows_crc(source, picked, placed, out, 0, first=2)


def test_more_rows_than_there_are_is_refused() -> None:
    source, out = np.zeros((3, 8), np.uint8), np.zeros((9, 8), np.uint8)
    for copy in (native.copy_rows, partial(native.copy_rows_crc, crc=0)):
        with pytest.raises(ValueError, match=r"row 3 of \[0, 3\) to place 3"):
            copy(source, None, np.arange(4), out)


def test_rows_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="same size"):
        native.copy_rows(np.zeros((1, 4), np.uint8), None, None, np.zeros((1, 5), np.uint8))


@settings(max_examples=150)
@given(cuts=st.lists(st.integers(0, 100), max_size=25), values=st.lists(st.integers(0, 99), max_size=60))
def test_values_go_to_their_owners_in_order(cuts: list[int], values: list[int]) -> None:
    bounds = np.array([0, *sorted(cuts), 100], np.int64)
    array = np.array(values, np.int64)
    parts = native.split_by_owner(array, bounds)
    assert len(parts) == len(bounds) - 1
    for part, (mine, places) in enumerate(parts):
        owned = [i for i, value in enumerate(values) if bounds[part] <= value < bounds[part + 1]]
        assert places.tolist() == owned
        assert mine.tolist() == [values[i] for i in owned]


@pytest.mark.parametrize(
    ("values", "bounds", "rule"),
    [
        ([3, 10], [0, 5, 10], r"10 lies outside \[0, 10\)"),
        ([-1], [0, 5, 10], "-1 lies outside"),
        ([1], [0, 5, 4], "must not fall"),
        ([1], [0], "at least one part"),
        ([1], [0] * 65538, "more partitions"),
    ],
)
def test_values_of_nobody_are_refused(values: list[int], bounds: list[int], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        native.split_by_owner(np.array(values), np.array(bounds))


@pytest.mark.parametrize("key", [0, 2**64 - 1, 99])
def test_uniforms_are_addressed_philox_words(key: int) -> None:
    out = np.empty(1000)
    native.uniforms(key, out)
    assert out[:50].tolist() == [(oracle.philox(key, i, 0xFE << 56)[0] >> 11) / 2**53 for i in range(50)]
    assert out.min() >= 0
    assert out.max() < 1
    assert abs(out.mean() - 0.5) < 0.05
