"""Scratch memory of samplers: the size of a batch, and the number of large batches at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.sampling.bounds import SCRATCH_BYTES_PER_EDGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_server.limits import Limits
    from gigl_server.sessions.channel import SampleTask

__all__ = ["Scratch"]

_LEAST_EDGES = 1 << 16
_FIRST_S = 1.0  # A large batch that also waits for other memory blocks later ones for this long at most.


class Scratch:
    """Allowances of edges, so that all batches under way fit the scratch memory. Under the service's lock.

    The number of edges of a batch is known only when it is drawn. So each channel has an allowance: a batch
    that exceeds it is aborted before it takes more memory, and sampled again with twice the allowance. Each
    thread has memory for a small allowance; large allowances share the rest, and wait for it in order.
    """

    def __init__(self, limits: Limits, threads: int, clock: Callable[[], float]) -> None:
        # Half of the scratch memory is for idle samplers, a quarter each for small and large allowances.
        quarter = limits.scratch_memory // 4 // SCRATCH_BYTES_PER_EDGE
        self.most = max(min(limits.batch_edges, quarter), min(limits.batch_edges, _LEAST_EDGES))
        """Edges of the largest batch."""
        self.small = min(max(quarter // threads, _LEAST_EDGES), self.most)
        """Edges that any thread may draw at any time."""
        self._free = max(quarter, self.most)
        self._clock = clock
        self._lent: dict[SampleTask, int] = {}
        self._first: SampleTask | None = None
        self._first_until = 0.0

    @property
    def lent(self) -> list[SampleTask]:
        """Batches with a large allowance."""
        return list(self._lent)

    @property
    def first_waiting(self) -> SampleTask | None:
        """The request that waits for a large allowance, before all others."""
        first = self._first
        if first is None or first not in first.channel.queue or self.allowance(first) <= self._free:
            return None
        return first

    def admits(self, task: SampleTask) -> bool:
        """Return whether there is memory for a request now."""
        needed = self.allowance(task)
        if needed <= self.small:
            return True
        first = self._first
        if first is None or first not in first.channel.queue or self._clock() > self._first_until:
            self._first = first = task
            self._first_until = self._clock() + _FIRST_S
        return task is first and needed <= self._free

    def allowance(self, task: SampleTask) -> int:
        """Return the number of edges that the batch may have when it is sampled next."""
        return min(max(task.channel.allowance, self.small), self.most)

    def begin(self, task: SampleTask) -> None:
        """Reserve the allowance of an admitted request."""
        task.allowance = self.allowance(task)
        if task.allowance > self.small:
            self._free -= task.allowance
            self._lent[task] = task.allowance
            self._first = None if self._first is task else self._first

    def end(self, task: SampleTask, *, too_large: bool) -> bool:
        """Release the allowance. Return whether to retry a batch that was too large, with a larger one."""
        self._free += self._lent.pop(task, 0)
        channel = task.channel
        if too_large:
            channel.allowance = max(channel.allowance, 2 * task.allowance)
            return task.allowance < self.most
        return False
