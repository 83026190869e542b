"""Frames of a server: buffers, frames that are sent, rings."""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gigl_loader.memfile import map_memory
from gigl_server.admission import LOCAL, Identity
from gigl_server.counters import Counters
from gigl_server.frames.memory import BufferPool, SentFrames
from gigl_server.frames.ring import FrameRing
from tests.support.store_service import Clock

ME, YOU = (LOCAL, b"m" * 32), (Identity(address="10.0.0.1"), b"y" * 32)


def test_a_frame_counts_for_its_holder_until_nothing_refers_to_it() -> None:
    frames = SentFrames(Counters())
    sent, other = (frames.send(np.zeros(200, np.uint8), holder) for holder in (ME, YOU))
    assert (len(frames), frames.mean_bytes(), dict(frames.held())) == (2, 200, {ME: 200, YOU: 200})
    part = sent[10:20]
    del sent
    assert dict(frames.held()) == {ME: 200, YOU: 200}
    del part
    assert dict(frames.held()) == {YOU: 200}
    del other
    assert (len(frames), frames.mean_bytes(), frames.held()) == (0, 0, {})


def test_the_oldest_call_that_waits_to_be_read_is_cut() -> None:
    clock, counters, reasons = Clock(), Counters(), []
    frames = SentFrames(counters, clock)

    def cut(reason: str) -> bool:
        reasons.append(reason)
        return True

    moving = frames.send(np.zeros(1, np.uint8), ME, lambda _: False)
    clock.now += 1
    resting = frames.send(np.zeros(1, np.uint8), ME, cut)
    assert not frames.cut_oldest(ME, clock.now, "unread")
    clock.now += 1
    assert not frames.cut_oldest(YOU, clock.now, "unread")
    assert frames.cut_oldest(ME, clock.now, "unread")
    assert reasons == ["unread"]
    assert counters.read().dropped_frames == 1
    del moving, resting


def test_slots_of_a_ring_are_seen_through_its_descriptor() -> None:
    ring = FrameRing(3, 8192)
    ring.slot(1)[:] = 1
    ring.slot(3)[:] = 3
    fd = ring.hand_over()
    assert fd is not None
    seen = map_memory(fd, ring.nbytes)
    os.close(fd)
    assert [int(seen[place]) for place in (0, 8191, 8192, 16384, 24575)] == [1, 1, 0, 3, 3]
    assert ring.hand_over() is None  # Once.
    ring.slot(2)[:] = 2
    assert seen[8192] == 2


@pytest.mark.usefixtures("no_leftovers")
def test_a_closed_ring_leaves_nothing_and_its_slots_stay_valid() -> None:
    ring, unused = FrameRing(2, 4096), FrameRing(1, 4096)
    slot = ring.slot(1)
    for each in (ring, unused, ring):
        each.close()
    slot[:] = 7
    with pytest.raises(ValueError, match="closed"):
        ring.slot(1)
    assert ring.hand_over() is None


@pytest.mark.parametrize("sizes", [(0, 4096), (1, 0), (1, 4097), (1, 100)])
def test_a_ring_has_whole_slots_of_whole_pages(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="whole slots of whole pages"):
        FrameRing(*sizes)


# --- Memory of frames: lent, back again, warm and bounded


MB = 1 << 20


def address(array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_buffer_is_lent_until_the_last_thing_made_of_it_is_gone() -> None:
    memory = BufferPool(64 * MB)
    array = memory.take(5 * MB)
    assert array.shape == (5 * MB,)
    assert memory.lent >= 5 * MB
    part, buffer = array[MB : 2 * MB], pa.py_buffer(array).slice(7, 9)
    del array
    gc.collect()
    assert memory.lent >= 5 * MB
    del part
    assert memory.lent >= 5 * MB
    del buffer
    assert memory.lent == 0


def test_frames_of_about_one_size_use_one_buffer() -> None:
    memory = BufferPool(64 * MB)
    places = set()
    for nbytes in (5_000_000, 5_100_000, 4_900_000, 5_050_000):
        places.add(address(memory.take(nbytes)))
    assert len(places) == 1
    assert memory.held < 6_000_000


def test_a_small_frame_does_not_take_a_large_buffer() -> None:
    memory = BufferPool(64 * MB)
    large = address(memory.take(32 * MB))
    small = memory.take(MB)
    assert address(small) != large
    assert memory.lent < 2 * MB


def test_idle_buffers_make_room_for_new_ones() -> None:
    memory = BufferPool(10 * MB)
    for nbytes in (8 * MB, 2 * MB, 6 * MB, MB, 9 * MB):
        memory.take(nbytes)
        assert memory.held <= 10 * MB
    memory.trim()
    memory.trim()
    assert memory.held == memory.lent == 0


def test_it_is_full_when_all_of_it_is_lent() -> None:
    memory = BufferPool(4 * MB)
    lent = [memory.take(2 * MB)]
    seen = [memory.full]
    lent.append(memory.take(3 * MB))  # What was begun is finished.
    seen.append(memory.full)
    lent.pop()
    assert [*seen, memory.full] == [False, True, False]


def test_any_size_can_be_had() -> None:
    memory = BufferPool(1 << 30)
    for nbytes in (0, 1, 65_535, 65_536, 65_537, MB - 1, MB, MB + 1, 3 * MB + 17):
        array = memory.take(nbytes)
        assert len(array) == nbytes
        assert nbytes <= memory.lent <= max(nbytes * 9 // 8 + 1, 65_536)
        del array


def test_idle_buffers_beyond_the_bound_are_freed() -> None:
    memory = BufferPool(2 * MB)
    lent = [memory.take(MB) for _ in range(5)]
    lent.clear()
    assert (memory.held, memory.lent) == (2 * MB, 0)


class _Collecting(deque[Any]):
    """What came back; looking ends a lease, as a collection may at any time."""

    def __init__(self, lent: list[Any]) -> None:
        super().__init__()
        self._lent = lent

    def __len__(self) -> int:
        self._lent.clear()
        return super().__len__()


def test_a_buffer_that_comes_back_while_its_thread_takes_one_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lent: list[Any] = []
    monkeypatch.setattr("gigl_server.frames.memory.deque", lambda: _Collecting(lent))
    memory = BufferPool(4 * MB)
    lent.append(memory.take(MB))
    taker = threading.Thread(target=memory.take, args=(MB,), daemon=True)
    taker.start()
    taker.join(5)
    assert not taker.is_alive()
    assert not lent
