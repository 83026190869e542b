"""Files that are read again when they change, such as certificates and tokens that are renewed."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["FileWatch", "Renewed"]

_LOGGER = logging.getLogger(__name__)

Value = TypeVar("Value")


class FileWatch:
    """Notices that one of some files changed, also behind a symbolic link, as Kubernetes swaps secrets."""

    def __init__(self, paths: Iterable[str | os.PathLike[str] | None]) -> None:
        """``None`` stands for a file that was not given."""
        self._paths = [os.fspath(path) for path in paths if path is not None]
        self._seen = self._look()

    def changed(self) -> bool:
        """Return whether a file differs from when this was last asked: inode, size, times or mode."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> list[tuple[int, ...]]:
        return [_state_of(path) for path in self._paths]


class Renewed(Generic[Value]):
    """A value that is read from files. Thread-safe."""

    def __init__(self, value: Value, read: Callable[[], Value], watch: FileWatch) -> None:
        """``value`` is what ``read`` returned, and ``watch`` was made before that."""
        self._value, self._read, self._watch = value, read, watch
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the lock, for processes that are spawned."""
        return type(self), (self._value, self._read, self._watch)

    def latest(self) -> Value:
        """Return what the files hold now: the same object where they did not change.

        Files that cannot be used are told once in the log, and the value before stays.
        """
        with self._lock:  # A thread whose call was refused waits for the one that reads.
            if self._watch.changed():
                try:
                    self._value = self._read()
                except ValueError as error:
                    _LOGGER.error("certificates and tokens stay as they are: %s", error)
                else:
                    _LOGGER.info("certificates and tokens were read again")
            return self._value


def _state_of(path: str) -> tuple[int, ...]:
    """Return what changes with a file. Empty: it is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ()
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_mode,
    )
