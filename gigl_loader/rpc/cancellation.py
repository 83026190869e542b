"""Cancellation of one call, from any thread: its own connection ends, and no other."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.errors import SamplingError
from gigl_loader.native import check_stop, current_stop_flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["STOP_POLL_S", "Cancellation", "Cancelled"]

STOP_POLL_S = 0.05
"""A stop flag wakes no thread: one that waits looks at its flag so often."""


class Cancelled(SamplingError):
    """The call was cancelled: nobody needs its result any more."""


class Cancellation:
    """Ends a call wherever it waits: while it connects, sends or receives, and between two attempts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._end: Callable[[], object] | None = None

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def cancel(self) -> None:
        """End the call. Does not wait. Cancelling twice, or after the end of the call, is fine."""
        with self._lock:
            self._event.set()
            if self._end is not None:
                self._end()

    def then(self, end: Callable[[], object] | None) -> None:
        """Have ``cancel`` call ``end`` from now on, and nothing else. ``end`` must not block.

        Calls it at once where the call was cancelled before.
        """
        with self._lock:
            self._end = end
            if end is not None and self.cancelled:
                end()

    @contextmanager
    def ends_by(self, end: Callable[[], object]) -> Iterator[None]:
        """Have ``cancel`` call ``end`` as by ``then``, until the end of the block and no later.

        A connection that was given back to its pool may be another call's.
        """
        self.then(end)
        try:
            yield
        finally:
            self.then(None)

    def wait(self, seconds: float) -> bool:
        """Wait until the call is cancelled, at most so long. Return whether it is.

        Raises ``native.Stopped`` where the stop flag of this thread is set meanwhile.
        """
        until = time.monotonic() + seconds
        while current_stop_flag() is not None and (left := until - time.monotonic()) > STOP_POLL_S:
            check_stop()
            if self._event.wait(min(left, STOP_POLL_S)):
                return True
        return self._event.wait(max(until - time.monotonic(), 0.0))
