"""Allowances of edges: which batches may be drawn at the same time."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.sampling.costs import SCRATCH_BYTES_PER_EDGE, BatchBounds, BatchTooLarge
from gigl_server.admission import Limits
from gigl_server.sampling.sampler_pool import EdgeAllowances
from tests.support.store_service import Clock

MEMORY = 1 << 30
MOST = MEMORY // 16 // SCRATCH_BYTES_PER_EDGE


def task(allowance: int = 0) -> Any:
    channel = SimpleNamespace(allowance=allowance, queue=deque())
    made = SimpleNamespace(channel=channel, allowance=0)
    channel.queue.append(_Hashable(made))
    return channel.queue[0]


class _Hashable:
    def __init__(self, made: Any) -> None:
        self.channel, self.allowance = made.channel, 0


def scratch(threads: int = 4, clock: Clock | None = None) -> EdgeAllowances:
    return EdgeAllowances(Limits(memory=MEMORY), threads, clock or Clock())


def begun(of: EdgeAllowances, allowance: int) -> Any:
    each = task(allowance)
    assert of.admits(each)
    each.channel.queue.popleft()
    of.begin(each)
    return each


def test_small_batches_need_no_room() -> None:
    room = scratch()
    assert (room.most, room.small) == (MOST, MOST // 4)
    begun(room, MOST)
    for _ in range(4):
        assert begun(room, 0).allowance == MOST // 4


def test_a_batch_that_was_too_large_gets_twice_as_much_until_there_is_no_more() -> None:
    room = scratch()
    each = task()
    tries = 0
    again = True
    while again:
        assert room.admits(each)
        room.begin(each)
        again = room.end(each, too_large=True)
        tries += 1
    assert tries == 3
    assert each.allowance == MOST


def test_large_batches_share_the_room_in_their_order() -> None:
    clock = Clock()
    room = scratch(clock=clock)
    first = begun(room, MOST // 2)
    second = begun(room, MOST // 2)
    waiting, later = task(MOST), task(MOST // 2)
    assert not room.admits(waiting)
    room.end(first, too_large=False)
    assert not room.admits(later)  # There is room, but another one came first.
    room.end(second, too_large=False)
    assert room.admits(waiting)
    room.begin(waiting)
    waiting.channel.queue.popleft()
    assert not room.admits(later)
    room.end(waiting, too_large=False)
    assert room.admits(later)


def test_one_that_cannot_be_begun_for_other_reasons_does_not_hold_up_the_next_for_long() -> None:
    clock = Clock()
    room = scratch(clock=clock)
    stuck, other = task(MOST), task(MOST)
    assert room.admits(stuck)
    assert not room.admits(other)
    clock.now += 1.1
    assert room.admits(other)


def test_bounds_refuse_nonsense_and_say_what_to_change() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        BatchBounds(edges=0, nbytes=1)
    bounds = BatchBounds(edges=10_000_000, nbytes=2_000_000_000, reason=" (why)")
    bounds.check_frame(2_000_000_000, 5)
    with pytest.raises(BatchTooLarge, match=r"2\.0 GB \(why\): ask for fewer seeds a batch") as raised:
        bounds.check_frame(2_500_000_000, 1024)
    assert "the frame of a batch of 1,024 seeds has 2.5 GB" in str(raised.value)
    text = str(bounds.too_many_edges(1024))
    assert "1,024 seeds has more than 10,000,000 edges, which would take more than 640.0 MB (why)" in text
    assert BatchBounds.of_machine().edges > 1_000_000
