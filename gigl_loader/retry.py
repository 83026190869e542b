"""Exponential backoff with jitter: the pauses between attempts to reach a service."""

from __future__ import annotations

import random

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
