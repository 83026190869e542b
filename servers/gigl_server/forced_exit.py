"""Forced exit of a process: now, or when it has not ended by itself after a while."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)
_TELL_S = 0.5


def leave(code: int, last: Callable[[], None] = logging.shutdown) -> NoReturn:
    """Exit the process with ``code`` after a call of ``last``, which has half a second.

    The interpreter is not finalized: it would unwind threads that return from native code, and where such a
    thread has C++ frames, the C++ runtime aborts the process (SIGABRT). ``last`` may hang: the log can be a
    pipe that is not read, and another thread can hold its lock.
    """
    with suppress(RuntimeError):  # No thread can be started.
        teller = threading.Thread(target=last, name="last words", daemon=True)
        teller.start()
        teller.join(_TELL_S)
    os._exit(code)


def leave_within(seconds: float, code: int) -> None:
    """Exit the process with ``code`` if it has not ended by itself after ``seconds``.

    Libraries may wait forever at exit: for a reply that is not read, a lock or a thread.
    """
    threading.Thread(target=_leave, args=(seconds, code), name="last resort", daemon=True).start()


def describe_threads() -> str:
    """Return the names of all other threads, and the innermost Python line of each, as text."""
    frames = sys._current_frames()
    own = threading.get_ident()
    places = [
        f"{each.name} ({_place(frames.get(each.ident or 0))})"
        for each in threading.enumerate()
        if each.ident != own
    ]
    return ", ".join(sorted(places))


def _place(frame: object) -> str:
    code, line = getattr(frame, "f_code", None), getattr(frame, "f_lineno", 0)
    return "not begun" if code is None else f"{os.path.basename(code.co_filename)}:{line} {code.co_name}"


def _leave(seconds: float, code: int) -> None:
    time.sleep(seconds)
    threads = describe_threads()
    leave(
        code,
        lambda: _LOGGER.warning(
            "not ended after %g s: leaving all the same, with threads %s", seconds, threads
        ),
    )
