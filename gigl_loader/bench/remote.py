"""Lower bound of the bytes that a batch must fetch from other hosts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigl_loader.bench.crowd import Job
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE

__all__ = ["RemoteShare"]

_INT32_BYTES = 4


@dataclass(slots=True)
class RemoteShare:
    """Rows and lists of the batches of one rank whose nodes other hosts hold."""

    batches: int = 0
    rows: int = 0
    """Nodes whose columns come from elsewhere."""
    neighbors: int = 0
    """Edges that were drawn elsewhere."""
    row_bytes: int = 0

    @property
    def bytes_per_batch(self) -> float:
        """Columns of each row; a position and an edge id, 4 bytes each, for each neighbour.

        Requests, counts and headers are not in it.
        """
        nbytes = self.rows * self.row_bytes + self.neighbors * 2 * _INT32_BYTES
        return nbytes / max(self.batches, 1)

    @classmethod
    def over(cls, loader: Iterable[Any], job: Job) -> RemoteShare:
        """Count an epoch of batches."""
        assert job.partitions is not None
        graph = Graph.open(job.graph)
        bounds = graph.bounds(HOMOGENEOUS_NODE)
        here = np.zeros(len(bounds) - 1, np.bool_)
        here[list(job.partitions[int(os.environ["GROUP_RANK"])])] = True
        columns = graph.schema.nodes[HOMOGENEOUS_NODE].columns.values()
        share = cls(row_bytes=sum(column.row_bytes for column in columns))
        assert graph.schema.edges[HOMOGENEOUS_EDGE].count < 2**31
        for batch in loader:
            positions = graph.positions(HOMOGENEOUS_NODE, batch.n_id.numpy())
            elsewhere = ~here[np.searchsorted(bounds, positions, side="right") - 1]
            share.batches += 1
            share.rows += int(elsewhere.sum())
            share.neighbors += int(elsewhere[batch.edge_index[1].numpy()].sum())
        return share
