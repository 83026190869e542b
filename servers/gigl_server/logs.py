"""Log of a server: one line per change of state or refusal. A full disk loses lines, never the service.

Lines about refused calls are limited per caller, and bytes of callers are escaped in them.

Writing to a full pipe blocks: the process that starts the server must read its stderr, or pass a log file.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from gigl_loader.logs import PrintableFormatter
from gigl_loader.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_server.admission import Identity

_LOGGER = logging.getLogger(__name__)
_STDERR = 2
_FORMAT = "%%(asctime)s %%(levelname)s %s%%(message)s"
_WINDOW_S = 60.0
_LINES_PER_CALLER = 5
_LINES = 60
_MAX_CALLERS = 1024
_GRPC_LINES = 10
_MAX_LENGTH = 300


class LineHandler(logging.Handler):
    """Writes each record with one system call, and drops it where that fails.

    Streams of the standard library keep what could not be written, and retry with the next line: a disk that
    stays full for hours would also fill the memory.
    """

    def __init__(self, fd: int, *, path: str | None = None) -> None:
        """The caller still owns ``fd``. ``path`` is its file, if the file may be reopened."""
        super().__init__()
        self._fd = fd
        self._path = path
        self._lost = 0
        self._torn = False

    def reopen(self) -> None:
        """Continue in a new file at ``path``, after log rotation. ``OSError``: the old file stays in use."""
        if self._path is None:
            return
        fresh = _opened(self._path)
        try:
            os.dup2(fresh, self._fd, inheritable=False)  # Atomic for writers in other threads.
        finally:
            os.close(fresh)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if self._lost:
                line = f"{line} ({self._lost} lines before this one were lost)"
            self._write(line.encode("utf-8", "backslashreplace") + b"\n")
            self._lost = 0
        except Exception:
            self._lost += 1

    def _write(self, data: bytes) -> None:
        data = b"\n" + data if self._torn else data
        written = os.write(self._fd, data)
        self._torn = 0 < written < len(data) or (self._torn and not written)
        if written < len(data):
            raise OSError("only a part of the line was written")


def configure_logging(log_file: str | None, *, name: str = "", level: str = "INFO") -> LineHandler:
    """Log to a file, appending, or to stderr. ``OSError`` if the file cannot be opened.

    ``name`` prefixes every message, for a log that several servers share. Messages below ``level`` are
    dropped.
    """
    handler = LineHandler(_STDERR if log_file is None else _opened(log_file), path=log_file)
    handler.addFilter(GrpcLogFilter())
    handler.setFormatter(PrintableFormatter(_FORMAT % (f"{name}: " if name else "")))
    logging.raiseExceptions = False  # Else a failing handler prints to stderr, whose disk may be full, too.
    logging.basicConfig(level=level, handlers=[handler], force=True)
    threading.excepthook = _log_exception
    for noisy in ("grpc", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return handler


def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def quiet_grpc() -> None:
    """Silence gRPC's core, unless the user has set its log level. Call this before importing gRPC.

    The core writes to stderr, past the log file: unescaped server names of TLS handshakes, a line for each
    connection beyond the limit. Any caller could fill a disk.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _log_exception(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread else "?"
    if arguments.exc_value is not None:
        logging.getLogger(__name__).error("thread %s ended", name, exc_info=arguments.exc_value)


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

    At most 5 lines a minute of a caller and 60 of all callers; a later line has the number of lines left out.
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
        _LOGGER.warning(
            "refused %s: %s%s", printable(caller, _MAX_LENGTH), printable(what, _MAX_LENGTH), more
        )

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
        record.msg = f"gRPC: {printable(str(record.msg).partition(':')[0], _MAX_LENGTH)}{name}"
        record.args = record.exc_info = record.exc_text = record.stack_info = None
        return True
