"""Threads of a sampling service: a few that sample for all channels, and one for leases and memory."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gigl_loader.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_server.sessions.channel import SampleTask

_LOGGER = logging.getLogger(__name__)
_JOIN_S = 5.0
_LATE_S = 0.25  # Delay that counts as a pause: leases may be as short as a second.


class WorkerPool:
    """Threads that process one request after the other, until ``next_task`` returns ``None``.

    Threads and not processes: kernels release the GIL, so that two threads kept two cores busy, and frames
    need not pass between processes.
    """

    def __init__(self, work: Callable[[SampleTask, int], None]) -> None:
        self._work = work
        self._threads: list[threading.Thread] = []

    def start(self, threads: int, next_task: Callable[[], SampleTask | None], *, nice: int = 0) -> None:
        """Start threads. ``next_task`` waits for a request; a thread ends when it returns ``None``.

        ``nice``: how much lower than that of this thread their priority is, on Linux.
        """
        for number in range(len(self._threads), len(self._threads) + threads):
            arguments = (number, next_task, nice)
            thread = threading.Thread(target=self._run, args=arguments, name=f"sampler {number}", daemon=True)
            self._threads.append(start_thread(thread))

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that live until ``next_task`` returns ``None``."""
        return tuple(self._threads)

    def __len__(self) -> int:
        return len(self._threads)

    def join(self, timeout_s: float) -> bool:
        """Wait for all threads to end. Return whether they did."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, number: int, next_task: Callable[[], SampleTask | None], nice: int) -> None:
        if nice:
            with suppress(OSError, AttributeError):
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + nice)
        while (task := next_task()) is not None:
            try:
                self._work(task, number)
            except Exception:  # A bug. Ending the thread would leave the server with one less.
                _LOGGER.exception("a request was not processed")
            del task  # Frees its seeds and channel: the next request may be long in coming.


class Housekeeper:
    """Calls a function periodically until ``close``."""

    def __init__(
        self, work: Callable[[], None], *, paused: Callable[[float], None], every_s: float = 1.0
    ) -> None:
        """``paused(seconds)`` is called in place of ``work`` when a call is late, as after SIGSTOP."""
        self._work = work
        self._paused = paused
        self._every_s = every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeper", daemon=True)

    @property
    def thread(self) -> threading.Thread:
        """Thread that lives from ``start`` to ``close``."""
        return self._thread

    def start(self) -> None:
        start_thread(self._thread)

    def close(self) -> None:
        """End the thread after a call under way. Closing twice, or without ``start``, is fine."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        last = time.monotonic()
        while not self._closed.wait(self._every_s):
            late_s = time.monotonic() - last - self._every_s
            last = time.monotonic()
            self._turn(late_s)

    def _turn(self, late_s: float) -> None:
        try:
            if late_s > _LATE_S:
                self._paused(late_s)
            else:
                self._work()
        except Exception:  # The next call may succeed; without any, memory would fill.
            _LOGGER.exception("housekeeping failed")
