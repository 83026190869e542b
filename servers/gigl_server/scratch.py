"""Scratch memory of samplers at work: how large a batch may be now, and how many large ones at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.sampling.bounds import SCRATCH_BYTES_PER_EDGE

if TYPE_CHECKING:
    from gigl_server.channels import Errand
    from gigl_server.limits import Limits

__all__ = ["Scratch"]

_LEAST_EDGES = 1 << 16


class Scratch:
    """Allowances of edges, so that all batches under way fit the scratch memory. Under the service's lock.

    How many edges a batch has is known only when it is drawn. So each channel has an allowance: a batch
    that needs more is given up before memory is taken for more, and sampled again with twice as much.
    Small allowances are each thread's own; large ones share the rest, and wait for it in their order.
    """

    def __init__(self, limits: Limits, threads: int) -> None:
        half = limits.scratch_memory // 2 // SCRATCH_BYTES_PER_EDGE // 2
        self.most = max(min(limits.batch_edges, half), min(limits.batch_edges, _LEAST_EDGES))
        """Edges of the largest batch."""
        self.small = min(max(half // threads, _LEAST_EDGES), self.most)
        """Edges that any thread may draw at any time."""
        self._free = max(half, self.most)
        self._lent: dict[Errand, int] = {}
        self._first: Errand | None = None

    def admits(self, errand: Errand) -> bool:
        """Return whether there is memory for an ask now."""
        wanted = self.allowance(errand)
        if wanted <= self.small:
            return True
        first = self._first
        if first is None or first.is_stale() or first not in first.channel.queue:
            self._first = first = errand
        return errand is first and wanted <= self._free

    def allowance(self, errand: Errand) -> int:
        """Return how many edges the batch may have when it is sampled next."""
        return min(max(errand.channel.allowance, self.small), self.most)

    def begin(self, errand: Errand) -> None:
        """Set aside what an ask that was admitted may take."""
        errand.allowance = self.allowance(errand)
        if errand.allowance > self.small:
            self._free -= errand.allowance
            self._lent[errand] = errand.allowance
            self._first = None if self._first is errand else self._first

    def end(self, errand: Errand, *, too_large: bool) -> bool:
        """Give it back. Return whether a batch that was too large shall be sampled again, with more."""
        self._free += self._lent.pop(errand, 0)
        channel = errand.channel
        if too_large:
            channel.allowance = max(channel.allowance, 2 * errand.allowance)
            return errand.allowance < self.most
        return False
