"""Pool of equal slots of one memory, lent out as arrays.

Frames are large (125 MB is usual), and the first touch of a page costs a fault, several times the price
of copying the page. So slots are reused, lowest first: the number of touched slots stays as small as
the number of batches alive.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np

from gigl_loader.arrays import Bytes
from gigl_loader.native import lease_slot
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

    def take(self) -> int | None:
        """Take the lowest free slot. ``None`` when all are taken."""
        slot = int(self._flags.argmin())
        if self._flags[slot]:
            return None
        self._flags[slot] = 1
        return slot

    def give(self, slot: int) -> None:
        """Free a taken slot that was not lent."""
        self._flags[slot] = 0

    def give_all(self, *, but: set[int]) -> None:
        """Free every slot that is neither lent nor in ``but``, after the process that took slots has died."""
        for slot in range(len(self)):
            if slot not in but and not self._lent[slot]:
                self._flags[slot] = 0

    def is_lent(self, slot: int) -> bool:
        return bool(self._lent[slot])

    def buffer(self, slot: int) -> Bytes:
        """Return the memory of a taken slot, uint8 [``slot_bytes``]. Valid until the slot is freed."""
        return self._memory[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def lend(self, slot: int, nbytes: int) -> Bytes:
        """Return the first ``nbytes`` of a taken slot as an array, uint8 [nbytes], that owns the slot.

        Views and tensors made from the array own the slot, too. The slot is freed with the last of them,
        in any thread, without a line of Python: an interrupt cannot lose it. The memory outlives the pool.
        """
        return np.asarray(_Lease(self.buffer(slot), nbytes, lease_slot(self._lent, self._flags, slot)))


class _Lease:
    """Base object of every array in a lent slot. NumPy and torch keep it alive."""

    __slots__ = ("__array_interface__", "_lease", "slot")

    def __init__(self, slot: Bytes, nbytes: int, lease: object) -> None:
        self.slot = slot
        self._lease = lease
        self.__array_interface__: dict[str, Any] = slot[:nbytes].__array_interface__


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

    Every array lent from the same slot, now or later, has the same memory.
    """
    return array.base.slot if isinstance(array.base, _Lease) else None
