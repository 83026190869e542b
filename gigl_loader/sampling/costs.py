"""Costs of batches: what they may have (edges, bytes), and what they took (time, bytes on the wire).

Worst cases (seeds times fanouts) are far above what graphs give, so nothing is refused for them: edges are
counted as they are sampled, each block of some hundred before memory is taken for it.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.errors import SamplingError
from gigl_loader.options import size_text
from gigl_loader.resources import memory_bytes
from gigl_loader.sampling.store import WireCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


SCRATCH_BYTES_PER_EDGE = 64
"""Scratch memory of a sampler while it draws. Measured: 60 for 60 million edges of one node, with
replacement; fewer where edges lead to nodes that the batch has already."""

_SHARE = 2  # Of the machine's memory, one batch may take the half: beyond it, the process would be killed.


class BatchTooLarge(SamplingError):
    """A batch is larger than its bounds. The message has the numbers and what to change."""


class TooManyEdges(BatchTooLarge):
    """A batch has more edges than it may."""


class TooLong(SamplingError):
    """A batch took the time that a batch may take on a server. The message has the numbers."""

    @classmethod
    def of(cls, num_seeds: int, seconds: float) -> TooLong:
        """Return the error for a batch that was stopped after ``seconds`` of a sampling thread."""
        return cls(
            f"a batch of {num_seeds:,} seeds took {seconds:.1f} s of a sampling thread and was not done: "
            "more than the server (--max-batch-seconds) or the token (seconds=) grants: ask for fewer "
            "seeds a batch, smaller num_neighbors, fewer or shorter walks, or a larger eps"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBounds:
    """What one batch may take at most."""

    edges: int
    """Over all hops and edge types."""
    nbytes: int
    """Of its frame."""
    draws: int = 1 << 62
    """Candidates that it may be expected to draw, kept or not."""
    reason: str = ""
    """Where the bounds come from and how to raise them: the end of the message."""

    def __post_init__(self) -> None:
        if min(self.edges, self.nbytes, self.draws) < 1:
            raise ValueError(f"bounds of a batch must be positive, got {self}")

    @classmethod
    def of_machine(cls) -> BatchBounds:
        """Return what fits half of the memory of this machine, or of its container."""
        usable = memory_bytes() // _SHARE
        return cls(
            edges=max(usable // SCRATCH_BYTES_PER_EDGE, 1 << 16),
            nbytes=usable,
            reason=" (half of the memory here)",
        )

    def too_many_edges(
        self, num_seeds: int, *, advice: str = "fewer seeds a batch or smaller num_neighbors"
    ) -> TooManyEdges:
        """Return the error for a batch of more edges. ``advice``: what to ask for instead."""
        return TooManyEdges(
            f"a batch of {num_seeds:,} seeds has more than {self.edges:,} edges, which would take "
            f"more than {size_text(self.edges * SCRATCH_BYTES_PER_EDGE)}{self.reason}: "
            f"ask for {advice}"
        )

    def check_draws(self, draws: int, num_seeds: int) -> None:
        """Raise ``BatchTooLarge`` for walks that are expected to draw more candidates."""
        if draws > self.draws:
            raise BatchTooLarge(
                f"walks from {num_seeds:,} seeds draw up to {draws:,} candidates, more than "
                f"{self.draws:,}{self.reason}: ask for fewer seeds a batch, fewer or shorter walks, or p "
                "and q closer to 1"
            )

    def check_frame(self, nbytes: int, num_seeds: int) -> None:
        """Raise ``BatchTooLarge`` for a frame of more bytes. Nothing was gathered yet."""
        if nbytes > self.nbytes:
            raise BatchTooLarge(
                f"the frame of a batch of {num_seeds:,} seeds has {size_text(nbytes)}, more than "
                f"{size_text(self.nbytes)}{self.reason}: ask for fewer seeds a batch, smaller "
                "num_neighbors or fewer columns"
            )
