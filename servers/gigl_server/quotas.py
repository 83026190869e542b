"""Quotas: what one owner may have of what all share.

``Quota`` counts things up to fixed numbers. ``has_quota`` has dynamic thresholds (Choudhury and Hahne,
IEEE/ACM Transactions on Networking 6(2), 1998): an owner may take more while it has at most 8 times what is
free. One alone comes to 8/9 of a limit, two to 8/17 each, n to 8/(8 n + 1) each, and something is free for a
newcomer, always. Owners are identities, which cannot be made up; jobs and channels can.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from gigl_server.identity import LOCAL

if TYPE_CHECKING:
    from gigl_server.identity import Identity

__all__ = ["Quota", "has_quota"]

_FACTOR = 8


def has_quota(owner: Identity, *, own: int, used: int, limit: int, more: int = 1) -> bool:
    """Return whether ``owner``, which has ``own`` of the ``used``, may take ``more`` of ``limit``.

    A call that came by no port (``LOCAL``) is bounded by the limit alone.
    """
    free = limit - used - more
    return free >= 0 and (owner == LOCAL or own <= _FACTOR * free)


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
