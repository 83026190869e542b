"""Writer of frames: lays out a sampled batch and writes it in place, its features gathered or deferred.

In place of deferred features of a type, a frame has one array that says where they lie: ``node/T/position``,
and ``edge/E/slot`` in the terms of a partitioned store (partition and place, see ``SLOT_BITS``). The receiver
lays out the complete frame and fetches the features from their owners. The result has the bytes of a frame
that was written whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gigl_loader.arrays import Array, Bytes, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.native import gather
from gigl_loader.sampling.costs import CostCounter
from gigl_loader.sampling.frame_schema import FrameCounts
from gigl_loader.sampling.store import SLOT_BITS
from gigl_loader.tensors import as_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from gigl_loader.channel.frame import Frame
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.frame_schema import FrameSchema, TypeArrays
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.plan import BatchPlan, SamplerContext
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.seeds import BatchSeeds
    from gigl_loader.sampling.store import FeatureSource, GatherRequest
    from gigl_loader.tensors import Layout


class DrawnBatch(Protocol):
    """Nodes and edges of a batch, by number of node or edge type. ``native.Batch`` is one."""

    def seed_locals(self) -> Int64Array:
        """Return the local index of each seed, int64 [S]."""

    def exclude(self, edge_type: int, targets: Int64Array, neighbors: Int64Array) -> None:
        """Remove the edges from local node ``neighbors[i]`` to ``targets[i]``, in all trees."""

    def both_directions(self, edge_type: int, reverse_type: int) -> npt.NDArray[np.int32]:
        """Return which edges of a type, and of its reverse the other way round, are there at last, int32 [L].

        Called where subgraphs are bidirectional, after ``exclude``.
        """

    def nodes_per_hop(self, node_type: int) -> list[int]: ...
    def edges_per_hop(self, edge_type: int) -> list[int]: ...
    def num_targets(self, edge_type: int) -> int:
        """``len(colptr) - 1``."""

    def write_positions(self, node_type: int, out: Int64Array) -> None: ...
    def write_node_ids(self, node_type: int, out: Int64Array) -> None: ...
    def write_trees(self, node_type: int, out: npt.NDArray[np.int32]) -> None:
        """Write the number of the tree of each node. Called where trees are disjoint."""

    def write_rows(self, edge_type: int, out: npt.NDArray[np.int32]) -> None: ...
    def write_colptr(self, edge_type: int, out: Int64Array) -> None: ...
    def write_edge_ids(self, edge_type: int, out: Int64Array) -> None: ...
    def write_slots(self, edge_type: int, out: Int64Array) -> None: ...


class FrameWriter:
    """Lays out and writes the frames of a plan. Used by one sampler: not thread-safe."""

    def __init__(self, context: SamplerContext, store: PartitionedStore | None) -> None:
        """``store`` has the features. ``None``: slots count through all partitions of the context's graph.

        The graph then has the features, or the context's store.
        """
        graph, schema = context.graph, context.graph.schema
        self.costs = context.costs or (CostCounter() if store is None else CostCounter(store.wire))
        self._features: FeatureSource
        if store is not None:
            self._features = StoredPlaces() if context.deferred else store
        elif context.deferred:
            self._features = LocalPlaces(graph, context.plan.columns)
        elif context.store is not None:
            self._features = StoredFeatures(graph, context.plan.columns, context.store)
        else:
            self._features = LocalFeatures(graph, context.plan.columns)
        self._frame = context.frame
        self.node_types: list[NodeType] = list(schema.nodes)
        self.edge_types: list[EdgeType] = [
            each for each in schema.edges if each in {edges.kind for edges in self._frame.edges}
        ]
        self.node_ids = [graph.node_ids(node_type) for node_type in self.node_types]
        number = {node_type: index for index, node_type in enumerate(self.node_types)}
        self.target_types = [number[schema.target_type(each)] for each in self.edge_types]
        self.neighbor_types = [number[schema.neighbor_type(each)] for each in self.edge_types]
        self.num_nodes = [nodes.count for nodes in schema.nodes.values()]
        self._scratch = [np.empty(0, np.int64) for _ in [*self._frame.nodes, *self._frame.edges]]

    @property
    def with_slots(self) -> bool:
        """Whether the places of edges are needed, for their features."""
        return any(edges.gathered for edges in self._frame.edges)

    @property
    def scratch_bytes(self) -> int:
        return sum(each.nbytes for each in self._scratch)

    def sampled(self, batch: DrawnBatch, request: BatchRequest, seeds: BatchSeeds) -> Sampled:
        """Return ``batch`` as something that can be written, valid for as long as ``batch`` is.

        Edges that the seeds exclude are removed from it.
        """
        nodes, edges = self._frame.nodes, self._frame.edges
        arrays = seeds.arrays
        if seeds.indices or seeds.excluded:
            locals_ = batch.seed_locals()
            arrays = seeds.frame_arrays(locals_)
            for each in seeds.excluded:
                batch.exclude(each.edge_type, locals_[each.targets], locals_[each.neighbors])
        both = [each for each in self._frame.computed if each.edges]
        if both:
            number = {each.name: index for index, each in enumerate(edges)}
            pairs = {each.name: [number[name] for name in each.edges] for each in both}
            arrays = {**arrays, **{name: batch.both_directions(*pair) for name, pair in pairs.items()}}
        counts = FrameCounts(
            epoch=request.epoch,
            batch=request.batch,
            num_entries=len(request),
            num_nodes={each.name: batch.nodes_per_hop(index) for index, each in enumerate(nodes)},
            num_edges={each.name: self._edge_counts(batch, index) for index, each in enumerate(edges)},
            num_targets={each.name: batch.num_targets(index) for index, each in enumerate(edges)},
            lengths={each.name: len(arrays[each.name]) for each in self._frame.computed},
            counters=seeds.counters,
        )
        return Sampled(writer=self, batch=batch, arrays=arrays, layout=self._frame.layout(counts))

    def write(self, sampled: Sampled, buffer: Bytes) -> None:
        """Write the frame of a batch, and have the features filled."""
        batch, layout = sampled.batch, sampled.layout
        buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
        for array in (*self._frame.inputs, *self._frame.computed):
            layout.view(buffer, array.name)[:] = sampled.arrays[array.name]
        for index, nodes in enumerate(self._frame.nodes):
            batch.write_node_ids(index, layout.view(buffer, f"{nodes.prefix}/n_id"))
            if self._frame.disjoint:
                batch.write_trees(index, layout.view(buffer, f"{nodes.prefix}/tree"))
        for index, edges in enumerate(self._frame.edges):
            batch.write_rows(index, layout.view(buffer, f"{edges.prefix}/rows"))
            batch.write_colptr(index, layout.view(buffer, f"{edges.prefix}/colptr"))
            if edges.with_ids:
                batch.write_edge_ids(index, layout.view(buffer, f"{edges.prefix}/e_id"))
        _gather(list(self._gather_requests(batch, layout, buffer)), self._features)

    def _edge_counts(self, batch: DrawnBatch, edge_type: int) -> list[int]:
        per_hop = batch.edges_per_hop(edge_type)
        return per_hop if self._frame.edges_by_hop else [sum(per_hop)]

    def _gather_requests(self, batch: DrawnBatch, layout: Layout, buffer: Bytes) -> Iterator[GatherRequest]:
        for index, nodes in enumerate(self._frame.nodes):
            if nodes.gathered:
                positions = self._borrow(index, sum(batch.nodes_per_hop(index)))
                batch.write_positions(index, positions)
                yield nodes.gather_request(positions, layout, buffer, distinct=not self._frame.disjoint)
        for index, edges in enumerate(self._frame.edges):
            if edges.gathered:
                slots = self._borrow(len(self._frame.nodes) + index, sum(batch.edges_per_hop(index)))
                batch.write_slots(index, slots)
                yield edges.gather_request(slots, layout, buffer, distinct=self._frame.distinct_edges)

    def _borrow(self, index: int, count: int) -> Int64Array:
        if len(self._scratch[index]) < count:
            self._scratch[index] = np.empty(count + count // 2, np.int64)
        return self._scratch[index][:count]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """A batch whose nodes and edges are drawn: its size is known, and it can be written anywhere.

    Valid until its sampler begins another.
    """

    writer: FrameWriter
    batch: DrawnBatch
    arrays: Mapping[str, Array]
    """Arrays of the frame that belong to the seeds, by name."""
    layout: Layout

    def write(self, buffer: Bytes) -> None:
        """Write the frame to the start of ``buffer`` (uint8, at least ``layout.nbytes`` long).

        The gather into ``buffer`` is the only copy of the features.
        """
        with self.writer.costs.gathering():
            self.writer.write(self, buffer)


class LocalFeatures:
    """The columns of a graph that lies wholly on this host. Slots of edges count through all partitions."""

    def __init__(self, graph: Graph, columns: ColumnPlan) -> None:
        schema, parts = graph.schema, range(graph.schema.num_partitions)
        self._stored: dict[tuple[NodeType | EdgeType, str], list[Bytes]] = {}
        """Of each column: a matrix of bytes per partition."""
        self._bounds: dict[NodeType | EdgeType, Int64Array] = {}
        """The number of the first row of each partition, and the end of the last."""
        for node_type, names in columns.nodes.items():
            self._bounds[node_type] = graph.bounds(node_type)
            for name in names:
                row_bytes = schema.nodes[node_type].columns[name].row_bytes
                rows = [as_rows(graph.node_column(node_type, name, part), row_bytes) for part in parts]
                self._stored[node_type, name] = rows
        for edge_type, names in columns.edges.items():
            self._bounds[edge_type] = slot_bounds(graph, edge_type)
            for name in names:
                row_bytes = schema.edges[edge_type].columns[name].row_bytes
                rows = [as_rows(graph.edge_column(edge_type, name, part), row_bytes) for part in parts]
                self._stored[edge_type, name] = rows

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        for want in wants:
            if want.columns:
                columns = [self._stored[want.kind, name] for name in want.columns]
                gather(columns, self._bounds[want.kind], want.rows, want.out)


def slot_bounds(graph: Graph, edge_type: EdgeType) -> Int64Array:
    """Return the slot of each partition's first edge, int64 [P + 1], counted through all partitions."""
    counts = [len(graph.topology(edge_type, part)["indices"]) for part in range(graph.schema.num_partitions)]
    return np.cumsum([0, *counts], dtype=np.int64)


class StoredPlaces:
    """A ``FeatureSource`` that writes where features lie instead of the features."""

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        for want in wants:
            [out] = want.out
            out.reshape(-1).view(np.int64)[:] = want.rows


class StoredFeatures:
    """Features of a store, for slots that count through all partitions of a graph."""

    def __init__(self, graph: Graph, columns: ColumnPlan, store: FeatureSource) -> None:
        self._store = store
        self._bounds: dict[NodeType | EdgeType, Int64Array] = {
            edge_type: slot_bounds(graph, edge_type) for edge_type in columns.edges
        }

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        for want in wants:
            bounds = self._bounds.get(want.kind)
            if bounds is not None:
                owners = np.searchsorted(bounds, want.rows, side="right") - 1
                np.add(want.rows, (owners << SLOT_BITS) - bounds[owners], out=want.rows)
        self._store.gather(wants)


class LocalPlaces(StoredFeatures):
    """Places of the features of a graph that lies wholly on this host."""

    def __init__(self, graph: Graph, columns: ColumnPlan) -> None:
        super().__init__(graph, columns, StoredPlaces())


class Completion:
    """Completes the frames of a plan that came with deferred features. Thread-safe."""

    def __init__(self, schema: GraphSchema, plan: BatchPlan, *, values: bool = False) -> None:
        """``values``: complete frames have the values of quantised columns beside the codes."""
        self._schema = schema
        whole = plan.frame(schema)
        self._whole = whole.with_values() if values else whole
        self._deferred = self._whole.with_deferred_features()
        self._kept = list(_names(self._whole))

    def parse(self, buffer: Bytes) -> Frame:
        """Return the frame with deferred features in ``buffer``. ``FormatError`` names a broken rule."""
        frame = self._deferred.parse(buffer)
        for arrays, count in self._places():
            if arrays.deferred is not None and not frame.is_failure:
                _check_places(arrays.deferred.name, frame.array(arrays.deferred.name), count)
        return frame

    def layout(self, deferred: Frame) -> Layout:
        """Return the layout of the complete frame of one that ``parse`` returned."""
        return self._whole.layout(self._deferred.counts(deferred.layout))

    def places(self, deferred: Frame) -> dict[NodeType | EdgeType, Int64Array]:
        """Return the places of the features of a frame that ``parse`` returned, by type."""
        named = [(arrays.kind, arrays.deferred) for arrays, _ in self._places()]
        return {kind: deferred.array(each.name) for kind, each in named if each is not None}

    def write(self, deferred: Frame, layout: Layout, buffer: Bytes, features: FeatureSource) -> None:
        """Write the complete frame to the start of ``buffer``. Raises what ``features`` raises.

        ``features`` takes positions and slots as a partitioned store does.
        """
        buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
        for name in self._kept:
            np.copyto(layout.view(buffer, name), deferred.array(name))
        _gather(list(self._gather_requests(deferred, layout, buffer)), features)

    def _places(self) -> Iterator[tuple[TypeArrays, int]]:
        """Yield the arrays of each type, and the end of the places that its features have."""
        for nodes in self._deferred.nodes:
            yield nodes, self._schema.nodes[str(nodes.kind)].count
        for edges in self._deferred.edges:
            yield edges, self._schema.num_partitions << SLOT_BITS

    def _gather_requests(self, deferred: Frame, layout: Layout, buffer: Bytes) -> Iterator[GatherRequest]:
        frame, whole = self._deferred, self._whole
        types = (
            *zip(frame.nodes, whole.nodes, [not whole.disjoint] * len(whole.nodes), strict=True),
            *zip(frame.edges, whole.edges, [whole.distinct_edges] * len(whole.edges), strict=True),
        )
        for arrays, complete, distinct in types:
            if arrays.deferred is not None:
                places = deferred.array(arrays.deferred.name)
                yield complete.gather_request(places, layout, buffer, distinct=distinct)


def _gather(wants: Sequence[GatherRequest], features: FeatureSource) -> None:
    """Have columns written, and write the values of those that are quantised."""
    features.gather(wants)
    for want in wants:
        for codes, values in zip(want.out, want.values, strict=False):
            if values is not None:
                values.quantized.decode(codes, values.out)


def _names(frame: FrameSchema) -> Iterator[str]:
    """Yield the names of the arrays that both forms of a frame have."""
    yield from (each.name for each in (*frame.inputs, *frame.computed))
    for arrays in (*frame.nodes, *frame.edges):
        yield from (each.name for each in arrays.arrays if each.origin == "sampled")


def _check_places(name: str, places: Int64Array, count: int) -> None:
    # As unsigned numbers, negative places are larger than any other: one pass checks both bounds.
    if len(places) and places.view(np.uint64).max() >= count:
        raise FormatError(f"frame without features: {name!r} leaves the {count} that there are")
