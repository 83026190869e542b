"""Edges of a graph, by the indices of their ends, and the places of their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.native import build_adjacency
from gigl_loader.sampling.store import SLOT_BITS

if TYPE_CHECKING:
    from gigl_loader.arrays import Int64Array
    from gigl_loader.options import EdgeType
    from gigl_loader.pyg.dataset import PygDataset
    from gigl_loader.pyg.node_index import NodeIndex

__all__ = ["edge_ends", "edge_slots"]


def edge_ends(dataset: PygDataset, nodes: NodeIndex, edge_type: EdgeType) -> tuple[Int64Array, Int64Array]:
    """Return the indices of sources and destinations by ascending edge id, both int64 [E].

    It reads all edges of the type: 24 bytes an edge, wherever they lie.
    """
    edges = dataset._edge_list(edge_type)
    inward = dataset.schema.edge_dir == "in"
    src, dst = (edges.neighbors, edges.targets) if inward else (edges.targets, edges.neighbors)
    return nodes.of_positions(edge_type[0], src), nodes.of_positions(edge_type[2], dst)


def edge_slots(dataset: PygDataset, nodes: NodeIndex, edge_type: EdgeType) -> Int64Array:
    """Return the slot of each edge by edge id, int64 [E].

    It reads all edges of the type. ``ValueError`` where their ids are not ``0 .. E - 1``, as an edge id would
    not be the column of the edge in ``edge_index``.
    """
    schema = dataset.schema
    edges = dataset._edge_list(edge_type)
    count = len(edges.edge_ids)
    if not np.array_equal(edges.edge_ids, np.arange(count)):
        raise ValueError(
            f"the edges {edge_type} have ids other than 0 .. {count - 1} (ids of their own in the tables, or "
            "edges that are held out): PyG's stores cannot name their rows; batches of DistNeighborLoader "
            "have them"
        )
    target_type = schema.target_type(edge_type)
    indptr = np.empty(schema.nodes[target_type].count + 1, np.int64)
    order = np.empty(count, np.int64)
    # The canonical order of lists is that of node ids, which is that of indices.
    neighbors = nodes.of_positions(schema.neighbor_type(edge_type), edges.neighbors)
    build_adjacency(edges.targets, neighbors, edges.edge_ids, indptr, order)
    bounds = np.array(schema.nodes[target_type].bounds, np.int64)
    firsts = indptr[bounds]
    slots = np.empty(count, np.int64)
    for part in range(schema.num_partitions):
        held = order[firsts[part] : firsts[part + 1]]
        slots[held] = np.arange(len(held)) + (part << SLOT_BITS)
    return slots
