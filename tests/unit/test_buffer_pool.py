"""Memory of frames: lent, back again, warm and bounded."""

from __future__ import annotations

import gc
import threading
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gigl_server.frames.store import BufferPool

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
