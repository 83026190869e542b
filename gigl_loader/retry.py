"""Deadlines, and exponential backoff with jitter: the time of attempts, and the pauses between them."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

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
