"""Threads of the data port: they wait for calls, as many as there are calls."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from gigl_loader.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.native import DataCall

_LOGGER = logging.getLogger(__name__)
_IDLE_S = 10.0
_PAUSE_S = 0.5
_SPARE = 2
"""Threads that wait, however long nothing comes."""


class DataThreads:
    """Calls ``respond`` with each call that ``take`` returns, from ``start`` until ``stop``."""

    def __init__(
        self,
        take: Callable[[float], DataCall | None],
        respond: Callable[[DataCall], None],
        *,
        most: int,
    ) -> None:
        """``take`` waits for a call, at most its argument in seconds. At most ``most`` threads run."""
        self._take = take
        self._respond = respond
        self._most = most
        self._changed = threading.Condition()
        self._waiting = 0
        self._running = 0
        self._stopped = False
        self._is_short = False  # Of threads. It was logged.

    def start(self) -> None:
        """Start the first thread. ``OSError`` where the system gives none."""
        with self._changed:
            start_thread(self._thread())
            self._running += 1

    @property
    def running(self) -> int:
        """Number of threads."""
        with self._changed:
            return self._running

    def stop(self, timeout_s: float) -> bool:
        """Let threads end after their calls. Return whether all have, within the time.

        The caller makes ``take`` return at once.
        """
        with self._changed:
            self._stopped = True
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def keep_one_waiting(self) -> None:
        """Start a thread where none waits: the system may have given none when one was needed."""
        with self._changed:
            self._start_if_none_waits()

    def _start_if_none_waits(self) -> None:
        """Start a thread to wait, if none does and the system has one. Called with the lock held."""
        if self._waiting or self._running >= self._most or self._stopped:
            return
        try:
            self._thread().start()
        except RuntimeError as error:
            if not self._is_short:
                _LOGGER.warning("the data port has %d threads and gets no more: %s", self._running, error)
            self._is_short = True
        else:
            self._running += 1
            self._is_short = False

    def _thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="data port", daemon=True)

    def _run(self) -> None:
        try:
            while self._serve_one():
                pass
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _serve_one(self) -> bool:
        """Wait for a call and respond to it. Return whether this thread goes on."""
        with self._changed:
            if self._stopped:
                return False
            self._waiting += 1
        call = None
        try:
            call = self._take(_IDLE_S)
        except (RuntimeError, MemoryError):
            _LOGGER.exception("the data port cannot wait for calls")
            time.sleep(_PAUSE_S)
        finally:
            with self._changed:
                self._waiting -= 1
                if call is not None:  # A thread that leaves to work has another one wait in its place.
                    self._start_if_none_waits()
        if call is None:
            with self._changed:
                return self._waiting < _SPARE
        self._respond(call)
        return True
