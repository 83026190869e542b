"""Hedging: when a request that is slow is sent to a second server, too, and how often that may be.

After "The Tail at Scale" (Dean and Barroso, 2013): a second copy of the slowest few percent of requests cuts
the tail of their latency, and adds only those few percent of load.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Hedging"]

_WINDOW = 256
_ENOUGH = 64
"""Requests of a kind before any of them is hedged: of fewer, the slowest 5 % are no measure."""
_EVERY = 32
"""Requests of a kind after which its percentile is computed anew."""
_PERCENTILE = 0.95
_SHARE = 0.05
_MAX_SAVED = 8.0
"""Hedges that quiet times may save for later."""
_MIN_S = 0.010
"""Shorter delays would answer to the scheduling of threads, not to slow servers."""
_STALLED_S = 1.0
_STALLED_TIMES = 3.0


class _Kind:
    """Latest durations of one kind of request."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=_WINDOW)
        self.since = 0
        self.percentile: float | None = None


class Hedging:
    """Durations of requests by kind, and a budget. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[Hashable, _Kind] = {}
        self._budget = 0.0

    def record(self, kind: Hashable, seconds: float) -> None:
        """Add the duration of a request that succeeded."""
        with self._lock:
            self._budget = min(self._budget + _SHARE, _MAX_SAVED)
            found = self._kinds.setdefault(kind, _Kind())
            found.seconds.append(seconds)
            found.since += 1
            if len(found.seconds) >= _ENOUGH and (found.percentile is None or found.since >= _EVERY):
                found.since = 0
                found.percentile = sorted(found.seconds)[int(_PERCENTILE * len(found.seconds))]

    def delay_s(self, kind: Hashable) -> float | None:
        """Return after how long a request should be hedged: its 95th percentile. ``None``: not known yet."""
        found = self._kinds.get(kind)
        percentile = None if found is None else found.percentile
        return None if percentile is None else max(percentile, _MIN_S)

    def stalled_s(self, kind: Hashable) -> float:
        """Return after how long a server counts as stalled, so that another is asked whatever the budget."""
        return max(_STALLED_TIMES * (self.delay_s(kind) or 0.0), _STALLED_S)

    def take(self) -> bool:
        """Take a hedge from the budget: 5 % of the requests. Return whether one was left."""
        with self._lock:
            if self._budget < 1:
                return False
            self._budget -= 1
            return True
