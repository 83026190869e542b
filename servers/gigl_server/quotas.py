"""Quotas: the part of a shared resource that one owner may have.

``Quota`` counts things up to fixed numbers. ``has_quota`` has dynamic thresholds (Choudhury and Hahne,
IEEE/ACM Transactions on Networking 6(2), 1998): an owner may take more while it has at most 8 times what is
free. A single owner gets up to 8/9 of a limit, two get 8/17 each, n get 8/(8 n + 1) each: something always
stays free for a new owner. Owners are identities, which cannot be forged as jobs and channels can.
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

    A call that did not come through a port (``LOCAL``) is bounded by the limit alone.
    """
    free = limit - used - more
    return free >= 0 and (owner == LOCAL or own <= _FACTOR * free)


class Quota:
    """Counter of what each caller holds, with limits. Thread-safe."""

    def __init__(self, what: str, most: int, most_per_caller: int) -> None:
        """``what`` is the plural of the thing counted, for messages."""
        self._what = what
        self._most, self._most_per_caller = most, most_per_caller
        self._lock = threading.Lock()
        self._callers: Counter[Identity] = Counter()
        self._all = 0

    @property
    def reason(self) -> str:
        """Reason of a refusal, as text."""
        return f"too many {self._what}: {self._most} in all, {self._most_per_caller} of one caller"

    def enter(self, caller: Identity) -> bool:
        """Count one more. Return ``False``, without counting, where that would exceed a limit."""
        with self._lock:
            if self._all >= self._most or self._callers[caller] >= self._most_per_caller:
                return False
            self._all += 1
            self._callers[caller] += 1
            return True

    def leave(self, caller: Identity) -> None:
        """Count one less for a caller."""
        with self._lock:
            self._all -= 1
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]
