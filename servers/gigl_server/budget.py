"""Memory that large requests and their replies may take together."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.rpc.refusals import Kind, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Budget"]


class Budget:
    """Lends bytes, from any number of threads, to so many at once as there are bytes for."""

    def __init__(self, nbytes: int, *, free: int, wait_s: float = 0.5) -> None:
        """``free`` bytes are lent to anyone: the number of calls bounds these, and no large one delays them.

        Whoever has to wait longer than ``wait_s`` shall ask again: the wait is better spent there.
        """
        self._nbytes = nbytes
        self._free = free
        self._wait_s = wait_s
        self._lent = 0
        self._changed = threading.Condition()

    @property
    def lent(self) -> int:
        with self._changed:
            return self._lent

    @contextmanager
    def lend(self, nbytes: int) -> Iterator[None]:
        """Lend bytes while the context lasts. ``Refused`` where others have them.

        More than there are is lent to one at a time: each request is bounded on its own.
        """
        if nbytes <= self._free:
            yield
            return
        nbytes = min(nbytes, self._nbytes)
        with self._changed:
            if not self._changed.wait_for(lambda: self._lent + nbytes <= self._nbytes, self._wait_s):
                raise Refused(Kind.BUSY, f"large requests under way take {self._lent >> 20} MiB")
            self._lent += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._lent -= nbytes
                self._changed.notify_all()
