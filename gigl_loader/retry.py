"""Deadlines, exponential backoff with jitter, and the one driver of retries: attempts until a deadline."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Result = TypeVar("Result")

_FACTOR = 2.0
_JITTER = 0.25


class Backoff:
    """Pauses that double from ``first_s`` to ``longest_s``, each up to a quarter shorter by chance.

    The longest pause bounds how late a service that came back is found. Half a second costs a service that
    is away two connections per second and caller, and keeps recovery within a second. Jitter keeps callers
    that lost the same service from coming back together. Not shared between threads.
    """

    def __init__(self, *, first_s: float = 0.05, longest_s: float = 0.5) -> None:
        if not 0 < first_s <= longest_s:
            raise ValueError(f"pauses must grow from above 0, got {first_s} and {longest_s} s")
        self._first_s, self._longest_s = first_s, longest_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        pause, self._next_s = self._next_s, min(_FACTOR * self._next_s, self._longest_s)
        return pause * (1 - _JITTER * random.random())

    def reset(self) -> None:
        """Begin with the first pause again: an attempt succeeded, or there is news."""
        self._next_s = self._first_s


@dataclass(frozen=True, slots=True)
class Deadline:
    """Point in time by which a call ends, with all of its attempts. It travels; timeouts do not."""

    at: float
    """Seconds of ``time.monotonic``."""

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline ``seconds`` from now."""
        return cls(time.monotonic() + seconds)

    def left_s(self, most: float = math.inf) -> float:
        """Return the seconds until the deadline, from 0 to ``most``: the time of the next attempt."""
        return min(max(self.at - time.monotonic(), 0.0), most)


FOREVER = Deadline(math.inf)
"""Deadline of what is retried until something else ends it."""


def attempts(
    deadline: Deadline,
    *,
    first_s: float = 0.05,
    longest_s: float = 0.5,
    least_s: float = 0.0,
    wait: Callable[[float], object] | None = None,
) -> Iterator[int]:
    """Yield the number of each attempt, from 0, when it may begin: at once, and after pauses.

    Pauses grow as those of ``Backoff``, and are cut so that the last attempt begins ``least_s`` before the
    deadline. ``wait(seconds)`` makes a pause, and returns true where no attempt is to follow; by default it
    is ``time.sleep``.
    """
    backoff, number = Backoff(first_s=first_s, longest_s=longest_s), 0
    while True:
        yield number
        left_s = deadline.left_s() - least_s
        if left_s <= 0 or (wait or time.sleep)(min(backoff.next_s(), left_s)):
            return
        number += 1


def retried(
    attempt: Callable[[], Result],
    passing: type[Exception] | tuple[type[Exception], ...],
    tries: Iterator[int],
    *,
    after: Exception | None = None,
    failed: Callable[[Any], object] = lambda error: None,
) -> Result:
    """Return the result of the first attempt that succeeds.

    Raises the error of the last one, and any but ``passing`` at once.
    ``tries`` are ``attempts``. ``after``: the error of an attempt that was made before, so that a pause comes
    first. ``failed`` is called with each passing error, and may raise it.
    """
    error = after
    for number in tries:
        if number or after is None:
            try:
                return attempt()
            except passing as caught:
                error = caught
                failed(caught)
    try:
        assert error is not None
        raise error
    finally:
        del error, after  # A traceback has this frame: the cycle would keep whatever called it.
