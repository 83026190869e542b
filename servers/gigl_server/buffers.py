"""Memory for replies that is used again once it was sent, so that its pages stay warm."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    Bytes = npt.NDArray[np.uint8]

__all__ = ["BufferPool"]


class BufferPool:
    """Lends buffers of one size. A buffer comes back when nothing refers to it any more."""

    def __init__(self, buffer_bytes: int, *, keep: int) -> None:
        """Keep at most ``keep`` buffers that nobody uses."""
        self.buffer_bytes = buffer_bytes
        self._keep = keep
        self._free: list[Bytes] = []
        self._lock = threading.Lock()

    def take(self) -> Bytes:
        """Return a buffer. Hand on the array itself: slices of it do not keep it lent."""
        with self._lock:
            memory = self._free.pop() if self._free else None
        if memory is None:
            memory = np.empty(self.buffer_bytes, np.uint8)
        lent = memory[:]
        weakref.finalize(lent, self._give, memory).atexit = False
        return lent

    @property
    def idle(self) -> int:
        """Buffers that nobody uses."""
        return len(self._free)

    def _give(self, memory: Bytes) -> None:
        with self._lock:
            if len(self._free) < self._keep:
                self._free.append(memory)
