"""Cancellation of one call, from any thread: its own connection ends, and no other."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.errors import SamplingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Cancellation", "Cancelled"]


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
        """Wait until the call is cancelled, at most so long. Return whether it is."""
        return self._event.wait(seconds)
