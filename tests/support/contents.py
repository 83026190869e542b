"""Contents of a graph of one partition as plain values, for comparison with the files it was built from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigl_loader import DistDataset
from gigl_loader.graph import EdgeType, Graph, NodeType


@dataclass
class Contents:
    """Rows of a graph, by the ids of the tables."""

    nodes: dict[NodeType, dict[Any, dict[str, Any]]]
    """Columns of each node, by type and id."""
    edges: dict[EdgeType, list[tuple[Any, ...]]]
    """Source, target and the columns (in order of their names) of each edge, in order of the edge ids."""
    splits: dict[NodeType, dict[str, list[Any]]]


def contents_of(path: Path) -> Contents:
    """Read a graph with in-edges."""
    graph = Graph.open(path)
    schema, dataset = graph.schema, DistDataset(graph)
    ids: dict[NodeType, list[Any]] = {}
    found = Contents({}, {}, {})
    for kind, nodes in schema.nodes.items():
        numbers = graph.directory(kind).node_ids(np.arange(nodes.count))
        ids[kind] = dataset.original_ids(torch.from_numpy(numbers), kind)
        columns = {name: graph.node_column(kind, name, 0).tolist() for name in nodes.columns}
        found.nodes[kind] = {
            each: {name: values[at] for name, values in columns.items()} for at, each in enumerate(ids[kind])
        }
        if nodes.splits:
            splits = {name: [ids[kind][at] for at in graph.split(kind, name)] for name in nodes.splits}
            found.splits[kind] = splits
    for edge_type, edges in schema.edges.items():
        topology = graph.topology(edge_type, 0)
        targets = np.repeat(np.arange(schema.nodes[edge_type[2]].count), np.diff(topology["indptr"]))
        values = [graph.edge_column(edge_type, name, 0).tolist() for name in sorted(edges.columns)]
        rows = zip(topology["edge_ids"].tolist(), topology["indices"], targets, *values, strict=True)
        found.edges[edge_type] = [
            (ids[edge_type[0]][source], ids[edge_type[2]][target], *row)
            for _, source, target, *row in sorted(rows, key=lambda row: row[0])
        ]
    return found
