"""What a batch builder refuses. That it builds the fused sampler's batches is in unit/test_distributed.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gigl_loader import native
from tests.support.rules import native_rules

_TWO_PARTS = np.array([0, 2, 5])


def _builder(**changes: Any) -> native.BatchBuilder:
    given: dict[str, Any] = {
        "target_types": [0],
        "neighbor_types": [0],
        "node_ids": [None],
        "num_nodes": [5],
        "bounds": [_TWO_PARTS],
        "with_edge_ids": True,
        "with_slots": True,
    }
    return native.BatchBuilder(**{**given, **changes})


def _answer(numbers: list[int], neighbors: list[int], **changes: Any) -> tuple[Any, Any, Any, Any]:
    count = len(neighbors)
    arrays: dict[str, Any] = {
        "counts": np.array(numbers, np.int32),
        "positions": np.array(neighbors, np.int32),
        "edge_ids": np.arange(count, dtype=np.int64),
        "slots": np.arange(count, dtype=np.int64),
    }
    return tuple({**arrays, **changes}.values())


def _begun() -> native.BatchBuilder:
    builder = _builder()
    builder.begin([(0, np.array([4, 0, 3]))])
    assert [part.tolist() for part in builder.split(0)] == [[0], [4, 3]]
    return builder


def test_a_batch_is_put_together_in_the_order_of_its_frontier() -> None:
    builder = _begun()
    builder.append(0, [_answer([1], [2]), _answer([2, 1], [0, 1, 2])])
    builder.end_hop()
    assert builder.nodes_per_hop(0) == [3, 2]
    assert builder.edges_per_hop(0) == [4]
    nodes, colptr = np.empty(5, np.int64), np.empty(4, np.int64)
    rows, slots = np.empty(4, np.int32), np.empty(4, np.int64)
    builder.write_positions(0, nodes)
    builder.write_colptr(0, colptr)
    builder.write_rows(0, rows)
    builder.write_slots(0, slots)
    assert nodes.tolist() == [4, 0, 3, 1, 2]
    assert colptr.tolist() == [0, 2, 3, 4]
    assert rows.tolist() == [1, 3, 4, 4]
    assert slots.tolist() == [1 << 40, 1 << 40 | 1, 0, 1 << 40 | 2]


def test_bounds_of_new_nodes_are_the_times_of_their_edges() -> None:
    builder = _builder(disjoint=True)
    builder.begin([(0, np.array([4, 0, 3 | 1 << 40]))], tree_times=np.array([9, 7]))
    assert [part.tolist() for part in builder.split(0)] == [[0], [4, 3 | 1 << 40]]
    assert [part.tolist() for part in builder.split_bounds(0)] == [[9], [9, 7]]
    answers = [_answer([1], [2]), _answer([2, 1], [0, 1, 2])]
    with pytest.raises(ValueError, match="times are those of all answers"):
        builder.append(0, answers, [np.array([1])])
    with pytest.raises(ValueError, match="one time per neighbour"):
        builder.append(0, answers, [np.array([1]), np.array([1])])
    builder.append(0, answers, [np.array([6]), np.array([4, 5, 7])])
    builder.end_hop()
    assert [part.tolist() for part in builder.split(0)] == [[1], [2, 2 | 1 << 40]]
    assert [part.tolist() for part in builder.split_bounds(0)] == [[5], [6, 7]]
    builder.append(0, [_answer([1], [4]), _answer([0, 1], [4])])
    builder.end_hop()
    builder.split(0)
    assert [part.tolist() for part in builder.split_bounds(0)] == [[], [7]], "passed on without times"
    builder.begin([(0, np.array([4]))], tree_times=np.array([9]))
    builder.split(0)
    with pytest.raises(RuntimeError, match="partition 1: an edge that is later than its target may have"):
        builder.append(0, [_answer([], []), _answer([1], [1])], [np.empty(0, np.int64), np.array([10])])
    builder.begin([(0, np.array([4]))], tree_times=np.array([9]))
    builder.split(0)
    at_the_bound = [_answer([], []), _answer([1], [1])], [np.empty(0, np.int64), np.array([9])]
    with pytest.raises(RuntimeError, match="an edge that is later than its target may have"):
        builder.append(0, *at_the_bound, strictly_earlier=True)
    builder.begin([(0, np.array([4]))], tree_times=np.array([9]))
    builder.split(0)
    builder.append(0, *at_the_bound)
    with pytest.raises(ValueError, match="a tree has no time"):
        builder.begin([(0, np.array([1 << 40]))], tree_times=np.array([9]))


@pytest.mark.parametrize("positions", [[2**31 - 1], [-(2**31)], [5], [-1]])
def test_neighbours_that_cannot_be_are_refused(positions: list[int]) -> None:
    with pytest.raises(RuntimeError, match="outside its node type"):
        _begun().append(0, [_answer([1], positions), _answer([0, 0], [])])


def test_numbers_that_would_overflow_are_refused() -> None:
    most = np.iinfo(np.int32).max
    with pytest.raises(RuntimeError, match="other neighbours than its counts say"):
        _begun().append(0, [_answer([most], [1]), _answer([most, most], [1])])


@pytest.mark.parametrize(
    ("answers", "error", "rule"),
    [
        ([_answer([0], [])], ValueError, "one answer per partition"),
        ([_answer([0], [])] * 3, ValueError, "one answer per partition"),
        ([_answer([1], [1], edge_ids=None), _answer([0, 0], [])], ValueError, "one edge id per neighbour"),
        ([_answer([1], [1], slots=np.arange(2)), _answer([0, 0], [])], ValueError, "one slot per neighbour"),
        (
            [_answer([1], [1], positions=np.ones(1, np.int16)), _answer([0, 0], [])],
            TypeError,
            "positions must be int32 or int64",
        ),
        ([_answer([1], [1], counts=np.ones(1)), _answer([0, 0], [])], TypeError, "incompatible"),
    ],
)
def test_answers_of_another_form_are_refused(answers: list[Any], error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        _begun().append(0, answers)


def test_a_frontier_is_split_before_it_is_answered() -> None:
    builder = _builder()
    builder.begin([(0, np.array([1]))])
    with pytest.raises(ValueError, match="split the frontier"):
        builder.append(0, [_answer([0], []), _answer([], [])])


def test_the_split_of_another_hop_is_not_used() -> None:
    builder = _begun()
    builder.append(0, [_answer([1], [1]), _answer([1, 1], [1, 1])])
    builder.end_hop()
    with pytest.raises(ValueError, match="split the frontier"):
        builder.append(0, [_answer([0], []), _answer([], [])])


@pytest.mark.parametrize("type_", [-1, 1])
def test_types_that_are_not_there_are_refused(type_: int) -> None:
    builder = _begun()
    for call in (builder.split, builder.skip, builder.nodes_per_hop, lambda each: builder.append(each, [])):
        with pytest.raises(ValueError, match=f"type {type_} of 1"):
            call(type_)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"bounds": [np.array([0, 6, 5])]}, "must not fall"),
        ({"bounds": [np.array([0, 4])]}, "run from 0 to the number of nodes"),
        ({"bounds": [np.array([5])]}, "1 to 65,535 parts"),
        ({"bounds": []}, "differ in length"),
        ({"target_types": [1]}, "type 1 of 1"),
        ({"neighbor_types": [0, 0]}, "differ in length"),
        ({"node_ids": [np.arange(4)]}, "one entry per node"),
    ],
)
def test_plans_that_do_not_fit_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        _builder(**changes)


def _drawn(targets: list[int], **changes: Any) -> Any:
    adjacency = native.Adjacency(
        np.array([3, 5]), [np.array([0, 1, 2])], [np.array([0, 4], np.int32)], [np.array([7, 8], np.int32)]
    )
    given: dict[str, Any] = {
        "key": 1,
        "address": 2,
        "hop": 0,
        "rule": native.DrawRule(-1),
        "with_edge_ids": True,
        "with_slots": True,
    }
    return native.draw_hop(adjacency, None, 5, np.array(targets, np.int64), **{**given, **changes})


def test_an_adjacency_may_begin_anywhere() -> None:
    counts, positions, edge_ids, slots, _ = _drawn([4, 3, 4])
    assert counts.tolist() == [1, 1, 1]
    assert (positions.tolist(), edge_ids.tolist(), slots.tolist()) == ([4, 0, 4], [8, 7, 8], [1, 0, 1])


@pytest.mark.parametrize(
    ("targets", "changes", "rule"),
    [
        ([2], {}, r"target position 2 lies outside \[3, 5\)"),
        ([3, 5], {}, "target position 5"),
        ([3], {"hop": 254}, "a hop lies in"),
        ([3], {"address": 1 << 24}, "24 bits"),
    ],
)
def test_hops_that_cannot_be_drawn_are_refused(targets: list[int], changes: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        _drawn(targets, **changes)


def test_a_sampler_of_the_whole_graph_needs_it_whole() -> None:
    adjacency = native.Adjacency(
        np.array([3, 5]), [np.array([0, 0, 0])], [np.empty(0, np.int32)], [np.empty(0, np.int32)]
    )
    with pytest.raises(ValueError, match="must cover its target type"):
        native.NeighborSampler(
            adjacencies=[adjacency],
            target_types=[0],
            neighbor_types=[0],
            addresses=[0],
            rules=native_rules([[1]]),
            node_ids=[None],
            num_nodes=[5],
            with_edge_ids=False,
            with_slots=False,
        )


def test_a_rule_has_a_fanout_from_minus_one() -> None:
    with pytest.raises(ValueError, match="a fanout is -1, 0 or positive"):
        native.DrawRule(-2)
