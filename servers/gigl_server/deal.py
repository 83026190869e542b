"""Which server holds which partitions, where nobody says it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.manifest import Manifest

if TYPE_CHECKING:
    import os

__all__ = ["count_partitions", "deal"]


def count_partitions(graph_dir: str | os.PathLike[str]) -> int:
    """Return the number of partitions of a graph. ``FileNotFoundError`` where there is none."""
    if not Path(graph_dir).exists():
        raise FileNotFoundError(f"no graph at {graph_dir}")
    return Manifest.read(DiskFolder(graph_dir)).schema.num_partitions


def deal(partitions: int, servers: int, replicas: int = 1) -> list[tuple[int, ...]]:
    """Return the partitions of each server: in order, as evenly as possible.

    With ``replicas``, each is held by so many servers: the one that it is dealt to and those before it.
    ``ValueError`` for more servers than partitions, or more replicas than servers.
    """
    if not 1 <= servers <= partitions:
        raise ValueError(
            f"a graph of {partitions} partitions can have 1 to {partitions} servers, not {servers}"
        )
    if not 1 <= replicas <= servers:
        raise ValueError(f"{servers} servers can hold 1 to {servers} replicas, not {replicas}")
    ends = [partitions * index // servers for index in range(servers + 1)]
    dealt = [tuple(range(low, high)) for low, high in pairwise(ends)]
    return [
        tuple(sorted(part for more in range(replicas) for part in dealt[(index + more) % servers]))
        for index in range(servers)
    ]
