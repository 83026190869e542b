"""Heartbeats: renew the leases of this process's channels at the storage servers."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Beat = Callable[[list[bytes], float], object]

__all__ = ["Heartbeats"]

_LOGGER = logging.getLogger(__name__)

_BEATS_PER_LEASE = 3  # Two heartbeats in a row may be lost.
_MAX_THREADS = 8
_MAX_BEAT_S = 5.0


class Heartbeats:
    """Sends the ids of open channels to their servers periodically, from a few threads."""

    def __init__(self, beats: Sequence[Beat]) -> None:
        """``beats`` has one function per server, ``beat(channels, timeout_s)``."""
        self._beats = list(beats)
        self._kept: list[set[bytes]] = [set() for _ in beats]
        self._lock = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._interval_s = math.inf
        self._stopped = False

    def add(self, beat: Beat) -> int:
        """Add a server. Return its number."""
        with self._lock:
            self._beats.append(beat)
            self._kept.append(set())
            return len(self._beats) - 1

    def keep(self, server: int, channel: bytes, lease_s: float) -> None:
        """Renew the lease of a channel until ``drop`` or ``stop``."""
        with self._lock:
            self._kept[server].add(channel)
            self._interval_s = min(self._interval_s, lease_s / _BEATS_PER_LEASE)
            self._lock.notify_all()
            if not self._threads and not self._stopped:
                with suppress(RuntimeError):  # No thread starts during interpreter shutdown.
                    self._start()

    def drop(self, server: int, channel: bytes) -> None:
        """Stop renewing a channel: its lease ends it. Fine for an unknown channel."""
        with self._lock:
            self._kept[server].discard(channel)

    def stop(self) -> None:
        """Send no further heartbeat. Does not wait for calls under way. Stopping twice is fine."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()

    def _start(self) -> None:
        count = min(len(self._beats), _MAX_THREADS)
        for first in range(count):
            thread = threading.Thread(
                target=self._run, args=(first, count), daemon=True, name="gigl-heartbeat"
            )
            thread.start()
            self._threads.append(thread)

    def _run(self, first: int, step: int) -> None:
        began = time.monotonic()
        while self._pause_until(began):
            began = time.monotonic()
            servers = range(first, len(self._beats), step)
            for server in servers:
                if self._stopped:
                    return
                # A server that hangs must not delay the next round of the servers that share its thread.
                self._beat(server, min(self._interval_s / len(servers), _MAX_BEAT_S))

    def _beat(self, server: int, seconds: float) -> None:
        with self._lock:
            channels = list(self._kept[server])
        if channels:
            try:
                self._beats[server](channels, seconds)
            except (GiglError, ValueError) as error:  # Requests for batches fail with it, too, and raise it.
                _LOGGER.debug("no heartbeat: %s", error)

    def _pause_until(self, last: float) -> bool:
        """Wait until the next heartbeat is due. Return ``False`` after ``stop``."""
        with self._lock:
            while not self._stopped:
                left = last + self._interval_s - time.monotonic()
                if left <= 0:
                    return True
                self._lock.wait(left)
        return False
