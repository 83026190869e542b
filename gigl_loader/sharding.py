"""Sharding of the servers' nodes over ranks, in exact integer arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Share(Protocol):
    """One rank's share of the nodes of all servers."""

    def needs(self, server: int, num_servers: int) -> bool:
        """Return whether the share depends on the nodes of this server."""

    def slices(self, lengths: Sequence[int]) -> list[slice]:
        """Return the slice of each server's nodes that the share takes. Server s has ``lengths[s]`` nodes."""


@dataclass(frozen=True, slots=True)
class Whole(Share):
    """All nodes."""

    def needs(self, server: int, num_servers: int) -> bool:
        return True

    def slices(self, lengths: Sequence[int]) -> list[slice]:
        return [slice(0, length) for length in lengths]


@dataclass(frozen=True, slots=True)
class ByServers(Share):
    """The same number of servers for each rank, whole servers where possible.

    With S servers and W ranks, on a line of length S * W, server s covers ``[s * W, (s + 1) * W)`` and rank r
    takes ``[r * S, (r + 1) * S)``. The rank's fraction of a server is rounded down to whole nodes at both
    ends. Ranks differ in their number of nodes as much as servers do.
    """

    rank: int
    world_size: int

    def needs(self, server: int, num_servers: int) -> bool:
        begin, end = self._of(server, num_servers)
        return begin < end

    def slices(self, lengths: Sequence[int]) -> list[slice]:
        fractions = [self._of(server, len(lengths)) for server in range(len(lengths))]
        return [
            slice(length * begin // self.world_size, length * end // self.world_size)
            for length, (begin, end) in zip(lengths, fractions, strict=True)
        ]

    def _of(self, server: int, num_servers: int) -> tuple[int, int]:
        """Return the fraction of a server's nodes, as begin and end in parts of the world size."""
        begin = self.rank * num_servers - server * self.world_size
        return _within(begin, self.world_size), _within(begin + num_servers, self.world_size)


@dataclass(frozen=True, slots=True)
class BySeeds(Share):
    """The same number of nodes for each rank, give or take one, consecutive in the order of servers."""

    rank: int
    world_size: int

    def needs(self, server: int, num_servers: int) -> bool:
        return True

    def slices(self, lengths: Sequence[int]) -> list[slice]:
        total = sum(lengths)
        first, last = (total * rank // self.world_size for rank in (self.rank, self.rank + 1))
        slices, begin = [], 0
        for length in lengths:
            slices.append(slice(_within(first - begin, length), _within(last - begin, length)))
            begin += length
        return slices


_KINDS = {"servers": ByServers, "seeds": BySeeds}


def read_share(rank: int | None, world_size: int | None, balance: str) -> Share:
    """Return the share for these arguments. ``ValueError`` for invalid ones."""
    if balance not in _KINDS:
        raise ValueError(f"balance must be 'servers' or 'seeds', got {balance!r}")
    if rank is None and world_size is None:
        return Whole()
    if rank is None or world_size is None:
        raise ValueError(
            f"rank and world_size come together or not at all, got rank={rank}, world_size={world_size}"
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} does not lie in [0, {world_size})")
    return _KINDS[balance](rank, world_size)


def _within(value: int, end: int) -> int:
    return min(max(value, 0), end)
