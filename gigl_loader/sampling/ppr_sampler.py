"""Sampler of personalised PageRank: pushes over the whole graph, or round by round over its partitions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import edge_type_address, type_name
from gigl_loader.native import BatchTooLarge as NativeTooLarge
from gigl_loader.native import PPRBuilder, split_by_owner
from gigl_loader.native import PPRSampler as NativeSampler
from gigl_loader.sampling.costs import BatchBounds
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled
from gigl_loader.sampling.local_store import open_adjacency
from gigl_loader.sampling.partitioned import FrontierRequest
from gigl_loader.sampling.request import SEED
from gigl_loader.sampling.seeds import NodeSeeder
from gigl_loader.sampling.store import DrawRule, NeighborRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.graph.graph import Graph
    from gigl_loader.native import PPRBatch, PPRRule
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.plan import SamplerContext
    from gigl_loader.sampling.request import BatchRequest

_KEY = 0
"""Of the draws that cut long lists: the same ones in every batch, epoch and run."""


class PPRArrays(NamedTuple):
    """Names of the arrays of the neighbours of one node type in a frame."""

    seed: str
    """Local indices."""
    node: str
    score: str
    hop: str


def ppr_arrays(node_type: NodeType) -> PPRArrays:
    """Return the names of the arrays of the neighbours of a type."""
    return PPRArrays(*(f"ppr/{type_name(node_type)}/{each}" for each in PPRArrays._fields))


class PPRSampler:
    """Samples one batch after the other. Not thread-safe."""

    def __init__(
        self, context: SamplerContext, seed_type: NodeType, rule: PPRRule, reached: Sequence[NodeType]
    ) -> None:
        """Neighbours of the types ``reached`` are returned. Without a store in the context, all partitions
        are read here."""
        graph, store = context.graph, context.store
        self.bounds = context.bounds or BatchBounds.of_machine()
        self._writer = FrameWriter(context, store)
        self.costs = self._writer.costs
        self._seeder = NodeSeeder(context, seed_type)
        self._reached = [(each, self._writer.node_types.index(each)) for each in reached]
        self._pushes: _Pushes = (
            _WholeGraph(graph, self._writer, seed_type, rule)
            if store is None
            else _Partitions(graph, self._writer, seed_type, rule, store)
        )

    @property
    def scratch_bytes(self) -> int:
        """Memory that is kept for the next batch."""
        return self._pushes.batch.scratch_bytes + self._writer.scratch_bytes

    def sample(self, request: BatchRequest) -> Sampled:
        """Push; the nodes are then known, their features not yet gathered.

        The result is valid until the next call. ``FormatError`` if the graph turns out damaged,
        ``StorageUnavailable`` if the owner of nodes does not answer, ``BatchTooLarge`` for pushes that pass
        more edges than the bounds allow.
        """
        with self.costs.sampling():
            seeds = self._seeder.seeds(request, self.bounds)
            try:
                self._pushes.run(request.inputs[SEED], self.bounds.edges)
            except NativeTooLarge:
                raise self.bounds.too_many_edges(
                    len(request), advice="fewer seeds a batch or a larger eps"
                ) from None
            except RuntimeError as error:
                raise FormatError(str(error)) from None
            batch = self._pushes.batch
            arrays: dict[str, Array] = {}
            for node_type, number in self._reached:
                arrays |= zip(ppr_arrays(node_type), batch.neighbors(number), strict=True)
            seeds = replace(seeds, arrays={**seeds.arrays, **arrays})
            sampled = self._writer.sampled(batch, request, seeds)
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled


class _Pushes(Protocol):
    """The pushes of a batch, wherever adjacency lists lie."""

    @property
    def batch(self) -> PPRBatch:
        """The batch of the latest run."""

    def run(self, seeds: Int64Array, max_edges: int) -> None:
        """Push from these positions. Raises what kernels and stores raise."""


class _WholeGraph:
    """Pushes over a graph that lies wholly on this host, in one native pass."""

    def __init__(self, graph: Graph, writer: FrameWriter, seed_type: NodeType, rule: PPRRule) -> None:
        schema = graph.schema
        self.batch = NativeSampler(
            adjacencies=[
                open_adjacency(graph, each, range(schema.num_partitions), weight=None, time=None)
                for each in schema.edges
            ],
            target_types=[writer.node_types.index(schema.target_type(each)) for each in schema.edges],
            neighbor_types=[writer.node_types.index(schema.neighbor_type(each)) for each in schema.edges],
            addresses=[edge_type_address(edge_type) for edge_type in schema.edges],
            node_ids=writer.node_ids,
            num_nodes=writer.num_nodes,
            seed_type=writer.node_types.index(seed_type),
            rule=rule,
        )

    def run(self, seeds: Int64Array, max_edges: int) -> None:
        self.batch.sample(seeds, max_edges=max_edges)


class _Partitions:
    """Pushes over partitions: each round requests the lists that all seeds need next from their owners."""

    def __init__(
        self,
        graph: Graph,
        writer: FrameWriter,
        seed_type: NodeType,
        rule: PPRRule,
        store: PartitionedStore,
    ) -> None:
        schema = graph.schema
        self._store = store
        self._node_types = writer.node_types
        self._edge_types = {
            node_type: [each for each in schema.edges if schema.target_type(each) == node_type]
            for node_type in schema.nodes
        }
        self.batch = PPRBuilder(
            target_types=[writer.node_types.index(schema.target_type(each)) for each in schema.edges],
            neighbor_types=[writer.node_types.index(schema.neighbor_type(each)) for each in schema.edges],
            node_ids=writer.node_ids,
            num_nodes=writer.num_nodes,
            seed_type=writer.node_types.index(seed_type),
            rule=rule,
        )

    def run(self, seeds: Int64Array, max_edges: int) -> None:
        self.batch.begin(seeds, max_edges=max_edges)
        while wanted := self.batch.advance():
            self._fetch(wanted)

    def _fetch(self, wanted: Sequence[tuple[int, int, Int64Array]]) -> None:
        """Ask for all lists at once: for each, every edge type of the nodes."""
        shares = []
        requests = []
        for number, fanout, positions in wanted:
            node_type = self._node_types[number]
            owned = [each for each, _ in split_by_owner(positions, self._store.bounds(node_type))]
            shares.append(owned)
            requests += [
                FrontierRequest(
                    owned,
                    partial(
                        NeighborRequest,
                        edge_type=edge_type,
                        key=_KEY,
                        hop=0,
                        rule=DrawRule(fanout=fanout),
                        with_edge_ids=False,
                        with_slots=False,
                        max_edges=self.batch.room,
                    ),
                )
                for edge_type in self._edge_types[node_type]
            ]
        answers = iter(self._store.sample(requests))
        for (number, fanout, _), owned in zip(wanted, shares, strict=True):
            found = [next(answers) for _ in self._edge_types[self._node_types[number]]]
            for part, targets in enumerate(owned):
                if len(targets):
                    lists = [(each[part].counts, each[part].positions) for each in found]
                    self.batch.append(number, fanout, targets, lists)
