"""Graphs for tests, as PyG objects: small, random, and the same every time."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import build_graph, tables_from_pyg


def homogeneous(num_nodes: int = 300, num_edges: int = 2400, *, seed: int = 0) -> Data:
    """Features, labels, edge features and splits; multi-edges, self loops and isolated nodes."""
    random = torch.Generator().manual_seed(seed)
    # The last tenth of the nodes has no edge.
    edge_index = torch.randint(0, num_nodes * 9 // 10, (2, num_edges), generator=random)
    place = torch.rand(num_nodes, generator=random)
    return Data(
        x=torch.randn(num_nodes, 6, generator=random),
        y=torch.randint(0, 4, (num_nodes,), generator=random),
        edge_index=edge_index,
        edge_attr=torch.randn(num_edges, 3, generator=random),
        train_mask=place < 0.5,
        val_mask=(place >= 0.5) & (place < 0.7),
        test_mask=place >= 0.7,
        num_nodes=num_nodes,
    )


def heterogeneous(*, seed: int = 0) -> HeteroData:
    """Users, items and tags; one edge type between users, one without any edge, one with columns."""
    random = torch.Generator().manual_seed(seed)
    counts = {"user": 120, "item": 90, "tag": 7}
    data = HeteroData()
    for node_type, dim in (("user", 4), ("item", 5)):
        data[node_type].x = torch.randn(counts[node_type], dim, generator=random)
    data["tag"].num_nodes = counts["tag"]
    data["item"].y = torch.randint(0, 3, (counts["item"],), generator=random)
    data["user"].train_mask = torch.rand(counts["user"], generator=random) < 0.5
    edges = {
        ("user", "follows", "user"): 500,
        ("user", "buys", "item"): 700,
        ("item", "rev_buys", "user"): 650,
        ("item", "has", "tag"): 80,
        ("tag", "on", "item"): 90,
        ("tag", "near", "tag"): 0,
    }
    for (source, relation, destination), count in edges.items():
        ends = [
            torch.randint(0, counts[node_type], (count,), generator=random)
            for node_type in (source, destination)
        ]
        data[source, relation, destination].edge_index = torch.stack(ends)
    data["user", "buys", "item"].edge_attr = torch.randn(700, 2, generator=random)
    return data


def weighted(*, hetero: bool = False) -> Any:
    """One of the graphs with weights ``w`` and times ``t`` of some edge types, and times ``born`` of nodes.

    A third of the edges has no weight. Times are below 100.
    """
    data = heterogeneous() if hetero else homogeneous()
    random = torch.Generator().manual_seed(1)
    stores = [data["user", "buys", "item"], data["user", "follows", "user"]] if hetero else [data]
    for store in stores:
        count = store.edge_index.shape[1]
        store.w = torch.rand(count, generator=random) * (torch.arange(count) % 3).float()
        store.t = torch.randint(0, 100, (count,), generator=random)
    for store in [data["user"], data["item"]] if hetero else [data]:
        store.born = torch.randint(0, 100, (store.num_nodes,), generator=random)
    return data


def graph_of(data: Data | HeteroData) -> Graph:
    """Return the graph of a PyG object, in memory, as ``DistDataset.from_pyg`` makes it."""
    folder = MemoryFolder()
    build_graph(tables_from_pyg(data), folder)
    return Graph.open(folder)


def tensors_of(batch: Any) -> dict[tuple[Any, str], Any]:
    """Return everything in a batch, by store and name."""
    return {(store._key, name): value for store in batch.stores for name, value in store.items()}


def same_batch(first: Any, second: Any) -> bool:
    """Whether two batches are equal, bit for bit."""
    left, right = tensors_of(first), tensors_of(second)
    if left.keys() != right.keys() or type(first) is not type(second):
        return False
    return all(_same(left[key], right[key]) for key in left)


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return list(first) == list(second) and all(_same(first[key], second[key]) for key in first)
    if not isinstance(first, torch.Tensor):
        return bool(first == second)
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    left, right = (each.reshape(-1).contiguous().view(torch.uint8) for each in (first, second))
    return torch.equal(left, right)
