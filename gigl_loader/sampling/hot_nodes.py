"""Nodes of other hosts that this host is expected to ask for most.

Degrees of real graphs follow power laws: a few nodes are neighbours of very many. How often the
lists of this host refer to a node foretells how often its batches will hold it, and costs no
network (the idea is that of static feature caches by degree: PaGraph, Lin et al. 2020).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Int64Array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import EdgeType, NodeType

__all__ = ["hot_nodes"]


_SAMPLED_EDGES = 1 << 22
_MAX_SAMPLED_EDGES = 1 << 24
"""At least the first, a third of a second; eight for every row that fits; at most the second."""
_SAMPLED_PER_ROW = 8
_BLOCK = 1 << 12


class _Candidates(NamedTuple):
    node_type: NodeType
    positions: Int64Array
    worth: npt.NDArray[np.float64]
    """Expected references saved per byte."""


def hot_nodes(graph: Graph, parts: tuple[int, ...], nbytes: int) -> dict[NodeType, Int64Array]:
    """Return positions of nodes outside ``parts``, ascending, whose rows fit ``nbytes``.

    All of them where they fit; else those that the lists of ``parts`` refer to most, judged by a
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
    return _worthiest(candidates, row_bytes, nbytes)


def _share_to_sample(graph: Graph, parts: tuple[int, ...], rows: int) -> float:
    """Return which share of this host's edges tells the ``rows`` nodes that are referred to most."""
    num_edges = sum(
        len(graph.topology(edge_type, part)["indices"]) for edge_type in graph.schema.edges for part in parts
    )
    wanted = min(max(_SAMPLED_PER_ROW * rows, _SAMPLED_EDGES), _MAX_SAMPLED_EDGES)
    return min(wanted / max(num_edges, 1), 1.0)


def _worthiest(
    candidates: list[_Candidates], row_bytes: dict[NodeType, int], nbytes: int
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
) -> _Candidates:
    """Return the foreign nodes of a type that ``share`` of this host's edges refers to."""
    schema = graph.schema
    edge_types = [edge_type for edge_type in schema.edges if schema.neighbor_type(edge_type) == node_type]
    met = [block for edge_type in edge_types for block in _sampled(graph, edge_type, parts, share)]
    positions, counts = np.unique(np.concatenate([np.empty(0, np.int64), *met]), return_counts=True)
    inside = np.zeros(len(positions), np.bool_)
    for begin, end in ranges:
        inside |= (positions >= begin) & (positions < end)
    return _Candidates(node_type, positions[inside], counts[inside] / row_bytes)


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
