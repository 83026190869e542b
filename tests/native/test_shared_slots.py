"""Slots that other ranks read: rows come whole or not at all, whatever their owner does meanwhile."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.native import CacheIndex, PeerSlots, copy_from_peers, slot_table_size

ROW_BYTES = (3, 24)


class Rank:
    """A cache whose slots are published, and its rows."""

    def __init__(self, num_slots: int, num_rows: int = 0) -> None:
        self.published = (
            np.zeros(slot_table_size(num_slots), np.uint32),
            np.zeros((num_slots, 2), np.int64),
            np.zeros(num_slots, np.uint32),
            np.zeros(1, np.int64),
        )
        self.columns = [np.zeros((num_slots, size), np.uint8) for size in ROW_BYTES]
        self.index = CacheIndex(num_slots, num_rows, self.published)

    def seen(self, *, first: bool = False) -> PeerSlots:
        return PeerSlots(*self.published, self.columns, first)

    def plan(
        self, rows: list[int], peers: tuple[PeerSlots, ...] = (), partial: bool = False
    ) -> tuple[Any, ...] | None:
        found = self.index.plan([np.array(rows, np.int64)], [], partial, peers)
        if found is not None:
            for column in self.columns:
                column[found[3]] = 255  # The rows before are overwritten.
        return found

    def read(self, planned: tuple[Any, ...]) -> None:
        for column, values in zip(self.columns, contents(planned[2]), strict=True):
            column[planned[3]] = values
        self.index.publish(planned[0])

    def hold(self, rows: list[int], peers: tuple[PeerSlots, ...] = ()) -> tuple[Any, ...]:
        planned = self.plan(rows, peers)
        assert planned is not None
        self.read(planned)
        return planned


def contents(rows: Any) -> list[np.ndarray]:
    """The bytes of rows, by column."""
    rows = np.asarray(rows, np.int64)
    return [((rows[:, None] * 31 + np.arange(size)) % 251).astype(np.uint8) for size in ROW_BYTES]


def copied(peers: list[PeerSlots], rows: list[int]) -> list[int]:
    """Copy rows to shuffled places, check them, and return those that came."""
    places = np.random.default_rng(len(rows)).permutation(len(rows) + 2)[: len(rows)]
    out = [np.full((len(rows) + 2, size), 7, np.uint8) for size in ROW_BYTES]
    came = copy_from_peers(peers, np.array(rows, np.int64), places, out)
    for matrix, expected in zip(out, contents(rows), strict=True):
        assert np.array_equal(matrix[places[came]], expected[came])
        assert (np.delete(matrix, places, 0) == 7).all()
    return [row for row, is_there in zip(rows, came, strict=True) if is_there]


def test_rows_are_there_from_when_they_were_read_until_they_go() -> None:
    rank = Rank(4)
    peer = rank.seen()
    assert copied([peer], [1, 2]) == []
    planned = rank.plan([1, 2])
    assert planned is not None
    assert copied([peer], [1, 2, 3]) == []
    rank.read(planned)
    assert copied([peer], [3, 1, 2, 1]) == [1, 2, 1]
    rank.index.release(planned[0])
    rank.hold([5, 6, 7])
    assert copied([peer], [1, 2, 5, 6, 7]) == [2, 5, 6, 7]


def test_rows_that_could_not_be_read_are_not_there() -> None:
    rank, other = Rank(4), Rank(4)
    planned = rank.plan([1, 2])
    assert planned is not None
    rank.index.forget(planned[0])
    assert copied([rank.seen()], [1, 2, -1]) == []
    found = other.plan([1, 2], (rank.seen(),))
    assert found is not None
    assert found[2].tolist() == [1, 2]
    rank.hold([2])
    assert copied([rank.seen()], [1, 2]) == [2]


def test_rows_that_another_rank_has_or_reads_take_no_slot() -> None:
    rank, other = Rank(4), Rank(4)
    rank.hold([1, 2])
    rank.plan([3])
    number, [slots], missing, missing_slots = other.hold([4, 3, 2, 4, 1], (rank.seen(),))
    assert slots.tolist() == [0, -1, -1, 0, -1]
    assert (missing.tolist(), missing_slots.tolist()) == ([4], [0])
    assert other.index.num_used == 1
    other.index.release(number)


def test_of_two_ranks_that_have_a_row_one_keeps_it() -> None:
    """Each first gives up rows that the other one keeps, as far as it looks. By age, both lose 16."""
    rows = list(range(64))
    ranks = [Rank(64), Rank(64)]
    for rank in ranks:
        rank.index.release(rank.hold(rows)[0])
        rank.index.release(rank.hold(rows[:32])[0])
    seen = [rank.seen(first=number == 0) for number, rank in enumerate(ranks)]
    for number, rank in enumerate(ranks):
        for first in (1000, 2000):
            new = [*range(number * 100 + first, number * 100 + first + 8)]
            rank.index.release(rank.hold(new, (seen[1 - number],))[0])
    kept = [set(copied([each], rows)) for each in seen]
    assert len(kept[0]) == len(kept[1]) == 48
    assert len(set(rows) - kept[0] - kept[1]) < 10


def test_rows_that_another_rank_is_about_to_copy_stay_longer() -> None:
    """They stay while the owner plans as many batches as the other rank has in two windows, and two more."""
    rank, other = Rank(8), Rank(8)
    for row in range(8):
        rank.index.release(rank.hold([row])[0])
    other.hold([0, 2], (rank.seen(),))
    for row in (100, 101, 102, 103):
        rank.index.release(rank.hold([row])[0])
        assert copied([rank.seen()], [0, 2]) == [0, 2]
    assert copied([rank.seen()], [*range(8)]) == [0, 2, 6, 7]
    for row in (104, 105):
        rank.index.release(rank.hold([row])[0])
    assert copied([rank.seen()], [0, 2]) == [2]


def test_every_row_of_a_full_cache_is_found() -> None:
    """Also those whose place in the table is behind its end, and so at its begin."""
    for num_slots in range(1, 200):
        rank = Rank(num_slots)
        rows = [*range(num_slots)]
        rank.hold(rows)
        assert copied([rank.seen()], rows) == rows


def test_two_ranks_that_look_at_the_same_time_give_up_different_rows() -> None:
    rows, ranks = list(range(64)), [Rank(64), Rank(64)]
    for rank in ranks:
        rank.index.release(rank.hold(rows)[0])
        rank.index.release(rank.hold(rows[:32])[0])
    one, other = ranks
    table, heads, marks, clock = one.published
    before = PeerSlots(table.copy(), heads.copy(), marks.copy(), clock.copy(), one.columns, first=True)
    one.hold([*range(100, 108)], (other.seen(first=False),))
    other.hold([*range(200, 208)], (before,))
    kept = [{*copied([rank.seen()], rows)} for rank in ranks]
    assert {*range(8)} <= kept[0] | kept[1]
    assert kept[0] != kept[1]


@pytest.mark.parametrize("marked", [False, True])
def test_a_row_that_any_other_rank_keeps_is_given_up(marked: bool) -> None:
    """Though a third rank is about to copy it: it will find it there."""
    rows, rank, others = list(range(64)), Rank(64), [Rank(64), Rank(64)]
    for each in (rank, *others):
        each.index.release(each.hold(rows)[0])
    rank.index.release(rank.hold(rows[:32])[0])
    if marked:
        Rank(8).plan(rows[:8], (rank.seen(),))
    rank.hold([*range(100, 108)], tuple(each.seen(first=each is others[0]) for each in others))
    assert copied([rank.seen()], rows) == rows[8:]


def test_a_row_that_is_pinned_stays_though_another_rank_keeps_it() -> None:
    rank, other = Rank(16), Rank(16)
    other.hold([*range(16)])
    for rows in (range(8), range(8, 16)):
        rank.index.release(rank.hold([*rows])[0])
    rank.hold([*range(8)])
    rank.hold([*range(100, 108)], (other.seen(),))
    assert copied([rank.seen()], [*range(16), *range(100, 108)]) == [*range(8), *range(100, 108)]


def test_the_clock_may_pass_the_range_of_marks() -> None:
    for now in (2**31 - 1, 2**31 + 5, 2**32 - 2):
        rank = Rank(2)
        rank.hold([0])
        rank.published[3][0] = now
        Rank(2).plan([0], (rank.seen(),))
        assert rank.published[2].tolist() == [(now + 4) % 2**32, 0]


def test_the_clock_counts_batches() -> None:
    rank = Rank(8)
    before = int(rank.published[3][0])
    rank.index.plan([np.array([1]), np.array([2]), np.array([1])], [], False, ())
    assert rank.published[3].tolist() == [before + 3]


def test_a_row_stays_for_the_rank_that_needs_it_longest() -> None:
    rank, slow, fast = Rank(8), Rank(8), Rank(8)
    rank.hold([0])
    now, marks = int(rank.published[3][0]), rank.published[2]
    slow.index.plan([np.array([0])] * 3, [], False, (rank.seen(),))
    assert marks.tolist() == [now + 8] + 7 * [0]
    fast.hold([0], (rank.seen(),))
    assert marks.tolist() == [now + 8] + 7 * [0]


def test_a_row_that_another_rank_has_yet_to_read_is_no_reason_to_give_it_up() -> None:
    rows = list(range(64))
    rank, other = Rank(64), Rank(64)
    rank.index.release(rank.hold(rows)[0])
    rank.index.release(rank.hold(rows[:32])[0])
    other.plan(rows)
    rank.hold([*range(100, 108)], (other.seen(),))
    assert copied([rank.seen()], rows) == rows[:32] + rows[40:]


@pytest.mark.parametrize("counted", [False, True])
def test_ranks_that_replace_their_rows_at_random(counted: bool) -> None:
    """Whatever three ranks hold: a row is copied whole, or read by the rank that wants it."""
    stride = 1 if counted else (1 << 40) + 1
    for seed in range(100):
        draws = random.Random(seed)
        ranks = [Rank(draws.randint(1, 12), 30 if counted else 0) for _ in range(3)]
        seen = [
            [other.seen(first=j < i) for j, other in enumerate(ranks) if j != i] for i in range(len(ranks))
        ]
        opened: list[list[Any]] = [[], [], []]
        for _ in range(60):
            number = draws.randrange(3)
            rank, peers = ranks[number], tuple(seen[number])
            rows = [draws.randrange(30) * stride for _ in range(draws.randint(0, 10))]
            planned = rank.plan(rows, peers, partial=draws.random() < 0.5)
            if planned is not None and draws.random() < 0.2:
                rank.index.forget(planned[0])
            elif planned is not None:
                rank.read(planned)
                opened[number].append(planned[0])
                [slots] = planned[1]
                held = slots >= 0
                for column, expected in zip(rank.columns, contents(rows), strict=True):
                    assert np.array_equal(column[slots[held]], expected[held])
                copied(seen[number], [row for row, there in zip(rows, held, strict=True) if not there])
            while opened[number] and draws.random() < 0.6:
                rank.index.release(opened[number].pop(0))
            copied(seen[draws.randrange(3)], [row * stride for row in range(-1, 31)])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_memory_of_any_content_is_read_within_bounds(data: st.DataObject) -> None:
    """A lookup in damaged memory ends, and finds rows only where their number is."""
    num_slots = data.draw(st.integers(1, 300))
    random_bytes = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rank = Rank(num_slots)
    rank.hold([*range(data.draw(st.integers(0, num_slots)))])
    table, heads, marks, clock = rank.published
    for array in (table, heads, marks, clock):
        flat = array.reshape(-1).view(np.uint8)
        if data.draw(st.booleans()):
            places = random_bytes.integers(0, len(flat), data.draw(st.integers(1, 4 * len(flat))))
            flat[places] = random_bytes.integers(0, 256, len(places))
        elif data.draw(st.booleans()):
            flat[:] = 255
    rows = np.arange(-3, 400)
    out = [np.zeros((len(rows), size), np.uint8) for size in ROW_BYTES]
    found = copy_from_peers([rank.seen()], rows, None, out)
    assert set(rows[found]) <= set(heads[:, 0])
    Rank(8).hold([*range(8)], (rank.seen(),))


def test_sizes_are_checked() -> None:
    rank = Rank(4)
    table, heads, marks, clock = rank.published
    wrong: list[Any] = [
        (table[1:], heads, marks, clock),
        (table, heads[:3], marks, clock),
        (table, heads, marks[1:], clock),
        (table, heads, marks, np.zeros(2, np.int64)),
    ]
    for arrays in wrong:
        with pytest.raises(ValueError, match="slot"):
            PeerSlots(arrays[0], arrays[1], arrays[2], arrays[3], rank.columns, first=False)
        with pytest.raises(ValueError, match=r"slot|num_slots"):
            CacheIndex(4, 0, arrays)
    with pytest.raises(ValueError, match="num_slots"):
        CacheIndex(5, 0, rank.published)
    with pytest.raises(ValueError, match="a row for each slot"):
        PeerSlots(*rank.published, [np.zeros((3, 8), np.uint8)], first=False)
    with pytest.raises(ValueError, match="window 0 is not pinned"):
        rank.index.publish(0)
    rank.hold([1])
    good = [np.zeros((1, size), np.uint8) for size in ROW_BYTES]
    rows, peers = np.array([1]), [rank.seen()]
    for place in (-1, 1, 2**62):
        with pytest.raises(ValueError, match="a place lies outside"):
            copy_from_peers(peers, rows, np.array([place]), good)
    with pytest.raises(ValueError, match="a place lies outside"):
        copy_from_peers(peers, np.array([1, 1]), None, good)
    with pytest.raises(ValueError, match="as many columns"):
        copy_from_peers(peers, rows, None, good[:1])
    with pytest.raises(ValueError, match="rows of the same size"):
        copy_from_peers(peers, rows, None, good[::-1])
    with pytest.raises(ValueError, match="differ in length"):
        copy_from_peers(peers, rows, np.array([0, 1]), good)
    assert not any(each.any() for each in good)
