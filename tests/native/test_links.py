"""Kernels of links: edges that are looked up, edges that are removed, random words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import native
from tests.support import oracle


def _adjacency(lists: list[list[int]], *, wide: bool = False, first: int = 0) -> native.Adjacency:
    indptr = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    dtype = np.int64 if wide else np.int32
    indices = np.array([n for each in lists for n in each], dtype)
    bounds = np.array([first, first + len(lists)], np.int64)
    return native.Adjacency(bounds, [indptr], [indices], [np.arange(len(indices), dtype=dtype)])


def _find(adjacency: native.Adjacency, pairs: list[tuple[int, int]], ids: Any, count: int) -> list[int]:
    targets, neighbors = (np.array([pair[row] for pair in pairs], np.int64) for row in (0, 1))
    found = np.empty(len(pairs), np.uint8)
    native.find_edges(adjacency, ids, count, targets, neighbors, found)
    return found.tolist()


@settings(max_examples=80)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=5), st.booleans(), st.randoms()
)
def test_edges_are_found_by_node_id(lists: list[list[int]], wide: bool, random: Any) -> None:
    ids = list(range(100, 110))
    random.shuffle(ids)
    ordered = [sorted(each, key=lambda position: ids[position]) for each in lists]
    adjacency = _adjacency(ordered, wide=wide, first=3)
    pairs = [(target + 3, neighbor) for target in range(len(lists)) for neighbor in range(10)]
    expected = [int(neighbor in lists[target - 3]) for target, neighbor in pairs]
    assert _find(adjacency, pairs, np.array(ids, np.int64), 10) == expected


def test_pairs_outside_are_refused() -> None:
    adjacency = _adjacency([[0, 1], [1]])
    for pair in ((2, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(ValueError, match="position"):
            _find(adjacency, [pair], None, 2)
    with pytest.raises(ValueError, match="differ in length"):
        native.find_edges(
            adjacency, None, 2, np.zeros(2, np.int64), np.zeros(1, np.int64), np.empty(2, np.uint8)
        )


def test_lists_that_leave_their_type_are_told() -> None:
    with pytest.raises(RuntimeError, match="outside its node type"):
        _find(_adjacency([[0, 5, 7]]), [(0, 1)], None, 2)


def test_words_are_those_of_the_written_rule() -> None:
    low, high = np.array([0, 7, -1], np.int64), np.array([5, -(2**56), 3], np.int64)
    first, second = np.empty(3, np.uint64), np.empty(3, np.uint64)
    native.philox_words(2**64 - 1, low, high, first, second)
    mask = 2**64 - 1
    expected = [oracle.philox(mask, int(a) & mask, int(b) & mask) for a, b in zip(low, high, strict=True)]
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == expected


@settings(max_examples=80)
@given(st.data())
def test_excluded_edges_are_gone_and_the_others_stay_in_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    lists = [sorted(data.draw(st.lists(st.integers(0, count - 1), max_size=8))) for _ in range(count)]
    samplers = [
        native.NeighborSampler(
            adjacencies=[_adjacency(lists)],
            target_types=[0],
            neighbor_types=[0],
            addresses=[1],
            rules=[[native.DrawRule(3), native.DrawRule(-1)]],
            node_ids=[None],
            num_nodes=[count],
            with_edge_ids=True,
            with_slots=True,
        )
        for _ in range(2)
    ]
    seeds = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4)), np.int64)
    for sampler in samplers:
        sampler.sample([(0, seeds[:2]), (0, seeds[2:])], 5)
    plain, changed = samplers
    order = list(dict.fromkeys(seeds.tolist()))
    assert plain.seed_locals().tolist() == [order.index(seed) for seed in seeds.tolist()]

    pair = st.tuples(st.integers(0, count), st.integers(0, count))
    pairs = data.draw(st.lists(pair, max_size=6))
    changed.exclude(0, *(np.array([each[row] for each in pairs], np.int64) for row in (0, 1)))

    before, after = _edges(plain), _edges(changed)
    hops = plain.edges_per_hop(0)
    kept = [edge for edge in before if (edge[0], edge[1]) not in set(pairs)]
    assert after == kept
    begins = [0, hops[0]]
    assert changed.edges_per_hop(0) == [
        sum((edge[0], edge[1]) not in set(pairs) for edge in before[begin : begin + hop])
        for begin, hop in zip(begins, hops, strict=True)
    ]
    assert changed.nodes_per_hop(0) == plain.nodes_per_hop(0)


def _edges(sampler: native.NeighborSampler) -> list[tuple[int, int, int, int]]:
    """Target, neighbour, edge id and slot of each edge."""
    total, targets = sum(sampler.edges_per_hop(0)), sampler.num_targets(0)
    rows, colptr = np.empty(total, np.int32), np.empty(targets + 1, np.int64)
    ids, slots = np.empty(total, np.int64), np.empty(total, np.int64)
    sampler.write_rows(0, rows)
    sampler.write_colptr(0, colptr)
    sampler.write_edge_ids(0, ids)
    sampler.write_slots(0, slots)
    of = np.repeat(np.arange(targets), np.diff(colptr))
    return list(zip(of.tolist(), rows.tolist(), ids.tolist(), slots.tolist(), strict=True))
