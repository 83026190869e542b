"""Quota of things that callers hold: so many in all, and so many of one caller."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_server.identity import Identity

__all__ = ["Quota"]


class Quota:
    """Counts what each caller holds. Thread-safe."""

    def __init__(self, what: str, most: int, most_per_caller: int) -> None:
        """``what`` is the plural of the thing counted, for messages."""
        self._what = what
        self._most, self._most_per_caller = most, most_per_caller
        self._lock = threading.Lock()
        self._callers: Counter[Identity] = Counter()
        self._all = 0

    @property
    def reason(self) -> str:
        """Why one more is refused."""
        return f"too many {self._what}: {self._most} in all, {self._most_per_caller} of one caller"

    def enter(self, caller: Identity) -> bool:
        """Count one more, unless that would be too many."""
        with self._lock:
            if self._all >= self._most or self._callers[caller] >= self._most_per_caller:
                return False
            self._all += 1
            self._callers[caller] += 1
            return True

    def leave(self, caller: Identity) -> None:
        """Count one less."""
        with self._lock:
            self._all -= 1
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]
