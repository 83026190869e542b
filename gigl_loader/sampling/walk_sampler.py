"""Sampler of random walks: the nodes that they visit, and the walks or the visits themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

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
        entries = request.inputs[SEED]
        with self.costs.sampling():
            seeds = self._seeder.seeds(request, self.bounds)
            walks = self._walker.walk(np.repeat(entries, self._walks_per_seed), seeds.key)
            distinct = entries[np.sort(np.unique(entries, return_index=True)[1])]
            if self._top_k is None:
                nodes = self._visited(distinct, walks)
                arrays: dict[str, Array] = {WALKS: self._local(nodes, walks)}
            else:
                nodes, arrays = self._most_visited(distinct, walks, self._top_k)
            subgraph = Subgraph(nodes=nodes)
            number = self._writer.node_types.index(self._seed_type)
            drawn = DrawnSubgraph(self._writer, subgraph, number, entries)
            seeds = replace(seeds, arrays={**seeds.arrays, **arrays})
            sampled = self._writer.sampled(drawn, request, seeds, self._features, self.costs)
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled

    def _visited(self, seeds: Int64Array, walks: Int64Array) -> dict[NodeType, Int64Array]:
        """Return the nodes of each type: seeds, then others in the order in which the rows have them."""
        found = {}
        for node_type in dict.fromkeys(self._types):
            columns = [column for column, each in enumerate(self._types) if each == node_type]
            visits = walks[:, columns].reshape(-1)
            first = seeds if node_type == self._seed_type else seeds[:0]
            found[node_type] = _in_first_order(np.concatenate([first, visits[visits >= 0]]))
        return found

    def _local(self, nodes: dict[NodeType, Int64Array], walks: Int64Array) -> Array:
        local = np.full(walks.shape, -1, np.int32)
        for node_type, positions in nodes.items():
            order = np.argsort(positions)
            ascending = positions[order]
            for column in (number for number, each in enumerate(self._types) if each == node_type):
                known = walks[:, column] >= 0
                local[known, column] = order[np.searchsorted(ascending, walks[known, column])]
        return local.reshape(-1)

    def _most_visited(
        self, seeds: Int64Array, walks: Int64Array, top_k: int
    ) -> tuple[dict[NodeType, Int64Array], dict[str, Array]]:
        """Return the nodes of each type, and the arrays of visits."""
        node_type = self._types[self._period]
        visits = walks[:, self._period :: self._period]
        places = {seed: place for place, seed in enumerate(seeds.tolist())}
        owners = np.array([places[start] for start in walks[:, 0].tolist()], np.int64)
        of_seed = np.repeat(owners, visits.shape[1])
        which = visits.reshape(-1) >= 0
        pairs, counts = np.unique(
            np.stack([of_seed[which], visits.reshape(-1)[which]]), axis=1, return_counts=True
        )
        ids = pairs[1] if self._ids is None else self._ids[pairs[1]]
        order = np.lexsort((ids, -counts, pairs[0]))
        owner, node, count = pairs[0][order], pairs[1][order], counts[order]
        begins = np.searchsorted(owner, np.arange(len(seeds)))
        kept = np.arange(len(owner)) - begins[owner] < top_k
        totals = np.bincount(owner, weights=count, minlength=len(seeds))
        share = (count / totals[owner])[kept].astype(np.float32)
        owner, node = owner[kept], node[kept]
        nodes = {self._seed_type: seeds}
        nodes[node_type] = _in_first_order(np.concatenate([nodes.get(node_type, seeds[:0]), node]))
        order = np.argsort(nodes[node_type])
        local = order[np.searchsorted(nodes[node_type][order], node)]
        arrays = zip(VISITS, (owner.astype(np.int32), local.astype(np.int32), share), strict=True)
        return nodes, dict(arrays)


def _in_first_order(positions: Int64Array) -> Int64Array:
    """Return each position once, in the order in which they first occur."""
    return positions[np.sort(np.unique(positions, return_index=True)[1])]
