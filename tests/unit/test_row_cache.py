"""Rows of other hosts kept on this one."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.errors import FormatError
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.row_cache import RowCache
from gigl_loader.sampling.store import FeatureRequest
from tests.support.stores import store_graphs

if TYPE_CHECKING:
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
