"""Samplers of k-hop neighbourhoods: in one native pass over a local graph, or hop by hop over partitions.

Both give the same bytes: draws are addressed, so any host may make them, and the replies of partitions are
merged in the order of the frontier.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import edge_type_address
from gigl_loader.native import BatchBuilder, NeighborSampler
from gigl_loader.native import BatchTooLarge as NativeTooLarge
from gigl_loader.sampling.costs import BatchBounds
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled
from gigl_loader.sampling.local_store import open_adjacency
from gigl_loader.sampling.partitioned import FrontierRequest
from gigl_loader.sampling.request import SEEDS_WITHOUT_PAST
from gigl_loader.sampling.store import InducedRequest, NeighborRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.sampling.frame_writer import DrawnBatch
    from gigl_loader.sampling.khop import KHop
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.plan import PlanSampler, SamplerContext
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.seeds import BatchSeeds, Seeder
    from gigl_loader.sampling.store import DrawRule, Neighbors


class LocalSampler:
    """Samples one batch after the other, in scratch memory that it keeps.

    A batch depends only on the graph, the plan, the epoch and the seeds: not on earlier batches, nor
    on how the graph is partitioned. Not thread-safe.
    """

    def __init__(self, context: SamplerContext, hops: KHop, seeder: Seeder) -> None:
        """The graph has the adjacency of all partitions; the context's store, if any, the features."""
        graph = context.graph
        self.bounds = context.bounds or BatchBounds.of_machine()
        self._seeder = seeder
        self._hops = hops
        self._run_seed = context.plan.run_seed
        self._writer = writer = FrameWriter(context, None)
        self._past = _Past(graph.schema, writer, hops)
        self.costs = writer.costs
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
            **_arguments(writer, hops),
            addresses=[edge_type_address(edge_type) for edge_type in writer.edge_types],
            rules=[
                [hops.rule(graph.schema, edge_type, hop).native for hop in range(hops.num_hops)]
                for edge_type in writer.edge_types
            ],
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
                key, number = _place(request, seeds.key, self._hops, self._run_seed)
                self._native.sample(
                    seeds.groups, key, number=number, max_edges=self.bounds.edges, **_tree_times(seeds)
                )
                seeds = self._past.counted(self._native, seeds, len(request))
                sampled = self._writer.sampled(self._native, request, seeds)
            except NativeTooLarge:
                raise self.bounds.too_many_edges(len(request)) from None
            except RuntimeError as error:
                raise FormatError(str(error)) from None
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled


class DistributedSampler:
    """Samples one batch after the other. Not thread-safe, but several may share a ``PartitionedStore``."""

    def __init__(self, context: SamplerContext, hops: KHop, seeder: Seeder, store: PartitionedStore) -> None:
        """Of the context's graph, only schema and node ids are used."""
        self.bounds = context.bounds or BatchBounds.of_machine()
        self._store = store
        self._seeder = seeder
        self._writer = writer = FrameWriter(context, store)
        self.costs = writer.costs
        self._hops = hops
        self._run_seed = context.plan.run_seed
        self._schema = context.graph.schema
        self._past = _Past(self._schema, writer, hops)
        self._builder = BatchBuilder(
            **_arguments(writer, hops), bounds=[store.bounds(node_type) for node_type in writer.node_types]
        )

    @property
    def scratch_bytes(self) -> int:
        """Memory that is kept for the next batch."""
        return self._builder.scratch_bytes + self._writer.scratch_bytes

    def sample(self, request: BatchRequest) -> Sampled:
        """Sample the batch; its nodes and edges are then known, its columns not yet gathered.

        The result is valid until the next call. ``FormatError`` if the graph turns out damaged,
        ``StorageUnavailable`` if the owner of nodes does not answer, ``BatchTooLarge`` for a batch beyond
        the bounds.
        """
        with self.costs.sampling():
            seeds = self._seeder.seeds(request, self.bounds)
            times = seeds.times.last if seeds.times is not None and self._hops.monotone else None
            self._builder.begin(seeds.groups, max_edges=self.bounds.edges, tree_times=times)
            key, number = _place(request, seeds.key, self._hops, self._run_seed)
            try:
                for hop in range(self._hops.num_hops):
                    self._expand(hop, seeds, key, number)
                if self._hops.induced:
                    self._induce()
                seeds = self._past.counted(self._builder, seeds, len(request))
                sampled = self._writer.sampled(self._builder, request, seeds)
            except NativeTooLarge:
                raise self.bounds.too_many_edges(len(request)) from None
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled

    def _expand(self, hop: int, seeds: BatchSeeds, key: int, number: int) -> None:
        """Add one hop. The frontier is fixed, so the requests of all edge types are sent at once."""
        writer, hops = self._writer, self._hops
        rules = [hops.rule(self._schema, edge_type, hop) for edge_type in writer.edge_types]
        kept = not hops.induced  # Of its drawn edges, an induced batch keeps the nodes alone.
        self._add(
            {
                index: partial(
                    NeighborRequest,
                    edge_type=writer.edge_types[index],
                    key=key,
                    number=number,
                    hop=hop,
                    rule=rule,
                    with_edge_ids=kept and hops.with_edge,
                    with_slots=kept and writer.with_slots,
                    max_edges=self._builder.room,
                    disjoint=hops.disjoint,
                    **_tree_times(seeds, rule),
                )
                for index, rule in enumerate(rules)
                if rule.fanout != 0
            },
            monotone={index for index, rule in enumerate(rules) if rule.monotone},
        )
        self._builder.end_hop()

    def _induce(self) -> None:
        """Replace the drawn edges by all edges among the nodes, of the types of which some are drawn."""
        writer, hops = self._writer, self._hops
        self._builder.begin_induced()
        wanted = [index for index, each in enumerate(writer.edge_types) if hops.draws(each)]
        nodes = {each: self._nodes(each) for each in {writer.neighbor_types[i] for i in wanted}}
        self._add(
            {
                index: partial(
                    InducedRequest,
                    edge_type=writer.edge_types[index],
                    nodes=nodes[writer.neighbor_types[index]],
                    with_edge_ids=hops.with_edge,
                    with_slots=writer.with_slots,
                    weight=hops.weight(self._schema, writer.edge_types[index]),
                    max_edges=self._builder.room,
                )
                for index in wanted
            }
        )

    def _add(
        self,
        requests: Mapping[int, Callable[..., NeighborRequest | InducedRequest]],
        monotone: Collection[int] = (),
    ) -> None:
        """Send the requests for the frontier, by number of the edge type, and add the edges of each type.

        ``monotone``: numbers of the edge types whose draws are bounded by their targets.
        """
        types = self._writer.target_types
        shares = {each: self._builder.split(each) for each in {types[index] for index in requests}}
        bounds = {each: self._builder.split_bounds(each) for each in {types[i] for i in monotone} & {*shares}}
        found = self._store.sample(
            [
                FrontierRequest(
                    shares[types[index]], request, bounds[types[index]] if index in monotone else None
                )
                for index, request in requests.items()
            ]
        )
        by_type = dict(zip(requests, found, strict=True))
        for index in range(len(types)):
            self._append(index, by_type.get(index), monotone=index in monotone)

    def _nodes(self, node_type: int) -> Int64Array:
        """Return the positions of the nodes of the batch, ascending."""
        positions = np.empty(sum(self._builder.nodes_per_hop(node_type)), np.int64)
        self._builder.write_positions(node_type, positions)
        positions.sort()
        return positions

    def _append(self, index: int, answers: Sequence[Neighbors] | None, *, monotone: bool) -> None:
        if answers is None:
            return self._builder.skip(index)
        parts = [(each.counts, each.positions, each.edge_ids, each.slots) for each in answers]
        times = [each.times for each in answers if each.times is not None] if monotone else []
        try:
            return self._builder.append(index, parts, times, strictly_earlier=self._hops.strictly_earlier)
        except RuntimeError as error:
            edge_type = self._writer.edge_types[index]
            raise FormatError(f"edge type {edge_type}: {error}") from None


class _Past:
    """Counts the entries of batches in which no edge is early enough for any entry."""

    def __init__(self, schema: GraphSchema, writer: FrameWriter, hops: KHop) -> None:
        self._timed = [
            index
            for index, each in enumerate(writer.edge_types)
            if hops.time(schema, each) is not None and hops.draws(each)
        ]

    def counted(self, batch: DrawnBatch, seeds: BatchSeeds, num_entries: int) -> BatchSeeds:
        """Return the seeds of a drawn batch with the counter."""
        if seeds.times is None:
            return seeds
        has_none = any(batch.num_targets(each) for each in self._timed) and not any(
            sum(batch.edges_per_hop(each)) for each in self._timed
        )
        return replace(seeds, counters={**seeds.counters, SEEDS_WITHOUT_PAST: num_entries * has_none})


def _place(request: BatchRequest, key: int, hops: KHop, run_seed: int) -> tuple[int, int]:
    """Return key and number under which the neighbours of a batch are drawn. ``key``: of the batch."""
    if hops.batch_dependency == 1:
        return key, 0
    return request.epoch_key(run_seed), request.number


def _tree_times(seeds: BatchSeeds, rule: DrawRule | None = None) -> dict[str, Any]:
    """Return the times of trees as a draw by ``rule`` (of ``None``: by any rule) takes them."""
    if seeds.times is None or (rule is not None and rule.time is None):
        return {}
    return {"tree_times": seeds.times.last, "tree_starts": seeds.times.first}


def open_sampler(context: SamplerContext, hops: KHop, seeder: Seeder) -> PlanSampler:
    """Return the sampler of a plan that samples hop by hop: in one pass where the adjacency lies here."""
    if context.store is None or context.store.only_features_are_remote:
        return LocalSampler(context, hops, seeder)
    return DistributedSampler(context, hops, seeder, context.store)


def _arguments(writer: FrameWriter, hops: KHop) -> dict[str, Any]:
    """Return the arguments that both native samplers have."""
    return {
        "target_types": writer.target_types,
        "neighbor_types": writer.neighbor_types,
        "node_ids": writer.node_ids,
        "num_nodes": writer.num_nodes,
        "with_edge_ids": hops.with_edge,
        "with_slots": writer.with_slots,
        "disjoint": hops.disjoint,
        "induced": hops.induced,
    }
