"""Supervision of the parts of a server: detects dead threads and ports that do not respond."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LOGGER = logging.getLogger(__name__)
_EVERY_S = 5.0
_SILENT_LOOKS = 4
_SILENT_S = 60.0
"""A part is dead after this long, and so many checks, without a response: a busy machine may be slow."""
_FAULT_LOOKS = 2
_STALE_S = 90.0
_JOIN_S = 5.0


class PartDead(Exception):
    """A part will never respond again."""


class PartSilent(Exception):
    """A part did not respond in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a server that can die by itself."""

    name: str
    """Unique name, for messages."""
    threads: Callable[[], Iterable[threading.Thread]] = tuple
    """Function that returns the threads that must be alive now."""
    check: Callable[[], None] = lambda: None
    """Function that raises ``PartDead`` or ``PartSilent``. It returns within seconds."""


class Supervisor:
    """Checks each part every few seconds, on a thread of its own, until ``close``."""

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        died: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
        every_s: float = _EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``died(line)`` is called once, when the first part is dead; ``changed()`` at each new ``fault``."""
        self._parts = parts
        self._died = died
        self._changed = changed
        self._every_s = every_s
        self._clock = clock
        self._silent: dict[str, tuple[int, float]] = {}
        self._fault = ""
        self._looked = clock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    @property
    def fault(self) -> str:
        """Why a part does not respond, in one line. Empty: every part responds."""
        if not self._ended.is_set() and self._clock() - self._looked > _STALE_S:
            return "the parts of the server are not looked after"
        return self._fault

    def start(self) -> None:
        self._looked = self._clock()
        start_thread(self._thread)

    def close(self) -> None:
        """Stop the checks. Closing twice, or without ``start``, is fine."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def look(self) -> bool:
        """Check each part once. Return ``False`` if one is dead."""
        try:
            faults = [fault for part in self._parts if (fault := self._fault_of(part))]
        except PartDead as dead:
            self._report(str(dead))
            return False
        self._looked = self._clock()
        self._set_fault("; ".join(faults))
        return True

    def _fault_of(self, part: Part) -> str:
        """Return why a part does not respond; empty if it does. Raises ``PartDead`` naming a dead part."""
        try:
            _check_threads(part.threads())
            part.check()
        except PartDead as dead:
            raise PartDead(f"{part.name} is dead: {dead}") from None
        except PartSilent as silent:
            return self._fault_of_silent(part.name, silent)
        except Exception:  # A bug of the check says nothing about the part.
            _LOGGER.exception("%s could not be checked", part.name)
        else:
            self._silent.pop(part.name, None)
        return ""

    def _fault_of_silent(self, name: str, silent: PartSilent) -> str:
        looks, since = self._silent.get(name, (0, self._clock()))
        looks += 1
        self._silent[name] = looks, since
        if looks >= _SILENT_LOOKS and self._clock() - since >= _SILENT_S:
            raise PartDead(f"{name} is dead: {silent}, {looks} times in a row")
        return f"{name} does not answer: {silent}" if looks >= _FAULT_LOOKS else ""

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            if not self.look():
                return

    def _report(self, fault: str) -> None:
        if self._ended.is_set():  # Parts that are being closed do not respond.
            return
        _LOGGER.error("%s", fault)
        self._ended.set()
        self._set_fault(fault)
        self._died(fault)

    def _set_fault(self, fault: str) -> None:
        if fault == self._fault:
            return
        if fault and not self._ended.is_set():
            _LOGGER.warning("%s", fault)
        self._fault = fault
        self._changed()


def _check_threads(threads: Iterable[threading.Thread]) -> None:
    """Raise ``PartDead`` naming a thread that has ended."""
    for thread in threads:
        if not thread.is_alive():
            raise PartDead(f"its thread {thread.name!r} ended")
