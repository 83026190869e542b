"""Memory for what goes over the network, used again so that its pages stay warm."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes

__all__ = ["BufferPool"]

_SMALLEST = 1 << 16
_STEPS = 8  # Sizes between two powers of 2. Frames of one plan differ by a few percent, and so share a size.
_MAX_WASTE = 2  # A buffer up to so many times as large as needed is used rather than a new one.


class BufferPool:
    """Lends buffers of about the size that is asked for. Any number of threads may ask.

    A buffer comes back when the last array made from it is gone. Pages that were never touched cost a
    fault each, several times the price of writing them: so idle buffers are kept, up to a bound.
    """

    def __init__(self, nbytes: int) -> None:
        """Keep idle buffers as long as they and those that are lent come to at most ``nbytes``."""
        self.nbytes = nbytes
        self._lock = threading.Lock()
        self._idle: list[Bytes] = []  # Oldest first.
        # No lock for what comes back: a collection may run the finalizer in a thread that holds it.
        self._returned: deque[Bytes] = deque()
        self._lent = 0
        self._held = 0

    @property
    def lent(self) -> int:
        """Bytes of buffers that something refers to."""
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
        """Return ``nbytes`` of memory. Whatever is made from the array keeps the buffer lent."""
        with self._lock:
            self._take_back()
            memory = self._fitting(nbytes)
            if memory is None:
                size = _size(nbytes)
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
        """Take the smallest idle buffer that is large enough, and not by far too large."""
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
    """The base of every array of a lent buffer. NumPy and pyarrow keep it alive."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: Bytes, nbytes: int) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory[:nbytes].__array_interface__


def _size(nbytes: int) -> int:
    """Round up to an eighth of a power of 2."""
    step = max(1 << max(nbytes - 1, 1).bit_length() - 1, _SMALLEST) // _STEPS
    return max(-(-nbytes // step) * step, _SMALLEST)
