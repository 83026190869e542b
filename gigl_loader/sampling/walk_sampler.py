"""Random walks, wherever the adjacency lists lie, and the sampler of the nodes that they visit."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gigl_loader.native import check_stop, most_visited, philox, philox_words, relabel, split_by_owner
from gigl_loader.sampling.costs import BatchBounds
from gigl_loader.sampling.custom import DrawnSubgraph, Subgraph
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled
from gigl_loader.sampling.partitioned import FrontierRequest, PartitionedStore
from gigl_loader.sampling.request import SEED
from gigl_loader.sampling.seeds import NodeSeeder, in_trees
from gigl_loader.sampling.store import MAX_TREES, DrawRule, NeighborRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Array, BoolArray, Float64Array, Int64Array
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
    from gigl_loader.sampling.plan import SamplerContext
    from gigl_loader.sampling.request import BatchRequest

MAX_STEPS = 253
"""Hops that the address of a draw has."""

_TRIES = 8
"""Candidates of a biased step that are drawn together."""

_MAX_ROUNDS = 16

_MAX_WALKS = 1 << 15
"""Walks that are continued together: a step of so many, with all their candidates, takes some 10 ms."""


class Walker:
    """Walks along adjacency lists. Not thread-safe, but several may share a ``PartitionedStore``."""

    def __init__(
        self,
        schema: GraphSchema,
        store: PartitionedStore,
        path: Sequence[EdgeType],
        *,
        p: float = 1.0,
        q: float = 1.0,
    ) -> None:
        """Step i follows lists of ``path[i]``. ``p``, ``q``: the return and in-out parameters of node2vec.

        With ``p`` or ``q`` other than 1, all steps are of one type.
        """
        self._schema = schema
        self._store = store
        self._path = path
        self._bias = None if p == q == 1 else _Bias(1 / p, 1 / q)

    @property
    def draws_per_walk(self) -> int:
        """Candidates that a walk is expected to draw, where the graph is worst for its ``p`` and ``q``."""
        steps = len(self._path)
        return steps if self._bias is None else 1 + math.ceil((steps - 1) * self._bias.expected_draws)

    def walk(self, starts: Int64Array, key: int) -> Int64Array:
        """Return positions, int64 [W, steps + 1]: a walk from each of ``starts``, -1 after a dead end.

        Walk w draws under ``tree_key(key, w)``.
        """
        walks = np.full((len(starts), len(self._path) + 1), -1, np.int64)
        walks[:, 0] = starts
        for first in range(0, len(starts), _MAX_WALKS):
            self._advance(walks[first : first + _MAX_WALKS], key, first)
        return walks

    def _advance(self, walks: Int64Array, key: int, first: int) -> None:
        """Make the steps of some walks, of which ``first`` is the number of the first one."""
        for number, edge_type in enumerate(self._path):
            check_stop()
            alive = np.flatnonzero(walks[:, number] >= 0)
            step = _Step(edge_type, number, key, alive + first, walks[alive, number])
            walks[alive, number + 1] = (
                self._candidates(step, 1)[:, 0]
                if self._bias is None or number == 0
                else self._biased(step, walks[alive, number - 1], self._bias)
            )

    def _candidates(self, step: _Step, count: int) -> Int64Array:
        """Return ``count`` drawn neighbours for each walk, int64 [N, count], -1 for nodes without any."""
        shares = split_by_owner(step.here, self._store.bounds(self._schema.target_type(step.edge_type)))
        request = FrontierRequest(
            [in_trees(owned, step.walks[places], disjoint=True) for owned, places in shares],
            partial(
                NeighborRequest,
                edge_type=step.edge_type,
                key=step.key,
                hop=step.number,
                rule=DrawRule(fanout=count, replace=True),
                with_edge_ids=False,
                with_slots=False,
                disjoint=True,
            ),
        )
        [answers] = self._store.sample([request])
        found = np.full((len(step.here), count), -1, np.int64)
        for (_, places), answer in zip(shares, answers, strict=True):
            found[places[answer.counts > 0]] = answer.positions.reshape(-1, count)
        return found

    def _biased(self, step: _Step, before: Int64Array, bias: _Bias) -> Int64Array:
        """Return the next node of each walk, by rejection: the last candidate where all are rejected."""
        following = np.full(len(before), -1, np.int64)
        pending = np.arange(len(before))
        for attempt in range(_MAX_ROUNDS):
            check_stop()
            key = step.key if attempt == 0 else philox(step.key, attempt, 0xFE04 << 48)[0]
            tried = step.among(pending)._replace(key=key)
            drawn = self._candidates(tried, _TRIES)
            previous = np.repeat(before[pending], _TRIES).reshape(drawn.shape)
            known = drawn >= 0
            joined = np.zeros(drawn.shape, np.bool_)
            joined[known] = self._store.contains(step.edge_type, previous[known], drawn[known])
            accepted = bias.accepts(drawn == previous, joined, _uniforms(tried))
            found = accepted.any(axis=1)
            taken = np.where(found, accepted.argmax(axis=1), _TRIES - 1)
            following[pending] = drawn[np.arange(len(pending)), taken]
            pending = pending[known[:, 0] & ~found]
            if not len(pending):
                break
        return following


class _Step(NamedTuple):
    """One step of some walks, and where its draws are found."""

    edge_type: EdgeType
    number: int
    key: int
    walks: Int64Array
    """Numbers of the walks [N]."""
    here: Int64Array
    """Positions at which they are [N]."""

    def among(self, which: Int64Array) -> _Step:
        """Return the step of these walks alone."""
        return self._replace(walks=self.walks[which], here=self.here[which])


class _Bias(NamedTuple):
    """Weights of the next node of a node2vec walk (Grover and Leskovec 2016), that of a neighbour being 1."""

    back: float
    """Of the node before."""
    away: float
    """Of nodes that the node before is not joined with."""

    @property
    def expected_draws(self) -> float:
        """Candidates of a step, where all neighbours have the lowest weight: rounds of ``_TRIES``."""
        weights = (self.back, 1.0, self.away)
        none_accepted = (1 - min(weights) / max(weights)) ** _TRIES
        return _TRIES * sum(none_accepted**number for number in range(_MAX_ROUNDS))

    def accepts(self, back: BoolArray, joined: BoolArray, uniforms: Float64Array) -> BoolArray:
        """Return which candidates are taken."""
        weights = np.where(back, self.back, np.where(joined, 1.0, self.away))
        taken: BoolArray = uniforms * max(self.back, 1.0, self.away) < weights
        return taken


def _uniforms(step: _Step) -> Float64Array:
    """Return numbers in [0, 1), float64 [N, tries], for the candidates of a step."""
    blocks = _TRIES // 2
    low = np.repeat(step.walks, blocks)
    place = np.arange(blocks, dtype=np.uint64) | np.uint64(0xFE03 << 48 | step.number << 8)
    words = np.empty((2, len(low)), np.uint64)
    philox_words(step.key, low, np.tile(place, len(step.walks)).view(np.int64), words[0], words[1])
    upper: Float64Array = (words.T.reshape(-1, _TRIES) >> np.uint64(11)).astype(np.float64)
    return upper * 2.0**-53


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
        self._writer = FrameWriter(context, store)
        self.costs = self._writer.costs
        self._seeder = NodeSeeder(context, seed_type)
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
            sampled = self._writer.sampled(drawn, request, seeds)
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled

    def _visited(
        self, seeds: Int64Array, walks: Int64Array
    ) -> tuple[dict[NodeType, Int64Array], dict[str, Array]]:
        """Return the nodes of each type, seeds first, then in the order of the rows; and the walks."""
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
