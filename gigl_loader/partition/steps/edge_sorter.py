"""Sort of the edges of a bucket in canonical order, in pieces that fit in memory.

A bucket that is too big (a hub may have more edges than memory) is spread over smaller ones by
quantiles of the first key that tells its edges apart: target, neighbour, edge id, row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gigl_loader.arrays import Array, BoolArray, Int64Array
from gigl_loader.graph.ids import Directory
from gigl_loader.native import build_adjacency
from gigl_loader.partition.exchange import Kinds, Spill, row_bytes, scatter
from gigl_loader.partition.job import Job

_SAMPLE_ROWS = 1 << 14
_KEYS = ["target", "neighbor", "edge_id"]


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A bucket that fits in memory."""

    spill: Spill
    bucket: int
    neighbors: Directory

    def sort(self, low: int, degrees: Int64Array, pairs: DistinctPairs | None = None) -> Int64Array:
        """Return the canonical order of the edges, and add them to the degrees of targets from ``low``.

        With ``pairs``, parallel edges are left out but for the first.
        """
        (rows,) = self.spill.read(self.bucket, _KEYS, self.spill.size(self.bucket))
        targets, neighbors, edge_ids = _keys(rows, self.neighbors)
        targets -= low
        indptr = np.empty(len(degrees) + 1, dtype=np.int64)
        order = np.empty(len(targets), dtype=np.int64)
        build_adjacency(targets, neighbors, edge_ids, indptr, order)
        if pairs is None:
            degrees += np.diff(indptr)
            return order
        order = order[pairs.first(targets[order], neighbors[order])]
        degrees += np.bincount(targets[order], minlength=len(degrees))
        return order

    def take(self, name: str) -> Array:
        """Return one array of the edges, in the order they came, and forget it."""
        return self.spill.take(self.bucket, name)

    def drop(self) -> None:
        """Forget the edges."""
        self.spill.drop(self.bucket)


class DistinctPairs:
    """Finds the first edge of each pair of ends among the sorted leaves of one bucket."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def first(self, targets: Int64Array, neighbors: Int64Array) -> BoolArray:
        """Return which edges of the next leaf are the first of their pair, bool [E]. A leaf has edges."""
        found = np.ones(len(targets), np.bool_)
        found[1:] = (targets[1:] != targets[:-1]) | (neighbors[1:] != neighbors[:-1])
        found[0] = self._last != (int(targets[0]), int(neighbors[0]))
        self._last = int(targets[-1]), int(neighbors[-1])
        return found


class EdgeSorter:
    """Cuts buckets into leaves, in the order of the sort."""

    def __init__(self, job: Job, kinds: Kinds, neighbors: Directory, leaf_rows: int) -> None:
        """``kinds`` are the arrays of an edge; ``neighbors`` gives the node ids to sort by."""
        self._job = job
        self._kinds = kinds
        self._neighbors = neighbors
        self._leaf_rows = leaf_rows

    def leaves(self, spill: Spill, bucket: int) -> Iterator[Leaf]:
        """Yield pieces of at most ``leaf_rows`` edges: all of one come before all of the next."""
        size = spill.size(bucket)
        if size > self._leaf_rows:
            finer, pieces = self._spread(spill, bucket)
            for piece in range(pieces):
                yield from self.leaves(finer, piece)
        elif size:
            yield Leaf(spill, bucket, self._neighbors)

    def _spread(self, spill: Spill, bucket: int) -> tuple[Spill, int]:
        key, splitters = self._splitters(spill, bucket)
        finer = self._job.spill(self._kinds, spill.size(bucket))
        step = self._job.budget.chunk_rows(sum(map(row_bytes, self._kinds.values())))
        row = 0
        for rows in spill.read(bucket, list(self._kinds), step):
            keys = (*_keys(rows, self._neighbors), np.arange(row, row + len(rows["target"])))
            scatter(finer, np.searchsorted(splitters, keys[key]).astype(np.uint32), rows)
            row += len(rows["target"])
        spill.drop(bucket)
        return finer, len(splitters) + 1

    def _splitters(self, spill: Spill, bucket: int) -> tuple[int, Int64Array]:
        """Choose the first key with two values, and values that cut it into about equal pieces."""
        pieces = max(-(-3 * spill.size(bucket) // (2 * self._leaf_rows)), 2)
        samples, low, high = self._sampled_keys(spill, bucket)
        key = int(np.flatnonzero(low < high)[0])
        sample = np.sort(samples[key])
        quantiles = sample[np.arange(1, pieces) * len(sample) // pieces]
        splitters = np.unique(quantiles[quantiles < high[key]])
        return key, splitters if len(splitters) else low[key : key + 1]

    def _sampled_keys(self, spill: Spill, bucket: int) -> tuple[list[Int64Array], Int64Array, Int64Array]:
        """Return a sample of each key, and their smallest and largest values."""
        stride = max(spill.size(bucket) // _SAMPLE_ROWS, 1)
        samples: list[list[Int64Array]] = [[], [], [], []]
        low = np.full(4, np.iinfo(np.int64).max)
        high = np.full(4, np.iinfo(np.int64).min)
        row = 0
        for rows in spill.read(bucket, _KEYS, self._job.budget.chunk_rows(24)):
            keys = (*_keys(rows, self._neighbors), np.arange(row, row + len(rows["target"])))
            for number, values in enumerate(keys):
                low[number] = min(low[number], values.min())
                high[number] = max(high[number], values.max())
                samples[number].append(values[::stride].copy())
            row += len(keys[0])
        return [np.concatenate(pieces) for pieces in samples], low, high


def _keys(rows: Mapping[str, Array], neighbors: Directory) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return fresh arrays of target, neighbour's node id (or its rank) and edge id."""
    ids = rows["neighbor"].astype(np.int64)
    if not neighbors.ascending:
        ids = neighbors.node_ids(ids)
    return rows["target"].astype(np.int64), ids, rows["edge_id"].astype(np.int64)
