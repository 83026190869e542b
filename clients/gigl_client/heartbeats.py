"""Heartbeats: what a job has on storage servers stays there for as long as its processes live."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Heartbeats"]

_LOGGER = logging.getLogger(__name__)

_BEATS_PER_LEASE = 3  # Two may be lost.
_MOST_THREADS = 8
_LONGEST_BEAT_S = 5.0


class Heartbeats:
    """Calls every server again and again, from a few threads, once a lease is known.

    A server that does not answer keeps only those waiting that share its thread.
    """

    def __init__(self, beats: Sequence[Callable[[float], object]]) -> None:
        """``beats`` has one function per server, which is given the seconds that it may take."""
        self._beats = beats
        self._lock = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._interval_s = math.inf
        self._stopped = False

    @property
    def interval_s(self) -> float:
        """Seconds between two beats; infinite before the first lease."""
        return self._interval_s

    def keep(self, lease_s: float) -> None:
        """Beat often enough for this lease, and for all before it."""
        with self._lock:
            self._interval_s = min(self._interval_s, lease_s / _BEATS_PER_LEASE)
            self._lock.notify_all()
            if not self._threads and not self._stopped:
                count = min(len(self._beats), _MOST_THREADS)
                self._threads = [
                    threading.Thread(target=self._run, args=(share,), daemon=True, name="gigl-heartbeat")
                    for share in (self._beats[first::count] for first in range(count))
                ]
                for thread in self._threads:
                    thread.start()

    def stop(self) -> None:
        """Begin no further beat, and do not wait for those under way. Calling it twice is fine."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()

    def _run(self, beats: Sequence[Callable[[float], object]]) -> None:
        began = time.monotonic()
        while self._pause_until(began):
            began = time.monotonic()
            for beat in beats:
                try:
                    beat(min(self._interval_s, _LONGEST_BEAT_S))
                except (GiglError, ValueError) as error:  # Whoever asks for batches will meet it, too.
                    _LOGGER.debug("no heartbeat: %s", error)
                if self._stopped:
                    return

    def _pause_until(self, last: float) -> bool:
        """Wait until the next beat is due. Return whether there shall be one."""
        with self._lock:
            while not self._stopped:
                left = last + self._interval_s - time.monotonic()
                if left <= 0:
                    return True
                self._lock.wait(left)
        return False
