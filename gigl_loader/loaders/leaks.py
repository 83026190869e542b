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
_SHARE = 0.1
"""A type that holds fewer targets has some edges in both directions, and is no reverse."""


class ReverseWatch:
    """Warns once of an edge type that has targets of a batch the other way round and is not excluded."""

    def __init__(
        self, name: str, schema: GraphSchema, hops: KHop, excluded: Mapping[EdgeType, Collection[EdgeType]]
    ) -> None:
        """``name``: of the loader. ``excluded``: reverse types that are removed, by type of the targets."""
        self._name, self._hops = name, hops
        self._inward = schema.edge_dir == "in"
        self._staying = {
            kind: [
                each
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
        # An edge of a reverse type leads from the destination of a target to its source.
        ends = (sources, destinations) if self._inward else (destinations, sources)
        for each in self._staying.get(kind, ()):
            fanout = self._hops.num_neighbors[each][:1] or (-1,)
            is_there, is_known = _edges_between(frame, each, *ends, fanout=fanout[0])
            found, looked_at = int(is_there.sum()), int(is_known.sum())
            if found and found >= _SHARE * looked_at:
                self._left = 0
                logger.warning(
                    "%s: of %d targets of a batch, %d are edges %s the other way round, which stay in the "
                    "messages: pass reverse_edge_types={%s: %s} to remove them, or {} if that is meant",
                    *(self._name, len(sources), found, each, kind, each),
                )
                return


def _edges_between(
    frame: Frame, edge_type: EdgeType, targets: Array, neighbors: Array, *, fanout: int
) -> tuple[BoolArray, BoolArray]:
    """Return which pairs a batch has an edge of, and of which pairs it is known whether the graph has one.

    Each bool, one for each pair. ``targets``, ``neighbors``: local nodes, int32 [P].
    """
    prefix = f"edge/{type_name(edge_type)}"
    rows, colptr = frame.array(f"{prefix}/rows"), frame.array(f"{prefix}/colptr")
    last = len(colptr) - 1  # Nodes from there on were not expanded.
    begins, ends = colptr[np.minimum(targets, last)], colptr[np.minimum(targets + 1, last)]
    counts = np.where(np.cumsum(ends - begins) <= _EDGES, ends - begins, 0)
    owners = np.repeat(np.arange(len(targets)), counts)
    edges = np.arange(len(owners)) + np.repeat(begins - np.cumsum(counts) + counts, counts)
    is_there = np.zeros(len(targets), np.bool_)
    is_there[owners[rows[edges] == neighbors[owners]]] = True
    is_whole = (ends - begins == counts) & ((counts < fanout) | (fanout == -1))  # All neighbours were taken.
    return is_there, is_there | is_whole
