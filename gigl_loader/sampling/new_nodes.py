"""Nodes that the graph does not have: they come with a request, and are one more partition of its batch."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.ids import Directory, NodeTimes
from gigl_loader.graph.weights import running_sums
from gigl_loader.native import build_adjacency
from gigl_loader.resources import free_memory
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.strict_json import read_json
from gigl_loader.tensors import STORAGE_DTYPES, ArraySpec, Layout, as_float64

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.graph.schema import Column, EdgeType, GraphSchema, NodeSchema, NodeType
    from gigl_loader.sampling.costs import BatchBounds, CostCounter
    from gigl_loader.sampling.plan import PlanSampler, SampledBatch, SamplerContext
    from gigl_loader.sampling.request import BatchRequest

MAX_NEW_NODES = 1024
"""Of one type, in one request."""

_MAX_HEADER_BYTES = 256 << 10
_COUNTS = "counts"


class NewLists(NamedTuple):
    """Lists of new nodes, of one edge type."""

    degrees: Int64Array
    """Of each new node [k]."""
    neighbors: Int64Array
    """Positions [E], list after list. Those of new nodes follow those of the graph."""
    columns: Mapping[str, Array]
    """Columns of the edges, [E, ...] each, as they are stored."""


@dataclass(frozen=True, slots=True, eq=False)
class NewNodes:
    """New nodes by type. Those of a type have the positions behind the graph's, and the ids -1, -2, ..."""

    document: bytes
    """The same as :func:`new_nodes_document` returned it."""
    counts: Mapping[NodeType, int]
    columns: Mapping[NodeType, Mapping[str, Array]]
    """[k, ...] each, as they are stored."""
    lists: Mapping[EdgeType, NewLists]
    """By edge types whose lists belong to nodes of these types."""

    @property
    def nbytes(self) -> int:
        return len(self.document)

    @classmethod
    def read(cls, document: bytes, schema: GraphSchema) -> NewNodes:
        """Return the nodes of a document from outside. ``FormatError`` names the rule that is broken."""
        # Its own copy: views of it must be aligned.
        buffer = np.frombuffer(document, np.uint8).copy()
        layout = Layout.parse(buffer, what="new nodes", max_header=_MAX_HEADER_BYTES)
        left = {name: layout.view(buffer, name) for name in layout.specs}
        counts = _counts(layout.metadata, schema)

        def take(name: str, spec: ArraySpec) -> Array:
            if layout.specs.get(name) != spec:
                raise FormatError(f"new nodes: {name!r} is no {spec.dtype} {list(spec.shape)}")
            return left.pop(name)

        columns: dict[NodeType, dict[str, Array]] = {}
        for number, (node_type, nodes) in enumerate(schema.nodes.items()):
            held = [name for name in nodes.columns if f"n{number}/{name}" in left]
            columns[node_type] = {
                name: take(f"n{number}/{name}", nodes.columns[name].spec(counts[node_type])) for name in held
            }
        lists: dict[EdgeType, NewLists] = {}
        for number, (edge_type, edges) in enumerate(schema.edges.items()):
            if f"e{number}#degrees" not in left:
                continue
            degrees = take(f"e{number}#degrees", ArraySpec("I64", (counts[schema.target_type(edge_type)],)))
            if len(degrees) and not 0 <= degrees.min() <= degrees.max() <= len(buffer):
                raise FormatError(f"new nodes: degrees of {edge_type} from {degrees.min()}")
            total = int(degrees.sum())
            neighbors = take(f"e{number}#neighbors", ArraySpec("I64", (total,)))
            neighbor_type = schema.neighbor_type(edge_type)
            end = schema.nodes[neighbor_type].count + counts[neighbor_type]
            if total and not 0 <= neighbors.min() <= neighbors.max() < end:
                raise FormatError(f"new nodes: neighbours of {edge_type} lie outside of {end} nodes")
            held = [name for name in edges.columns if f"e{number}/{name}" in left]
            rows = {name: take(f"e{number}/{name}", edges.columns[name].spec(total)) for name in held}
            lists[edge_type] = NewLists(degrees, neighbors, rows)
        if left:
            raise FormatError(f"new nodes: {min(left)!r} is no column or list of the graph")
        return cls(document, counts, columns, lists)


def new_nodes_document(
    schema: GraphSchema,
    counts: Mapping[NodeType, int],
    columns: Mapping[NodeType, Mapping[str, Array]],
    lists: Mapping[EdgeType, NewLists],
) -> bytes:
    """Return new nodes as a safetensors document. It names types by their numbers in the schema."""
    specs: dict[str, ArraySpec] = {}
    arrays: dict[str, Array] = {}

    def add(name: str, spec: ArraySpec, array: Array) -> None:
        specs[name], arrays[name] = spec, array

    for number, (node_type, nodes) in enumerate(schema.nodes.items()):
        for name, array in columns.get(node_type, {}).items():
            add(f"n{number}/{name}", nodes.columns[name].spec(len(array)), array)
    for number, (edge_type, edges) in enumerate(schema.edges.items()):
        if edge_type in lists:
            degrees, neighbors, rows = lists[edge_type]
            add(f"e{number}#degrees", ArraySpec("I64", degrees.shape), degrees)
            add(f"e{number}#neighbors", ArraySpec("I64", neighbors.shape), neighbors)
            for name, array in rows.items():
                add(f"e{number}/{name}", edges.columns[name].spec(len(array)), array)
    metadata = {_COUNTS: json.dumps([counts.get(node_type, 0) for node_type in schema.nodes])}
    layout = Layout.plan(specs, metadata)
    buffer = np.empty(layout.nbytes, np.uint8)
    buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
    for name, array in arrays.items():
        view = layout.view(buffer, name)
        view[...] = array.reshape(view.shape)
    return buffer.tobytes()


def _counts(metadata: Mapping[str, str], schema: GraphSchema) -> dict[NodeType, int]:
    text = metadata.get(_COUNTS, "").encode()
    counts = read_json(text, what="new nodes: the counts", max_bytes=_MAX_HEADER_BYTES)
    if not isinstance(counts, list) or len(counts) != len(schema.nodes):
        raise FormatError("new nodes: a count for each node type is needed")
    for count in counts:
        if type(count) is not int or not 0 <= count <= MAX_NEW_NODES:
            raise FormatError(f"new nodes: a type has 0 to {MAX_NEW_NODES}")
    return dict(zip(schema.nodes, counts, strict=True))


class GraphWithNewNodes(Graph):
    """A graph with one more partition, which holds new nodes in memory.

    The lists of the graph's own nodes stay as they are, without new ones. New edges have the ids behind the
    graph's.
    """

    def __init__(self, graph: Graph, new: NewNodes, ids: Mapping[NodeType, Int64Array]) -> None:
        """``ids``: of the nodes of each type, with those of all new ones that there may be."""
        vars(self).update(vars(graph))  # The same files.
        self.schema = _extended(graph.schema, new)
        self._new_part = graph.schema.num_partitions
        self.parts = (*graph.parts, self._new_part)
        self.topology_parts = (*graph.topology_parts, self._new_part)
        self.derived = WeakValueDictionary()
        self.deriving = threading.Lock()
        self._graph, self._new = graph, new
        self._directories = {
            kind: Directory(nodes.count, ids[kind][: nodes.count])
            for kind, nodes in self.schema.nodes.items()
        }
        self._topologies: dict[EdgeType, dict[str, Array]] = {}
        self._order: dict[EdgeType, Int64Array] = {}
        """Of the edges of each type: which of the request's is the next of the lists."""

    def directory(self, node_type: NodeType) -> Directory:
        return self._directories[node_type]

    def topology(self, edge_type: EdgeType, part: int) -> dict[str, Array]:
        if part != self._new_part:
            return super().topology(edge_type, part)
        self._known_edge_type(edge_type)
        if edge_type not in self._topologies:
            self._topologies[edge_type] = self._listed(edge_type)
        return self._topologies[edge_type]

    def has_lists_on_disk(self, edge_type: EdgeType, part: int) -> bool:
        return part != self._new_part and super().has_lists_on_disk(edge_type, part)

    def node_column(self, node_type: NodeType, name: str, part: int) -> Array:
        if part != self._new_part:
            return super().node_column(node_type, name, part)
        if not self._new.counts.get(node_type):
            return _rows(self._known_node_type(node_type).columns[name], 0)
        return _given(self._new.columns.get(node_type, {}), name, f"nodes of type {node_type!r}")

    def edge_column(self, edge_type: EdgeType, name: str, part: int) -> Array:
        if part != self._new_part:
            return super().edge_column(edge_type, name, part)
        lists = self._new.lists.get(edge_type)
        if lists is None or not len(lists.neighbors):
            return _rows(self._known_edge_type(edge_type).columns[name], 0)
        self.topology(edge_type, part)
        return _given(lists.columns, name, f"edges of type {edge_type}")[self._order[edge_type]]

    def weights(self, edge_type: EdgeType, name: str, part: int) -> tuple[Int64Array, Int64Array]:
        if part != self._new_part:
            return super().weights(edge_type, name, part)
        indptr = self.topology(edge_type, part)["indptr"]
        return running_sums(self._numbers(edge_type, name), indptr)

    def times(self, edge_type: EdgeType, name: str, part: int) -> tuple[Int64Array, Array]:
        if part != self._new_part:
            return super().times(edge_type, name, part)
        topology = self.topology(edge_type, part)
        neighbor_type = self.schema.neighbor_type(edge_type)
        if name in self.schema.nodes[neighbor_type].times:
            times = self._times_at(neighbor_type, name, topology["indices"])
        else:
            times = self.edge_column(edge_type, name, part).astype(np.int64).reshape(-1)
        lists = np.repeat(np.arange(len(topology["indptr"]) - 1), np.diff(topology["indptr"]))
        order = np.lexsort((np.arange(len(times)), times, lists))
        return times[order], order.astype(np.int32)

    def timed_weights(self, edge_type: EdgeType, time: str, weight: str, part: int) -> Int64Array:
        if part != self._new_part:
            return super().timed_weights(edge_type, time, weight, part)
        _, slots = self.times(edge_type, time, part)
        weights = self._numbers(edge_type, weight)[slots]
        return running_sums(weights, self.topology(edge_type, part)["indptr"])[0]

    def node_times(self, node_type: NodeType, name: str) -> NodeTimes:
        held = self._graph.node_times(node_type, name)
        if not self._new.counts.get(node_type):
            return held
        own = self.node_column(node_type, name, self._new_part).astype(np.int64).reshape(-1)
        times = np.concatenate([held.times, own])
        return NodeTimes(times, np.argsort(times, kind="stable"))

    def _times_at(self, node_type: NodeType, name: str, positions: Array) -> Int64Array:
        count = self._graph.schema.nodes[node_type].count
        is_new = positions >= count
        held = self._graph.node_times(node_type, name).times
        times = np.empty(len(positions), np.int64)
        times[~is_new] = held[positions[~is_new]]
        if is_new.any():
            own = self.node_column(node_type, name, self._new_part).reshape(-1)
            times[is_new] = own[positions[is_new] - count]
        return times

    def _numbers(self, edge_type: EdgeType, name: str) -> Array:
        """Return a column of weights, float64 [E]. ``ValueError`` for what no weight can be."""
        column = self.schema.edges[edge_type].columns[name]
        weights = as_float64(self.edge_column(edge_type, name, self._new_part), column.dtype)
        if len(weights) and not (np.isfinite(weights).all() and weights.min() >= 0):
            raise ValueError(f"new nodes: a weight {name!r} of edges {edge_type} is negative or not finite")
        return weights

    def _listed(self, edge_type: EdgeType) -> dict[str, Array]:
        """Return the new lists of a type as they are stored: each by ascending neighbour id and edge id."""
        schema = self._graph.schema
        count = self._new.counts.get(schema.target_type(edge_type), 0)
        empty = NewLists(np.zeros(count, np.int64), np.empty(0, np.int64), {})
        lists = self._new.lists.get(edge_type, empty)
        targets = np.repeat(np.arange(count), lists.degrees)
        edge_ids = schema.lists[edge_type].count + np.arange(len(targets))
        indptr = np.empty(count + 1, np.int64)
        order = np.empty(len(targets), np.int64)
        neighbor_ids = self._directories[schema.neighbor_type(edge_type)].node_ids(lists.neighbors)
        build_adjacency(targets, neighbor_ids, edge_ids, indptr, order)
        self._order[edge_type] = order
        wide = schema.lists[edge_type].wide_indices
        narrow_ids = schema.lists[edge_type].count + len(targets) < 2**31
        return {
            "indptr": indptr,
            "indices": lists.neighbors[order].astype(np.int64 if wide else np.int32),
            "edge_ids": edge_ids[order].astype(np.int32 if narrow_ids else np.int64),
        }


def _extended(schema: GraphSchema, new: NewNodes) -> GraphSchema:
    def with_nodes(kind: NodeType, nodes: NodeSchema) -> NodeSchema:
        count = nodes.count + new.counts.get(kind, 0)
        return replace(nodes, count=count, bounds=(*nodes.bounds, count))

    edges = {
        kind: replace(each, count=each.count + len(new.lists[kind].neighbors)) if kind in new.lists else each
        for kind, each in schema.edges.items()
    }
    return replace(
        schema,
        nodes={kind: with_nodes(kind, nodes) for kind, nodes in schema.nodes.items()},
        edges=edges,
        num_partitions=schema.num_partitions + 1,
    )


def _rows(column: Column, count: int) -> Array:
    spec = column.spec(count)
    return np.empty(spec.shape, STORAGE_DTYPES[spec.dtype])


def _given(columns: Mapping[str, Array], name: str, what: str) -> Array:
    if name not in columns:
        raise ValueError(f"new {what} have no {name!r}, which the batch needs")
    return columns[name]


class _Ids:
    """Ids of all nodes by type, and of as many new ones as there may be: 8 bytes a node."""

    def __init__(self, graph: Graph) -> None:
        """``ValueError`` where memory is short, or the graph has negative ids."""
        needed = (
            2 * 8 * sum(nodes.count for nodes in graph.schema.nodes.values())
        )  # A copy while they are made.
        free = free_memory().nbytes
        if needed > free:
            raise ValueError(
                f"batches with new nodes take {needed / 1e9:.1f} GB of memory at first, 16 bytes for each "
                f"node of the graph, and {free / 1e9:.1f} GB are free where they are sampled"
            )
        self.by_type: dict[NodeType, Int64Array] = {}
        for kind, nodes in graph.schema.nodes.items():
            directory = graph.directory(kind)
            if (directory.node_ids(directory.in_id_order(0, 1)) < 0).any():
                raise ValueError(
                    f"the graph has nodes of type {kind!r} with negative ids, those of new nodes"
                )
            held = directory.node_ids(np.arange(nodes.count))
            self.by_type[kind] = np.concatenate([held, -1 - np.arange(MAX_NEW_NODES)])

    @property
    def nbytes(self) -> int:
        return sum(ids.nbytes for ids in self.by_type.values())

    @classmethod
    def of(cls, graph: Graph) -> _Ids:
        """Return those of a graph, which its samplers share."""
        key = "ids, with those of new nodes"
        with graph.deriving:
            ids = graph.derived.get(key)
            if ids is None:
                ids = graph.derived[key] = cls(graph)
        return ids


class SamplerWithNewNodes:
    """The sampler of a plan whose requests may bring new nodes. Not thread-safe."""

    def __init__(self, context: SamplerContext) -> None:
        self._context = context
        self._sampler: PlanSampler = context.plan.sampler.open(context)
        self._ids: _Ids | None = None
        self._latest: PlanSampler = self._sampler
        """Its batch is valid until the next call."""
        self._new_bytes = 0

    @property
    def costs(self) -> CostCounter:
        return self._sampler.costs

    @property
    def bounds(self) -> BatchBounds:
        return self._sampler.bounds

    @bounds.setter
    def bounds(self, bounds: BatchBounds) -> None:
        self._sampler.bounds = bounds

    @property
    def scratch_bytes(self) -> int:
        """Memory that is kept for the next batch, and by the latest one with new nodes."""
        if self._latest is self._sampler:
            return self._sampler.scratch_bytes
        return self._sampler.scratch_bytes + self._latest.scratch_bytes + self._new_bytes

    def sample(self, request: BatchRequest) -> SampledBatch:
        """Sample the batch. ``ValueError`` where the new nodes lack what it needs."""
        self._latest = self._sampler if request.new is None else self._extended(request.new)
        return self._latest.sample(request)

    def _extended(self, new: NewNodes) -> PlanSampler:
        context, plain = self._context, self._sampler
        self._new_bytes = new.nbytes
        self._ids = self._ids or _Ids.of(context.graph)  # Kept: the graph does not keep them.
        graph = GraphWithNewNodes(context.graph, new, self._ids.by_type)
        store = context.store
        if store is not None:
            store = store.with_part(graph.schema, LocalStore(graph, context.graph.schema.num_partitions))
        extended = replace(context, graph=graph, store=store, costs=plain.costs, bounds=plain.bounds)
        return context.plan.sampler.open(extended)
