"""The memory of a channel whose trainer runs on this host: slots of a memory file that both map."""

from __future__ import annotations

import mmap
import os
import threading
from typing import TYPE_CHECKING

from gigl_loader.memfile import create_memory, map_memory

if TYPE_CHECKING:
    from gigl_loader.channel.slots import Bytes

__all__ = ["FrameRing"]


class FrameRing:
    """Slots that the trainer owns: it says which is written next. Numbered from 1.

    A mapping keeps a descriptor of its own, of which a process may have only a thousand. So the file is
    mapped when it is needed, and the descriptor goes to the trainer: one for each ring, at any time.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        """``ValueError`` for sizes that cannot be, ``OSError`` where no memory file can be had."""
        if slots < 1 or slot_bytes < 1 or slot_bytes % mmap.PAGESIZE:
            raise ValueError(
                f"a ring has whole slots of whole pages ({mmap.PAGESIZE} bytes), got {slots} of {slot_bytes}"
            )
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._lock = threading.Lock()
        self._memory: Bytes | None = None
        self._fd: int | None = create_memory("gigl-store-ring", self.nbytes)

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    def slot(self, number: int) -> Bytes:
        """Return the memory of a slot. It stays valid after ``close``."""
        with self._lock:
            memory = self._mapped()
        return memory[(number - 1) * self.slot_bytes : number * self.slot_bytes]

    def hand_over(self) -> int | None:
        """Return the file's descriptor, once: it is the caller's then."""
        with self._lock:
            if self._fd is None:
                return None
            self._mapped()
            fd, self._fd = self._fd, None
            return fd

    def close(self) -> None:
        """Let go of the file. Memory is freed when the last array of it is gone. Closing twice is fine."""
        with self._lock:
            fd, self._fd = self._fd, None
            self._memory = None
        if fd is not None:
            os.close(fd)

    def _mapped(self) -> Bytes:
        if self._memory is None:
            if self._fd is None:
                raise ValueError("the ring is closed")
            self._memory = map_memory(self._fd, self.nbytes)
        return self._memory
