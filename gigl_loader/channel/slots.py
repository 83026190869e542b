"""Memory cut in equal slots, lent out as arrays.

Frames are large (125 MB is usual) and memory that was never touched is slow: every page of it
costs a fault, several times the price of copying the page. So slots are used again and again,
lowest first, which keeps the set of touched slots as small as the number of batches alive.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from typing import Any

import numpy as np

from gigl_loader.arrays import Bytes
from gigl_loader.resources import naming_channel

__all__ = ["SlotPool", "private_slots", "slot_bytes_of", "slot_of"]


class SlotPool:
    """Equal slots of one memory. A lent slot comes back when the last array made from it dies.

    ``flags`` has one byte per slot, 1 where the slot is taken. Memory and flags may be shared by two
    processes; then one of them only takes slots and the other only lends and gives back.
    """

    def __init__(self, memory: Bytes, flags: Bytes) -> None:
        self._memory = memory
        self._flags = flags
        self._lent: set[int] = set()
        self.slot_bytes = len(memory) // len(flags)

    def __len__(self) -> int:
        return len(self._flags)

    @property
    def lent(self) -> int:
        """Number of slots that arrays of this process keep."""
        return len(self._lent)

    def take(self) -> int | None:
        """Take the lowest free slot. ``None`` when all are taken."""
        slot = int(self._flags.argmin())
        if self._flags[slot]:
            return None
        self._flags[slot] = 1
        return slot

    def give(self, slot: int) -> None:
        """Return a taken slot that was not lent."""
        self._flags[slot] = 0

    def give_all(self, *, but: set[int]) -> None:
        """Return every slot that is neither lent nor in ``but``: whoever had taken it is dead."""
        for slot in range(len(self)):
            if slot not in but and slot not in self._lent:
                self._flags[slot] = 0

    def is_lent(self, slot: int) -> bool:
        return slot in self._lent

    def buffer(self, slot: int) -> Bytes:
        """Return the memory of a taken slot. Valid until the slot is given back."""
        return self._memory[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def lend(self, slot: int, nbytes: int) -> Bytes:
        """Return the first ``nbytes`` of a taken slot as an array that owns the slot.

        Views and tensors made from the array own it too; the last to die gives the slot back, in
        whatever thread that happens. The memory outlives the pool.
        """
        lease = _Lease(self.buffer(slot), nbytes)
        self._lent.add(slot)
        finalizer = weakref.finalize(lease, _take_back, os.getpid(), self._lent, self._flags, slot)
        finalizer.atexit = False
        return np.asarray(lease)


class _Lease:
    """The base of every array that lies in a lent slot. NumPy and torch keep it alive."""

    __slots__ = ("__array_interface__", "__weakref__", "slot")

    def __init__(self, slot: Bytes, nbytes: int) -> None:
        self.slot = slot
        self.__array_interface__: dict[str, Any] = slot[:nbytes].__array_interface__


def slot_bytes_of(nbytes: int, slots: int) -> int:
    """Return the size of each of so many slots of ``nbytes``: whole pages, at least one."""
    return max(nbytes // slots // mmap.PAGESIZE, 1) * mmap.PAGESIZE


def private_slots(nbytes: int, slots: int) -> SlotPool:
    """Return a pool of so many slots in memory of this process. ``MemoryError`` where there is none.

    ``nbytes`` of address space are set aside; pages are committed when they are touched.
    """
    slot_bytes = slot_bytes_of(nbytes, slots)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sys.platform == "linux":  # Only touched pages count: a small machine may map more than it has.
        flags |= getattr(mmap, "MAP_NORESERVE", 0x4000)
    with naming_channel(nbytes):
        memory = np.frombuffer(mmap.mmap(-1, slot_bytes * slots, flags=flags), np.uint8)
    return SlotPool(memory, np.zeros(slots, np.uint8))


def slot_of(array: Bytes) -> Bytes | None:
    """Return the whole slot that a lent array begins, and which it shares with later ones of that slot.

    ``None`` for memory that is no slot.
    """
    return array.base.slot if isinstance(array.base, _Lease) else None


def _take_back(pid: int, lent: set[int], flags: Bytes, slot: int) -> None:
    if os.getpid() != pid:
        return  # A forked child drops its copy of the array; the slot is still its parent's.
    lent.discard(slot)  # First, since from the next line on the slot may be filled and come again.
    flags[slot] = 0
