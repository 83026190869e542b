"""Memory of rings: bytes of slots that were written to, whose pages the kernel keeps from then on."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from gigl_server.quotas import has_quota

if TYPE_CHECKING:
    from gigl_server.identity import Identity

__all__ = ["RingMemory"]


class RingMemory:
    """Counts what rings have committed, by owner, against one bound. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._lock = threading.Lock()
        self._committed: Counter[Identity] = Counter()

    @property
    def committed(self) -> int:
        """Bytes of all rings."""
        with self._lock:
            return self._committed.total()

    def take(self, owner: Identity, nbytes: int) -> bool:
        """Count bytes that are about to be written for the first time. ``False``: there are none left."""
        with self._lock:
            own, used = self._committed[owner], self._committed.total()
            if not has_quota(owner, own=own, used=used, limit=self.nbytes, more=nbytes):
                return False
            self._committed[owner] += nbytes
            return True

    def give(self, owner: Identity, nbytes: int) -> None:
        """Count bytes no more: their ring was closed."""
        with self._lock:
            self._committed[owner] -= nbytes
            if not self._committed[owner]:
                del self._committed[owner]
