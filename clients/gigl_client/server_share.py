"""Servers that a rank has channels with: in a large cluster, some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PARTNERS", "servers_of_rank"]

T = TypeVar("T")

PARTNERS = 16
"""Servers of a rank, and ranks of a server, at least. With four batches in flight at each, a rank has 64."""


def servers_of_rank(servers: Sequence[T], rank: int, world_size: int) -> list[T]:
    """Return the servers that sample for a rank, in their order.

    Any server samples any batch. Each rank has 16 servers and each server 16 ranks, or more, so channels grow
    with ranks or servers and not with their product: 7,680 instead of 57,600 for 120 servers and 480 ranks.
    """
    count = min(len(servers), max(PARTNERS, -(-PARTNERS * len(servers) // world_size)))
    first = rank * len(servers) // world_size
    return [servers[place] for place in sorted((first + step) % len(servers) for step in range(count))]
