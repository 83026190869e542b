"""A partition that lies on this host, as a ``NeighborStore``."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gigl_loader.arrays import Array, BoolArray, Bytes, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import edge_type_address
from gigl_loader.native import Adjacency, build_adjacency, copy_rows, draw_hop, find_edges, induced_edges
from gigl_loader.sampling.store import POSITION_MASK, EdgeList, NeighborRequest, Neighbors
from gigl_loader.tensors import as_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.store import EdgeRequest, FeatureRequest, InducedRequest


class LocalStore:
    """Draws from and copies out of the memory maps of one partition, natively."""

    def __init__(self, graph: Graph, part: int) -> None:
        """``graph`` has ``part`` among its opened partitions, else ``ValueError``."""
        self._graph = graph
        self._part = part
        self._lists: dict[tuple[EdgeType, str | None, str | None], _Lists] = {
            (edge_type, None, None): self._open_lists(edge_type) for edge_type in graph.schema.edges
        }
        self._outward: dict[EdgeType, _Outward] = {}
        self._columns: dict[tuple[NodeType | EdgeType, str], _Column] = {}

    def sample(self, ask: NeighborRequest) -> Neighbors:
        lists = (
            self._outward_of(ask).lists
            if ask.outward
            else self._lists_of(ask.edge_type, weight=ask.rule.weight, time=ask.rule.time)
        )
        with _damage():
            drawn = draw_hop(
                lists.adjacency,
                lists.target_ids,
                lists.num_neighbors,
                ask.targets,
                key=ask.key,
                address=lists.address,
                hop=ask.hop,
                rule=ask.rule.native,
                number=ask.number,
                with_edge_ids=ask.with_edge_ids,
                with_slots=ask.with_slots,
                max_edges=ask.max_edges,
                disjoint=ask.disjoint,
                neighbor_ids=lists.neighbor_ids,
                tree_times=ask.tree_times,
                tree_starts=ask.tree_starts,
                bounds=ask.bounds,
            )
        return Neighbors(*drawn)

    def induced(self, ask: InducedRequest) -> Neighbors:
        if ask.edge_type not in self._graph.schema.edges:
            raise ValueError(f"unknown edge type {ask.edge_type!r}")
        lists = self._lists_of(ask.edge_type, weight=ask.weight)
        with _damage():
            found = induced_edges(
                lists.adjacency,
                lists.neighbor_ids,
                lists.num_neighbors,
                ask.targets,
                ask.nodes,
                weighted=ask.weight is not None,
                with_edge_ids=ask.with_edge_ids,
                with_slots=ask.with_slots,
                max_edges=ask.max_edges,
            )
        return Neighbors(*found)

    def gather(
        self,
        ask: FeatureRequest,
        places: Int64Array | None,
        out: Sequence[Bytes],
        *,
        copy: Callable[..., None] = copy_rows,
    ) -> None:
        """Write row ``ask.rows[i]`` of column c to ``out[c][places[i]]``; to ``out[c][i]`` without places.

        ``copy`` is called for each column, and does what ``native.copy_rows`` does.
        """
        columns = [self._column(ask.kind, name) for name in ask.columns]
        for column, matrix in zip(columns, out, strict=True):
            copy(column.rows, ask.rows, places, matrix, first=column.first)

    def contains(self, ask: EdgeRequest) -> BoolArray:
        lists = self._lists_of(ask.edge_type)
        found = np.empty(len(ask.targets), np.uint8)
        with _damage():
            find_edges(
                lists.adjacency, lists.neighbor_ids, lists.num_neighbors, ask.targets, ask.neighbors, found
            )
        return found.view(np.bool_)

    def edges(self, edge_type: EdgeType, first: int = 0, count: int | None = None) -> EdgeList:
        """Return edges in adjacency order: ``count`` from index ``first``, or all from there on."""
        return edges_of(self._graph, edge_type, self._part, first, count)

    def close(self) -> None:
        """Do nothing: the maps are the graph's."""

    def _lists_of(self, edge_type: EdgeType, *, weight: str | None = None, time: str | None = None) -> _Lists:
        lists = self._lists.get((edge_type, weight, time))
        if lists is None:  # Two threads may open them at once, to the same end.
            if edge_type not in self._graph.schema.lists:
                raise ValueError(f"unknown edge type {edge_type!r}")
            lists = self._open_lists(edge_type, weight=weight, time=time)
            self._lists[edge_type, weight, time] = lists
        return lists

    def degrees(self, ask: NeighborRequest | InducedRequest) -> Int64Array:
        """Return the number of edges in the list of each target, int64 [T]."""
        if isinstance(ask, NeighborRequest) and ask.outward:
            indptr, first = self._outward_of(ask).indptr, 0
        else:
            indptr = self._graph.topology(ask.edge_type, self._part)["indptr"]
            first = int(self._graph.bounds(self._graph.schema.target_type(ask.edge_type))[self._part])
        rows = (ask.targets & POSITION_MASK) - first
        return np.asarray(indptr[rows + 1] - indptr[rows])

    def _outward_of(self, ask: NeighborRequest) -> _Outward:
        """Return the out-edges that lie in this partition of a graph of in-edges, by their source.

        Made at the first request: 8 bytes for each node of the source type, 8 to 16 for each edge.
        All stores of the graph share them, since a server has a store for each sampler.
        """
        lists = self._outward.get(ask.edge_type)
        if lists is None:
            key = ("outward", ask.edge_type, self._part)
            with self._graph.deriving:  # It takes long, and memory.
                lists = self._graph.derived.get(key)
                if lists is None:
                    lists = self._graph.derived[key] = _turned(self._graph, ask.edge_type, self._part)
            self._outward[ask.edge_type] = lists  # The graph does not keep them.
        return lists

    def _open_lists(
        self, edge_type: EdgeType, *, weight: str | None = None, time: str | None = None
    ) -> _Lists:
        schema = self._graph.schema
        target_type = schema.target_type(edge_type)
        return _Lists(
            adjacency=open_adjacency(self._graph, edge_type, [self._part], weight=weight, time=time),
            target_ids=self._graph.node_ids(target_type),
            neighbor_ids=self._graph.node_ids(schema.neighbor_type(edge_type)),
            num_neighbors=schema.nodes[schema.neighbor_type(edge_type)].count,
            address=edge_type_address(edge_type),
        )

    def _column(self, kind: NodeType | EdgeType, name: str) -> _Column:
        column = self._columns.get((kind, name))
        if column is None:  # Two threads may open it at once, to the same end.
            column = self._columns[kind, name] = self._open_column(kind, name)
        return column

    def _open_column(self, kind: NodeType | EdgeType, name: str) -> _Column:
        schema = self._graph.schema
        if isinstance(kind, str):
            array = self._graph.node_column(kind, name, self._part)
            row_bytes = schema.nodes[kind].columns[name].row_bytes
            return _Column(as_rows(array, row_bytes), int(self._graph.bounds(kind)[self._part]))
        array = self._graph.edge_column(kind, name, self._part)
        return _Column(as_rows(array, schema.edges[kind].columns[name].row_bytes), 0)


def open_adjacency(
    graph: Graph, edge_type: EdgeType, parts: Sequence[int], *, weight: str | None, time: str | None
) -> Adjacency:
    """Return the lists of an edge type in partitions that follow each other, for draws by weight and time."""
    topologies = [graph.topology(edge_type, part) for part in parts]
    narrow = all(topology["edge_ids"].dtype == np.int32 for topology in topologies)
    by_weight = (
        [] if weight is None or time is not None else [graph.weights(edge_type, weight, p) for p in parts]
    )
    by_time = [] if time is None else [graph.times(edge_type, time, part) for part in parts]
    wide = any(slots.dtype == np.int64 for _, slots in by_time)
    return Adjacency(
        graph.bounds(graph.schema.target_type(edge_type))[parts[0] : parts[-1] + 2],
        [topology["indptr"] for topology in topologies],
        [topology["indices"] for topology in topologies],
        [
            topology["edge_ids"].astype(np.int32 if narrow else np.int64, copy=False)
            for topology in topologies
        ],
        [sums for sums, _ in by_weight],
        [counts for _, counts in by_weight],
        times=[times for times, _ in by_time],
        time_slots=[slots.astype(np.int64 if wide else np.int32, copy=False) for _, slots in by_time],
        time_sums=[
            graph.timed_weights(edge_type, time, weight, part)
            for part in parts
            if weight is not None and time is not None
        ],
        on_disk=any(graph.has_lists_on_disk(edge_type, part) for part in parts),
    )


def edges_of(
    graph: Graph, edge_type: EdgeType, part: int, first: int = 0, count: int | None = None
) -> EdgeList:
    """Return edges of one partition in adjacency order: ``count`` from index ``first``, or all from there."""
    if edge_type not in graph.schema.lists:
        raise ValueError(f"unknown edge type {edge_type!r}")
    topology = graph.topology(edge_type, part)
    total = len(topology["indices"])
    end = total if count is None else min(first + count, total)
    lists = np.searchsorted(topology["indptr"], np.arange(first, end), side="right") - 1
    return EdgeList(
        lists + int(graph.bounds(graph.schema.target_type(edge_type))[part]),
        topology["indices"][first:end].astype(np.int64),
        topology["edge_ids"][first:end].astype(np.int64),
    )


@contextmanager
def _damage() -> Iterator[None]:
    """Raise what kernels find wrong in a graph as ``FormatError``."""
    try:
        yield
    except RuntimeError as error:
        raise FormatError(str(error)) from None


class _Lists(NamedTuple):
    """Adjacency lists of one edge type, and the node ids by which draws are addressed."""

    adjacency: Adjacency
    target_ids: Int64Array | None
    neighbor_ids: Int64Array | None
    num_neighbors: int
    address: int


@dataclass(frozen=True, eq=False)  # No slots: the graph refers to it weakly.
class _Outward:
    """The edges of one type in a partition, by source."""

    lists: _Lists
    indptr: Int64Array
    nbytes: int


def _turned(graph: Graph, edge_type: EdgeType, part: int) -> _Outward:
    """Return lists of out-edges, made of the in-edges that a partition has."""
    source, _, destination = edge_type
    edges = edges_of(graph, edge_type, part)
    ids = graph.node_ids(destination)
    indptr = np.empty(graph.schema.nodes[source].count + 1, np.int64)
    order = np.empty(len(edges.targets), np.int64)
    neighbor_ids = edges.targets if ids is None else ids[edges.targets]
    build_adjacency(edges.neighbors, neighbor_ids, edges.edge_ids, indptr, order)
    indices, edge_ids = _narrow(edges.targets[order]), _narrow(edges.edge_ids[order])
    return _Outward(
        lists=_Lists(
            adjacency=Adjacency(np.array([0, len(indptr) - 1], np.int64), [indptr], [indices], [edge_ids]),
            target_ids=graph.node_ids(source),
            neighbor_ids=ids,
            num_neighbors=graph.schema.nodes[destination].count,
            address=edge_type_address(edge_type),
        ),
        indptr=indptr,
        nbytes=indptr.nbytes + indices.nbytes + edge_ids.nbytes,
    )


def _narrow(numbers: Int64Array) -> Array:
    return numbers.astype(np.int32) if not len(numbers) or numbers.max() < 2**31 else numbers


class _Column(NamedTuple):
    """A column of the partition; row r of it is called ``first + r``."""

    rows: Bytes
    first: int
