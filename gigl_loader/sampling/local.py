"""Local sampler: one native pass over all hops of a graph that lies wholly on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import edge_type_address
from gigl_loader.native import BatchTooLarge as NativeTooLarge
from gigl_loader.native import NeighborSampler
from gigl_loader.sampling.bounds import BatchBounds
from gigl_loader.sampling.costs import CostCounter
from gigl_loader.sampling.deferred_features import LocalPlaces
from gigl_loader.sampling.features import LocalFeatures
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled
from gigl_loader.sampling.local_store import open_adjacency

if TYPE_CHECKING:
    from gigl_loader.sampling.features import FeatureSource
    from gigl_loader.sampling.khop import KHop
    from gigl_loader.sampling.plan import SamplerContext
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.seeds import Seeder

__all__ = ["LocalSampler"]


class LocalSampler:
    """Samples one batch after the other, in scratch memory that it keeps.

    A batch depends only on the graph, the plan, the epoch and the seeds: not on earlier batches, nor
    on how the graph is partitioned. Not thread-safe.
    """

    def __init__(self, context: SamplerContext, hops: KHop, seeder: Seeder) -> None:
        """All partitions of the context's graph are opened; its store is not used."""
        graph = context.graph
        self.bounds = context.bounds or BatchBounds.of_machine()
        self.costs = context.costs or CostCounter()
        self._seeder = seeder
        self._writer = writer = FrameWriter(context)
        places = LocalPlaces if context.deferred else LocalFeatures
        self._features: FeatureSource = places(graph, context.plan.columns)
        self._native = NeighborSampler(
            adjacencies=[
                open_adjacency(
                    graph,
                    edge_type,
                    range(graph.schema.num_partitions),
                    weight=hops.weight(graph.schema, edge_type),
                    time=hops.time(graph.schema, edge_type),
                )
                for edge_type in writer.edge_types
            ],
            target_types=writer.target_types,
            neighbor_types=writer.neighbor_types,
            addresses=[edge_type_address(edge_type) for edge_type in writer.edge_types],
            rules=[
                [hops.rule(graph.schema, edge_type, hop).native for hop in range(hops.num_hops)]
                for edge_type in writer.edge_types
            ],
            node_ids=writer.node_ids,
            num_nodes=writer.num_nodes,
            with_edge_ids=hops.collects_edge_ids,
            with_slots=writer.with_slots,
            disjoint=hops.disjoint,
            induced=hops.induced,
        )

    @property
    def scratch_bytes(self) -> int:
        """Memory that is kept for the next batch."""
        return self._native.scratch_bytes + self._writer.scratch_bytes

    def sample(self, request: BatchRequest) -> Sampled:
        """Sample the batch; its nodes and edges are then known, its columns not yet gathered.

        The result is valid until the next call. ``FormatError`` if the graph turns out damaged,
        ``BatchTooLarge`` for a batch beyond the bounds.
        """
        with self.costs.sampling():
            seeds = self._seeder.seeds(request, self.bounds)
            try:
                self._native.sample(
                    seeds.groups, seeds.key, max_edges=self.bounds.edges, tree_times=seeds.tree_times
                )
                sampled = self._writer.sampled(self._native, request, seeds, self._features, self.costs)
            except NativeTooLarge:
                raise self.bounds.too_many_edges(len(request)) from None
            except RuntimeError as error:
                raise FormatError(str(error)) from None
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled
