"""Costs of sampling in one process: time by activity, and bytes on the wire."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.sampling.store import WireCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CostCounter", "Costs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs since the start of a process, over all its threads."""

    cpu_sampling_ns: int = 0
    """CPU time of sampling threads while nodes and edges were drawn and put together."""
    cpu_gathering_ns: int = 0
    """CPU time while frames were written, their columns gathered, rows from elsewhere put in their places."""
    wire_bytes_in: int = 0
    wire_bytes_out: int = 0
    peer_calls: int = 0


class CostCounter:
    """Adds up what samplers that share it spend. Thread-safe.

    CPU time is that of the calling thread (``time.thread_time_ns``): waiting costs nothing, and what
    other threads do for the network meanwhile is not counted here.
    """

    def __init__(self, wire: Callable[[], WireCounts] = WireCounts) -> None:
        """``wire`` returns what was sent and received so far."""
        self._wire = wire
        self._lock = threading.Lock()
        self._sampling_ns = self._gathering_ns = 0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Count the CPU time of this thread inside as sampling."""
        began = time.thread_time_ns()
        try:
            yield
        finally:
            with self._lock:
                self._sampling_ns += time.thread_time_ns() - began

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Count the CPU time of this thread inside as gathering."""
        began = time.thread_time_ns()
        try:
            yield
        finally:
            with self._lock:
                self._gathering_ns += time.thread_time_ns() - began

    def read(self) -> Costs:
        """Return the sums so far."""
        wire = self._wire()
        with self._lock:
            return Costs(
                cpu_sampling_ns=self._sampling_ns,
                cpu_gathering_ns=self._gathering_ns + wire.placing_ns,
                wire_bytes_in=wire.bytes_in,
                wire_bytes_out=wire.bytes_out,
                peer_calls=wire.calls,
            )
