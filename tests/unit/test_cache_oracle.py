"""``benchmarks/cache_oracle.py``: no plan reads fewer rows, and ``CacheIndex`` reads what it says."""

from __future__ import annotations

from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.native import CacheIndex

if TYPE_CHECKING:
    from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(
    not BENCHMARKS.exists(), reason="the tests were copied without the benchmarks"
)


@pytest.fixture(scope="module")
def oracle() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        return import_module("cache_oracle")


def fewest_reads(windows: list[set[int]], num_slots: int) -> int:
    """Try every content that the cache may have after each window."""
    costs = {frozenset[int](): 0}
    for wanted in windows:
        reached: dict[frozenset[int], int] = {}
        for held, cost in costs.items():
            others = held - wanted
            for count in range(min(len(others), num_slots - len(wanted)) + 1):
                for kept in combinations(others, count):
                    after = frozenset(wanted.union(kept))
                    reached[after] = min(reached.get(after, 1 << 30), cost + len(wanted - held))
        costs = reached
    return min(costs.values())


@given(st.data(), st.integers(1, 3), st.integers(4, 6))
def test_no_plan_reads_fewer_rows(
    oracle: ModuleType, data: st.DataObject, window: int, num_slots: int
) -> None:
    size = num_slots // window
    batch = st.lists(st.integers(0, 7), max_size=size)
    drawn = data.draw(st.lists(batch, min_size=1, max_size=6))
    batches = [np.array(rows, np.int32) for rows in drawn]
    windows = [set().union(*drawn[i : i + window]) for i in range(0, len(drawn), window)]
    missing = oracle.rows_read(batches, window=window, num_slots=num_slots)
    assert sum(map(len, missing)) == fewest_reads(windows, num_slots)


@pytest.mark.parametrize(("skew", "num_slots"), [(0.0, 7000), (1.1, 3000)])
def test_a_cache_index_reads_the_same_rows(oracle: ModuleType, skew: float, num_slots: int) -> None:
    draws = np.random.default_rng(0)
    chances = np.arange(1, 20_001) ** -skew
    ranks = [draws.choice(len(chances), 800, p=chances / chances.sum()) for _ in range(42)]
    batches = [(rows * 7919) % len(chances) for rows in ranks]
    read = {}
    for window, ahead in ((4, 0), (4, 8), (8, 0), (8, 64)):
        index, plans = CacheIndex(num_slots), []
        for begin in range(0, len(batches), window):
            end = begin + window
            planned = index.plan(batches[begin:end], batches[end : end + ahead])
            assert planned is not None
            index.release(planned[0])
            plans.append(planned[2].tolist())
        told = oracle.rows_read(batches, window=window, num_slots=num_slots, ahead=ahead)
        assert plans == [rows.tolist() for rows in told]
        read[window, ahead] = sum(map(len, told))
    best = sum(map(len, oracle.rows_read(batches, window=8, num_slots=num_slots)))
    assert best == read[8, 64] < read[8, 0]
    assert read[4, 8] < read[4, 0]


@given(st.lists(st.integers(0, 200), unique=True), st.sampled_from([100, 512, 5000]), st.integers(0, 20_000))
def test_blocks_are_read_once_and_small_gaps_are_read_over(
    oracle: ModuleType, rows: list[int], row_bytes: int, gap: int
) -> None:
    reads: list[list[int]] = []
    for row in sorted(rows):
        begin, end = row * row_bytes // 4096 * 4096, ((row + 1) * row_bytes + 4095) // 4096 * 4096
        if reads and begin - reads[-1][1] <= gap:
            reads[-1][1] = end
        else:
            reads.append([begin, end])
    told = oracle.bytes_read(
        [np.sort(np.array(rows, np.int64)), np.array([], np.int64)], row_bytes=row_bytes, gap=gap
    )
    assert told == (sum(end - begin for begin, end in reads), len(reads))


def test_a_window_larger_than_the_cache_is_refused(oracle: ModuleType) -> None:
    with pytest.raises(ValueError, match="window 1 wants 5 rows, the cache has 4 slots"):
        oracle.rows_read([np.arange(4), np.arange(5)], window=1, num_slots=4)
