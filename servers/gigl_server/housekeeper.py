"""A thread that does something once in a while."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Housekeeper"]

_LOGGER = logging.getLogger(__name__)
_JOIN_S = 5.0


class Housekeeper:
    """Calls a function again and again until it is closed."""

    def __init__(self, work: Callable[[], None], *, every_s: float = 1.0) -> None:
        self._work = work
        self._every_s = every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Wait for a call under way. Closing twice is fine, and so is one that was not started."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            self._turn()

    def _turn(self) -> None:
        try:
            self._work()
        except Exception:  # The next time may go well; without leases, memory would fill.
            _LOGGER.exception("housekeeping failed")
