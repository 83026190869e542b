"""Calls of the data port that are under way: how long each has been, and whom it keeps waiting."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.native import StopFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gigl_loader.native import DataCall
    from gigl_server.identity import Identity

__all__ = ["CallsUnderWay"]

_UNREAD_S = 5.0
_MAKE_S = 60.0
"""Time for a reply to be made. Trainers give up after 30 s and retry."""


class _UnderWay(NamedTuple):
    """A call whose reply was not sent yet."""

    caller: Identity
    since: float


class CallsUnderWay:
    """Calls from their request to the last byte of their reply. Thread-safe.

    A call itself has a deadline. Beside it, the oldest call of a caller that holds most of a resource which
    another caller needs is cut once it has taken 5 s. Replies to callers that are gone are not made further.
    """

    def __init__(
        self,
        tell: Callable[[DataCall, str], None],
        hoarders: Callable[[], Iterable[Identity | None]] = tuple,
    ) -> None:
        """``tell`` is called with each call that is cut and the reason; ``hoarders`` returns hoarders."""
        self._tell = tell
        self._hoarders = hoarders
        self._lock = threading.Lock()
        self._calls: dict[DataCall, _UnderWay] = {}  # Oldest first.
        self._made: dict[DataCall, StopFlag] = {}
        self._making = threading.Event()

    def begins(self, call: DataCall, caller: Identity) -> None:
        """Record a call of a caller that has shown a token."""
        with self._lock:
            self._calls[call] = _UnderWay(caller, time.monotonic())

    def ends(self, call: DataCall) -> None:
        """Record the end of a call."""
        with self._lock:
            self._calls.pop(call, None)

    @contextmanager
    def making(self, call: DataCall) -> Iterator[StopFlag]:
        """Make the reply of a call in the block, with the flag that stops it."""
        flag = StopFlag(_MAKE_S)
        with self._lock:
            self._made[call] = flag
            self._making.set()
        try:
            with flag:
                yield flag
        finally:
            with self._lock:
                self._made.pop(call, None)

    def wait_for_replies(self, timeout_s: float) -> None:
        """Wait until replies are being made."""
        self._making.wait(timeout_s)

    def stop_unwanted(self) -> None:
        """Stop replies whose callers are gone."""
        with self._lock:
            made = list(self._made.items())
            if not made:
                self._making.clear()
        for call, flag in made:
            if call.gone:
                flag.stop("the caller is gone")

    def stop_all(self, reason: str) -> None:
        """Stop all replies that are being made, and let ``wait_for_replies`` return."""
        with self._lock:
            made = list(self._made.values())
            self._making.set()
        for flag in made:
            flag.stop(reason)

    def sweep(self) -> None:
        """Cut calls of hoarders."""
        now = time.monotonic()
        for hoarder in filter(None, self._hoarders()):
            with self._lock:
                held = ((call, each) for call, each in self._calls.items() if each.caller == hoarder)
                call, each = next(held, (None, None))
            if call is not None and each is not None and now - each.since > _UNREAD_S:
                call.cancel()
                self._tell(call, f"a reply was not read for {_UNREAD_S:g} s, and other callers wait")
