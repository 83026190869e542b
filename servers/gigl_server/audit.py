"""Audit log of refusals: one line per refusal, limited per caller, with bytes of callers escaped."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_server.access import Identity

_LOGGER = logging.getLogger(__name__)
_WINDOW_S = 60.0
_LINES_PER_CALLER = 5
_LINES = 60
_MAX_CALLERS = 1024
_GRPC_LINES = 10
_MAX_LENGTH = 300


def printable(text: str) -> str:
    """Return ``text`` as one line of visible ASCII, at most 300 characters, the rest escaped."""
    cut = text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + "..."
    return "".join(
        each if " " <= each <= "~" else each.encode("unicode_escape", "surrogatepass").decode("ascii")
        for each in cut
    )


class _Window:
    """Counter of the lines of one minute."""

    __slots__ = ("began", "hidden", "lines")

    def __init__(self, began: float) -> None:
        self.began = began
        self.lines = 0
        self.hidden = 0

    def take(self, now: float, most: int) -> bool:
        """Return whether one more line may be written now."""
        if now - self.began >= _WINDOW_S:
            self.began, self.lines = now, 0
        if self.lines >= most:
            return False
        self.lines += 1
        return True


class AuditLog:
    """Log of refused calls. Thread-safe; a flood of refusals neither fills a disk nor hides other callers.

    At most 5 lines a minute of a caller and 60 of all callers; a later line counts those left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._callers: OrderedDict[Identity, _Window] = OrderedDict()
        self._all = _Window(clock())

    def refused(self, caller: Identity, what: str) -> None:
        """Log that ``caller`` was refused ``what``, which must not hold secrets: no headers, no messages."""
        hidden = self._take(caller)
        if hidden is None:
            return
        more = f" ({hidden} refusals of this caller before this one were not logged)" if hidden else ""
        _LOGGER.warning("refused %s: %s%s", printable(str(caller)), printable(what), more)

    def _take(self, caller: Identity) -> int | None:
        """Return the number of lines dropped since the caller's last line. ``None``: drop this line, too."""
        now = self._clock()
        with self._lock:
            window = self._callers.pop(caller, None) or _Window(now)
            self._callers[caller] = window  # The latest caller is last.
            if len(self._callers) > _MAX_CALLERS:
                self._callers.popitem(last=False)
            if not (window.take(now, _LINES_PER_CALLER) and self._all.take(now, _LINES)):
                window.hidden += 1
                return None
            hidden, window.hidden = window.hidden, 0
            return hidden


class GrpcLogFilter(logging.Filter):
    """Filter for log handlers: removes bytes of callers from gRPC's lines, and passes 10 of them a minute.

    gRPC logs header values as received, also a token with one damaged byte, each with a traceback.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._window = _Window(clock())

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record. Cuts gRPC's to their first words and the exception's name."""
        if record.name.partition(".")[0] != "grpc":
            return True
        with self._lock:
            if not self._window.take(self._clock(), _GRPC_LINES):
                return False
        kind = record.exc_info[0] if record.exc_info else None
        name = "" if kind is None else f" ({kind.__name__})"
        record.msg = f"gRPC: {printable(str(record.msg).partition(':')[0])}{name}"
        record.args = record.exc_info = record.exc_text = record.stack_info = None
        return True
