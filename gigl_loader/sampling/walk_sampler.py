"""Sampler of random walks: the nodes that they visit, and the walks or the visits themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.native import most_visited, relabel
from gigl_loader.sampling.bounds import BatchBounds
from gigl_loader.sampling.costs import CostCounter
from gigl_loader.sampling.custom import DrawnSubgraph, Subgraph
from gigl_loader.sampling.deferred_features import StoredPlaces
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.request import SEED
from gigl_loader.sampling.seeds import NodeSeeder
from gigl_loader.sampling.store import MAX_TREES
from gigl_loader.sampling.walks import Walker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.features import FeatureSource
    from gigl_loader.sampling.plan import SamplerContext
    from gigl_loader.sampling.request import BatchRequest

__all__ = ["VISITS", "WALKS", "WalkSampler"]

WALKS = "walks"
"""Array of a frame: local nodes of the walks, row after row, -1 after a dead end."""

VISITS = ("visits/seed", "visits/node", "visits/share")
"""Arrays of a frame: local seed, local node, and its share of the visits of the seed's walks."""


class WalkSampler:
    """Samples one batch after the other. Not thread-safe."""

    def __init__(
        self,
        context: SamplerContext,
        seed_type: NodeType,
        path: Sequence[EdgeType],
        *,
        period: int,
        walks_per_seed: int,
        p: float,
        q: float,
        top_k: int | None,
    ) -> None:
        """Fields as in ``WalkPlan``. Without a store in the context, all partitions are read here."""
        schema = context.graph.schema
        self.bounds = context.bounds or BatchBounds.of_machine()
        store = context.store or PartitionedStore.whole(context.graph)
        self.costs = context.costs or CostCounter(store.wire)
        self._writer = FrameWriter(context)
        self._seeder = NodeSeeder(context, seed_type)
        self._features: FeatureSource = StoredPlaces() if context.deferred else store
        self._walker = Walker(schema, store, path, p=p, q=q)
        self._seed_type = seed_type
        self._types = [seed_type, *(schema.neighbor_type(each) for each in path)]
        self._ids = context.graph.node_ids(self._types[period])
        self._period, self._walks_per_seed, self._top_k = period, walks_per_seed, top_k

    @property
    def scratch_bytes(self) -> int:
        return self._writer.scratch_bytes

    def sample(self, request: BatchRequest) -> Sampled:
        """Walk; the nodes are then known, their features not yet gathered.

        ``BatchTooLarge`` for walks of more nodes than the bounds allow.
        """
        count = len(request) * self._walks_per_seed
        if count * len(self._types) > self.bounds.edges or count > MAX_TREES:
            raise self.bounds.too_many_edges(len(request))
        self.bounds.check_draws(count * self._walker.draws_per_walk, len(request))
        entries = request.inputs[SEED]
        with self.costs.sampling():
            seeds = self._seeder.seeds(request, self.bounds)
            walks = self._walker.walk(np.repeat(entries, self._walks_per_seed), seeds.key)
            if self._top_k is None:
                nodes, arrays = self._visited(entries, walks)
            else:
                nodes, arrays = self._most_visited(entries, walks, self._top_k)
            subgraph = Subgraph(nodes=nodes)
            number = self._writer.node_types.index(self._seed_type)
            drawn = DrawnSubgraph(self._writer, subgraph, number, entries)
            seeds = replace(seeds, arrays={**seeds.arrays, **arrays})
            sampled = self._writer.sampled(drawn, request, seeds, self._features, self.costs)
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled

    def _visited(
        self, seeds: Int64Array, walks: Int64Array
    ) -> tuple[dict[NodeType, Int64Array], dict[str, Array]]:
        """Return the nodes of each type, seeds first, then others in the order of the rows; and the walks."""
        nodes = {}
        local = np.empty(walks.shape, np.int32)
        for node_type in dict.fromkeys(self._types):
            columns = [column for column, each in enumerate(self._types) if each == node_type]
            visits = walks if len(columns) == len(self._types) else walks[:, columns]
            first = seeds if node_type == self._seed_type else seeds[:0]
            nodes[node_type], places = relabel(first, visits.reshape(-1))
            local[:, columns] = places.reshape(visits.shape)
        return nodes, {WALKS: local.reshape(-1)}

    def _most_visited(
        self, seeds: Int64Array, walks: Int64Array, top_k: int
    ) -> tuple[dict[NodeType, Int64Array], dict[str, Array]]:
        """Return the nodes of each type, and the arrays of visits."""
        node_type = self._types[self._period]
        distinct, places = relabel(seeds[:0], seeds)
        owners = np.repeat(places, self._walks_per_seed)
        visits = np.ascontiguousarray(walks[:, self._period :: self._period]).reshape(-1)
        owner, node, share = most_visited(owners, len(distinct), visits, self._ids, top_k)
        nodes = {self._seed_type: distinct}
        nodes[node_type], local = relabel(nodes.get(node_type, seeds[:0]), node)
        return nodes, dict(zip(VISITS, (owner, local, share), strict=True))
