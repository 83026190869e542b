"""A small graph in two parts on the disk, and a plan for it: what storage servers of tests serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph

if TYPE_CHECKING:
    from pathlib import Path

NUM_NODES = 200
_EDGE = ("node", "to", "node")


def write_graph(path: Path, *, seed: int = 0, num_partitions: int = 2) -> Path:
    """Write a graph and return ``path``: 200 nodes with features, 2,000 random edges, a split."""
    random = np.random.default_rng(seed)
    nodes = ArrayTable(
        "nodes",
        {"id": np.arange(NUM_NODES), "x": random.standard_normal((NUM_NODES, 8), dtype=np.float32)},
    )
    src, dst = random.integers(0, NUM_NODES, (2, 10 * NUM_NODES))
    edges = ArrayTable("edges", {"src": src, "dst": dst})
    tables = GraphTables(edges={_EDGE: edges}, nodes={"node": NodeTable(nodes)})
    build_graph(tables, path, num_partitions=num_partitions)
    return path
