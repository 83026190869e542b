"""Counters of a service since its start."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class CallCounts(NamedTuple):
    """Calls of one method, and the bytes of their messages without headers and framing."""

    calls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums of the counters. Seconds are CPU time."""

    sampling_s: float = 0.0
    gathering_s: float = 0.0
    calls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    refused: int = 0
    adoptions: int = 0
    adopted_bytes: int = 0
    repairs: int = 0
    repaired_bytes: int = 0
    dropped_frames: int = 0


class DurationCounts(NamedTuple):
    """Histogram of durations."""

    counts: tuple[int, ...]
    """Durations by interval. Each interval ends with one of ``Durations.BOUNDS_S``; the last has no end."""
    sum_s: float

    @property
    def total(self) -> int:
        """Number of durations."""
        return sum(self.counts)


class Durations:
    """Counter of durations by interval. Its owner's lock guards it."""

    BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
    """From a small batch of the same host to the time that a batch may take."""

    def __init__(self) -> None:
        self._counts = [0] * (len(self.BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self.BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def read(self) -> DurationCounts:
        return DurationCounts(tuple(self._counts), self._sum_s)


class Counters:
    """Counters of a service. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = asdict(Totals())
        self._calls: dict[tuple[str, str], CallCounts] = {}

    def read(self) -> Totals:
        with self._lock:
            return Totals(**self._totals)

    def calls(self) -> dict[tuple[str, str], CallCounts]:
        """Return the calls by port (``"control"``, ``"data"``) and method, by ascending name."""
        with self._lock:
            return dict(sorted(self._calls.items()))

    def add_call(
        self, port: str, method: str, *, calls: int = 1, bytes_in: int = 0, bytes_out: int = 0
    ) -> None:
        """Count a call. ``method`` must be one of a fixed set, never text of a caller."""
        with self._lock:
            before = self._calls.get((port, method), CallCounts())
            self._calls[port, method] = CallCounts(
                before.calls + calls, before.bytes_in + bytes_in, before.bytes_out + bytes_out
            )

    def add(self, **amounts: float) -> None:
        """Add ``amounts`` to the totals, by name."""
        with self._lock:
            for name, more in amounts.items():
                self._totals[name] += more

    def timed(self, name: Literal["sampling_s", "gathering_s"]) -> AbstractContextManager[None]:
        """Add the CPU seconds of this thread inside the context to the total ``name``."""
        return _Timed(self, name)


class _Timed:
    """Context whose CPU seconds are added to a total. A generator would take four times as long."""

    def __init__(self, counters: Counters, name: str) -> None:
        self._counters, self._name = counters, name

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._counters.add(**{self._name: time.thread_time() - self._began})
