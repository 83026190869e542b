"""Signals of a server's process, and its forced exit. Standard library only: handlers are installed first.

=========  ====================================================================================
signal     effect
=========  ====================================================================================
SIGTERM    before the server exists: exit code 0 at once. Then: drain, exit code 0, at the latest
           2 s after the time for the drain: with 0, or 1 where the main thread hangs. The second
           one ends the process at once, with 1
SIGINT     the same
SIGHUP     read log file, certificates and tokens again; nothing before the server exists, as it
           reads them later
=========  ====================================================================================
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from gigl_loader.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)
RELOAD = "SIGHUP"
"""Word for the signal to reload. All other words end the process."""
LET_GO = "the parent let go"
"""Word for the end of the process that started this one."""

_ENDING = (signal.SIGINT, signal.SIGTERM)  # In this order: once SIGTERM is handled, both are.
_STDERR = 2
_SAME_S = 0.5
_WAKE_S = 1.0
_STUCK_S = 10.0
_TELL_S = 0.5
_PROMPT_S = 0.5
"""Time for the main thread to handle a signal, before another thread ends a process without a server."""


def leave_on_signals() -> None:
    """Exit with 0 at SIGTERM or SIGINT, while there is nothing to clean up."""
    for number in _ENDING:
        signal.signal(number, _leave_now)
    signal.signal(signal.SIGHUP, _pass_over)


class Signals:
    """Context manager of the main thread that puts signals into a queue as words.

    SIGTERM ends the process at once until ``hold`` is called. After it, the process ends within a time that
    counts from the arrival of the signal, whatever its threads do: Python runs handlers on the main thread
    only, which may be blocked in a library, in a renewal or in the end of the server.
    """

    def __init__(self, *, end_at_once: Callable[[str], None], within_s: float = _STUCK_S) -> None:
        """``end_at_once`` logs why the process ends, and is called just before its forced end.

        ``within_s`` is the time from the first ending signal to the forced end.
        """
        self.told: SimpleQueue[str] = SimpleQueue()
        self._end_at_once = end_at_once
        self._within_s = within_s
        self._arrived_s: float | None = None
        self._first_s: float | None = None
        self._held = False
        self._before: dict[int, Any] = {}
        self._handled: SimpleQueue[None] = SimpleQueue()  # No event: a handler may interrupt another one.
        self._over = threading.Event()
        self._read_fd = self._write_fd = -1

    def left_of(self, seconds: float) -> float:
        """Return what is left of ``seconds`` since the first ending signal arrived; all, before one has."""
        arrived = self._arrived_s
        return seconds if arrived is None else max(arrived + seconds - time.monotonic(), 0.0)

    def hold(self) -> None:
        """From now on, the reader of ``told`` ends the process."""
        self._held = True

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._end) for number in _ENDING}
        self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._reload)
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        start_thread(threading.Thread(target=self._watch, name="signals", daemon=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        signal.set_wakeup_fd(-1)
        os.close(self._write_fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _watch(self) -> None:
        """Wait for the first ending signal, and end the process if the main thread does not."""
        try:
            while (number := os.read(self._read_fd, 1)) and number[0] not in _ENDING:
                pass
            self._arrived_s = time.monotonic()
        finally:
            os.close(self._read_fd)
        if number:
            self._see_to_the_end(signal.Signals(number[0]).name)

    def _see_to_the_end(self, name: str) -> None:
        if not self._is_handled(_PROMPT_S) and not self._held:
            leave(0, partial(self._end_at_once, f"{name}: ending, nothing was started yet"))
        if self._over.wait(self.left_of(self._within_s)):
            return
        if not self._is_handled():
            leave(1, partial(self._end_at_once, f"{name}: the main thread hangs: ending at once"))
        account = f"not ended {self._within_s:g} s after {name}: leaving all the same, with threads "
        leave(0, partial(self._end_at_once, account + describe_threads()))

    def _is_handled(self, timeout_s: float = 0.0) -> bool:
        """Return whether the main thread handles the first ending signal within ``timeout_s``."""
        with suppress(Empty):
            self._handled.put(self._handled.get(timeout=timeout_s))
            return True
        return False

    def _end(self, number: int, _: object) -> None:
        """Queue the first signal; the second ends the process at once.

        A signal within half a second counts as the first: ``timeout`` and some supervisors send it to a
        process and to its group.
        """
        self._handled.put(None)
        name, now = signal.Signals(number).name, time.monotonic()
        if not self._held:
            leave(0, partial(self._end_at_once, f"{name}: ending, nothing was started yet"))
        if self._first_s is None:
            self._first_s = now
            self.told.put(name)
        elif now - self._first_s > _SAME_S:
            leave(1, partial(self._end_at_once, f"{name} again: ending at once"))

    def _reload(self, *_: object) -> None:
        """Queue a reload, unless one waits: a signal to end must not wait for many of them."""
        if self.told.empty():
            self.told.put(RELOAD)


def wait_for_word(told: SimpleQueue[str], look: Callable[[], None] = lambda: None) -> str:
    """Wait for a word, in short waits, with a call of ``look`` after each.

    A signal just before a wait, or one delivered to another thread, does not interrupt the wait: its handler
    runs when the main thread wakes.
    """
    while True:
        with suppress(Empty):
            return told.get(timeout=_WAKE_S)
        look()


def tell_when(event: threading.Event, word: str, told: SimpleQueue[str]) -> None:
    """Put a word in the queue once the event is set, on another thread, which keeps no other object alive."""

    def run() -> None:
        event.wait()
        told.put(word)

    start_thread(threading.Thread(target=run, name=word, daemon=True))


def _leave_now(number: int, _: object) -> None:
    with suppress(OSError):
        os.write(_STDERR, f"{signal.Signals(number).name}: ending, nothing was started yet\n".encode())
    os._exit(0)


def _pass_over(*_: object) -> None:
    """Ignore a signal. Not SIG_IGN, which a child process would inherit."""


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
    with suppress(RuntimeError):  # No thread can be started.
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
