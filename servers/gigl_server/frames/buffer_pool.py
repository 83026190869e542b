"""Pool of buffers for what goes over the network, reused so that their pages stay warm."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes

__all__ = ["BufferPool", "buffer_bytes"]

_SMALLEST = 1 << 16
_STEPS = 8  # Sizes between two powers of 2. Frames of one plan differ by a few percent, and so share a size.
_MAX_WASTE = 2  # A buffer up to so many times as large as needed is used instead of a new one.


class BufferPool:
    """Lends buffers of about the requested size. Thread-safe.

    A buffer is idle again when the last array made from it is collected. Each page costs a fault when first
    touched, several times the price of writing it: so idle buffers are kept, up to a limit.
    """

    def __init__(self, nbytes: int) -> None:
        """Keep idle buffers while idle and lent buffers together have at most ``nbytes``."""
        self.nbytes = nbytes
        self._lock = threading.Lock()
        self._idle: list[Bytes] = []  # Oldest first.
        # A queue without the lock: garbage collection may run a finalizer in the thread that holds the lock.
        self._returned: deque[Bytes] = deque()
        self._lent = 0
        self._held = 0

    @property
    def lent(self) -> int:
        """Bytes of lent buffers."""
        with self._lock:
            self._take_back()
            return self._lent

    @property
    def held(self) -> int:
        """Bytes of all buffers, idle ones included."""
        with self._lock:
            self._take_back()
            return self._held

    @property
    def full(self) -> bool:
        return self.lent >= self.nbytes

    def take(self, nbytes: int) -> Bytes:
        """Return memory, uint8 [nbytes]. Every array made from it keeps the buffer lent."""
        with self._lock:
            self._take_back()
            memory = self._fitting(nbytes)
            if memory is None:
                size = buffer_bytes(nbytes)
                self._make_room(size)
                memory = np.empty(size, np.uint8)
                self._held += size
            self._lent += len(memory)
        lease = _Lease(memory, nbytes)
        weakref.finalize(lease, self._returned.append, memory).atexit = False
        return np.asarray(lease)

    def trim(self) -> None:
        """Free the idle buffer that was used least recently."""
        with self._lock:
            self._take_back()
            if self._idle:
                self._held -= len(self._idle.pop(0))

    def _take_back(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            self._lent -= len(memory)
            self._idle.append(memory)
        self._make_room(0)

    def _fitting(self, nbytes: int) -> Bytes | None:
        """Take the smallest idle buffer that is large enough, within ``_MAX_WASTE``."""
        fit = [each for each in self._idle if nbytes <= len(each) <= max(_MAX_WASTE * nbytes, _SMALLEST)]
        if not fit:
            return None
        best = min(fit, key=len)
        self._idle = [each for each in self._idle if each is not best]
        return best

    def _make_room(self, nbytes: int) -> None:
        while self._idle and self._held + nbytes > self.nbytes:
            self._held -= len(self._idle.pop(0))


class _Lease:
    """Base object of every array of a lent buffer. NumPy keeps it alive."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: Bytes, nbytes: int) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory[:nbytes].__array_interface__


def buffer_bytes(nbytes: int) -> int:
    """Return the size of a buffer for so many bytes: rounded up to an eighth of a power of 2."""
    step = max(1 << max(nbytes - 1, 1).bit_length() - 1, _SMALLEST) // _STEPS
    return max(-(-nbytes // step) * step, _SMALLEST)
