"""Ring of a channel whose trainer runs on this host: slots of a memory file that both processes map."""

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
    """Slots, numbered from 1, that the trainer owns: each request names the slot to write.

    The file is created when it is first needed, and the descriptor goes to the trainer: a trainer that
    requests rings and never fetches them costs neither memory nor descriptors. (A mapping keeps a descriptor
    of its own, and a process may have only about a thousand.)
    """

    def __init__(
        self, slots: int, slot_bytes: int, *, memory: RingMemory | None = None, owner: Identity = LOCAL
    ) -> None:
        """``ValueError`` for invalid sizes. Committed bytes count in ``memory`` for ``owner``."""
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
        self._committed: dict[int, int] = {}  # By slot: bytes from its start that were written so far.
        self._given = self._closed = False

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    @property
    def is_shared(self) -> bool:
        """Whether the trainer has fetched the file. Until then, slots must not be written."""
        return self._given

    @property
    def committed(self) -> int:
        """Bytes of slots that were written so far."""
        with self._lock:
            return sum(self._committed.values())

    def slot(self, number: int) -> Bytes:
        """Return the memory of a slot, uint8 [slot bytes]. It stays valid after ``close``."""
        with self._lock:
            memory = self._mapped()
        return memory[(number - 1) * self.slot_bytes : number * self.slot_bytes]

    def room(self, number: int, nbytes: int) -> Bytes | None:
        """Return the start of a slot, uint8 [nbytes], and commit its memory.

        ``None`` where the slot is too small, or there is no memory left.
        """
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
        """Return the file's descriptor, once. The caller owns it. ``OSError`` if no file can be created."""
        with self._lock:
            if self._given or self._closed:
                return None
            self._mapped()
            fd, self._fd = self._fd, None
            self._given = True
            return fd

    def close(self) -> None:
        """Close the file. Its memory is freed with the last array of it. Closing twice is fine."""
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
