from __future__ import annotations

import gc
import os
import signal
import threading
import weakref

import numpy as np
import pytest

from gigl_loader.channel.ring import SlotPool, slot_of
from gigl_loader.native import lease_slot


def pool_of(count: int, slot_bytes: int = 64) -> SlotPool:
    return SlotPool(np.zeros(count * slot_bytes, np.uint8), np.zeros(count, np.uint8))


def test_the_lowest_free_slot_is_taken() -> None:
    pool = pool_of(3)
    assert [pool.take(), pool.take(), pool.take(), pool.take()] == [0, 1, 2, None]
    pool.give(2)
    pool.give(1)
    assert [pool.take(), pool.take(), pool.take()] == [1, 2, None]


def test_slots_do_not_overlap() -> None:
    pool = pool_of(4)
    for slot in range(4):
        pool.buffer(slot)[:] = slot
    assert [set(pool.buffer(slot).tolist()) for slot in range(4)] == [{0}, {1}, {2}, {3}]


def test_a_lent_array_tells_its_slot() -> None:
    pool = pool_of(2)
    assert [pool.take(), pool.take()] == [0, 1]
    whole = slot_of(pool.lend(1, 10))
    assert whole is not None
    assert len(whole) == 64
    assert np.shares_memory(whole, pool.buffer(1))
    assert whole.base is pool.buffer(0).base  # The memory itself: as long as it lives, it is mapped.
    assert slot_of(np.empty(10, np.uint8)) is None


def test_a_slot_comes_back_with_its_last_view() -> None:
    pool = pool_of(1)
    assert pool.take() == 0
    whole = pool.lend(0, 40)
    assert len(whole) == 40
    part = whole[8:16].view(np.int64).reshape(1, 1)
    del whole
    assert (pool.take(), pool.lent) == (None, 1)
    assert np.shares_memory(part, pool.buffer(0))
    del part
    assert (pool.take(), pool.lent) == (0, 0)


def test_tensors_keep_slots() -> None:
    torch = pytest.importorskip("torch")
    pool = pool_of(1)
    pool.take()
    tensor = torch.from_numpy(pool.lend(0, 64)[16:].view(np.float32))[2:]
    assert pool.take() is None
    del tensor
    assert pool.take() == 0


def test_a_slot_may_come_back_in_any_thread() -> None:
    pool = pool_of(1)
    pool.take()
    held = [pool.lend(0, 8)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pool.take() == 0


def test_lent_memory_outlives_the_pool() -> None:
    memory = np.zeros(128, np.uint8)
    alive = weakref.ref(memory)
    pool = SlotPool(memory, np.zeros(2, np.uint8))
    pool.take()
    array = pool.lend(0, 64)
    del pool, memory
    gc.collect()
    assert alive() is not None
    del array
    assert alive() is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_gives_nothing_back() -> None:
    flags = np.zeros(1, np.uint8)
    pool = SlotPool(np.zeros(64, np.uint8), flags)
    pool.take()
    array = pool.lend(0, 64)
    child = os.fork()
    if child == 0:
        del array
        os._exit(int(flags[0] != 1))
    assert os.waitpid(child, 0)[1] == 0


def test_what_no_slot_holds_takes_none() -> None:
    pool = pool_of(2)
    assert [pool.take(65), pool.take(64), pool.take(0), pool.take(0)] == [None, 0, 1, None]


@pytest.mark.parametrize("slot", [5, 2**63])
def test_slots_that_do_not_exist_are_not_lent(slot: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot} of 5"):
        lease_slot(np.zeros(5, np.uint8), np.zeros(5, np.uint8), slot)


def test_what_a_dead_process_took_is_returned() -> None:
    pool = pool_of(4)
    for _ in range(4):
        pool.take()
    array = pool.lend(1, 8)
    pool.give_all(but={3})
    assert [pool.take(), pool.take(), pool.take()] == [0, 2, None]
    assert pool.is_lent(1)
    del array
    assert not pool.is_lent(1)


def test_interrupts_lose_no_slot() -> None:
    """Ctrl-C at any moment, some hundred times: each slot that was lent comes back."""
    pool = pool_of(1)
    armed = threading.Event()

    def interrupt(*_: object) -> None:
        if armed.is_set():
            armed.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
    try:
        for _ in range(100):
            array = None
            try:
                armed.set()
                while armed.is_set():
                    if pool.take() is not None:
                        array = pool.lend(0, 8)
                    del array
                    array = None
            except KeyboardInterrupt:
                pass
            del array
            assert pool.lent == 0
            pool.give_all(but=set())  # It was taken and not yet lent.
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
