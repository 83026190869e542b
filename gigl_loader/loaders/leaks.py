"""Warnings of targets that stay in a batch: as edges the other way round, of types that nothing excludes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.graph.schema import type_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gigl_loader.arrays import Array, BoolArray
    from gigl_loader.channel.frame import Frame
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType
    from gigl_loader.sampling.khop import KHop

logger = logging.getLogger(__name__)

_BATCHES = 64
"""Batches that are looked at. Where a type holds all targets, nearly always the first one tells."""
_EDGES = 1 << 18
"""Edges that are looked at in a batch and type: about 1 ms."""
SHARE_OF_REVERSE = 0.1
"""A type that holds fewer targets has some edges in both directions, and is no reverse."""
_SURPRISE = 5
"""Targets beyond three times those that lists of random nodes would have."""


class ReverseEvidence:
    """Evidence that an edge type holds targets the other way round: lists of edges that batches have."""

    def __init__(self, schema: GraphSchema, edge_type: EdgeType, fanout: int) -> None:
        """``fanout``: neighbours of a seed that are drawn at most; -1 for all."""
        self.edge_type = edge_type
        self.targets = 0
        """Targets that were looked at."""
        self.found = 0
        """Targets that are among the edges."""
        self._fanout = fanout
        self._inward = schema.edge_dir == "in"
        self._num_nodes = schema.nodes[schema.neighbor_type(edge_type)].count
        self._whole = self._found_in_whole = 0
        self._by_chance = 0.0

    def look(self, frame: Frame, sources: Array, destinations: Array) -> BoolArray:
        """Look at targets in a batch: local nodes, int32 [P]. Return which are among its edges, bool [P]."""
        # An edge of a reverse type leads from the destination of a target to its source.
        targets, neighbors = (sources, destinations) if self._inward else (destinations, sources)
        prefix = f"edge/{type_name(self.edge_type)}"
        rows, colptr = frame.array(f"{prefix}/rows"), frame.array(f"{prefix}/colptr")
        last = len(colptr) - 1  # Nodes from there on were not expanded.
        begins, ends = colptr[np.minimum(targets, last)], colptr[np.minimum(targets + 1, last)]
        is_read = np.cumsum(ends - begins) <= _EDGES
        counts = np.where(is_read, ends - begins, 0)
        owners = np.repeat(np.arange(len(targets)), counts)
        edges = np.arange(len(owners)) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        is_there: BoolArray = np.zeros(len(targets), np.bool_)
        is_there[owners[rows[edges] == neighbors[owners]]] = True
        is_whole = is_read & ((counts < self._fanout) | (self._fanout == -1))  # All neighbours were taken.
        self.targets += int(is_read.sum())
        self.found += int(is_there.sum())
        self._whole += int(is_whole.sum())
        self._found_in_whole += int((is_there & is_whole).sum())
        self._by_chance += len(edges) / max(self._num_nodes, 1)
        return is_there

    @property
    def is_enough(self) -> bool:
        """Whether the type holds a tenth of the targets, as far as whole lists tell.

        Where few lists are whole: whether it holds far more of them than chance explains.
        """
        if self._whole >= SHARE_OF_REVERSE * self.targets:
            return self._found_in_whole > 0 and self._found_in_whole >= SHARE_OF_REVERSE * self._whole
        return self.found >= _SURPRISE + 3 * self._by_chance


class ReverseWatch:
    """Warns once of an edge type that has targets of a batch the other way round and is not excluded."""

    def __init__(
        self, name: str, schema: GraphSchema, hops: KHop, excluded: Mapping[EdgeType, Collection[EdgeType]]
    ) -> None:
        """``name``: of the loader. ``excluded``: reverse types that are removed, by type of the targets."""
        self._name = name
        self._staying = {
            kind: [
                ReverseEvidence(schema, each, first_fanout(hops, each))
                for each in schema.edges
                if each[::2] == kind[::-2] and each not in types and hops.draws(each)
            ]
            for kind, types in excluded.items()
        }
        self._left = _BATCHES if any(self._staying.values()) else 0

    def look(self, frame: Frame, kind: EdgeType, sources: Array, destinations: Array) -> None:
        """Look at targets of one type in a batch. ``sources``, ``destinations``: local nodes, int32 [P]."""
        if not self._left:
            return
        self._left -= 1
        for each in self._staying.get(kind, ()):
            each.look(frame, sources, destinations)
            if each.is_enough:
                self._left = 0
                logger.warning(
                    "%s: of %d targets that were looked at, %d are edges %s the other way round, which stay "
                    "in the messages: pass reverse_edge_types={%s: %s} to remove them, {} if that is meant",
                    *(self._name, each.targets, each.found, each.edge_type, kind, each.edge_type),
                )
                return


def first_fanout(hops: KHop, edge_type: EdgeType) -> int:
    """Return how many neighbours of a seed are drawn at most; -1 for all."""
    return (hops.num_neighbors[edge_type][:1] or (-1,))[0]
