"""Threads for attempts at servers, which may be left behind: they never delay the end of the process."""

from __future__ import annotations

import queue
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

from gigl_loader.native import current_stop_flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.native import StopFlag

__all__ = ["AttemptThreads"]


class AttemptThreads:
    """Daemon threads, started when no other is free. A job must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], StopFlag | None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0
        """Threads that wait for a job, less the jobs that wait for a thread."""
        self._count = 0
        self._closed = False

    def run(self, job: Callable[[], None]) -> None:
        """Run a job in a thread, under the stop flag of the caller.

        ``RuntimeError`` where the system has no thread to give, or after ``close``.
        """
        flag = current_stop_flag()
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads were closed")
            if self._free <= 0:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._count += 1
                self._free += 1
            self._free -= 1
        self._jobs.put((job, flag))

    def close(self) -> None:
        """End every thread after its job. Does not wait."""
        with self._lock:
            self._closed = True
            count, self._count = self._count, 0
        for _ in range(count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, flag = item
            with flag or nullcontext():
                job()
            del item, job, flag
            with self._lock:
                self._free += 1
