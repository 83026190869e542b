"""The sampling threads of a server: few, shared by all channels."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_server.channels import Errand

__all__ = ["WorkerPool"]

_LOGGER = logging.getLogger(__name__)


class WorkerPool:
    """Threads that work on one ask after the other until they are told to leave.

    Threads and not processes: kernels do not hold the interpreter, so that two of them kept two cores
    busy, and frames need not pass between processes.
    """

    def __init__(
        self, threads: int, next_errand: Callable[[], Errand | None], work: Callable[[Errand, int], None]
    ) -> None:
        """``next_errand`` waits for one; ``None`` from it ends a thread."""
        self._next = next_errand
        self._work = work
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"sampler {number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._threads)

    def join(self, timeout_s: float) -> bool:
        """Wait for all threads to leave. Return whether they did."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, number: int) -> None:
        while (errand := self._next()) is not None:
            try:
                self._work(errand, number)
            except Exception:  # Our own mistake. A server with a thread less would be worse.
                _LOGGER.exception("an ask was not answered")
            del errand  # It holds seeds and a channel, and the next one may be long in coming.
