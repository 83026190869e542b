"""Log of a server: one line per change of state. A full disk loses lines, never the service.

Writing to a full pipe blocks: the process that starts the server must read its stderr, or pass a log file.
"""

from __future__ import annotations

import logging
import os
import threading

from gigl_server.audit import GrpcLogFilter

_STDERR = 2
_FORMAT = "%%(asctime)s %%(levelname)s %s%%(message)s"


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
    handler.setFormatter(logging.Formatter(_FORMAT % (f"{name}: " if name else "")))
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
