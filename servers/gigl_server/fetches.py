"""Frames on their way to trainers: how many, and whose."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING

from gigl_loader.rpc.refusals import Kind, Refused

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]

__all__ = ["Fetch", "Fetches"]

_MOST = 256
_MOST_OF_A_JOB = 64


class Fetch:
    """A frame on its way. It counts, and its memory is kept, until nothing refers to this any more."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self) -> None:
        self.memory: Bytes | None = None


class Fetches:
    """Counts what is on its way: a trainer that asks and never reads keeps memory, so there is a bound."""

    def __init__(self, *, most: int = _MOST, most_of_a_job: int = _MOST_OF_A_JOB) -> None:
        self._most = most
        self._most_of_a_job = most_of_a_job
        self._lock = threading.Lock()
        self._under_way: Counter[bytes] = Counter()
        # Without the lock: a collection may end a fetch in a thread that is inside ``begin``.
        self._ended: deque[bytes] = deque()

    @property
    def under_way(self) -> int:
        with self._lock:
            return self._settled()

    def begin(self, job: bytes) -> Fetch:
        """Count another. ``Refused`` where there are enough: nothing was taken yet, ask again."""
        with self._lock:
            if self._settled() >= self._most or self._under_way[job] >= self._most_of_a_job:
                raise Refused(Kind.BUSY, f"{self._under_way[job]} frames of this job are on their way")
            self._under_way[job] += 1
        fetch = Fetch()
        weakref.finalize(fetch, self._ended.append, job).atexit = False
        return fetch

    def _settled(self) -> int:
        while self._ended:
            job = self._ended.popleft()
            self._under_way[job] -= 1
            if not self._under_way[job]:
                del self._under_way[job]
        return self._under_way.total()
