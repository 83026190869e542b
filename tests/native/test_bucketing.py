"""Rows are spread over buckets as a search and a stable sort would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader import native

_NUMBERS = st.one_of(st.integers(-3, 40), st.integers(-(2**62), 2**62))


@given(
    cuts=st.lists(_NUMBERS, min_size=1, max_size=30).map(sorted), positions=st.lists(_NUMBERS, max_size=60)
)
def test_buckets_are_those_of_a_search(cuts: list[int], positions: list[int]) -> None:
    borders, values = np.array(cuts, np.int64), np.array(positions + cuts, np.int64)
    expected = np.maximum(np.searchsorted(borders, values, side="right") - 1, 0)
    np.testing.assert_array_equal(native.find_buckets(borders, values), expected)


def test_many_buckets_of_uneven_width_and_narrow_positions() -> None:
    random = np.random.default_rng(0)
    cuts = np.unique((random.random(50_000) ** 3 * 2**31).astype(np.int64))
    positions = random.integers(0, 2**31, 100_000).astype(np.int32)
    expected = np.maximum(np.searchsorted(cuts, positions, side="right") - 1, 0)
    np.testing.assert_array_equal(native.find_buckets(cuts, positions), expected)


@given(st.lists(st.integers(0, 9), max_size=60))
def test_the_order_is_that_of_a_stable_sort(buckets: list[int]) -> None:
    chosen = np.array(buckets, np.uint32)
    order, starts = native.order_by_bucket(chosen, 10)
    np.testing.assert_array_equal(order, np.argsort(chosen, kind="stable"))
    np.testing.assert_array_equal(starts, np.searchsorted(np.sort(chosen), np.arange(11)))


def test_a_bucket_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="row 2 is in no bucket below 3"):
        native.order_by_bucket(np.array([0, 2, 3], np.uint32), 3)


@pytest.mark.parametrize(
    ("cuts", "positions", "error"),
    [
        (np.empty(0, np.int64), np.empty(0, np.int64), ValueError),
        (np.array([3, 2]), np.empty(0, np.int64), ValueError),
        (np.array([0, 2]), np.empty(0, np.int16), TypeError),
        (np.array([0, 2], np.int32), np.empty(0, np.int64), TypeError),
    ],
)
def test_what_does_not_fit_is_refused(cuts: Any, positions: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        native.find_buckets(cuts, positions)
