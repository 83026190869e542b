"""The server's log: one line per change of state. A full disk loses lines, never the service.

A pipe that nobody reads is another matter: writing to it waits. Whoever starts the server reads its stderr,
or gives it a file.
"""

from __future__ import annotations

import logging
import os
import threading

from gigl_server.audit import GrpcLogFilter

__all__ = ["LineHandler", "configure_logging", "quiet_grpc"]

_STDERR = 2
_FORMAT = "%%(asctime)s %%(levelname)s %s%%(message)s"


class LineHandler(logging.Handler):
    """Writes each record with one system call, and drops it where that fails.

    Streams of the standard library keep what could not be written and try again with the next line: a
    disk that stays full for hours would fill the memory, too.
    """

    def __init__(self, fd: int, *, path: str | None = None) -> None:
        """``fd`` stays the caller's; ``path`` is what it was opened from, if it may be opened again."""
        super().__init__()
        self._fd = fd
        self._path = path
        self._lost = 0
        self._torn = False

    def reopen(self) -> None:
        """Go on in a new file of the same name: the one so far was moved away. ``OSError`` keeps that one."""
        if self._path is None:
            return
        fresh = _opened(self._path)
        try:
            os.dup2(fresh, self._fd, inheritable=False)  # At once, for writers in other threads.
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

    ``name`` stands in front of every message: where several servers share a log. Messages below ``level``
    are left out.
    """
    handler = LineHandler(_STDERR if log_file is None else _opened(log_file), path=log_file)
    handler.addFilter(GrpcLogFilter())
    handler.setFormatter(logging.Formatter(_FORMAT % (f"{name}: " if name else "")))
    logging.raiseExceptions = False  # Else a failing handler prints, to a stderr that may be as full.
    logging.basicConfig(level=level, handlers=[handler], force=True)
    threading.excepthook = _log_exception
    for noisy in ("grpc", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return handler


def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def quiet_grpc() -> None:
    """Have gRPC's core say nothing, unless the user asked for more. To be called before it is imported.

    It writes to stderr, past every log file, as errors too: names of servers in TLS handshakes as they came
    from callers, a line for each connection beyond the limit. Whoever reaches a port could fill a disk.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _log_exception(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread else "?"
    if arguments.exc_value is not None:
        logging.getLogger(__name__).error("thread %s ended", name, exc_info=arguments.exc_value)
