"""Local sampler: one native pass over all hops of a graph that lies wholly on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import edge_type_address
from gigl_loader.native import Adjacency, NeighborSampler
from gigl_loader.native import BatchTooLarge as NativeTooLarge
from gigl_loader.sampling.bounds import BatchBounds
from gigl_loader.sampling.costs import CostCounter
from gigl_loader.sampling.deferred_features import OwnPlaces
from gigl_loader.sampling.features import LocalFeatures
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled

if TYPE_CHECKING:
    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import EdgeType, SamplingPlan
    from gigl_loader.sampling.features import FeatureSource
    from gigl_loader.sampling.schedule import BatchRequest

__all__ = ["LocalSampler"]


class LocalSampler:
    """Samples one batch after the other, in scratch memory that it keeps.

    A batch depends only on the graph, the plan, the epoch and the seeds: not on earlier batches, nor
    on how the graph is partitioned. Not thread-safe.
    """

    def __init__(
        self,
        graph: Graph,
        plan: SamplingPlan,
        costs: CostCounter | None = None,
        *,
        without_rows: bool = False,
        bounds: BatchBounds | None = None,
    ) -> None:
        """All partitions of ``graph`` are opened. What sampling costs is added to ``costs``.

        With ``without_rows``, frames are skeletons, and no column is read. ``bounds`` of a batch are by
        default those of the machine.
        """
        self.bounds = bounds or BatchBounds.of_machine()
        self.costs = CostCounter() if costs is None else costs
        self._form = FrameWriter(graph, plan, without_rows=without_rows)
        self._columns: FeatureSource = (OwnPlaces if without_rows else LocalFeatures)(graph, plan)
        self._native = NeighborSampler(
            adjacencies=[_adjacency(graph, edge_type) for edge_type in self._form.edge_types],
            target_types=self._form.target_types,
            neighbor_types=self._form.neighbor_types,
            addresses=[edge_type_address(edge_type) for edge_type in self._form.edge_types],
            fanouts=[plan.num_neighbors[edge_type] for edge_type in self._form.edge_types],
            node_ids=self._form.node_ids,
            num_nodes=self._form.num_nodes,
            replace=plan.replace,
            with_edge_ids=plan.with_edge,
            with_slots=self._form.with_slots,
        )

    @property
    def scratch_bytes(self) -> int:
        """Memory that is kept for the next batch."""
        return self._native.scratch_bytes + self._form.scratch_bytes

    def sample(self, request: BatchRequest) -> Sampled:
        """Sample the batch; its nodes and edges are then known, its columns not yet gathered.

        The result is valid until the next call. ``FormatError`` if the graph turns out damaged,
        ``BatchTooLarge`` for a batch beyond the bounds.
        """
        with self.costs.sampling():
            key = self._form.key(request)
            try:
                self._native.sample(self._form.seed_type, request.seeds, key, max_edges=self.bounds.edges)
            except NativeTooLarge:
                raise self.bounds.too_many_edges(len(request.seeds)) from None
            except RuntimeError as error:
                raise FormatError(str(error)) from None
            sampled = Sampled(
                form=self._form,
                batch=self._native,
                request=request,
                columns=self._columns,
                costs=self.costs,
            )
        self.bounds.check_frame(sampled.layout.nbytes, len(request.seeds))
        return sampled


def _adjacency(graph: Graph, edge_type: EdgeType) -> Adjacency:
    topologies = [graph.topology(edge_type, part) for part in range(graph.schema.num_partitions)]
    narrow = all(topology["edge_ids"].dtype == np.int32 for topology in topologies)
    dtype = np.int32 if narrow else np.int64
    return Adjacency(
        graph.bounds(graph.schema.target_type(edge_type)),
        [topology["indptr"] for topology in topologies],
        [topology["indices"] for topology in topologies],
        [topology["edge_ids"].astype(dtype, copy=False) for topology in topologies],
    )
