"""The memory of a channel whose trainer runs on this host: slots of a memory file that both map."""

from __future__ import annotations

import mmap
import os
import threading
from typing import TYPE_CHECKING

from gigl_loader.memfile import create_memory, map_memory
from gigl_server.frames.ring_memory import RingMemory
from gigl_server.identity import LOCAL

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from gigl_server.identity import Identity

__all__ = ["FrameRing"]

_UNBOUNDED = 1 << 62


class FrameRing:
    """Slots that the trainer owns: it says which is written next. Numbered from 1.

    The file is made when it is first needed, and the descriptor goes to the trainer: whoever orders rings
    and does not come for them costs neither memory nor descriptors. (A mapping keeps a descriptor of its own,
    of which a process may have only a thousand.)
    """

    def __init__(
        self, slots: int, slot_bytes: int, *, memory: RingMemory | None = None, owner: Identity = LOCAL
    ) -> None:
        """``ValueError`` for sizes that cannot be. What is committed counts in ``memory`` for ``owner``."""
        if slots < 1 or slot_bytes < 1 or slot_bytes % mmap.PAGESIZE:
            raise ValueError(
                f"a ring has whole slots of whole pages ({mmap.PAGESIZE} bytes), got {slots} of {slot_bytes}"
            )
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._account = memory or RingMemory(_UNBOUNDED)
        self._owner = owner
        self._lock = threading.Lock()
        self._memory: Bytes | None = None
        self._fd: int | None = None
        self._committed: dict[int, int] = {}  # By slot: bytes from its start that were ever written.
        self._given = self._closed = False

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    @property
    def is_shared(self) -> bool:
        """Whether the trainer has come for the file. Until then, nothing is to be written to slots."""
        return self._given

    @property
    def committed(self) -> int:
        """Bytes of slots that were written to."""
        with self._lock:
            return sum(self._committed.values())

    def slot(self, number: int) -> Bytes:
        """Return the memory of a slot. It stays valid after ``close``."""
        with self._lock:
            memory = self._mapped()
        return memory[(number - 1) * self.slot_bytes : number * self.slot_bytes]

    def room(self, number: int, nbytes: int) -> Bytes | None:
        """Return the start of a slot to write ``nbytes`` to. ``None``: the slot is too small, or there is
        no memory left for it."""
        if nbytes > self.slot_bytes:
            return None
        whole = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            if self._closed:
                return None
            more = whole - self._committed.get(number, 0)
            if more > 0:
                if not self._account.take(self._owner, more):
                    return None
                self._committed[number] = whole
        return self.slot(number)[:nbytes]

    def hand_over(self) -> int | None:
        """Return the file's descriptor, once: it is the caller's then. ``OSError`` where there is none."""
        with self._lock:
            if self._given or self._closed:
                return None
            self._mapped()
            fd, self._fd = self._fd, None
            self._given = True
            return fd

    def close(self) -> None:
        """Let go of the file. Memory is freed when the last array of it is gone. Closing twice is fine."""
        with self._lock:
            fd, self._fd = self._fd, None
            self._memory = None
            self._closed = True
            committed, self._committed = sum(self._committed.values()), {}
        if fd is not None:
            os.close(fd)
        self._account.give(self._owner, committed)

    def _mapped(self) -> Bytes:
        if self._closed:
            raise ValueError("the ring is closed")
        if self._memory is None:
            self._fd = create_memory("gigl-store-ring", self.nbytes)
            self._memory = map_memory(self._fd, self.nbytes)
        return self._memory
