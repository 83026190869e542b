"""Which foreign nodes are worth keeping rows of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling.row_cache import hot_nodes

NUM_NODES = 64
ROW_BYTES = 16 * 4


def star_graph() -> Graph:
    """Two partitions of 32. Partition 0's nodes refer to node 40 most, then to 50, then to 60."""
    data = HeteroData()
    data["a"].x = torch.randn(NUM_NODES, 16)
    data["bare"].num_nodes = 10
    sources = [40] * 20 + [50] * 10 + [60] * 5 + [3] * 30
    targets = [i % 32 for i in range(len(sources))]
    data["a", "to", "a"].edge_index = torch.tensor([sources, targets])
    data["bare", "to", "a"].edge_index = torch.tensor([[9] * 10, list(range(10))])
    folder = MemoryFolder()
    build_graph(tables_from_pyg(data), folder, num_partitions=2, assigner="range")
    return Graph.open(folder)


def test_those_referred_to_most_come_first() -> None:
    graph = star_graph()
    assert hot_nodes(graph, (0,), 2 * ROW_BYTES)["a"].tolist() == [40, 50]
    assert hot_nodes(graph, (0,), ROW_BYTES)["a"].tolist() == [40]


def test_never_a_node_of_this_host() -> None:
    chosen = hot_nodes(star_graph(), (0,), 20 * ROW_BYTES)["a"]
    assert chosen.tolist() == [40, 50, 60]  # Node 3 is referred to most of all, and lies here.


def test_everything_where_everything_fits() -> None:
    graph = star_graph()
    begin, end = graph.schema.nodes["a"].bounds[1:]
    chosen = hot_nodes(graph, (0,), (end - begin) * ROW_BYTES)
    assert chosen["a"].tolist() == list(range(begin, end))


def test_nothing_for_nothing() -> None:
    assert len(hot_nodes(star_graph(), (0,), 0)["a"]) == 0


def test_types_without_columns_are_left_out() -> None:
    assert "bare" not in hot_nodes(star_graph(), (0,), 1 << 20)


def test_a_host_that_holds_all_needs_none() -> None:
    assert hot_nodes(star_graph(), (0, 1), 1 << 20)["a"].dtype == np.int64
    assert len(hot_nodes(star_graph(), (0, 1), 1 << 20)["a"]) == 0


def test_a_host_with_few_of_the_edges_samples_as_many_as_one_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of this host's 40 edges are sampled, though they are a twentieth of the graph's."""
    monkeypatch.setattr("gigl_loader.sampling.row_cache._SAMPLED_EDGES", 20)
    monkeypatch.setattr("gigl_loader.sampling.row_cache._SAMPLED_PER_ROW", 0)
    monkeypatch.setattr("gigl_loader.sampling.row_cache._BLOCK", 1)
    sources = torch.arange(800) % 40 + 24  # Every node of partition 1, and some of partition 0.
    targets = torch.cat([torch.arange(40) % 32, 32 + torch.arange(760) % 32])
    data = Data(x=torch.randn(NUM_NODES, 16), edge_index=torch.stack([sources, targets]))
    folder = MemoryFolder()
    build_graph(tables_from_pyg(data), folder, num_partitions=2, assigner="range")

    chosen = hot_nodes(Graph.open(folder), (0,), 31 * ROW_BYTES)["node"]

    assert len(chosen) >= 10
