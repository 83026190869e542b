"""Bounds of a batch: edges are counted before memory is taken for them, and no batch within them changes."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest

from gigl_loader import native
from tests.support import oracle
from tests.support.rules import native_rules

NODES, DEGREE = 1000, 10
HUGE = 60_000_000


def adjacency() -> native.Adjacency:
    rng = np.random.default_rng(1)
    indices = rng.integers(0, NODES, NODES * DEGREE).astype(np.int32)
    indptr = np.arange(0, NODES * DEGREE + 1, DEGREE, dtype=np.int64)
    ids = np.arange(NODES * DEGREE, dtype=np.int32)
    return native.Adjacency(np.array([0, NODES]), [indptr], [indices], [ids])


def sampler(*fanouts: int, replace: bool = False) -> native.NeighborSampler:
    return native.NeighborSampler(
        adjacencies=[adjacency()],
        target_types=[0],
        neighbor_types=[0],
        addresses=[1],
        rules=native_rules([list(fanouts)], replace=replace),
        node_ids=[None],
        num_nodes=[NODES],
        with_edge_ids=True,
        with_slots=True,
    )


def rows(batch: native.Batch) -> bytes:
    out = np.empty(sum(batch.edges_per_hop(0)), np.int32)
    batch.write_rows(0, out)
    return out.tobytes()


def test_a_plan_that_wants_gigabytes_takes_none() -> None:
    greedy = sampler(HUGE, replace=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(native.BatchTooLarge, match="more than 1000000 edges"):
        greedy.sample([(0, np.array([3]))], 5, max_edges=1_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # kB
    assert greedy.scratch_bytes < 1 << 20


@pytest.mark.parametrize("replace", [False, True])
def test_the_bound_is_exact_over_all_hops(replace: bool) -> None:
    seeds = np.arange(20)
    free, bounded = sampler(4, 3, replace=replace), sampler(4, 3, replace=replace)
    free.sample([(0, seeds)], 7)
    edges = sum(free.edges_per_hop(0))
    bounded.sample([(0, seeds)], 7, max_edges=edges)
    assert rows(bounded) == rows(free)
    with pytest.raises(native.BatchTooLarge):
        bounded.sample([(0, seeds)], 7, max_edges=edges - 1)
    bounded.sample([(0, seeds)], 7, max_edges=edges)  # What was refused leaves nothing behind.
    assert rows(bounded) == rows(free)


def test_expanded_nodes_count_where_no_edge_is_drawn() -> None:
    """A type of fanout 0 has an entry for each of them all the same."""
    hops = 250
    seeds = np.arange(NODES)
    skipping = native.NeighborSampler(
        adjacencies=[adjacency()] * 1500,
        target_types=[0] * 1500,
        neighbor_types=[0] * 1500,
        addresses=list(range(1500)),
        rules=native_rules([[0] * hops] * 1500),
        node_ids=[None],
        num_nodes=[NODES],
        with_edge_ids=False,
        with_slots=False,
    )
    with pytest.raises(native.BatchTooLarge):
        skipping.sample([(0, seeds)], 1, max_edges=100)


def test_one_hop_of_a_partition_is_bounded_too() -> None:
    given: dict[str, Any] = {
        "key": 1,
        "address": 1,
        "hop": 0,
        "with_edge_ids": True,
        "with_slots": True,
    }
    targets = np.arange(50)
    whole = native.draw_hop(
        adjacency(), None, NODES, targets, rule=native.DrawRule(4, replace=True), max_edges=200, **given
    )
    assert len(whole[1]) == 200
    with pytest.raises(native.BatchTooLarge):
        native.draw_hop(
            adjacency(), None, NODES, targets, rule=native.DrawRule(4, replace=True), max_edges=199, **given
        )
    with pytest.raises(native.BatchTooLarge):
        native.draw_hop(
            adjacency(),
            None,
            NODES,
            targets,
            rule=native.DrawRule(HUGE, replace=True),
            max_edges=1000,
            **given,
        )
    with pytest.raises(ValueError, match="must not be negative"):
        native.draw_hop(
            adjacency(), None, NODES, targets, rule=native.DrawRule(4, replace=True), max_edges=-1, **given
        )


def test_answers_that_do_not_fit_are_not_put_together() -> None:
    builder = native.BatchBuilder(
        target_types=[0],
        neighbor_types=[0],
        node_ids=[None],
        num_nodes=[NODES],
        bounds=[np.array([0, NODES])],
        with_edge_ids=False,
        with_slots=False,
    )
    builder.begin([(0, np.array([1, 2]))], max_edges=5)
    builder.split(0)
    builder.append(0, [(np.array([2, 1], np.int32), np.array([5, 6, 7], np.int32), None, None)])
    assert builder.room == 2
    builder.end_hop()
    builder.split(0)
    answer = (np.array([1, 1, 1], np.int32), np.array([5, 6, 7], np.int32), None, None)
    with pytest.raises(native.BatchTooLarge):
        builder.append(0, [answer])


def test_many_picks_of_a_long_list_are_those_of_the_oracle() -> None:
    """Above 65,536 picks a bit for each entry of the list replaces the table."""
    degree, fanout = 100_000, 70_000
    indices = np.arange(degree, dtype=np.int32)
    lists = native.Adjacency(np.array([0, 1]), [np.array([0, degree])], [indices], [indices])
    given: dict[str, Any] = {
        "key": 9,
        "address": 1,
        "hop": 0,
        "with_edge_ids": False,
        "with_slots": False,
    }
    drawn = native.draw_hop(lists, None, degree, np.array([0]), rule=native.DrawRule(fanout), **given)[1]
    wanted: dict[int, None] = {}  # ``oracle.pick`` with a set: a list would take minutes.
    for j in range(fanout):
        bound = degree - fanout + j
        pick = oracle.draw(9, 0, 1, 0, j=j, below=bound + 1)
        wanted[bound if pick in wanted else pick] = None
    assert drawn.tolist() == list(wanted)


def test_scratch_is_told() -> None:
    one = sampler(10, 10)
    one.sample([(0, np.arange(4))], 1)
    few = one.scratch_bytes
    one.sample([(0, np.arange(NODES))], 1)
    assert one.scratch_bytes > few
