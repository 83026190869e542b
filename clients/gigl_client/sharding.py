"""Sharding of the servers' nodes over ranks, exact, by integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BySeeds", "ByServers", "Share", "Whole", "read_share"]


class Share(Protocol):
    """What one rank takes of the nodes of all servers."""

    def needs(self, server: int, num_servers: int) -> bool:
        """Return whether it must be known what this server has."""

    def slices(self, lengths: Sequence[int]) -> list[slice]:
        """Return what is taken of each server's nodes, of which there are ``lengths[s]``."""


@dataclass(frozen=True, slots=True)
class Whole(Share):
    """Everything."""

    def needs(self, server: int, num_servers: int) -> bool:
        return True

    def slices(self, lengths: Sequence[int]) -> list[slice]:
        return [slice(0, length) for length in lengths]


@dataclass(frozen=True, slots=True)
class ByServers(Share):
    """As many servers for each rank: few of them, and whole ones where it can be.

    On a line of S * W, server s covers ``[s * W, (s + 1) * W)`` and rank r takes ``[r * S, (r + 1) * S)``.
    What it takes of a server is as exact a fraction of that server's nodes as whole nodes allow. Ranks
    differ in their number of nodes as much as servers do.
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
    """As many nodes for each rank, give or take one: consecutive ones, in the order of the servers."""

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
    """Return the share that a user asks for. ``ValueError`` for what makes no sense."""
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
