"""Rows of other hosts: which nodes are worth it, the cache, and the cache as other processes open it."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.hosts.peers import open_cache
from gigl_loader.memfile import create_memory
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.row_cache import RowCache, hot_nodes
from gigl_loader.sampling.store import FeatureRequest
from tests.support.stores import store_graphs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_loader.arrays import BoolArray
    from gigl_loader.graph.graph import Graph
    from gigl_loader.sampling.store import EdgeRequest, InducedRequest, NeighborRequest, Neighbors


ITEM_BYTES = 16 * 4 + 8 + 1  # x, y and flag


class CountingStore:
    """Answers for a partition and keeps what it was asked for."""

    def __init__(self, graph: Graph, part: int) -> None:
        self._inner = LocalStore(graph, part)
        self.rows: list[int] = []
        self.closed = False

    def sample(self, ask: NeighborRequest) -> Neighbors:
        return self._inner.sample(ask)

    def induced(self, ask: InducedRequest) -> Neighbors:
        raise AssertionError("nobody asks for induced edges here")

    def contains(self, ask: EdgeRequest) -> BoolArray:
        raise AssertionError("nobody asks for edges here")

    def gather(self, ask: FeatureRequest, places: Any, out: Any) -> None:
        if ask.kind == "item":
            self.rows += ask.rows.tolist()
        self._inner.gather(ask, places, out)

    def close(self) -> None:
        self.closed = True


def cached_store(graph: Graph, nbytes: int) -> tuple[Any, CountingStore, list[int]]:
    """Return partition 1 behind a cache, what it asks, and the positions that were fetched to fill it."""
    stores = {part: CountingStore(graph, part) for part in (1, 2)}
    fd = RowCache.create(graph, (0,), stores, nbytes)
    cache = RowCache.open(fd, graph)
    os.close(fd)
    fetched, stores[1].rows = stores[1].rows, []
    return cache.before(stores[1], 1), stores[1], fetched


def fetch(store: Any, positions: list[int]) -> list[np.ndarray]:
    out = [np.full((len(positions), width), 7, np.uint8) for width in (64, 0)]
    ask = FeatureRequest(kind="item", columns=("x", "none"), rows=np.array(positions, np.int64))
    store.gather(ask, np.arange(len(positions)), out)
    return out


def test_what_is_cached_is_not_asked_for_again() -> None:
    graph = store_graphs()[0].graph
    store, inner, fetched = cached_store(graph, 12 * ITEM_BYTES)
    low, high = (int(bound) for bound in graph.bounds("item")[1:3])
    cached = sorted({row for row in fetched if low <= row < high})
    assert 0 < len(cached) <= 12

    rows = fetch(store, list(range(low, high)))[0]

    assert np.flatnonzero(store.holds("item", np.arange(low, high))).tolist() == [row - low for row in cached]
    assert rows.tobytes() == graph.node_column("item", "x", 1).tobytes()
    assert inner.rows == [row for row in range(low, high) if row not in cached]


def test_nothing_is_asked_where_all_is_cached() -> None:
    graph = store_graphs()[0].graph
    store, inner, _ = cached_store(graph, 1 << 20)
    low, high = graph.bounds("item")[1:3].tolist()
    fetch(store, [high - 1, low, low])
    assert inner.rows == []


def test_an_empty_cache_asks_for_everything() -> None:
    graph = store_graphs()[0].graph
    store, inner, fetched = cached_store(graph, 0)
    low = int(graph.bounds("item")[1])
    fetch(store, [low, low + 1])
    assert (fetched, inner.rows) == ([], [low, low + 1])


def test_a_row_of_another_partition_is_refused() -> None:
    graph = store_graphs()[0].graph
    store, _, _ = cached_store(graph, 12 * ITEM_BYTES)
    with pytest.raises(ValueError, match="lies outside"):
        fetch(store, [0])


def test_closing_closes_the_store_behind_it() -> None:
    store, inner, _ = cached_store(store_graphs()[0].graph, 0)
    with closing(store):
        pass
    assert inner.closed


def test_a_cache_of_another_graph_is_refused() -> None:
    mine, other = (each.graph for each in store_graphs()[:2])
    fd = RowCache.create(mine, (0,), {part: CountingStore(mine, part) for part in (1, 2)}, 0)
    try:
        with pytest.raises(FormatError, match="not of this graph"):
            RowCache.open(fd, other)
    finally:
        os.close(fd)


# --- A host's cache of remote rows, opened by its other processes


@pytest.fixture
def garbage() -> Iterator[int]:
    fd = create_memory("garbage", 4096)
    yield fd
    os.close(fd)


def test_without_its_process_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_cache("/proc/0/fd/3", store_graphs()[0].graph) is None
    assert "no cache of remote rows" in caplog.text


def test_what_lies_there_instead_is_not_believed(garbage: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_cache(f"/proc/{os.getpid()}/fd/{garbage}", store_graphs()[0].graph) is None
    assert "no cache of remote rows" in caplog.text


def test_a_descriptor_that_is_something_else_by_now_is_no_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read, write = os.pipe()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        for fd in (read, file):
            assert open_cache(f"/proc/{os.getpid()}/fd/{fd}", store_graphs()[0].graph) is None
    finally:
        for fd in (read, write, file):
            os.close(fd)
    assert "not a memory file" in caplog.text


# --- Which foreign nodes are worth keeping rows of


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
