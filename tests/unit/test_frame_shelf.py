"""Frames that wait to be fetched, and rings."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gigl_loader.memfile import map_memory
from gigl_server.frame_ring import FrameRing
from gigl_server.frames import FrameShelf

ME, YOU = b"m" * 32, b"y" * 32
A, B = b"a" * 16, b"b" * 16


def put(
    shelf: FrameShelf, channel: bytes = A, nbytes: int = 10, *, fence: int = 0, now: float = 0.0
) -> bytes:
    return shelf.put(np.zeros(nbytes, np.uint8), nbytes, job=ME, channel=channel, fence=fence, now=now)


def test_a_frame_is_handed_out_once_and_only_to_its_job() -> None:
    shelf = FrameShelf()
    handle = put(shelf)
    assert len(handle) == 16
    assert shelf.take(handle, YOU) is None
    found = shelf.take(handle, ME)
    assert found is not None
    assert found[1] == 10
    assert shelf.take(handle, ME) is None
    assert shelf.take(b"x" * 16, ME) is None
    assert (len(shelf), shelf.nbytes, shelf.held_by(A)) == (0, 0, 0)


def test_handles_differ() -> None:
    shelf = FrameShelf()
    assert len({put(shelf) for _ in range(100)}) == 100
    assert (shelf.held_by(A), shelf.held_by(B), shelf.nbytes) == (100, 0, 1000)


def test_frames_of_a_channel_go_all_or_those_of_older_epochs() -> None:
    shelf = FrameShelf()
    old, new, other = put(shelf, fence=1), put(shelf, fence=2), put(shelf, B, fence=1)
    shelf.drop_channel(A, before_fence=2)
    assert shelf.take(old, ME) is None
    assert shelf.held_by(A) == 1
    shelf.drop_channel(A)
    assert shelf.take(new, ME) is None
    assert shelf.take(other, ME) is not None
    shelf.drop(other)
    shelf.drop_channel(b"never there")


def test_frames_that_nobody_fetches_are_dropped() -> None:
    shelf = FrameShelf()
    put(shelf, now=1.0)
    late = put(shelf, now=5.0)
    assert shelf.drop_older(5.0) == 1
    assert shelf.take(late, ME) is not None


def test_who_holds_most_loses_its_oldest() -> None:
    shelf = FrameShelf()
    handles = [put(shelf, B, 60), put(shelf, A, 50), put(shelf, A, 50)]
    assert [shelf.drop_one(), shelf.drop_one(), shelf.drop_one(), shelf.drop_one()] == [A, B, A, None]
    assert all(shelf.take(handle, ME) is None for handle in handles)


# --- rings


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
