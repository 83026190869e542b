"""Detector of workers that a signal stopped (SIGSTOP): they hold requests and will not respond.

A slow worker is never reported: only the process state that the kernel shows counts. A worker that a
debugger is attached to is not reported either.
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
"""Interval between two looks of a waiting trainer."""

_MAX_GRACE_S = 5.0  # Long enough to inspect a process by hand, short compared to a usual timeout.
_SHARE_OF_TIMEOUT = 0.1
_MAX_GAP_S = 4 * LOOK_S  # After a longer gap the trainer itself may have been stopped.


class StallDetector:
    """Time since when each worker is stopped. Used by the one thread that waits for batches."""

    def __init__(self, *, timeout_s: float) -> None:
        """A worker may be stopped for 5 s, or for a tenth of ``timeout_s`` where that is less."""
        self._grace_s = min(_MAX_GRACE_S, _SHARE_OF_TIMEOUT * timeout_s)
        self._since: dict[int, float] = {}
        """When each process was first seen stopped (monotonic), by process id."""
        self._last_look = 0.0

    def stalled(self, handles: Sequence[WorkerHandle]) -> dict[WorkerHandle, float]:
        """Return the workers whose process has been stopped for too long, each with the seconds it was."""
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
