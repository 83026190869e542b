"""Pool of equal slots of one memory, lent out as arrays.

Frames are large (125 MB is usual), and the first touch of a page costs a fault, several times the price
of copying the page. So slots are reused, lowest first: the number of touched slots stays as small as
the number of batches alive. A frame that is larger than a slot takes as many adjacent ones as it needs.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np

from gigl_loader.arrays import Bytes
from gigl_loader.native import lease_slots
from gigl_loader.resources import naming_channel

__all__ = ["SlotPool", "private_slots", "slot_bytes_of", "slot_of"]


class SlotPool:
    """Equal slots of one memory. A lent slot is free again when the last array made from it is collected.

    ``flags`` has one byte per slot, 1 where the slot is taken. Memory and flags may be shared by two
    processes. One of them then only takes slots, and the other only lends them and gives them back.
    """

    def __init__(self, memory: Bytes, flags: Bytes) -> None:
        self._memory = memory
        self._flags = flags
        self._lent = np.zeros(len(flags), np.uint8)
        self.slot_bytes = len(memory) // len(flags)

    def __len__(self) -> int:
        return len(self._flags)

    @property
    def lent(self) -> int:
        """Number of slots that arrays of this process hold."""
        return int(np.count_nonzero(self._lent))

    def span(self, nbytes: int) -> int:
        """Return how many adjacent slots ``nbytes`` take."""
        return max(-(-nbytes // self.slot_bytes), 1)

    def take(self, span: int = 1) -> int | None:
        """Take the lowest ``span`` adjacent free slots. Return the first, ``None`` without any."""
        free = np.flatnonzero(self._flags == 0)
        ends = free[span - 1 :]
        (adjacent,) = np.nonzero(ends - free[: len(ends)] == span - 1)
        if not len(adjacent):
            return None
        slot = int(free[adjacent[0]])
        self._flags[slot : slot + span] = 1
        return slot

    def give(self, slot: int, span: int = 1) -> None:
        """Free taken slots that were not lent."""
        self._flags[slot : slot + span] = 0

    def give_all(self, *, but: set[int]) -> None:
        """Free every slot that is neither lent nor in ``but``, after the process that took slots has died."""
        for slot in range(len(self)):
            if slot not in but and not self._lent[slot]:
                self._flags[slot] = 0

    def is_lent(self, slot: int, span: int = 1) -> bool:
        """Whether one of ``span`` slots is lent."""
        return bool(self._lent[slot : slot + span].any())

    def buffer(self, slot: int, span: int = 1) -> Bytes:
        """Return the memory of taken slots, uint8 [span * ``slot_bytes``]. Valid until they are freed."""
        return self._memory[slot * self.slot_bytes : (slot + span) * self.slot_bytes]

    def lend(self, slot: int, nbytes: int) -> Bytes:
        """Return ``nbytes`` from the start of a taken slot as an array, uint8 [nbytes], that owns its slots.

        Views and tensors made from the array own them, too. They are freed with the last of these, in any
        thread, without a line of Python: an interrupt cannot lose them. The memory outlives the pool.
        """
        span = self.span(nbytes)
        memory = self.buffer(slot, span)
        lease = lease_slots(self._lent, self._flags, slot, span)
        return np.asarray(_Lease(memory, nbytes, span, lease))


class _Lease:
    """Base object of every array in lent slots, which it keeps mapped. NumPy and torch keep it alive."""

    __slots__ = ("__array_interface__", "_lease", "memory", "span")

    def __init__(self, memory: Bytes, nbytes: int, span: int, lease: object) -> None:
        self.memory = memory
        self.span = span
        self._lease = lease
        self.__array_interface__: dict[str, Any] = memory[:nbytes].__array_interface__


def slot_bytes_of(nbytes: int, slots: int) -> int:
    """Return the bytes of each of ``slots`` slots that share ``nbytes``: whole pages, at least one."""
    return max(nbytes // slots // mmap.PAGESIZE, 1) * mmap.PAGESIZE


def private_slots(nbytes: int, slots: int) -> SlotPool:
    """Return a pool of ``slots`` slots in private memory. Raises ``MemoryError`` where there is none.

    The pool reserves ``nbytes`` of address space. Pages are committed when they are touched.
    """
    slot_bytes = slot_bytes_of(nbytes, slots)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sys.platform == "linux":  # Reserves address space only: a machine may map more memory than it has.
        flags |= getattr(mmap, "MAP_NORESERVE", 0x4000)
    with naming_channel(nbytes):
        memory = np.frombuffer(mmap.mmap(-1, slot_bytes * slots, flags=flags), np.uint8)
    return SlotPool(memory, np.zeros(slots, np.uint8))


def slot_of(array: Bytes) -> Bytes | None:
    """Return the slot whose start ``array`` is, uint8 [``slot_bytes``]. ``None`` for other memory.

    Every array lent from the same slot, now or later, has the same memory. One in several slots has none.
    """
    lease: object = array.base
    return lease.memory if isinstance(lease, _Lease) and lease.span == 1 else None
