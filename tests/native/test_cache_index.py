"""Slots of a cache: windows and victims against a plain cache of the same rule, and rows that collide."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader.native import CacheIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def arrays(batches: Sequence[Sequence[int]]) -> list[np.ndarray]:
    return [np.array(batch, np.int64) for batch in batches]


class PlainCache:
    """The rule of ``CacheIndex`` in dictionaries."""

    def __init__(self, num_slots: int, num_rows: int) -> None:
        self.free = set(range(num_slots))
        self.slot: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.counts = [0] * num_rows
        self.missing: dict[int, list[int]] = {}  # of pinned windows
        self.windows = self.hits = self.evicted = 0

    def plan(
        self, batches: list[list[int]], ahead: list[list[int]], partial: bool
    ) -> tuple[int, list[list[int]], list[int], list[int]] | None:
        wanted = {row for batch in batches for row in batch}
        missing = sorted(wanted - self.slot.keys())
        evictable = self.slot.keys() - self.pinned() - wanted
        num_hits = sum(map(len, batches)) - len(missing)
        num_losers = max(len(missing) - len(self.free), 0)
        fits = num_losers <= len(evictable)
        if not fits and not partial:
            return None
        rivals = sorted([*evictable, *(() if fits else missing)], key=lambda row: self._worth(row, ahead))
        losers = set(rivals[:num_losers])
        missing = sorted(set(missing) - losers)
        num_victims = len(losers & evictable)
        self._drop(losers & evictable)
        slots = sorted(sorted(self.free)[: len(missing)])
        self.free -= set(slots)
        self.slot.update(zip(missing, slots, strict=True))
        window, self.windows = self.windows, self.windows + 1
        self.missing[window] = missing
        self.last.update(dict.fromkeys(wanted & self.slot.keys(), window))
        self.hits += num_hits
        self.evicted += num_victims
        return window, [[self.slot.get(row, -1) for row in batch] for batch in batches], missing, slots

    def _worth(self, row: int, ahead: list[list[int]]) -> tuple[int, ...]:
        """Order rows by what they are worth; of equal ones, those without a slot go first, by row."""
        use = next((i for i, batch in enumerate(ahead) if row in batch), len(ahead))
        held = (self.last[row], self.slot[row]) if row in self.slot else (-1, row)
        return -use, self.counts[row] if self.counts else 0, *held

    def pinned(self) -> set[int]:
        oldest = min(self.missing, default=self.windows)
        return {row for row in self.slot if self.last[row] >= oldest}

    def _drop(self, rows: Iterable[int]) -> None:
        self.free |= {self.slot.pop(row) for row in rows}

    def release(self, window: int) -> None:
        del self.missing[window]

    def forget(self, window: int) -> None:
        for each in [each for each in self.missing if each >= window]:
            self._drop(self.missing.pop(each))

    def count(self, rows: list[int]) -> None:
        for row in rows:
            self.counts[row] = min(self.counts[row] + 1, 255)
        while sum(self.counts) > 32 * len(self.counts):
            self.counts = [count // 2 for count in self.counts]

    def preset(self, counts: list[int]) -> None:
        self.counts = counts


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("stride", [1, 7, 1 << 20, (1 << 40) + 1, 1 << 56])
def test_windows_like_a_plain_cache(stride: int, counted: bool) -> None:
    if counted and stride > 7:
        stride = 3
    num_rows = 24
    for seed in range(150):
        draws = random.Random(f"{stride} {counted} {seed}")
        num_slots = draws.randint(1, 16)
        index = CacheIndex(num_slots, num_rows * stride if counted else 0)
        plain = PlainCache(num_slots, num_rows * stride if counted else 0)

        def batches(most: int, draws: random.Random = draws) -> list[list[int]]:
            sizes = [draws.randint(0, 5) for _ in range(draws.randint(0, most))]
            return [[draws.randrange(num_rows) * stride for _ in range(size)] for size in sizes]

        for _ in range(40):
            step = draws.choice(["plan", "plan", "release", "forget", "count", "preset"])
            if step == "plan":
                window, ahead, partial = batches(3), batches(6), draws.random() < 0.5
                found = index.plan(arrays(window), arrays(ahead), partial)
                wanted = plain.plan(window, ahead, partial)
                assert (found is None) == (wanted is None)
                if found is not None:
                    slots = [each.tolist() for each in found[1]]
                    assert (found[0], slots, found[2].tolist(), found[3].tolist()) == wanted
            elif step == "release" or (step == "forget" and draws.random() < 0.3):
                for number in draws.sample([*plain.missing], draws.randint(0, len(plain.missing))):
                    if number in plain.missing:
                        getattr(index, step)(number)
                        getattr(plain, step)(number)
            elif step == "count" and counted:
                seen = [row for batch in batches(3) for row in batch] * draws.choice([1, 1, 40, 300])
                index.count(np.array(seen, np.int64))
                plain.count(seen)
            elif step == "preset" and counted and draws.random() < 0.2:
                counts = [draws.randint(0, 255) for _ in range(num_rows * stride)]
                index.preset(np.array(counts, np.uint8))
                plain.preset(counts)
            assert (index.num_used, index.num_pinned) == (len(plain.slot), len(plain.pinned()))
            assert (index.hits, index.evicted) == (plain.hits, plain.evicted)


def strided(count: int, stride: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * stride


@pytest.mark.parametrize(
    "known",
    [
        strided(40_000, 1),
        strided(40_000, 1 << 32),
        strided(40_000, 1 << 47),
        strided(40_000, 11400714819323198485 % (1 << 47)),
        np.concatenate([strided(20_000, 1) + (part << 40) for part in (0, 65_535)]),
        np.concatenate([strided(256, 1) + (part << 40) for part in range(156)]),
        (strided(200, 1)[:, None] + strided(200, 1 << 32)).ravel(),
    ],
)
def test_windows_of_rows_that_collide(known: np.ndarray) -> None:
    index = CacheIndex(8192)
    held = np.full(8192, -1)  # what the slots have, if every missing row is read
    ranks = np.minimum(np.random.default_rng(1).pareto(0.5, (90, 1300)) * 100, len(known) - 1).astype(
        np.int64
    )
    pinned: list[int] = []
    for begin in range(0, 90, 3):
        batches, ahead = list(known[ranks[begin : begin + 3]]), list(known[ranks[begin + 3 : begin + 9]])
        planned = index.plan(batches, ahead)
        assert planned is not None
        window, slots, missing, missing_slots = planned
        assert not np.isin(missing, held).any()
        assert (np.diff(missing) > 0).all()
        assert (np.diff(missing_slots) > 0).all()
        held[missing_slots] = missing
        assert all((held[places] == rows).all() for rows, places in zip(batches, slots, strict=True))
        pinned.append(window)
        if len(pinned) == 2:
            index.release(pinned.pop(0))
    assert index.num_used == 8192
    assert 0 < index.evicted < index.hits


def test_the_least_recent_window_among_many() -> None:
    index = CacheIndex(3)
    for _ in range((1 << 16) - 8):
        index.release(index.plan([])[0])  # type: ignore[index]
    for turn in range(20):
        planned = index.plan([np.array([turn % 5])])
        assert planned is not None
        window, slots, missing, _ = planned
        assert (slots[0].tolist(), missing.tolist()) == ([turn % 3], [turn % 5])
        index.release(window)
    assert window > 1 << 16


def test_a_window_larger_than_the_cache_changes_nothing() -> None:
    index = CacheIndex(100)
    assert index.plan([strided(101, 1)]) is None
    assert (index.num_used, index.num_pinned) == (0, 0)
    first = index.plan([strided(60, 1), strided(60, 1)])
    assert first is not None
    assert index.plan([strided(101, 1)]) is None
    assert index.plan([strided(60, 1) + 41]) is None  # One row too many beside the pinned window.
    second = index.plan([strided(60, 1) + 40])
    assert second is not None
    assert (second[0], second[2].tolist()) == (1, list(range(60, 100)))
    assert (index.num_pinned, index.hits) == (100, 60 + 20)


def test_whether_a_window_fits_is_said_without_a_change() -> None:
    index = CacheIndex(100)
    assert index.plan([strided(60, 1)]) is not None
    for rows, fits in [(strided(60, 1) + 40, True), (strided(60, 1) + 41, False), (strided(101, 1), False)]:
        assert index.fits([rows, rows]) is fits
    assert (index.num_used, index.num_pinned, index.hits) == (60, 60, 0)
    second = index.plan([strided(60, 1) + 40])
    assert second is not None
    assert (second[0], second[2].tolist()) == (1, list(range(60, 100)))
    with pytest.raises(ValueError, match="a row lies outside"):
        index.fits([np.array([-1])])


def test_part_of_a_window_larger_than_the_cache() -> None:
    """Rows have slots by their next use, then by their counts. Those in the cache go before others."""
    index = CacheIndex(4, 20)
    assert index.plan([np.array([0, 1, 2, 3])], [], True)[2].tolist() == [0, 1, 2, 3]  # type: ignore[index]
    index.release(0)
    index.count(np.array([14, 14, 2, 2, 2, 5]))
    planned = index.plan([np.array([3, 10, 11, 12, 13, 14])], [np.array([12, 0]), np.array([11])], True)
    assert planned is not None
    _, slots, missing, missing_slots = planned
    assert (missing.tolist(), missing_slots.tolist()) == ([11, 12], [1, 2])
    assert slots[0].tolist() == [3, -1, 1, 2, -1, -1]
    assert (index.num_pinned, index.hits, index.evicted) == (3, 1, 2)
    again = index.plan([np.array([4, 5])], [], True)  # One slot is not pinned.
    assert again is not None
    assert again[1][0].tolist() == [-1, 0]


def test_a_row_that_was_not_read_is_missing_again() -> None:
    index = CacheIndex(100)
    windows = [index.plan([strided(10, 1) + begin]) for begin in (0, 5, 12)]
    assert all(windows)
    index.forget(1)  # Its rows 10 to 14 were not read. Window 2 counts on 12 to 14.
    assert index.num_used == 10
    with pytest.raises(ValueError, match="window 2 is not pinned"):
        index.release(2)
    again = index.plan([strided(25, 1)])
    assert again is not None
    assert (again[0], again[2].tolist()) == (3, list(range(10, 25)))


def test_memory_is_bound_by_slots_and_rows() -> None:
    assert CacheIndex(1_000_000).nbytes <= 23_000_000
    assert CacheIndex(1_000_000, 5_000_000).nbytes <= 28_000_000


@pytest.mark.parametrize(
    ("slots", "rows", "message"),
    [
        (0, 0, "num_slots lies in"),
        (1 << 31, 0, "num_slots lies in"),
        (4, -1, "num_rows must not be negative"),
    ],
)
def test_sizes_are_checked(slots: int, rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CacheIndex(slots, rows)


def test_rows_are_checked_before_anything_changes() -> None:
    index, counted = CacheIndex(4), CacheIndex(4, 10)
    for each, row in ((index, -1), (counted, 10), (counted, -(2**63))):
        for arguments in (([np.array([2, row])],), ([np.array([2])], [np.array([row])])):
            with pytest.raises(ValueError, match="a row lies outside"):
                each.plan(*arguments)
        assert each.num_used == 0
    with pytest.raises(ValueError, match=r"outside \[0, 10\)"):
        counted.count(np.array([10]))
    with pytest.raises(ValueError, match="an entry for every row"):
        counted.preset(np.zeros(9, np.uint8))
    with pytest.raises(ValueError, match="keeps no counts"):
        index.count(np.array([1]))
    with pytest.raises(ValueError, match="keeps no counts"):
        index.preset(np.zeros(0, np.uint8))
    for window in (-1, 0, 2**40):
        with pytest.raises(ValueError, match="is not pinned"):
            index.forget(window)
    with pytest.raises(TypeError):
        index.plan([np.array([1], np.int32)])
