"""Memory of frames that go over the network, and who holds it until they were sent."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.arrays import Bytes
    from gigl_server.admission import Identity
    from gigl_server.counters import Counters

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
    """Base object of every array of some memory. NumPy keeps it alive: its finalizer runs after the last."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: Bytes, nbytes: int) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory[:nbytes].__array_interface__


def buffer_bytes(nbytes: int) -> int:
    """Return the size of a buffer for so many bytes: rounded up to an eighth of a power of 2."""
    step = max(1 << max(nbytes - 1, 1).bit_length() - 1, _SMALLEST) // _STEPS
    return max(-(-nbytes // step) * step, _SMALLEST)


Holder = tuple["Identity", bytes]
"""Owner and job."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sent:
    holder: Holder
    nbytes: int
    since: float
    cut: Callable[[str], bool]


class SentFrames:
    """Frames from the end of their batch until they were sent, that is, until nothing refers to their memory.

    Thread-safe.
    """

    def __init__(self, counters: Counters, clock: Callable[[], float] = time.monotonic) -> None:
        """``counters`` count calls that are cut."""
        self._counters = counters
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._frames: dict[int, _Sent] = {}  # Oldest first.
        self._held: Counter[Holder] = Counter()
        # A queue without the lock: garbage collection may run a finalizer in the thread that holds the lock.
        self._ended: deque[int] = deque()

    def send(self, memory: Bytes, holder: Holder, cut: Callable[[str], bool] = lambda _: False) -> Bytes:
        """Return a frame, uint8 [nbytes], that counts for ``holder`` while anything refers to it.

        ``cut(reason)`` ends the call of a reply that is not read, and returns whether it did.
        """
        frame = _Lease(memory, len(memory))
        with self._lock:
            self._settle()
            self._count += 1
            sent = _Sent(holder=holder, nbytes=len(memory), since=self._clock(), cut=cut)
            self._frames[self._count] = sent
            self._held[holder] += sent.nbytes
            weakref.finalize(frame, self._ended.append, self._count).atexit = False
        return np.asarray(frame)

    def held(self) -> Counter[Holder]:
        """Return the bytes of each holder. A frame that several share counts for each."""
        with self._lock:
            self._settle()
            return +self._held

    def mean_bytes(self) -> int:
        """Return the mean size of the frames; 0 where there are none."""
        with self._lock:
            self._settle()
            return self._held.total() // max(len(self._frames), 1)

    def __len__(self) -> int:
        with self._lock:
            self._settle()
            return len(self._frames)

    def cut_oldest(self, holder: Holder, than: float, reason: str) -> bool:
        """End the oldest call of a holder that waits for its caller to read a frame from before ``than``.

        Return whether there was one.
        """
        with self._lock:
            self._settle()
            old = [each for each in self._frames.values() if each.holder == holder and each.since < than]
        cut = any(each.cut(reason) for each in old)
        self._counters.add(dropped_frames=int(cut))
        return cut

    def sweep(self) -> None:
        """Forget frames that were sent: what ends their calls keeps connections open. Called every second."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        while self._ended:
            sent = self._frames.pop(self._ended.popleft())
            self._held[sent.holder] -= sent.nbytes
            if not self._held[sent.holder]:
                del self._held[sent.holder]
