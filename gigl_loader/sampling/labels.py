"""Labels of anchors, looked up in the graph: in a label set, or among the edges of a supervision type.

Where they are a label set, or the graph has lists of out-edges, the owner of an anchor has its labels and
draws those that a cap keeps. In a graph of in-edges, every partition has some of an anchor's edges, and
the cap is drawn here, at the same addresses.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gigl_loader.graph.schema import edge_type_address
from gigl_loader.native import draw_distinct, sort_lists, split_by_owner
from gigl_loader.sampling.partitioned import FrontierRequest
from gigl_loader.sampling.seeds import in_trees, tree_key
from gigl_loader.sampling.store import DrawRule, NeighborRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.store import Neighbors

LABEL_HOP = 253
"""In the address of the draws that a cap takes. Neighbours are drawn at smaller hops."""

_RANDOM = 0xFF << 56 | 1 << 48
"""In the address of random negatives, with the edge type."""


class Labels(NamedTuple):
    """The labels of some anchors."""

    counts: Int64Array
    """Of each anchor [A]."""
    nodes: Int64Array
    """Positions [P]: the labels of anchor i are the next ``counts[i]``, by ascending node id."""


class LabelLookup:
    """Looks up the labels of anchors in one kind of lists. Not thread-safe."""

    def __init__(
        self,
        schema: GraphSchema,
        store: PartitionedStore,
        lists: EdgeType,
        cap: int | None = None,
        *,
        anchor_ids: Int64Array | None = None,
        label_ids: Int64Array | None = None,
        disjoint: bool = False,
    ) -> None:
        """``lists``: an edge type, or the name of a label set.

        ``cap``: keep so many labels of each anchor, drawn without replacement. ``None``: all.
        ``anchor_ids``, ``label_ids``: node ids by position; ``None`` where they are equal, or do not matter.
        ``disjoint``: each anchor draws for itself, also where several are the same node.
        """
        self._store = store
        self._edge_type = lists
        self._cap = cap
        self._inward = schema.edge_dir == "in" and lists not in schema.labels
        self._bounds = store.bounds(lists[0])
        self._anchor_ids = anchor_ids
        self._label_ids = label_ids
        self._disjoint = disjoint and cap is not None

    @classmethod
    def in_graph(
        cls, graph: Graph, store: PartitionedStore, lists: EdgeType, cap: int | None, *, disjoint: bool
    ) -> LabelLookup:
        """Return the lookup of a process that knows all node ids."""
        anchor_ids, label_ids = graph.node_ids(lists[0]), graph.node_ids(lists[2])
        return cls(
            graph.schema, store, lists, cap, anchor_ids=anchor_ids, label_ids=label_ids, disjoint=disjoint
        )

    def labels(self, anchors: Int64Array, key: int, *, max_labels: int) -> Labels:
        """Return the labels of ``anchors`` (positions, int64 [A]).

        ``native.BatchTooLarge`` for more than ``max_labels`` of one partition.
        """
        if self._inward:
            everyone = np.arange(len(anchors))
            parts = len(self._bounds) - 1
            found = self._ask([anchors] * parts, key, -1, max_labels, outward=True)
            merged = self._sorted(_placed([everyone] * parts, found, len(anchors)))
            return self._capped(merged, anchors, key)
        shares = split_by_owner(anchors, self._bounds)
        cap = -1 if self._cap is None else self._cap
        asked = [in_trees(owned, places, disjoint=self._disjoint) for owned, places in shares]
        found = self._ask(asked, key, cap, max_labels, outward=False)
        placed = _placed([places for _, places in shares], found, len(anchors))
        # A list is in the order of node ids; what is drawn of it comes as it was drawn.
        return placed if self._cap is None else self._sorted(placed)

    def _ask(
        self, anchors: Sequence[Int64Array], key: int, fanout: int, max_labels: int, *, outward: bool
    ) -> list[Neighbors]:
        """Return the edges of anchors, given by partition."""
        request = FrontierRequest(
            anchors,
            partial(
                NeighborRequest,
                edge_type=self._edge_type,
                key=key,
                hop=LABEL_HOP,
                rule=DrawRule(fanout=fanout),
                with_edge_ids=False,
                with_slots=False,
                max_edges=max_labels,
                disjoint=self._disjoint and not outward,
                outward=outward,
            ),
        )
        [answers] = self._store.sample([request])
        return answers

    def _sorted(self, labels: Labels) -> Labels:
        """Return the labels of each anchor by ascending node id."""
        sort_lists(labels.counts, self._label_ids, labels.nodes)
        return labels

    def _capped(self, labels: Labels, anchors: Int64Array, key: int) -> Labels:
        """Return ``cap`` of the labels of each anchor that has more."""
        if self._cap is None or not (labels.counts > self._cap).any():
            return labels
        ids = anchors if self._anchor_ids is None else self._anchor_ids[anchors]
        begins = np.cumsum(labels.counts) - labels.counts
        kept = np.ones(len(labels.nodes), np.bool_)
        for anchor in np.flatnonzero(labels.counts > self._cap).tolist():
            begin, count = int(begins[anchor]), int(labels.counts[anchor])
            place = edge_type_address(self._edge_type) << 32 | LABEL_HOP << 56
            anchor_key = tree_key(key, anchor) if self._disjoint else key
            picks = _distinct(anchor_key, int(ids[anchor]), place, count, self._cap)
            kept[begin : begin + count] = False
            kept[begin + picks] = True
        return Labels(np.minimum(labels.counts, self._cap), labels.nodes[kept])


def _placed(places: Sequence[Int64Array], found: Sequence[Neighbors], count: int) -> Labels:
    """Return the labels from all partitions, in the order of the anchors, which are at ``places``."""
    counts = np.zeros(count, np.int64)
    for place, each in zip(places, found, strict=True):
        counts[place] += each.counts
    nodes = np.empty(counts.sum(), np.int64)
    begins = np.cumsum(counts) - counts
    for place, each in zip(places, found, strict=True):
        if len(each.positions) == len(nodes):  # Nobody else has any.
            nodes[:] = each.positions
        elif len(each.positions):
            shift = begins[place] - (np.cumsum(each.counts, dtype=np.int64) - each.counts)
            nodes[np.repeat(shift, each.counts) + np.arange(len(each.positions))] = each.positions
            begins[place] += each.counts
    return Labels(counts, nodes)


def distinct_ranks(key: int, edge_type: EdgeType, below: int, count: int) -> Int64Array:
    """Return ``count`` ranks below ``below`` (positive), int64: each drawn once before any comes again."""
    whole, rest = divmod(count, below)
    place = _RANDOM | edge_type_address(edge_type) << 24
    return np.concatenate([np.tile(np.arange(below), whole), _distinct(key, 0, place, below, rest)])


def _distinct(key: int, low: int, place: int, below: int, count: int) -> Int64Array:
    """Return ``count`` of the numbers below ``below``, drawn without replacement by Floyd's algorithm, int64.

    Draw j is word ``j % 2`` of the block at ``(low, place | j // 2)``, as that of a neighbour is.
    """
    drawn = np.empty(count, np.int64)
    draw_distinct(key, low & 2**64 - 1, place, below, drawn)
    return drawn
