from __future__ import annotations

import gc
import threading
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa

from gigl_server.buffers import BufferPool
from gigl_server.ledger import Ledger


def address(array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_buffer_is_used_again_once_nothing_refers_to_it() -> None:
    pool = BufferPool(1000, keep=4)
    first = pool.take()
    place = address(first)
    sent = pa.py_buffer(first)
    del first
    other = pool.take()
    assert address(other) != place  # Arrow still has the first.
    del sent
    gc.collect()
    assert pool.idle == 1
    assert address(pool.take()) == place
    assert len(other) == 1000


def test_no_more_than_so_many_idle_buffers_are_kept() -> None:
    pool = BufferPool(10, keep=2)
    lent = [pool.take() for _ in range(5)]
    lent.clear()
    assert pool.idle == 2


class _Collecting(deque[Any]):
    """Idle buffers; taking one runs the finalizer of another, as a collection may at any time."""

    def __init__(self, idle: list[Any], lent: list[Any]) -> None:
        super().__init__(idle)
        self._lent = lent

    def pop(self) -> Any:  # type: ignore[override]
        self._lent.clear()
        return super().pop()


def test_a_buffer_that_comes_back_while_its_thread_takes_one_blocks_nobody() -> None:
    pool = BufferPool(10, keep=4)
    pool._free = _Collecting([np.empty(10, np.uint8)], lent := [])
    lent.append(pool.take())
    pool._free.append(np.empty(10, np.uint8))
    taker = threading.Thread(target=pool.take, daemon=True)
    taker.start()
    taker.join(0.5)
    assert not taker.is_alive()


def test_the_ledger_adds_up() -> None:
    ledger = Ledger()
    ledger.add(calls=1, bytes_in=10)
    ledger.add(calls=1, bytes_out=5)
    with ledger.timed("gathering_s"):
        sum(range(10_000))
    totals = ledger.read()
    assert (totals.calls, totals.bytes_in, totals.bytes_out, totals.refused) == (2, 10, 5, 0)
    assert totals.gathering_s > 0 == totals.sampling_s
