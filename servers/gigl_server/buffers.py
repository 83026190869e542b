"""Memory for replies that is used again once it was sent, so that its pages stay warm."""

from __future__ import annotations

import weakref
from collections import deque
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
        # No lock: a collection may run the finalizer of a buffer in a thread that is inside ``take``.
        # Each step on a deque is atomic.
        self._free: deque[Bytes] = deque(maxlen=keep)

    def take(self) -> Bytes:
        """Return a buffer. Hand on the array itself: slices of it do not keep it lent."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(self.buffer_bytes, np.uint8)
        lent = memory[:]
        weakref.finalize(lent, self._free.append, memory).atexit = False
        return lent

    @property
    def idle(self) -> int:
        """Buffers that nobody uses."""
        return len(self._free)
