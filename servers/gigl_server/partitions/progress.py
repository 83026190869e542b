"""Progress of a pull: bytes done, told in the log, and by a bar on a terminal."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PullProgress", "size_text"]

_LOGGER = logging.getLogger(__name__)
_TELL_EVERY_S = 10.0


def size_text(nbytes: int) -> str:
    """Return a size in decimal units, for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


class PullProgress:
    """Bytes of a pull that are done, of all. Thread-safe."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``what`` begins the lines of the log: ``pulling partition 1``."""
        self.done = self.total = 0
        self.state = "waiting"
        """Step in one word: ``waiting``, ``verifying``, ``pulling`` or ``opening``."""
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._began = self._told = clock()
        self._show: Callable[[int, int], None] | None = None

    def begin(self, state: str, total: int) -> None:
        """Begin a step of ``total`` bytes."""
        with self._lock:
            self.state, self.done, self.total = state, 0, total
            self._began = self._told = self._clock()

    def add(self, nbytes: int) -> None:
        """Count bytes that are done. Called every few megabytes."""
        with self._lock:
            self.done += nbytes
            now = self._clock()
            tell = now - self._told >= _TELL_EVERY_S
            if tell:
                self._told = now
            line = self._line(now) if tell else ""
        if self._show is not None:
            self._show(self.done, self.total)
        elif line:
            _LOGGER.info("%s", line)

    def _line(self, now: float) -> str:
        rate = self.done / max(now - self._began, 1e-3)
        done, total = size_text(self.done), size_text(self.total)
        return f"{self._what}: {self.state}: {done} of {total}, {rate / 1e6:.0f} MB/s"

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show a bar where standard error is a terminal."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(self._what)

            def show(done: int, total: int) -> None:
                bars.update(task, description=f"{self._what}: {self.state}", completed=done, total=total)

            self._show = show
            try:
                yield
            finally:
                self._show = None
