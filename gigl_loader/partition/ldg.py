"""Linear deterministic greedy (LDG): an assigner that puts nodes where their neighbours are, in one pass.

Of I. Stanton and G. Kliot, "Streaming graph partitioning for large distributed graphs", KDD 2012.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.native import GreedyPlacement
from gigl_loader.partition.assigners import Owners
from gigl_loader.partition.edge_stream import EdgeStream
from gigl_loader.partition.spill import bucket_numbers, scatter

if TYPE_CHECKING:
    import numpy.typing as npt

    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.partition.job import Job
    from gigl_loader.partition.spill import Kinds, Spill
    from gigl_loader.partition.table import GraphTables

__all__ = ["LinearGreedyAssigner", "bounds_of_load"]

_SLACK_PERCENT = 5
_MORE_BUCKETS = 16
"""Pieces that a bucket is cut into where it does not fit in memory."""

_NODE_BYTES = 64
"""Of memory per node of a bucket: 10 are used, while edges take half of all memory."""

_NOTHING = np.empty(0, np.int64)


class LinearGreedyAssigner:
    """Places nodes one after another where most of their neighbours are, less so the fuller a partition is.

    Nodes of each type are balanced among themselves: no partition has over 5 % more or fewer than the mean
    (or one node, where that is more). Edges of all types count alike, in both directions. The stream of nodes
    is by ascending id, all types in step. Takes 2 bytes of memory a node, and as many edges at a time as the
    memory limit allows.
    """

    name: str = "ldg"

    def plan(self, job: Job, tables: GraphTables) -> Owners:
        """Read the edges once and place all nodes."""
        if job.num_partitions == 1:
            return Owners(self.name, {})
        edges = EdgeStream(job, tables, self.name)
        what = f"the owners of {edges.nodes.size:,} nodes"
        job.budget.require(4 * edges.nodes.size, what)  # Once as they are placed, once by type.
        job.hold(2 * edges.nodes.size, what)
        return Owners(self.name, edges.by_type(_Placing(job, edges).run()))


def bounds_of_load(count: int, num_partitions: int) -> tuple[int, int]:
    """Return the fewest and the most of ``count`` nodes that a partition may have: within 5 % of the mean."""
    most = max(-(-count // num_partitions), (100 + _SLACK_PERCENT) * count // (100 * num_partitions))
    fewest = min(count // num_partitions, -((_SLACK_PERCENT - 100) * count // (100 * num_partitions)))
    return fewest, most


class _Placing:
    """One pass over the nodes, each with its neighbours among those before it.

    An edge belongs to the later of its two ends: when the earlier one is placed, the other is not there yet.
    Edges are spread over buckets of the stream as they are read, and a bucket is placed as a whole.
    """

    def __init__(self, job: Job, edges: EdgeStream) -> None:
        self._job = job
        self._edges = edges
        self._nodes = edges.nodes
        self._kinds: Kinds = {"target": (edges.dtype, ()), "neighbor": (edges.dtype, ())}
        self._leaf_rows = job.budget.edge_bucket_rows(0)
        counts = list(edges.nodes.counts.values())
        bounds = [bounds_of_load(count, job.num_partitions) for count in counts]
        self._placement = GreedyPlacement(
            np.array(counts, np.int64),
            np.array([most for _, most in bounds], np.int64),
            np.array([fewest for fewest, _ in bounds], np.int64),
            job.num_partitions,
        )
        self._advance: Callable[[int], None] = lambda _: None

    def run(self) -> npt.NDArray[np.uint16]:
        """Read, spread, place. Return the owners in the order of the stream."""
        rows = self._edges.num_edges
        spill = self._job.spill(self._kinds, rows)
        by_edges = 1 if rows <= self._leaf_rows else -(-4 * rows // (3 * self._leaf_rows))
        by_nodes = -(-self._nodes.size // max(self._job.budget.total // _NODE_BYTES, 1))
        cuts = _cuts(0, self._nodes.size, max(by_edges, by_nodes))
        for later, earlier in self._edges.read():
            self._spread(spill, cuts, {"target": later, "neighbor": earlier})
        self._advance = self._job.track("nodes: placing", self._nodes.size)
        self._place_all(spill, cuts, self._nodes.size)
        return self._placement.owners

    def _spread(self, spill: Spill, cuts: Int64Array, edges: Mapping[str, Array]) -> None:
        scatter(spill, bucket_numbers(cuts, edges["target"]), edges)

    def _place_all(self, spill: Spill, cuts: Int64Array, end: int) -> None:
        """Place the nodes of all buckets, which begin at ``cuts``."""
        for bucket, (low, high) in enumerate(zip(cuts, [*cuts[1:], end], strict=True)):
            if spill.size(bucket) <= self._leaf_rows:
                self._place(int(low), int(high), spill.take(bucket, "target"), spill.take(bucket, "neighbor"))
            elif high - low == 1:
                self._place_hub(int(low), spill, bucket)
            else:
                self._place_finer(int(low), int(high), spill, bucket)
            spill.drop(bucket)

    def _place_finer(self, low: int, high: int, spill: Spill, bucket: int) -> None:
        """Place a bucket whose edges do not fit in memory."""
        cuts = _cuts(low, high, _MORE_BUCKETS)
        finer = self._job.spill(self._kinds, spill.size(bucket))
        for edges in spill.read(bucket, list(self._kinds), self._job.budget.chunk_rows(16)):
            self._spread(finer, cuts, edges)
        spill.drop(bucket)
        self._place_all(finer, cuts, high)

    def _place_hub(self, low: int, spill: Spill, bucket: int) -> None:
        """Place one node whose edges do not fit in memory."""
        near = np.zeros(self._job.num_partitions, np.int64)
        owners = self._placement.owners
        for edges in spill.read(bucket, ["neighbor"], self._job.budget.chunk_rows(16)):
            near += np.bincount(owners[edges["neighbor"]], minlength=len(near))
        none = np.empty(0, self._edges.dtype)
        self._place(low, low + 1, none, none, near)

    def _place(
        self, low: int, high: int, targets: Array, neighbors: Array, more: Int64Array = _NOTHING
    ) -> None:
        self._placement.place(
            self._nodes.kinds(low, high), targets - targets.dtype.type(low), neighbors, more
        )
        self._advance(high - low)


def _cuts(low: int, high: int, pieces: int) -> Int64Array:
    """Return where each of at most so many pieces of ``[low, high)`` begins. Only a sole one may be empty."""
    pieces = max(min(pieces, high - low), 1)
    return low + np.arange(pieces, dtype=np.int64) * (high - low) // pieces
