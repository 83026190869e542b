"""Forced exit of a process that does not end by itself: a line in the log, then exit."""

from __future__ import annotations

import logging
import os
import threading
import time

__all__ = ["leave_within"]

_LOGGER = logging.getLogger(__name__)


def leave_within(seconds: float, code: int) -> None:
    """Exit the process with ``code`` if it has not ended by itself after ``seconds``.

    Libraries may wait forever at exit: for a reply that is not read, a lock or a thread.
    """
    threading.Thread(target=_leave, args=(seconds, code), name="last resort", daemon=True).start()


def _leave(seconds: float, code: int) -> None:
    time.sleep(seconds)
    names = sorted({each.name for each in threading.enumerate() if each is not threading.current_thread()})
    _LOGGER.warning("not ended after %g s: leaving all the same, with threads %s", seconds, ", ".join(names))
    os._exit(code)
