"""Measures of a partitioning: how many edges it cuts, and how evenly it shares out nodes and edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.graph.document import Document
from gigl_loader.graph.paths import topology_path

if TYPE_CHECKING:
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import EdgeType

__all__ = ["EdgeQuality", "balance_of", "edge_quality"]

_ROWS = 1 << 21
"""Edges to look at at once: 50 MB."""


@dataclass(frozen=True, slots=True)
class EdgeQuality:
    """How a graph's partitions share out the edges of one type."""

    per_part: tuple[int, ...]
    """Edges by the partition that lists them."""
    cut: int
    """Edges whose ends lie in two partitions."""

    @property
    def cut_share(self) -> float:
        """Part of all edges that is cut, from 0 to 1."""
        return self.cut / max(sum(self.per_part), 1)

    @property
    def balance(self) -> float:
        """Edges of the largest partition over the mean: 1 is even."""
        return balance_of(self.per_part)


def balance_of(sizes: Sequence[int]) -> float:
    """Return the largest size over the mean, 1 where all are 0."""
    return max(sizes) * len(sizes) / max(sum(sizes), 1) if any(sizes) else 1.0


def edge_quality(graph: Graph, edge_type: EdgeType) -> EdgeQuality:
    """Count the edges of a type. Reads all lists, in bounded memory, unless there is one partition.

    All partitions of the graph must be opened. ``FormatError`` for a damaged file.
    """
    parts = range(graph.schema.num_partitions)
    sizes = tuple(len(graph.topology(edge_type, part)["indices"]) for part in parts)
    if len(sizes) == 1:
        return EdgeQuality(sizes, 0)
    bounds = graph.bounds(graph.schema.neighbor_type(edge_type))
    cut = sum(
        _count_outside(graph, edge_type, part, (int(bounds[part]), int(bounds[part + 1]))) for part in parts
    )
    return EdgeQuality(sizes, cut)


def _count_outside(graph: Graph, edge_type: EdgeType, part: int, own: tuple[int, int]) -> int:
    """Return how many neighbours in the lists of a partition have positions outside ``own``."""
    name = topology_path(part, edge_type)
    record, found, start = graph.manifest.files[name], 0, 0
    while True:
        # Opened anew for each piece: a map that stays open would grow by every page that is read.
        positions = Document(graph.folder, name, record).array("indices")[start : start + _ROWS]
        if not len(positions):
            return found
        found += int(np.count_nonzero((positions < own[0]) | (positions >= own[1])))
        start += len(positions)
