"""Detector of workers that a signal stopped (SIGSTOP): they hold requests, and will not answer them.

A worker that runs is never taken for one, however slow it is: only the kernel's word counts. Nor is one that
a debugger is attached to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gigl_loader.processes import is_stopped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.workers.handle import WorkerHandle

__all__ = ["LOOK_S", "StallDetector"]

LOOK_S = 0.5
"""Between two looks, of a trainer that waits."""

_MAX_GRACE_S = 5.0  # Long enough to look at a process by hand, short beside any usual timeout.
_SHARE_OF_TIMEOUT = 0.1
_MAX_GAP_S = 4 * LOOK_S  # Beyond, the trainer itself may have been stopped: nothing is known of the time.


class StallDetector:
    """Remembers since when each worker is seen stopped. Used by the one thread that waits for batches."""

    def __init__(self, *, timeout_s: float) -> None:
        """A worker may be stopped for 5 s, or a tenth of ``timeout_s`` where that is less."""
        self._grace_s = min(_MAX_GRACE_S, _SHARE_OF_TIMEOUT * timeout_s)
        self._since: dict[int, float] = {}
        """By process: when it was first seen stopped."""
        self._last_look = 0.0

    def stalled(self, handles: Sequence[WorkerHandle]) -> dict[WorkerHandle, float]:
        """Return the workers whose process has been stopped for too long, and for how many seconds each."""
        now = time.monotonic()
        if now - self._last_look > _MAX_GAP_S:
            self._since.clear()
        self._last_look = now
        stopped = {
            handle.incarnation.pid: handle for handle in handles if handle.is_awaited and _is_stopped(handle)
        }
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        return {
            stopped[pid]: now - since for pid, since in self._since.items() if now - since > self._grace_s
        }


def _is_stopped(handle: WorkerHandle) -> bool:
    return is_stopped(handle.incarnation.pid)
