"""Random walks, wherever the adjacency lists lie, and the sampler of the nodes that they visit."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gigl_loader.graph.schema import type_name
from gigl_loader.native import check_stop, most_visited, philox, philox_words, relabel, split_by_owner
from gigl_loader.sampling.costs import BatchBounds
from gigl_loader.sampling.custom import DrawnSubgraph, Subgraph
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled
from gigl_loader.sampling.partitioned import FrontierRequest, PartitionedStore
from gigl_loader.sampling.seeds import in_trees
from gigl_loader.sampling.store import MAX_TREES, DrawRule, NeighborRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Array, BoolArray, Float64Array, Int64Array
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
    from gigl_loader.sampling.plan import SamplerContext
    from gigl_loader.sampling.plans.walks import Walks
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.seeds import BatchSeeds, Seeder

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

    def walk(self, starts: Int64Array, key: int, number: int = 0) -> Int64Array:
        """Return positions, int64 [W, steps + 1]: a walk from each of ``starts``, -1 after a dead end.

        Walk w draws under ``tree_key(key, number + w)``.
        """
        walks = np.full((len(starts), len(self._path) + 1), -1, np.int64)
        walks[:, 0] = starts
        for first in range(0, len(starts), _MAX_WALKS):
            self._advance(walks[first : first + _MAX_WALKS], key, number + first)
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


def walk_array(seed_type: NodeType) -> str:
    """Return the name of the walks from seeds of a type in a frame: local nodes, -1 after a dead end."""
    return f"walks/{type_name(seed_type)}"


def visit_arrays(seed_type: NodeType) -> list[str]:
    """Return the names of the arrays of visits: local seed, local node, its share of the seed's visits."""
    return [f"visits/{type_name(seed_type)}/{each}" for each in ("seed", "node", "share")]


class WalkSampler:
    """Samples one batch after the other. Not thread-safe."""

    def __init__(self, context: SamplerContext, walks: Walks, seeder: Seeder, *, per_entry: bool) -> None:
        """Without a store in the context, all partitions are read here.

        ``per_entry``: seeds that repeat have walks of their own. Else each distinct seed has.
        """
        schema = context.graph.schema
        self.bounds = context.bounds or BatchBounds.of_machine()
        store = context.store or PartitionedStore.whole(context.graph)
        self._writer = FrameWriter(context, store)
        self.costs = self._writer.costs
        self._seeder, self._walks, self._per_entry = seeder, walks, per_entry
        self._walkers = [Walker(schema, store, each.steps, p=walks.p, q=walks.q) for each in walks.paths]
        self._types = [each.node_types(schema) for each in walks.paths]
        self._ids = [
            context.graph.node_ids(types[path.period])
            for types, path in zip(self._types, walks.paths, strict=True)
        ]
        self._numbers = {edge_type: number for number, edge_type in enumerate(schema.edges)}

    @property
    def scratch_bytes(self) -> int:
        return self._writer.scratch_bytes

    def sample(self, request: BatchRequest) -> Sampled:
        """Walk; the nodes are then known, their features not yet gathered.

        ``BatchTooLarge`` for walks of more nodes than the bounds allow.
        """
        with self.costs.sampling():
            seeds = self._seeder.seeds(request, self.bounds)
            entries: dict[NodeType, Int64Array] = {}
            for number, group in seeds.groups:
                kind = self._writer.node_types[number]
                entries[kind] = np.concatenate([entries[kind], group]) if kind in entries else group
            nodes = {kind: relabel(group[:0], group)[0] for kind, group in entries.items()}
            starts = [
                (entries if self._per_entry else nodes).get(path.seed_type, np.empty(0, np.int64))
                for path in self._walks.paths
            ]
            self._check(starts, len(request))
            walked = self._walked(starts, seeds)
            if self._walks.top_k is None:
                arrays = self._visited(nodes, walked)
            else:
                arrays = self._most_visited(nodes, starts, walked, self._walks.top_k)
            drawn = DrawnSubgraph(self._writer, Subgraph(nodes=nodes), seeds.groups)
            seeds = replace(seeds, arrays={**seeds.arrays, **arrays}, excluded=())
            sampled = self._writer.sampled(drawn, request, seeds)
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled

    def _check(self, starts: Sequence[Int64Array], num_entries: int) -> None:
        """Raise ``BatchTooLarge`` for walks beyond the bounds, before memory is taken."""
        counts = [len(each) * self._walks.walks_per_seed for each in starts]
        steps = sum(count * len(types) for count, types in zip(counts, self._types, strict=True))
        if steps > self.bounds.edges or sum(counts) > MAX_TREES:
            raise self.bounds.too_many_edges(num_entries)
        draws = zip(counts, self._walkers, strict=True)
        self.bounds.check_draws(sum(count * each.draws_per_walk for count, each in draws), num_entries)

    def _walked(self, starts: Sequence[Int64Array], seeds: BatchSeeds) -> list[Int64Array]:
        """Return the walks of each path, which are numbered through. An excluded edge ends its walk."""
        excluded = _joined_pairs(seeds)
        walked, number = [], 0
        for path, walker, group in zip(self._walks.paths, self._walkers, starts, strict=True):
            walks = walker.walk(np.repeat(group, self._walks.walks_per_seed), seeds.key, number)
            number += len(walks)
            for step, edge_type in enumerate(path.steps):
                pairs = excluded.get(self._numbers[edge_type])
                if pairs is not None:
                    walks[_are_pairs(walks[:, step], walks[:, step + 1], *pairs), step + 1 :] = -1
            walked.append(walks)
        return walked

    def _visited(self, nodes: dict[NodeType, Int64Array], walked: Sequence[Int64Array]) -> dict[str, Array]:
        """Add the nodes of each type to the seeds, in the order of the rows. Return the walks."""
        local = [np.empty(walks.shape, np.int32) for walks in walked]
        for node_type in dict.fromkeys(each for types in self._types for each in types):
            columns = [
                [place for place, each in enumerate(types) if each == node_type] for types in self._types
            ]
            visits = [walks[:, each].reshape(-1) for walks, each in zip(walked, columns, strict=True)]
            known = nodes.get(node_type, np.empty(0, np.int64))
            nodes[node_type], places = relabel(known, np.concatenate(visits))
            ends = np.cumsum([len(each) for each in visits])[:-1]
            for rows, own, part in zip(local, columns, np.split(places, ends), strict=True):
                rows[:, own] = part.reshape(len(rows), len(own))
        return {
            walk_array(path.seed_type): rows.reshape(-1)
            for path, rows in zip(self._walks.paths, local, strict=True)
        }

    def _most_visited(
        self,
        nodes: dict[NodeType, Int64Array],
        starts: Sequence[Int64Array],
        walked: Sequence[Int64Array],
        top_k: int,
    ) -> dict[str, Array]:
        """Add the most visited nodes of each type to the seeds. Return the arrays of visits."""
        arrays: dict[str, Array] = {}
        num_seeds = {kind: len(each) for kind, each in nodes.items()}
        for number, (path, walks) in enumerate(zip(self._walks.paths, walked, strict=True)):
            node_type = self._types[number][path.period]
            count = num_seeds.get(path.seed_type, 0)
            _, places = relabel(nodes.get(path.seed_type, walks[:0, 0])[:count], starts[number])
            owners = np.repeat(places, self._walks.walks_per_seed)
            visits = np.ascontiguousarray(walks[:, path.period :: path.period]).reshape(-1)
            owner, node, share = most_visited(owners, count, visits, self._ids[number], top_k)
            nodes[node_type], local = relabel(nodes.get(node_type, node[:0]), node)
            arrays |= zip(visit_arrays(path.seed_type), (owner, local, share), strict=True)
        return arrays


def _joined_pairs(seeds: BatchSeeds) -> dict[int, tuple[Int64Array, Int64Array]]:
    """Return the excluded pairs by number of their edge type: targets and neighbours."""
    found: dict[int, tuple[Int64Array, Int64Array]] = {}
    for number, targets, neighbors in seeds.excluded_positions():
        known = found.get(number, (targets[:0], neighbors[:0]))
        found[number] = (np.concatenate([known[0], targets]), np.concatenate([known[1], neighbors]))
    return found


def _are_pairs(here: Int64Array, there: Int64Array, targets: Int64Array, neighbors: Int64Array) -> BoolArray:
    """Return whether ``(here[i], there[i])`` is one of the pairs of targets and neighbours, bool [N]."""
    known, first = np.unique(targets, return_inverse=True)
    others, second = np.unique(neighbors, return_inverse=True)
    if not len(known):
        return np.zeros(len(here), np.bool_)
    place = np.searchsorted(known, here).clip(max=len(known) - 1)
    other = np.searchsorted(others, there).clip(max=len(others) - 1)
    codes = np.isin(place * len(others) + other, first * len(others) + second)
    return codes & (known[place] == here) & (others[other] == there)  # type: ignore[no-any-return]
