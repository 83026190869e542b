"""Frames of a server: buffers, frames that wait to be fetched, rings."""

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
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.counters import Counters
from gigl_server.frames.ring import FrameRing
from gigl_server.frames.store import BufferPool, FrameStore
from tests.support.store_service import Clock

ME, YOU = b"m" * 32, b"y" * 32
A, B = b"a" * 16, b"b" * 16


def put(shelf: FrameStore, channel: bytes = A, nbytes: int = 10, *, fence: int = 0, job: bytes = ME) -> bytes:
    return shelf.put(np.zeros(nbytes, np.uint8), job=job, channel=channel, fence=fence)


def test_a_frame_is_handed_out_once_and_only_to_its_job() -> None:
    shelf = FrameStore(1 << 20)
    handle = put(shelf)
    assert len(handle) == 16
    assert shelf.take(handle, YOU) is None
    found = shelf.take(handle, ME)
    assert found is not None
    assert len(found) == 10
    assert shelf.take(handle, ME) is None
    assert shelf.take(b"x" * 16, ME) is None
    assert (len(shelf), shelf.nbytes, shelf.held_by(A)) == (0, 0, 0)


def test_handles_differ() -> None:
    shelf = FrameStore(1 << 20)
    assert len({put(shelf) for _ in range(100)}) == 100
    assert (shelf.held_by(A), shelf.held_by(B), shelf.nbytes) == (100, 0, 1000)


def test_frames_of_a_channel_go_all_or_those_of_older_epochs() -> None:
    shelf = FrameStore(1 << 20)
    old, new, other = put(shelf, fence=1), put(shelf, fence=2), put(shelf, B, fence=1)
    shelf.drop_channel(A, before_fence=2)
    assert shelf.take(old, ME) is None
    assert shelf.held_by(A) == 1
    shelf.drop_channel(A)
    assert shelf.take(new, ME) is None
    assert shelf.take(other, ME) is not None
    shelf.drop(other)
    shelf.drop_channel(b"never there")


def test_frames_are_dropped_whose_channel_fetches_none() -> None:
    clock = Clock()
    counters = Counters()
    shelf = FrameStore(1 << 20, clock, counters)
    slow = [put(shelf, A) for _ in range(2)]
    gone = put(shelf, B)
    clock.now += 4
    assert shelf.take(slow[0], ME) is not None
    late = put(shelf, B)
    clock.now += 1
    assert shelf.drop_forgotten(clock.now - 2) == 1
    assert shelf.take(gone, ME) is None
    assert shelf.take(slow[1], ME) is not None
    assert shelf.take(late, ME) is not None
    assert counters.read().dropped_frames == 1


def test_a_job_loses_its_oldest_frame_unless_that_is_new() -> None:
    clock = Clock()
    counters = Counters()
    shelf = FrameStore(1 << 20, clock, counters)
    handles = [put(shelf, B), put(shelf, A), put(shelf, job=YOU)]
    clock.now += 1
    assert not shelf.drop_one(ME, clock.now - 2)
    assert shelf.drop_one(ME, clock.now)
    assert shelf.take(handles[0], ME) is None
    assert shelf.drop_one(ME, clock.now)
    assert not shelf.drop_one(ME, clock.now)
    assert shelf.take(handles[2], YOU) is not None
    assert counters.read().dropped_frames == 2


def test_what_is_sent_counts_for_its_job_until_it_was() -> None:
    shelf = FrameStore(1000)
    handles = [put(shelf, nbytes=200) for _ in range(2)]
    sent = shelf.take(handles[0], ME)
    assert sent is not None
    assert (shelf.sent, shelf.nbytes, dict(shelf.held_bytes())) == (1, 200, {ME: 400})
    with pytest.raises(Refusal) as raised:
        shelf.take(handles[1], ME)
    assert raised.value.kind is RefusalKind.BUSY
    assert shelf.take(put(shelf, nbytes=900, job=YOU), YOU) is not None  # One, however large.
    part = sent[10:20]
    del sent
    assert shelf.sent == 1
    del part
    assert (shelf.sent, dict(shelf.held_bytes())) == (0, {ME: 200})
    assert shelf.take(handles[1], ME) is not None


def test_a_frame_that_is_sent_with_a_reply_counts_as_any_other_on_its_way() -> None:
    shelf = FrameStore(1000)
    sent = shelf.send(np.zeros(200, np.uint8), job=ME)
    assert sent is not None
    assert (shelf.sent, len(shelf), shelf.nbytes, dict(shelf.held_bytes())) == (1, 0, 0, {ME: 200})
    assert shelf.send(np.zeros(100, np.uint8), job=ME) is None  # A quarter of the memory for one job.
    handle = put(shelf, nbytes=100)
    with pytest.raises(Refusal, match="of this job are on their way"):
        shelf.take(handle, ME)
    assert shelf.send(np.zeros(100, np.uint8), job=YOU) is not None
    del sent
    assert dict(shelf.held_bytes()) == {ME: 100}
    assert shelf.take(handle, ME) is not None


def test_frames_on_their_way_are_counted() -> None:
    shelf = FrameStore(1 << 30)
    sent = [shelf.take(put(shelf), ME) for _ in range(64)]
    with pytest.raises(Refusal, match=r"^64 frames of this job are on their way$"):
        shelf.take(put(shelf), ME)
    sent += [shelf.take(put(shelf, job=bytes([job])), bytes([job])) for job in range(192)]
    with pytest.raises(Refusal, match=r"^256 frames are on their way$"):
        shelf.take(put(shelf, job=YOU), YOU)
    assert all(each is not None for each in sent)


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
    monkeypatch.setattr("gigl_server.frames.store.deque", lambda: _Collecting(lent))
    memory = BufferPool(4 * MB)
    lent.append(memory.take(MB))
    taker = threading.Thread(target=memory.take, args=(MB,), daemon=True)
    taker.start()
    taker.join(5)
    assert not taker.is_alive()
    assert not lent
