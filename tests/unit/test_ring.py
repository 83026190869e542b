from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader.channel.ring import Ring, RingLayout, State
from gigl_loader.errors import FormatError
from gigl_loader.memfile import create_memory, map_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("no_leftovers")

LAYOUT = RingLayout(request_slots=3, request_bytes=1600, slots=4, slot_bytes=8192)


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def ring_fd() -> Iterator[int]:
    with closing_fd(create_memory("gigl-test", LAYOUT.nbytes)) as fd:
        yield fd


def test_both_sides_see_the_same_ring(ring_fd: int) -> None:
    trainer, worker = Ring(ring_fd, LAYOUT), Ring(ring_fd, LAYOUT)
    trainer.request_slot(1)[:100] = np.arange(100)
    assert (worker.request_slot(1)[:100] == np.arange(100)).all()
    slot = worker.slots.take()
    assert slot == 0
    worker.slots.buffer(slot)[:] = 9
    array = trainer.slots.lend(slot, 100)
    assert set(array.tolist()) == {9}
    assert worker.slots.take() == 1
    del array
    assert worker.slots.take() == 0


def test_the_parts_of_a_ring_do_not_overlap(ring_fd: int) -> None:
    ring = Ring(ring_fd, LAYOUT)
    for request_slot in range(3):
        ring.request_slot(request_slot)[:] = 7
    for slot in range(4):
        assert ring.slots.take() == slot
        ring.slots.buffer(slot)[:] = 255
    ring.generation = 5
    ring.note(State.SAMPLING, epoch=1, batch=2)
    assert all((ring.request_slot(request_slot) == 7).all() for request_slot in range(3))
    assert all((ring.slots.buffer(slot) == 255).all() for slot in range(4))
    assert ring.slots.take() is None
    assert (ring.generation, ring.doing()[:3]) == (5, (State.SAMPLING, 1, 2))


def test_slots_begin_on_pages(ring_fd: int) -> None:
    ring = Ring(ring_fd, LAYOUT)
    assert all(ring.slots.buffer(slot).ctypes.data % mmap.PAGESIZE == 0 for slot in range(4))


def test_a_ring_fits_its_bytes() -> None:
    layout = RingLayout.fit(10 << 20, request_slots=4, request_bytes=16384, slots=6)
    assert layout.slots * layout.slot_bytes <= 10 << 20
    assert layout.slots * (layout.slot_bytes + 4096) > 10 << 20
    assert RingLayout.fit(1, request_slots=1, request_bytes=16, slots=2).slot_bytes == 4096


def test_memory_is_committed_when_touched() -> None:
    layout = RingLayout.fit(1 << 40, request_slots=4, request_bytes=16384, slots=12)
    with closing_fd(create_memory("gigl-test", layout.nbytes)) as fd:
        ring = Ring(fd, layout)
        ring.slots.buffer(11)[:100] = 1
        assert os.fstat(fd).st_blocks * 512 < 1 << 16


def test_too_many_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="a ring holds 1 to 3072 frames"):
        RingLayout(request_slots=1, request_bytes=16, slots=10_000, slot_bytes=4096)


def test_memory_of_fixed_size_cannot_be_cut_under_its_reader() -> None:
    with closing_fd(create_memory("gigl-test", 4096)) as fd:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        with pytest.raises(FormatError, match="4096 bytes for 4097"):
            map_memory(fd, 4097)


def test_memory_that_may_shrink_is_refused() -> None:
    with closing_fd(os.memfd_create("gigl-test", os.MFD_ALLOW_SEALING)) as fd:
        os.ftruncate(fd, 4096)
        with pytest.raises(FormatError, match="may shrink"):
            map_memory(fd, 4096)
