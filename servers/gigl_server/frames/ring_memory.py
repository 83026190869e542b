"""Memory of rings: bytes of written slots, whose pages stay committed."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from gigl_server.quotas import has_quota

if TYPE_CHECKING:
    from gigl_server.identity import Identity

__all__ = ["RingMemory"]


class RingMemory:
    """Committed bytes of rings by owner, against one limit. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._lock = threading.Lock()
        self._committed: Counter[Identity] = Counter()

    @property
    def committed(self) -> int:
        """Committed bytes of all rings."""
        with self._lock:
            return self._committed.total()

    def take(self, owner: Identity, nbytes: int) -> bool:
        """Count bytes that are about to be written for the first time. ``False`` where none are left."""
        with self._lock:
            own, used = self._committed[owner], self._committed.total()
            if not has_quota(owner, own=own, used=used, limit=self.nbytes, more=nbytes):
                return False
            self._committed[owner] += nbytes
            return True

    def give(self, owner: Identity, nbytes: int) -> None:
        """Release the bytes of a closed ring."""
        with self._lock:
            self._committed[owner] -= nbytes
            if not self._committed[owner]:
                del self._committed[owner]
