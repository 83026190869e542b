"""Sampler of personalised PageRank: pushes over the whole graph, or round by round over its partitions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import edge_type_address, type_name
from gigl_loader.native import BatchTooLarge as NativeTooLarge
from gigl_loader.native import PPRBuilder, split_by_owner
from gigl_loader.native import PPRSampler as NativeSampler
from gigl_loader.sampling.costs import BatchBounds
from gigl_loader.sampling.custom import DrawnSubgraph, SampledEdges, Subgraph, in_order
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled
from gigl_loader.sampling.local_store import open_adjacency
from gigl_loader.sampling.partitioned import FrontierRequest, PartitionedStore
from gigl_loader.sampling.store import SLOT_BITS, DrawRule, GatherRequest, InducedRequest, NeighborRequest
from gigl_loader.tensors import STORAGE_DTYPES, as_float64

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.arrays import Array, Float64Array, Int64Array
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.native import PPRBatch, PPRRule
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.plan import SamplerContext
    from gigl_loader.sampling.plans.ppr import PPR
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.seeds import BatchSeeds, Seeder
    from gigl_loader.sampling.store import Neighbors

_KEY = 0
"""Of the draws that cut long lists: the same ones in every batch, epoch and run."""

_Excluded = list[tuple[int, "Int64Array", "Int64Array"]]
"""Number of the edge type, positions of targets, and positions of neighbours to which they pass nothing."""


class PPRStates(NamedTuple):
    """States of the pushes of all channels: nodes of one type at one step, with edge types of their own."""

    states: list[tuple[NodeType, bool]]
    """Node type, and whether its nodes are neighbours. By channel, step and node type."""
    edges: list[tuple[int, int, EdgeType]]
    """State, next state and edge type: those of a state in the order of the schema."""
    starts: list[dict[NodeType, int]]
    """By channel: the state of seeds of each type."""

    @classmethod
    def of(
        cls,
        schema: GraphSchema,
        seed_types: Sequence[NodeType],
        paths: Sequence[tuple[Sequence[Sequence[EdgeType]], int | None]],
    ) -> PPRStates:
        """``paths``: by channel, the edge types of each step, and the step after the last one."""
        found = cls([], [], [])
        order = {kind: number for number, kind in enumerate(schema.nodes)}
        for steps, repeat_from in paths:
            end = len(steps) if repeat_from is None else repeat_from
            reached = dict.fromkeys((0, kind) for kind in seed_types)
            links: list[tuple[tuple[int, NodeType], tuple[int, NodeType], EdgeType]] = []
            for step, kind in (pending := list(reached)):
                for each in schema.edges if step < len(steps) else ():
                    if each in steps[step] and schema.target_type(each) == kind:
                        after = (step + 1 if step + 1 < len(steps) else end, schema.neighbor_type(each))
                        links.append(((step, kind), after, each))
                        if after not in reached:
                            reached[after] = None
                            pending.append(after)
            ranked = sorted(reached, key=lambda each: (each[0], order[each[1]]))
            number = {each: len(found.states) + place for place, each in enumerate(ranked)}
            found.states.extend((kind, step in (0, end)) for step, kind in ranked)
            found.edges.extend((number[here], number[there], each) for here, there, each in links)
            found.starts.append({kind: number[0, kind] for kind in seed_types})
        return found


class PPRArrays(NamedTuple):
    """Names of the arrays of the neighbours of one node type, of seeds of one type, in a frame."""

    seed: str
    """Local indices."""
    node: str
    scores: tuple[str, ...]
    """By channel."""
    hops: tuple[str, ...]
    """By channel: -1 where it does not have the node."""


def ppr_arrays(seed_type: NodeType, node_type: NodeType, num_channels: int) -> PPRArrays:
    """Return the names of the arrays of the neighbours of a type."""
    prefix = f"ppr/{type_name(seed_type)}/{type_name(node_type)}"
    by_channel = [
        [f"{prefix}/{each}/{number}" for number in range(num_channels)] for each in ("score", "hop")
    ]
    return PPRArrays(f"{prefix}/seed", f"{prefix}/node", *map(tuple, by_channel))


class PPRSampler:
    """Samples one batch after the other. Not thread-safe."""

    def __init__(
        self, context: SamplerContext, ppr: PPR, seed_types: Sequence[NodeType], seeder: Seeder
    ) -> None:
        """Without a store in the context, all partitions are read here."""
        graph, store = context.graph, context.store
        if store is None and (ppr.weight_attr is not None or ppr.include_sampled_edges):
            store = PartitionedStore.whole(graph)
        self.bounds = context.bounds or BatchBounds.of_machine()
        self._ppr, self._schema, self._store = ppr, graph.schema, store
        self._writer = FrameWriter(context, store)
        self.costs = self._writer.costs
        self._seeder = seeder
        number = self._writer.node_types.index
        channels = max(len(ppr.channels), 1)
        self._kept = [
            (number(seed), number(each), ppr_arrays(seed, each, channels))
            for seed in seed_types
            for each in ppr.reached_types(graph.schema, seed)
        ]
        states = ppr.states(graph.schema, seed_types)
        rule = ppr.rule(graph.schema, states)
        nodes = (self._writer.node_ids, self._writer.num_nodes)
        self._pushes: _Pushes
        lists_here = context.store is None or context.store.only_features_are_remote
        if lists_here and ppr.weight_attr is None:
            self._pushes = _WholeGraph(graph, *nodes, rule)
        else:
            weights = {each: ppr.weight(graph.schema, each) for each in graph.schema.edges}
            batch = PPRBuilder(node_ids=nodes[0], num_nodes=nodes[1], rule=rule)
            self._pushes = _Partitions(self._known_store, states, graph.schema, batch, weights)

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
                self._pushes.run(seeds.groups, seeds.excluded_positions(), self.bounds.edges)
                sampled = self._sampled(request, seeds)
            except NativeTooLarge:
                raise self.bounds.too_many_edges(
                    len(request), advice="fewer seeds a batch or a larger eps"
                ) from None
            except RuntimeError as error:
                raise FormatError(str(error)) from None
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled

    def _sampled(self, request: BatchRequest, seeds: BatchSeeds) -> Sampled:
        batch = self._pushes.batch
        arrays: dict[str, Array] = {}
        for seed_type, node_type, names in self._kept:
            seed, node, scores, hops = batch.neighbors(seed_type, node_type)
            arrays |= {names.seed: seed, names.node: node}
            arrays |= zip(names.scores, scores, strict=True)
            arrays |= zip(names.hops, hops, strict=True)
        seeds = replace(seeds, arrays={**seeds.arrays, **arrays})
        if not self._ppr.include_sampled_edges:
            return self._writer.sampled(batch, request, replace(seeds, excluded=()))
        nodes = {kind: _nodes(batch, number) for number, kind in enumerate(self._writer.node_types)}
        subgraph = Subgraph(nodes=nodes, edges=dict(self._edges_among(nodes)))
        drawn = DrawnSubgraph(self._writer, subgraph, seeds.groups)
        if drawn.num_edges > self.bounds.edges:
            raise self.bounds.too_many_edges(len(request))
        return self._writer.sampled(drawn, request, seeds)

    def _edges_among(self, nodes: Mapping[NodeType, Int64Array]) -> Iterator[tuple[EdgeType, SampledEdges]]:
        """Yield all edges of each type among nodes (positions), in the order of the targets' lists."""
        schema, store = self._schema, self._known_store
        ascending = {kind: np.argsort(positions) for kind, positions in nodes.items()}
        shares, requests = [], []
        for edge_type in schema.edges:
            neighbors = nodes[schema.neighbor_type(edge_type)]
            target_type = schema.target_type(edge_type)
            shares.append(split_by_owner(nodes[target_type], store.bounds(target_type)))
            request = partial(
                InducedRequest,
                edge_type=edge_type,
                nodes=neighbors[ascending[schema.neighbor_type(edge_type)]],
                with_edge_ids=True,
                with_slots=True,
                weight=self._ppr.weight(schema, edge_type),
                max_edges=self.bounds.edges,
            )
            requests.append(FrontierRequest([owned for owned, _ in shares[-1]], request))
        for edge_type, share, answers in zip(schema.edges, shares, store.sample(requests), strict=True):
            neighbor_type, count = schema.neighbor_type(edge_type), len(nodes[schema.target_type(edge_type)])
            found = in_order([places for _, places in share], answers, count)
            order = ascending[neighbor_type]
            places = np.searchsorted(nodes[neighbor_type], found.positions, sorter=order)
            assert found.slots is not None
            assert found.edge_ids is not None
            yield (
                edge_type,
                SampledEdges(
                    neighbors=order[places],
                    targets=np.repeat(np.arange(count), found.counts),
                    slots=found.slots,
                    edge_ids=found.edge_ids,
                ),
            )

    @property
    def _known_store(self) -> PartitionedStore:
        assert self._store is not None
        return self._store


def _nodes(batch: PPRBatch, node_type: int) -> Int64Array:
    positions = np.empty(sum(batch.nodes_per_hop(node_type)), np.int64)
    batch.write_positions(node_type, positions)
    return positions


class _Pushes(Protocol):
    """The pushes of a batch, wherever adjacency lists lie."""

    @property
    def batch(self) -> PPRBatch:
        """The batch of the latest run."""

    def run(self, seeds: Sequence[tuple[int, Int64Array]], excluded: _Excluded, max_edges: int) -> None:
        """Push from these node types and positions. Raises what kernels and stores raise."""


class _WholeGraph:
    """Pushes over a graph that lies wholly on this host, in one native pass."""

    def __init__(
        self, graph: Graph, node_ids: Sequence[Int64Array | None], num_nodes: Sequence[int], rule: PPRRule
    ) -> None:
        schema = graph.schema
        self.batch = NativeSampler(
            adjacencies=[
                open_adjacency(graph, each, range(schema.num_partitions), weight=None, time=None)
                for each in schema.edges
            ],
            addresses=[edge_type_address(edge_type) for edge_type in schema.edges],
            node_ids=node_ids,
            num_nodes=num_nodes,
            rule=rule,
        )

    def run(self, seeds: Sequence[tuple[int, Int64Array]], excluded: _Excluded, max_edges: int) -> None:
        self.batch.sample(seeds, excluded=excluded, max_edges=max_edges)


class _Partitions:
    """Pushes over partitions: each round requests the lists that all seeds need next from their owners."""

    def __init__(
        self,
        store: PartitionedStore,
        states: PPRStates,
        schema: GraphSchema,
        batch: PPRBuilder,
        weights: Mapping[EdgeType, str | None],
    ) -> None:
        """``weights``: the weight column of each edge type; ``None`` where all edges count alike."""
        self._schema = schema
        self._store = store
        self._types = [kind for kind, _ in states.states]
        self._edge_types: list[list[EdgeType]] = [[] for _ in states.states]
        for state, _, edge_type in states.edges:
            self._edge_types[state].append(edge_type)
        self._weight_of = weights
        self.batch = batch

    def run(self, seeds: Sequence[tuple[int, Int64Array]], excluded: _Excluded, max_edges: int) -> None:
        self.batch.begin(seeds, excluded=excluded, max_edges=max_edges)
        while wanted := self.batch.advance():
            self._fetch(wanted)

    def _fetch(self, wanted: Sequence[tuple[int, int, Int64Array]]) -> None:
        """Request all lists at once: for each, every edge type of its state."""
        shares = []
        requests = []
        for state, fanout, positions in wanted:
            owned = [each for each, _ in split_by_owner(positions, self._store.bounds(self._types[state]))]
            shares.append(owned)
            requests += [
                FrontierRequest(
                    owned,
                    partial(
                        NeighborRequest,
                        edge_type=edge_type,
                        key=_KEY,
                        hop=0,
                        rule=DrawRule(fanout=fanout, weight=self._weight_of[edge_type]),
                        with_edge_ids=False,
                        with_slots=self._weight_of[edge_type] is not None,
                        max_edges=self.batch.room,
                    ),
                )
                for edge_type in self._edge_types[state]
            ]
        found = self._store.sample(requests)
        weights = self._weights(
            [edge_type for state, _, _ in wanted for edge_type in self._edge_types[state]], found
        )
        answers = iter(zip(found, weights, strict=True))
        for (state, fanout, _), owned in zip(wanted, shares, strict=True):
            of_state = [next(answers) for _ in self._edge_types[state]]
            for part, targets in enumerate(owned):
                if len(targets):
                    lists = [
                        (each[part].counts, each[part].positions, None if weight is None else weight[part])
                        for each, weight in of_state
                    ]
                    self.batch.append(state, fanout, targets, lists)

    def _weights(
        self, edge_types: Sequence[EdgeType], found: Sequence[Sequence[Neighbors]]
    ) -> list[list[Float64Array] | None]:
        """Return the weights of the edges in each answer, by partition; ``None`` for types without them."""
        wants: dict[int, GatherRequest] = {}
        for number, (edge_type, answers) in enumerate(zip(edge_types, found, strict=True)):
            name = self._weight_of[edge_type]
            if name is not None:
                slots = [_slots(each) + (part << SLOT_BITS) for part, each in enumerate(answers)]
                column = self._schema.edges[edge_type].columns[name]
                rows = np.concatenate(slots)
                out = np.empty((len(rows), column.row_bytes), np.uint8)
                wants[number] = GatherRequest(
                    kind=edge_type, columns=(name,), rows=rows, distinct=True, out=[out]
                )
        self._store.gather(list(wants.values()))
        weights: list[list[Float64Array] | None] = [None] * len(edge_types)
        for number, want in wants.items():
            column = self._schema.edges[edge_types[number]].columns[want.columns[0]]
            values = as_float64(want.out[0].reshape(-1).view(STORAGE_DTYPES[column.dtype]), column.dtype)
            ends = np.cumsum([len(each.positions) for each in found[number]])
            weights[number] = np.split(values, ends[:-1])
        return weights


def _slots(answer: Neighbors) -> Int64Array:
    assert answer.slots is not None
    return answer.slots
