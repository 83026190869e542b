"""Owners of the nodes of a built graph."""

from __future__ import annotations

import numpy as np

from gigl_loader.graph import Graph


def owners_of(graph: Graph) -> dict[str, list[int]]:
    """Return the partition of each node, by type and ascending node id."""
    found = {}
    for node_type, nodes in graph.schema.nodes.items():
        parts = np.repeat(np.arange(graph.schema.num_partitions), np.diff(nodes.bounds))
        found[node_type] = parts[graph.all_positions(node_type)].tolist()
    return found
