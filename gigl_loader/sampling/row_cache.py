"""Rows of nodes that other hosts own, kept on this host so that they need not cross the network.

Degrees of real graphs follow power laws: a few nodes are neighbours of very many. How often the
lists of this host refer to a node foretells how often its batches will hold it, and costs no
network (the idea is that of static feature caches by degree: PaGraph, Lin et al. 2020).

The cache is filled once, when hosts have found each other, and never changes: it decides from where
a row comes, not what it is. It lies in one memory file that all ranks and workers of the host map.

A ``FeatureCache`` cannot replace it, nor the reverse. That one follows the next batches of one loader, in the
process that knows them. This one stands before a ``NeighborStore``: it also serves workers that gather rows
by themselves, single batches and queries, and takes no lock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Array, BoolArray, Bytes, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import type_name
from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.native import copy_rows, count_rows, split_by_cache
from gigl_loader.sampling.store import (
    EdgeRequest,
    FeatureRequest,
    InducedRequest,
    NeighborRequest,
    Neighbors,
    NeighborStore,
    WireCounts,
)
from gigl_loader.tensors import ArraySpec, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeSchema, NodeType

_SAMPLED_EDGES = 1 << 22
_MAX_SAMPLED_EDGES = 1 << 24
"""Edges to sample: eight for every row that fits, at least the first number (0.3 s), at most the second."""
_SAMPLED_PER_ROW = 8
_BLOCK = 1 << 12


class Candidates(NamedTuple):
    """Nodes whose rows may be kept."""

    node_type: NodeType
    positions: Int64Array
    worth: npt.NDArray[np.float64]
    """Expected references saved per byte."""


def hot_nodes(graph: Graph, parts: tuple[int, ...], nbytes: int) -> dict[NodeType, Int64Array]:
    """Return positions of nodes outside ``parts``, ascending, whose rows fit ``nbytes``.

    All of them where they fit; else the nodes that the lists of ``parts`` refer to most, judged by a
    sample of the edges. A type without columns has none.
    """
    row_bytes = {
        node_type: sum(column.row_bytes for column in nodes.columns.values())
        for node_type, nodes in graph.schema.nodes.items()
    }
    foreign = {
        node_type: _foreign_ranges(graph, node_type, parts) for node_type, size in row_bytes.items() if size
    }
    total = sum(
        row_bytes[node_type] * (end - begin) for node_type, ranges in foreign.items() for begin, end in ranges
    )
    if total <= nbytes:
        return {node_type: _all_of(ranges) for node_type, ranges in foreign.items()}
    rows = nbytes // min(size for size in row_bytes.values() if size)
    share = _share_to_sample(graph, parts, rows)
    candidates = [
        _candidates(graph, node_type, ranges, parts, row_bytes=row_bytes[node_type], share=share)
        for node_type, ranges in foreign.items()
    ]
    return worthiest(candidates, row_bytes, nbytes)


def _share_to_sample(graph: Graph, parts: tuple[int, ...], rows: int) -> float:
    """Return the share of this host's edges to sample to find the ``rows`` most referenced nodes."""
    num_edges = sum(
        len(graph.topology(edge_type, part)["indices"]) for edge_type in graph.schema.edges for part in parts
    )
    wanted = min(max(_SAMPLED_PER_ROW * rows, _SAMPLED_EDGES), _MAX_SAMPLED_EDGES)
    return min(wanted / max(num_edges, 1), 1.0)


def worthiest(
    candidates: list[Candidates], row_bytes: Mapping[NodeType, int], nbytes: int
) -> dict[NodeType, Int64Array]:
    """Keep what is worth most per byte, up to ``nbytes``."""
    worth = np.concatenate([each.worth for each in candidates])
    cost = np.concatenate([np.full(len(each.worth), row_bytes[each.node_type]) for each in candidates])
    order = np.argsort(-worth, kind="stable")
    kept = np.zeros(len(worth), np.bool_)
    kept[order[np.cumsum(cost[order]) <= nbytes]] = True
    ends = np.cumsum([len(each.worth) for each in candidates])[:-1]
    return {
        each.node_type: np.sort(each.positions[mask])
        for each, mask in zip(candidates, np.split(kept, ends), strict=True)
    }


def _candidates(
    graph: Graph,
    node_type: NodeType,
    ranges: list[tuple[int, int]],
    parts: tuple[int, ...],
    *,
    row_bytes: int,
    share: float,
) -> Candidates:
    """Return the foreign nodes of a type that ``share`` of this host's edges refers to."""
    met = _references(graph, node_type, parts, share)
    positions, counts = np.unique(met, return_counts=True)
    inside = np.zeros(len(positions), np.bool_)
    for begin, end in ranges:
        inside |= (positions >= begin) & (positions < end)
    return Candidates(node_type, positions[inside], counts[inside] / row_bytes)


def reference_counts(graph: Graph, node_type: NodeType) -> Bytes:
    """Return how often the edges of this host refer to each node, on a scale of logarithms: uint8 [N].

    A sample of the edges counts; a node to which none of it refers has 0, 65,535 references or more have 255.
    """
    met = _references(graph, node_type, graph.parts, _share_to_sample(graph, graph.parts, 0))
    counts = np.bincount(met, minlength=graph.schema.nodes[node_type].count)
    scaled: Bytes = np.minimum(np.round(16 * np.log2(1.0 + counts)), 255).astype(np.uint8)
    return scaled


def _references(graph: Graph, node_type: NodeType, parts: tuple[int, ...], share: float) -> Int64Array:
    """Return the nodes of a type that about ``share`` of the edges of partitions refer to, int64 [R]."""
    schema = graph.schema
    edge_types = [edge_type for edge_type in schema.edges if schema.neighbor_type(edge_type) == node_type]
    met = [block for edge_type in edge_types for block in _sampled(graph, edge_type, parts, share)]
    return np.concatenate([np.empty(0, np.int64), *met])


def _sampled(graph: Graph, edge_type: EdgeType, parts: tuple[int, ...], share: float) -> Iterator[Int64Array]:
    """Yield neighbours of about ``share`` of the edges, in blocks at equal distances."""
    for part in parts:
        indices = graph.topology(edge_type, part)["indices"]
        stride = int(_BLOCK / share)
        for begin in range(0, len(indices), stride):
            yield indices[begin : begin + _BLOCK].astype(np.int64)


def _foreign_ranges(graph: Graph, node_type: NodeType, parts: tuple[int, ...]) -> list[tuple[int, int]]:
    bounds = graph.schema.nodes[node_type].bounds
    return [
        (bounds[part], bounds[part + 1]) for part in range(graph.schema.num_partitions) if part not in parts
    ]


def _all_of(ranges: list[tuple[int, int]]) -> Int64Array:
    return np.concatenate([np.empty(0, np.int64), *(np.arange(*each, dtype=np.int64) for each in ranges)])


@dataclass(frozen=True, slots=True)
class _CachedRows:
    """The cached rows of one node type of one partition."""

    first: int
    """Position of the partition's first node."""
    num_rows: int
    """Nodes of the partition, cached or not."""
    bits: npt.NDArray[np.uint64]
    ranks: npt.NDArray[np.int32]
    columns: Mapping[str, Bytes]
    """Cached rows of each column, by ascending position."""


class RowCache:
    """The cache of one host, mapped. Read-only once it is filled."""

    def __init__(self, memory: Bytes, layout: Layout, schema: GraphSchema) -> None:
        self._memory = memory
        self._layout = layout
        self._schema = schema

    @classmethod
    def create(
        cls, graph: Graph, parts: tuple[int, ...], stores: Mapping[int, NeighborStore], nbytes: int
    ) -> int:
        """Fetch the rows most worth having into a new memory file and return its descriptor.

        ``parts`` are the partitions on this host, ``stores`` have the other ones. ``nbytes`` bounds
        the rows; the bitmaps of which nodes are cached come on top, 1.5 bits for each node elsewhere.
        """
        chosen = hot_nodes(graph, parts, nbytes)
        layout = _plan(graph, chosen, stores)
        fd = create_memory("gigl-row-cache", layout.nbytes)
        try:
            memory = map_memory(fd, layout.nbytes)
            memory[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
            cls(memory, layout, graph.schema)._fill(chosen, stores)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @classmethod
    def open(cls, fd: int, graph: Graph) -> RowCache:
        """Map the cache in memory file ``fd``, which stays the caller's.

        ``FormatError`` if it is none, or of another graph.
        """
        memory = map_memory(fd, os.fstat(fd).st_size)
        layout = Layout.parse(memory, what="row cache")
        if layout.metadata != {"graph": graph.manifest.digest}:
            raise FormatError("row cache: not of this graph")
        return cls(memory, layout, graph.schema)

    def before(self, store: NeighborStore, part: int) -> NeighborStore:
        """Return a store of ``part`` that takes from ``store`` what is not cached."""
        cached = {
            node_type: rows
            for node_type in self._schema.nodes
            if (rows := self._rows(part, node_type)) is not None
        }
        return CachingStore(store, cached)

    def _rows(self, part: int, node_type: NodeType) -> _CachedRows | None:
        prefix, nodes = _prefix(part, node_type), self._schema.nodes[node_type]
        if f"{prefix}/bits" not in self._layout.specs:
            return None
        begin, end = nodes.bounds[part], nodes.bounds[part + 1]
        columns = {
            name: self._view(f"{prefix}/rows/{type_name(name)}").view(np.uint8).reshape(-1, column.row_bytes)
            for name, column in nodes.columns.items()
            if column.row_bytes
        }
        return _CachedRows(
            begin, end - begin, self._view(f"{prefix}/bits"), self._view(f"{prefix}/ranks"), columns
        )

    def _view(self, name: str) -> Array:
        return self._layout.view(self._memory, name)

    def _fill(self, chosen: Mapping[NodeType, Int64Array], stores: Mapping[int, NeighborStore]) -> None:
        for part, node_type, nodes, positions in _by_partition(self._schema, chosen, stores):
            rows = self._rows(part, node_type)
            assert rows is not None
            set_bits(rows.bits, positions - nodes.bounds[part])
            count_rows(rows.bits, rows.ranks)
            ask = FeatureRequest(kind=node_type, columns=tuple(rows.columns), rows=positions)
            places = np.arange(len(positions), dtype=np.int64)
            stores[part].gather(ask, places, list(rows.columns.values()))


class CachingStore:
    """A store whose rows are partly on this host."""

    def __init__(self, inner: NeighborStore, cached: Mapping[NodeType, _CachedRows]) -> None:
        self._inner = inner
        self._cached = cached

    def sample(self, ask: NeighborRequest) -> Neighbors:
        return self._inner.sample(ask)

    def induced(self, ask: InducedRequest) -> Neighbors:
        return self._inner.induced(ask)

    def contains(self, ask: EdgeRequest) -> BoolArray:
        return self._inner.contains(ask)

    def gather(self, ask: FeatureRequest, places: Int64Array, out: Sequence[Bytes]) -> None:
        cached = self._cached.get(ask.kind) if isinstance(ask.kind, str) else None
        if cached is None:
            self._inner.gather(ask, places, out)
            return
        hits, hit_places, misses, miss_places = split_by_cache(
            cached.bits, cached.ranks, cached.num_rows, ask.rows - cached.first, places
        )
        if len(misses):
            rest = FeatureRequest(kind=ask.kind, columns=ask.columns, rows=misses + cached.first)
            self._inner.gather(rest, miss_places, out)
        for name, target in zip(ask.columns, out, strict=True):
            if target.shape[1]:
                copy_rows(cached.columns[name], hits, hit_places, target)

    def holds(self, kind: NodeType | EdgeType, rows: Int64Array) -> BoolArray:
        found = np.zeros(len(rows), np.bool_)
        if isinstance(kind, str) and (cached := self._cached.get(kind)) is not None:
            places = np.arange(len(rows))
            hits = split_by_cache(cached.bits, cached.ranks, cached.num_rows, rows - cached.first, places)
            found[hits[1]] = True
        return found

    def wire(self) -> WireCounts:
        return self._inner.wire() if hasattr(self._inner, "wire") else WireCounts()

    def close(self) -> None:
        self._inner.close()


def _plan(graph: Graph, chosen: Mapping[NodeType, Int64Array], stores: Mapping[int, NeighborStore]) -> Layout:
    specs: dict[str, ArraySpec] = {}
    for part, node_type, nodes, positions in _by_partition(graph.schema, chosen, stores):
        prefix = _prefix(part, node_type)
        words = -(-(nodes.bounds[part + 1] - nodes.bounds[part]) // 64)
        specs[f"{prefix}/bits"] = ArraySpec("U64", (words,))
        specs[f"{prefix}/ranks"] = ArraySpec("I32", (words,))
        for name, column in nodes.columns.items():
            if column.row_bytes:
                specs[f"{prefix}/rows/{type_name(name)}"] = column.spec(len(positions))
    return Layout.plan(specs, {"graph": graph.manifest.digest})


def _by_partition(
    schema: GraphSchema, chosen: Mapping[NodeType, Int64Array], parts: Mapping[int, Any]
) -> Iterator[tuple[int, NodeType, NodeSchema, Int64Array]]:
    """Yield the chosen nodes of each partition and type that has any."""
    for node_type, positions in chosen.items():
        nodes = schema.nodes[node_type]
        ends = np.searchsorted(positions, nodes.bounds)
        for part in parts:
            mine = positions[ends[part] : ends[part + 1]]
            if len(mine):
                yield part, node_type, nodes, mine


def _prefix(part: int, node_type: NodeType) -> str:
    return f"{part}/{type_name(node_type)}"


def set_bits(bits: npt.NDArray[np.uint64], rows: Int64Array) -> None:
    """Set the bits of ``rows``, which ascend."""
    flags = np.uint64(1) << (rows % 64).astype(np.uint64)
    words, first = np.unique(rows // 64, return_index=True)
    bits[words] = np.bitwise_or.reduceat(flags, first)
