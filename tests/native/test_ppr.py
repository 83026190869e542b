"""The kernels of personalised PageRank: answers that cannot be, damaged lists, and memory that is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gigl_loader import native

NODES, DEGREE = 1000, 12


def rule(**changes: Any) -> native.PPRRule:
    given: dict[str, Any] = {
        "alpha": 0.5,
        "eps": 1e-4,
        "max_nodes": 50,
        "top_up": True,
        "max_neighbors": 1000,
        "max_rounds": 2**31,
        "weighted": False,
        "states": [(0, True)],
        "edges": [(0, 0, 0)],
        "starts": [[0]],
    }
    given |= changes
    return native.PPRRule(**{"shares": [given["max_nodes"]], **given})


def seeds(*positions: Any) -> list[tuple[int, Any]]:
    return [(0, np.array(positions, np.int64))]


def lists() -> Any:
    rng = np.random.default_rng(1)
    indptr = np.arange(0, NODES * DEGREE + 1, DEGREE, dtype=np.int64)
    return indptr, np.sort(rng.integers(0, NODES, (NODES, DEGREE)), axis=1).reshape(-1).astype(np.int32)


def sampler(indptr: Any, indices: Any, **changes: Any) -> native.PPRSampler:
    ids = np.zeros(len(indices), np.int32)
    return native.PPRSampler(
        adjacencies=[native.Adjacency(np.array([0, NODES]), [indptr], [indices], [ids])],
        addresses=[1],
        node_ids=[None],
        num_nodes=[NODES],
        rule=rule(**changes),
    )


def builder(**changes: Any) -> native.PPRBuilder:
    return native.PPRBuilder(node_ids=[None], num_nodes=[NODES], rule=rule(**changes))


def bytes_of(batch: native.PPRBatch) -> list[bytes]:
    seed, node, [score], [hop] = batch.neighbors(0, 0)
    return [each.tobytes() for each in (seed, node, score, hop)]


def test_a_builder_asks_for_each_list_once_and_ends_as_the_sampler() -> None:
    indptr, indices = lists()
    whole, stepped = sampler(indptr, indices), builder()
    whole.sample(seeds(*range(0, 200, 3)))
    stepped.begin(seeds(*range(0, 200, 3)))
    told: set[int] = set()
    while wanted := stepped.advance():
        for node_type, fanout, positions in wanted:
            assert len(set(positions.tolist())) == len(positions)
            assert not told & set(positions.tolist())
            counts = np.full(len(positions), min(DEGREE, fanout), np.int32)
            found = [indices[indptr[each] : indptr[each] + counts[0]] for each in positions.tolist()]
            stepped.append(node_type, fanout, positions, [(counts, np.concatenate(found), None)])
            if fanout > DEGREE:
                told |= set(positions.tolist())
    assert bytes_of(whole) == bytes_of(stepped)
    assert whole.nodes_per_hop(0) == stepped.nodes_per_hop(0)
    assert stepped.advance() == []


@pytest.mark.parametrize(
    ("counts", "neighbors", "message"),
    [
        ([], [], "other targets than it was asked for"),
        ([-1], [], "nobody asked for"),
        ([1001], [0] * 1001, "nobody asked for"),
        ([2], [1], "other neighbours than its counts say"),
        ([2], [1, NODES], "outside its node type"),
        ([2], [1, -1], "outside its node type"),
    ],
)
def test_answers_that_cannot_be_are_refused(counts: Any, neighbors: Any, message: str) -> None:
    stepped = builder()
    stepped.begin(seeds(3))
    [(node_type, fanout, positions)] = stepped.advance()
    answer = (np.array(counts, np.int32), np.array(neighbors, np.int64), None)
    with pytest.raises(RuntimeError, match=f"answer of a partition: .*{message}"):
        stepped.append(node_type, fanout, positions, [answer])
    stepped.begin(seeds(4))
    assert len(stepped.advance()) == 1


def test_what_was_not_asked_is_no_answer() -> None:
    stepped = builder()
    stepped.begin(seeds(3))
    [(node_type, fanout, positions)] = stepped.advance()
    empty = (np.zeros(1, np.int32), np.empty(0, np.int32), None)
    for wrong in (positions + 1, positions - 4, positions + NODES):
        with pytest.raises(ValueError, match=r"not asked for|outside its type"):
            stepped.append(node_type, fanout, wrong, [empty])
    with pytest.raises(ValueError, match="one answer per edge type"):
        stepped.append(node_type, fanout, positions, [empty, empty])
    with pytest.raises(ValueError, match="asked for are missing"):
        stepped.advance()


@pytest.mark.parametrize("damage", [("indptr", 5, -1), ("indptr", 5, 2**62), ("indices", 36, NODES)])
def test_damaged_lists_are_named(damage: tuple[str, int, int]) -> None:
    indptr, indices = lists()
    name, place, value = damage
    {"indptr": indptr, "indices": indices}[name][place] = value
    with pytest.raises(RuntimeError, match="damaged adjacency"):
        sampler(indptr, indices).sample(seeds(*range(10)))


def test_a_push_that_would_not_end_takes_no_more_than_its_bound() -> None:
    greedy = sampler(*lists(), alpha=1e-12, eps=1e-9)
    with pytest.raises(native.BatchTooLarge, match="more than 300000 edges"):
        greedy.sample(seeds(*range(5)), max_edges=300_000)
    assert greedy.scratch_bytes < 1 << 20  # A node is there once, however often it is pushed.


def test_memory_is_used_again() -> None:
    """Also after a seed that reached many nodes, and without traces of earlier seeds."""
    reused = sampler(*lists(), eps=1e-6)
    reused.sample(seeds(*range(100)))
    kept = reused.scratch_bytes
    for seed in (7, 8, 7):
        reused.sample(seeds(seed))
        fresh = sampler(*lists(), eps=1e-6)
        fresh.sample(seeds(seed))
        assert bytes_of(reused) == bytes_of(fresh)
    assert reused.scratch_bytes == kept


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0.0}, "alpha must lie in"),
        ({"alpha": float("nan")}, "alpha must lie in"),
        ({"eps": 1.0}, "eps must lie in"),
        ({"max_nodes": 0}, "must be positive"),
        ({"max_neighbors": 0}, "must be positive"),
        ({"max_rounds": 0}, "must be positive"),
        ({"shares": [49]}, "must add up to max_nodes"),
        ({"shares": [-1, 51], "starts": [[0], [0]]}, "must not be negative"),
        ({"starts": []}, "a rule has a channel"),
        ({"edges": [(0, 1, 0)]}, "type 1 of 1"),
    ],
)
def test_rules_that_cannot_be_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule(**changes)


def test_a_seed_outside_its_type_is_refused() -> None:
    with pytest.raises(IndexError, match="seed position 1000"):
        sampler(*lists()).sample(seeds(NODES))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": [(1, True)]}, "type 1 of 1"),
        ({"states": [(0, False)]}, "seeds are kept"),
        ({"starts": [[0, 0]]}, "a start for each node type"),
        ({"starts": [[1]]}, "type 1 of 1"),
        ({"edges": [(0, 0, 1)]}, "type 1 of 1"),
        ({"weighted": True}, "weights are those of answers"),
    ],
)
def test_rules_that_do_not_fit_the_graph_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampler(*lists(), **changes)


@pytest.mark.parametrize(("weights", "message"), [([1.0], "other neighbours"), ([1.0, 0.0], "not positive")])
def test_weights_that_cannot_be_are_refused(weights: Any, message: str) -> None:
    stepped = builder(weighted=True)
    stepped.begin(seeds(3))
    [(state, fanout, positions)] = stepped.advance()
    answer = (np.array([2], np.int32), np.array([1, 2], np.int64), np.array(weights))
    with pytest.raises(RuntimeError, match=message):
        stepped.append(state, fanout, positions, [answer])


def test_seeds_and_exclusions_that_cannot_be_are_refused() -> None:
    whole, none = sampler(*lists(), starts=[[-1]]), np.empty(0, np.int64)
    with pytest.raises(ValueError, match="in which no channel starts"):
        whole.sample(seeds(3))
    for excluded, message in ((-1, none, none), "a number"), ((0, none, np.arange(2)), "differ in length"):
        with pytest.raises(ValueError, match=message):
            sampler(*lists()).sample(seeds(3), excluded=[excluded])
