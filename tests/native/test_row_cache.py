"""Requests for rows, split by what a cache holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.native import count_rows, split_by_cache


def bitmap(cached: set[int], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    flags = np.zeros(-(-num_rows // 64) * 64, np.uint8)
    flags[list(cached)] = 1
    bits = np.packbits(flags, bitorder="little").view(np.uint64)
    ranks = np.full(len(bits), -1, np.int32)
    assert count_rows(bits, ranks) == len(cached)
    return bits, ranks


@given(st.data(), st.integers(1, 300))
def test_against_python(data: st.DataObject, num_rows: int) -> None:
    cached = data.draw(st.sets(st.integers(0, num_rows - 1)))
    asked = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=200))
    places = np.arange(len(asked), dtype=np.int64)[::-1].copy()
    number = {row: i for i, row in enumerate(sorted(cached))}

    split = split_by_cache(*bitmap(cached, num_rows), num_rows, np.array(asked, np.int64), places)

    paired = list(zip(asked, places.tolist(), strict=True))
    assert list(zip(split[0].tolist(), split[1].tolist(), strict=True)) == [
        (number[row], place) for row, place in paired if row in cached
    ]
    assert list(zip(split[2].tolist(), split[3].tolist(), strict=True)) == [
        (row, place) for row, place in paired if row not in cached
    ]


@pytest.mark.parametrize("row", [-1, 100, 2**62, -(2**62)])
def test_a_row_outside_the_partition_is_named(row: int) -> None:
    bits, ranks = bitmap({3}, 100)
    rows = np.array([5, row, 7], np.int64)
    with pytest.raises(ValueError, match=rf"row {row} lies outside \[0, 100\)"):
        split_by_cache(bits, ranks, 100, rows, np.arange(3))


def test_lengths_must_agree() -> None:
    bits, ranks = bitmap({3}, 100)
    rows = np.arange(3)
    with pytest.raises(ValueError, match="a word for every 64 rows"):
        split_by_cache(bits, ranks, 200, rows, rows)
    with pytest.raises(ValueError, match="bits and ranks differ"):
        split_by_cache(bits, ranks[:1].copy(), 100, rows, rows)
    with pytest.raises(ValueError, match="rows and places differ"):
        split_by_cache(bits, ranks, 100, rows, rows[:2].copy())
    with pytest.raises(ValueError, match="bits and ranks differ"):
        count_rows(bits, ranks[:1].copy())
