"""Custom sampler: runs a user's class or function over the verbs of a ``NeighborStore``.

It returns the subgraph of a batch of nodes, or the negatives of a batch of links.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gigl_loader import native
from gigl_loader.errors import SamplingError
from gigl_loader.sampling.costs import BatchBounds
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled
from gigl_loader.sampling.partitioned import FrontierRequest, PartitionedStore
from gigl_loader.sampling.request import SEED
from gigl_loader.sampling.seeds import NodeSeeder
from gigl_loader.sampling.store import NO_BOUND, SLOT_BITS, DrawRule, NeighborRequest, Neighbors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from gigl_loader.arrays import Float64Array, Int64Array
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.plan import SamplerContext
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.shared import SharedTensors

_MAX_PURPOSE = 1 << 32


@dataclass(frozen=True, slots=True, eq=False)
class SeedBatch:
    """The seeds of one batch, and the key of its draws."""

    seeds: Int64Array
    """Positions [B] of the plan's seed type; may repeat."""
    key: int
    """A function of run seed, epoch, and places and node ids of the seeds: equal for every partitioning."""

    def uniform(self, purpose: int, count: int) -> Float64Array:
        """Return ``count`` numbers in [0, 1): a function of the batch and ``purpose`` (below 2**32)."""
        if not 0 <= purpose < _MAX_PURPOSE:
            raise ValueError(f"a purpose lies in [0, 2**32), got {purpose}")
        out = np.empty(count)
        native.uniforms(native.batch_key(self.key, purpose, np.empty(0, np.int64)), out)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class LinkBatch(SeedBatch):
    """The links of one batch, and the key of its draws. Its ``seeds`` are the sources of the links."""

    destinations: Int64Array
    """Positions [B] of the destination type."""
    times: Int64Array | None = None
    """Of the links [B], where the loader samples in time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledEdges:
    """Edges of one type in a :class:`Subgraph`, in any order."""

    neighbors: npt.NDArray[Any]
    """Local index of each edge's neighbour in ``nodes`` of its type [E]."""
    targets: npt.NDArray[Any]
    """Local index of each edge's target [E]."""
    slots: Int64Array
    """As ``SamplingGraph.neighbors`` returned them [E]."""
    edge_ids: npt.NDArray[Any]
    """As ``SamplingGraph.neighbors`` returned them [E]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subgraph:
    """Subgraph that a user's sampler returns for a batch."""

    nodes: Mapping[NodeType, Int64Array]
    """Positions, each once. The seed type begins with the distinct seeds, in the order in which they first
    occur. A type that is left out has none."""
    edges: Mapping[EdgeType, SampledEdges] = field(default_factory=dict)
    """A type that is left out has none."""


class UserSampler(Protocol):
    """A user's class. It is made once per worker and called for one batch at a time.

    ``sample`` is a pure function of the graph and the batch: no state but ``graph.shared``, and no random
    numbers but :meth:`SeedBatch.uniform`. Otherwise resume and recovery give other batches.
    """

    def __init__(self, graph: SamplingGraph, **arguments: Any) -> None: ...

    def sample(self, batch: Any) -> Any:
        """Return the :class:`Subgraph` of a :class:`SeedBatch`.

        Of a :class:`LinkBatch`: the positions of its negatives' destinations, int64 [B, K], -1 for none.
        """


class SamplingGraph:
    """The graph as a user's sampler sees it, wherever its partitions lie.

    Nodes are named by position. Positions depend on the partitioning: choose among nodes by :meth:`node_ids`
    or in the order in which they were found, never by position.
    """

    def __init__(self, graph: Graph, store: PartitionedStore, shared: SharedTensors | None = None) -> None:
        self.shared = shared
        """``shared_tensors`` of the loader: ``shared.array(name)`` in NumPy, under ``shared.lock()``."""
        self._graph = graph
        self._store = store
        self.max_edges = NO_BOUND
        """One call of ``neighbors`` draws no more: the bound of a batch."""

    @property
    def schema(self) -> GraphSchema:
        """Types, sizes and columns."""
        return self._graph.schema

    def node_ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        """Return the node ids at positions [N]."""
        ids = self._graph.node_ids(node_type)
        return positions if ids is None else ids[positions]

    def positions(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array:
        """Return the positions of node ids [N]. ``ValueError`` has the first ten unknown ids."""
        return self._graph.positions(node_type, np.ascontiguousarray(node_ids, np.int64))

    def neighbors(
        self,
        edge_type: EdgeType,
        targets: Int64Array,
        *,
        batch: SeedBatch,
        fanout: int = -1,
        hop: int = 0,
        replace: bool = False,
        weight: str | None = None,
    ) -> Neighbors:
        """Draw neighbours of ``targets`` (positions, int64 [T]) over one edge type.

        ``fanout`` -1 takes all, in ascending order of node id. Draws of one target at one ``hop`` (below 254)
        are the same each time: give another ``hop`` to draw again. ``weight`` is a declared weight column.
        The result has all arrays; the neighbours of target i are the next ``counts[i]`` entries.
        """
        native.check_stop()
        target_type = self.schema.target_type(edge_type)
        if weight is not None and weight not in self.schema.edges[edge_type].weights:
            raise ValueError(f"edges of type {edge_type} have no declared weights {weight!r}")
        if not 0 <= hop < 254:
            raise ValueError(f"a hop lies in [0, 254), got {hop}")
        if fanout < -1:
            raise ValueError(f"a fanout is -1, 0 or positive, got {fanout}")
        targets = np.ascontiguousarray(targets, np.int64)
        shares = native.split_by_owner(targets, self._store.bounds(target_type))
        request = FrontierRequest(
            [owned for owned, _ in shares],
            partial(
                NeighborRequest,
                edge_type=edge_type,
                key=batch.key,
                hop=hop,
                rule=DrawRule(fanout=fanout, replace=replace, weight=weight),
                with_edge_ids=True,
                with_slots=True,
                max_edges=self.max_edges,
            ),
        )
        [answers] = self._store.sample([request])
        return in_order([places for _, places in shares], answers, len(targets))


def in_order(places: list[Int64Array], answers: list[Neighbors], count: int) -> Neighbors:
    """Return the neighbours in the order of the targets: partition p has the targets at ``places[p]``."""
    counts = np.zeros(count, np.int32)
    for place, answer in zip(places, answers, strict=True):
        counts[place] = answer.counts
    starts = np.cumsum(counts, dtype=np.int64) - counts
    total = int(counts.sum(dtype=np.int64))
    positions, edge_ids, slots = (np.empty(total, np.int64) for _ in range(3))
    for part, (place, answer) in enumerate(zip(places, answers, strict=True)):
        taken = answer.counts.astype(np.int64)
        within = np.arange(len(answer.positions)) - np.repeat(np.cumsum(taken) - taken, taken)
        at = np.repeat(starts[place], taken) + within
        positions[at] = answer.positions
        assert answer.edge_ids is not None
        assert answer.slots is not None
        edge_ids[at] = answer.edge_ids
        slots[at] = answer.slots + (part << SLOT_BITS)
    return Neighbors(counts, positions, edge_ids, slots)


class CustomSampler:
    """Samples one batch after the other with a user's class. Not thread-safe."""

    def __init__(
        self,
        context: SamplerContext,
        seed_type: NodeType,
        open_user: Callable[[SamplingGraph], Callable[[SeedBatch], Any]],
    ) -> None:
        """``open_user`` returns the user's function. Without a store, all partitions are read here."""
        self.bounds = context.bounds or BatchBounds.of_machine()
        store = context.store or PartitionedStore.whole(context.graph)
        self._writer = FrameWriter(context, store)
        self.costs = self._writer.costs
        self._seeder = NodeSeeder(context, seed_type)
        self._graph = SamplingGraph(context.graph, store, context.shared)
        self._sample = open_user(self._graph)

    @property
    def scratch_bytes(self) -> int:
        return self._writer.scratch_bytes

    def sample(self, request: BatchRequest) -> Sampled:
        """Sample the batch; its nodes and edges are then known, its features not yet gathered.

        ``SamplingError`` names a rule that the user's subgraph breaks, ``BatchTooLarge`` a batch beyond the
        bounds; what the user's class raises passes.
        """
        positions = request.inputs[SEED]
        self._graph.max_edges = self.bounds.edges
        with self.costs.sampling():
            seeds = self._seeder.seeds(request, self.bounds)
            try:
                subgraph = self._sample(SeedBatch(positions, seeds.key))
            except native.BatchTooLarge:
                raise self.bounds.too_many_edges(len(request)) from None
            drawn = DrawnSubgraph(self._writer, subgraph, seeds.groups)
            if drawn.num_edges > self.bounds.edges:
                raise self.bounds.too_many_edges(len(request))
            sampled = self._writer.sampled(drawn, request, seeds)
        self.bounds.check_frame(sampled.layout.nbytes, len(request))
        return sampled


class CustomNegatives:
    """Destinations of negatives that a user's class or function finds. Not thread-safe."""

    def __init__(
        self,
        context: SamplerContext,
        destination: NodeType,
        open_user: Callable[[SamplingGraph], Callable[[LinkBatch], Any]],
    ) -> None:
        """As those of :class:`CustomSampler`. ``destination`` is the node type of the negatives."""
        store = context.store or PartitionedStore.whole(context.graph)
        self._graph = SamplingGraph(context.graph, store, context.shared)
        self._sample = open_user(self._graph)
        self._count = context.graph.schema.nodes[destination].count

    def find(self, batch: LinkBatch, bounds: BatchBounds) -> Int64Array:
        """Return positions, int64 [B, K], -1 for none. ``SamplingError`` names a rule that they break."""
        self._graph.max_edges = bounds.edges
        count = len(batch.seeds)
        try:
            found = np.asarray(self._sample(batch))
        except native.BatchTooLarge:
            raise bounds.too_many_edges(count) from None
        if found.dtype.kind not in "iu" or found.ndim != 2 or len(found) != count:
            raise SamplingError(
                f"custom negatives of {count} links are int64 [{count}, K], got {found.dtype} "
                f"{list(found.shape)}"
            )
        if found.size and not (found.min() >= -1 and found.max() < self._count):
            raise SamplingError(f"custom negatives lie outside of {self._count} nodes: they are positions")
        return np.ascontiguousarray(found, np.int64)


class DrawnSubgraph:
    """A subgraph of Python code as a batch that can be written. All rules are checked when it is made."""

    def __init__(
        self, writer: FrameWriter, subgraph: Subgraph, seeds: Sequence[tuple[int, Int64Array]]
    ) -> None:
        """``seeds``: number of the node type, and positions, group after group."""
        if not isinstance(subgraph, Subgraph):
            raise SamplingError(f"a custom sampler returns a Subgraph, got a {type(subgraph).__name__}")
        self._ids = writer.node_ids
        unknown = [
            *subgraph.nodes.keys() - set(writer.node_types),
            *subgraph.edges.keys() - set(writer.edge_types),
        ]
        if unknown:
            raise SamplingError(f"the subgraph has {unknown[0]!r}, which is no type of the plan")
        self._nodes = [
            _positions(subgraph.nodes.get(kind), kind, count)
            for kind, count in zip(writer.node_types, writer.num_nodes, strict=True)
        ]
        self._num_seeds = [0] * len(self._nodes)
        locals_: list[Int64Array] = []
        for kind, group in seeds:
            known = self._nodes[kind][: self._num_seeds[kind]]
            distinct, places = native.relabel(known, group)
            if not np.array_equal(self._nodes[kind][: len(distinct)], distinct):
                raise SamplingError("the subgraph does not begin with the distinct seeds, in their order")
            self._num_seeds[kind] = len(distinct)
            locals_.append(places.astype(np.int64))
        self._seed_locals = np.concatenate(locals_)
        self._edges = [
            _grouped(subgraph.edges.get(kind), kind, len(self._nodes[neighbor]), len(self._nodes[target]))
            for kind, neighbor, target in zip(
                writer.edge_types, writer.neighbor_types, writer.target_types, strict=True
            )
        ]

    @property
    def num_edges(self) -> int:
        return sum(len(edges.rows) for edges in self._edges)

    def seed_locals(self) -> Int64Array:
        return self._seed_locals

    def exclude(self, edge_type: int, targets: Int64Array, neighbors: Int64Array) -> None:
        self._edges[edge_type] = self._edges[edge_type].without(targets, neighbors)

    def both_directions(self, edge_type: int, reverse_type: int) -> npt.NDArray[np.int32]:
        raise NotImplementedError("a custom sampler returns the edges that it wants")

    def nodes_per_hop(self, node_type: int) -> list[int]:
        seeds = self._num_seeds[node_type]
        return [seeds, len(self._nodes[node_type]) - seeds]

    def edges_per_hop(self, edge_type: int) -> list[int]:
        return [len(self._edges[edge_type].rows)]

    def num_targets(self, edge_type: int) -> int:
        return len(self._edges[edge_type].colptr) - 1

    def write_trees(self, node_type: int, out: npt.NDArray[np.int32]) -> None:
        out[:] = 0  # A subgraph of a user's has no trees.

    def write_positions(self, node_type: int, out: Int64Array) -> None:
        out[:] = self._nodes[node_type]

    def write_node_ids(self, node_type: int, out: Int64Array) -> None:
        ids, positions = self._ids[node_type], self._nodes[node_type]
        out[:] = positions if ids is None else ids[positions]

    def write_rows(self, edge_type: int, out: npt.NDArray[np.int32]) -> None:
        out[:] = self._edges[edge_type].rows

    def write_colptr(self, edge_type: int, out: Int64Array) -> None:
        out[:] = self._edges[edge_type].colptr

    def write_edge_ids(self, edge_type: int, out: Int64Array) -> None:
        out[:] = self._edges[edge_type].edge_ids

    def write_slots(self, edge_type: int, out: Int64Array) -> None:
        out[:] = self._edges[edge_type].slots


@dataclass(frozen=True, slots=True, eq=False)
class _Grouped:
    """Edges grouped by target, as frames have them."""

    rows: npt.NDArray[np.int32]
    colptr: Int64Array
    slots: Int64Array
    edge_ids: Int64Array

    def without(self, targets: Int64Array, neighbors: Int64Array) -> _Grouped:
        """Return the edges that join none of these pairs of local nodes."""
        counts = np.diff(self.colptr)
        owners = np.repeat(np.arange(len(counts)), counts)
        kept = ~np.isin(owners << 32 | self.rows, targets << 32 | neighbors)
        colptr = np.concatenate([[0], np.cumsum(np.bincount(owners[kept], minlength=len(counts)))])
        return _Grouped(self.rows[kept], colptr.astype(np.int64), self.slots[kept], self.edge_ids[kept])


def _positions(given: Any, kind: NodeType, count: int) -> Int64Array:
    positions = np.empty(0, np.int64) if given is None else _integers(given, f"nodes of {kind!r}")
    if len(positions) and not (positions.min() >= 0 and positions.max() < count):
        raise SamplingError(f"the subgraph has nodes of {kind!r} outside of {count}")
    if len(np.unique(positions)) != len(positions):
        raise SamplingError(f"the subgraph has a node of {kind!r} twice")
    return positions


def _grouped(given: SampledEdges | None, kind: EdgeType, num_neighbors: int, num_targets: int) -> _Grouped:
    empty = np.empty(0, np.int64)
    if given is None:
        return _Grouped(empty.astype(np.int32), np.zeros(num_targets + 1, np.int64), empty, empty)
    arrays = [
        _integers(getattr(given, name), f"{name} of {kind}")
        for name in ("neighbors", "targets", "slots", "edge_ids")
    ]
    if len({len(each) for each in arrays}) > 1:
        raise SamplingError(f"the arrays of the edges {kind} of the subgraph differ in length")
    neighbors, targets, slots, edge_ids = arrays
    for name, indices, count in (("neighbors", neighbors, num_neighbors), ("targets", targets, num_targets)):
        if len(indices) and not (indices.min() >= 0 and indices.max() < count):
            raise SamplingError(f"{name} of {kind} of the subgraph lie outside of its {count} nodes")
    order = np.argsort(targets, kind="stable")
    colptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=num_targets))]).astype(np.int64)
    return _Grouped(neighbors[order].astype(np.int32), colptr, slots[order], edge_ids[order])


def _integers(given: Any, what: str) -> Int64Array:
    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise SamplingError(
            f"{what} of the subgraph are {array.dtype} {list(array.shape)}, not int64 of one dimension"
        )
    return np.ascontiguousarray(array, np.int64)
