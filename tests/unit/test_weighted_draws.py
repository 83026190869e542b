"""Weighted draws: those of the written rules, wherever the graph lies, and in proportion to the weights."""

from __future__ import annotations

import functools
import math
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gigl_loader import native
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import type_name
from gigl_loader.graph.weights import running_sums
from gigl_loader.partition import ArrayTable, GraphTables, build_graph
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.tensors import Layout
from tests.support import oracle
from tests.support.plans import neighbor_plan, seed_request

if TYPE_CHECKING:
    import numpy.typing as npt

    from gigl_loader.sampling.plan import BatchSampler

NODES = 40
EDGE_TYPES = [("a", "likes", "a"), ("a", "sees", "b"), ("b", "near", "a")]
WEIGHTED = EDGE_TYPES[:2]
"""The third has no weights: it is drawn uniformly."""

# --- the index


@settings(max_examples=200)
@given(
    st.lists(
        st.lists(st.floats(0, 1e300) | st.sampled_from([0.0, 1e-320, 1.0, 1e30, 2.0**-1074]), max_size=9),
        max_size=6,
    )
)
def test_running_sums_are_those_of_the_written_rules(lists: list[list[float]]) -> None:
    indptr = np.cumsum([0, *map(len, lists)])
    sums, counts = running_sums(np.array([w for each in lists for w in each], np.float64), indptr)
    expected = [list(np.cumsum(oracle.whole_weights(each), dtype=object)) for each in lists]
    assert sums.tolist() == [value for each in expected for value in each]
    assert counts.tolist() == [sum(weight > 0 for weight in each) for each in lists]


# --- against the oracle


@functools.cache
def _edges(seed: int) -> dict[Any, list[tuple[int, int, int, float]]]:
    """Per type: source, destination, edge id, weight. Hubs, zero weights, and some that dwarf the others."""
    random = np.random.default_rng(seed)
    found = {}
    for edge_type in EDGE_TYPES:
        count = 600
        src, dst = ((random.random(count) ** 3 * NODES).astype(int) for _ in range(2))
        weights = random.choice([0.0, 0.0, 1.0, 2.5, 1e6, 1e-6], count)
        weights[dst < 3] = 0  # Lists without any weight.
        rows = zip(src, dst, random.permutation(count), weights, strict=True)
        found[edge_type] = [(int(s), int(d), int(e), float(w)) for s, d, e, w in rows]
    return found


@functools.cache
def _graph(partitions: int, assigner: str, edge_dir: Literal["in", "out"]) -> Graph:
    tables = {}
    for edge_type, rows in _edges(0).items():
        src, dst, ids, weights = (np.array(column) for column in zip(*rows, strict=True))
        tables[edge_type] = ArrayTable("edges", {"src": src, "dst": dst, "id": ids, "w": weights})
    folder = MemoryFolder()
    build_graph(
        GraphTables(edges=tables, weights=dict.fromkeys(WEIGHTED, ("w",))),
        folder,
        num_partitions=partitions,
        assigner=assigner,
        edge_dir=edge_dir,
    )
    return Graph.open(folder)


def _frame(sampler: BatchSampler, seeds: npt.NDArray[np.int64]) -> tuple[Layout, npt.NDArray[np.uint8]]:
    sampled = sampler.sample(seed_request(3, 1, seeds))
    buffer = np.zeros(sampled.layout.nbytes, np.uint8)
    sampled.write(buffer)
    return Layout.parse(buffer), buffer


@settings(max_examples=120)
@given(
    st.tuples(st.sampled_from([1, 3]), st.sampled_from(["range", "hash"]), st.sampled_from(["in", "out"])),
    st.booleans(),
    st.lists(st.lists(st.sampled_from([-1, 0, 1, 2, 5, 40]), min_size=2, max_size=2), min_size=3, max_size=3),
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
)
def test_any_partitioning_gives_the_draws_of_the_written_rules(
    cut: tuple[int, str, Literal["in", "out"]],
    replace: bool,
    fanouts: list[list[int]],
    ids: list[int],
) -> None:
    partitions, _, edge_dir = cut
    graph = _graph(*cut)
    hops = dict(zip(EDGE_TYPES, map(tuple, fanouts), strict=True))
    plan = neighbor_plan(
        seed_type="a",
        num_neighbors=hops,
        run_seed=9,
        replace=replace,
        with_edge=True,
        weight_attr="w",
        edge_columns=dict.fromkeys(EDGE_TYPES, ("w",)),
    )
    seeds = graph.positions("a", np.array(ids))
    layout, fused = _frame(plan.open(graph), seeds)
    stores = {part: LocalStore(graph, part) for part in range(partitions)}
    with closing(PartitionedStore(graph.schema, local=stores, remote={})) as store:
        assert _frame(plan.open(graph, store), seeds)[1].tobytes() == fused.tobytes()
    edges = _edges(0)
    expected = oracle.sample(
        {kind: [row[:3] for row in rows] for kind, rows in edges.items()},
        ["a", "b"],
        fanouts=hops,
        seed_type="a",
        seeds=ids,
        key=oracle.request_key(9, 3, range(len(ids)), ids),
        edge_dir=edge_dir,
        replace=replace,
        weights={kind: {row[2]: row[3] for row in edges[kind]} for kind in WEIGHTED},
    )
    for edge_type in EDGE_TYPES:
        prefix = f"edge/{type_name(edge_type)}"
        assert layout.view(fused, f"{prefix}/e_id").tolist() == expected.edge_ids[edge_type]
        assert layout.view(fused, f"{prefix}/rows").tolist() == expected.rows[edge_type]
        if edge_type in WEIGHTED:
            assert (layout.view(fused, f"{prefix}/w") > 0).all()


# --- statistics


def _draws(weights: list[float], fanout: int, *, replace: bool, batches: int) -> Counter[tuple[int, ...]]:
    """How often which entries of one list are drawn, in their order."""
    degree = len(weights)
    sums, counts = running_sums(np.array(weights), np.array([0, degree]))
    entries = np.arange(degree, dtype=np.int32)
    lists = native.Adjacency(
        np.array([0, 1]), [np.array([0, degree])], [entries], [entries], [sums], [counts]
    )
    rule = native.DrawRule(fanout, replace=replace, weighted=True)
    seen: Counter[tuple[int, ...]] = Counter()
    for key in range(batches):
        drawn = native.draw_hop(
            lists,
            None,
            degree,
            np.zeros(1, np.int64),
            key=key * 0x9E3779B9,
            address=5,
            hop=0,
            rule=rule,
            with_edge_ids=False,
            with_slots=False,
        )[1]
        seen[tuple(drawn.tolist())] += 1
    return seen


def test_draws_with_replacement_are_in_proportion() -> None:
    weights = [1.0, 0.0, 2.5, 7.0, 0.5]
    seen: Counter[int] = Counter()
    for entries, times in _draws(weights, 4, replace=True, batches=5000).items():
        seen.update(dict.fromkeys(entries, 0))
        for entry in entries:
            seen[entry] += times
    assert seen[1] == 0
    places = [0, 2, 3, 4]
    expected = np.array([weights[place] for place in places]) / sum(weights) * 20_000
    assert stats.chisquare([seen[place] for place in places], expected).pvalue > 1e-4


def test_draws_without_replacement_are_successive() -> None:
    """Each ordered pair comes as often as picking among what is left says."""
    weights = [1.0, 3.0, 0.0, 2.0, 4.0]
    total, batches = sum(weights), 20_000
    seen = _draws(weights, 2, replace=False, batches=batches)
    expected = {
        (first, second): batches * weights[first] / total * weights[second] / (total - weights[first])
        for first in range(5)
        for second in range(5)
        if first != second and weights[first] and weights[second]
    }
    assert seen.keys() <= expected.keys()
    pairs = list(expected)
    assert stats.chisquare([seen[pair] for pair in pairs], [expected[pair] for pair in pairs]).pvalue > 1e-4


def test_weights_that_dwarf_others_end_quickly() -> None:
    """By rejection, the second draw would take a million tries."""
    seen = _draws([1e12, *[1.0] * 50], 50, replace=False, batches=300)
    assert all(len(set(entries)) == 50 for entries in seen)
    assert all(entries[0] == 0 for entries in seen)


def test_many_picks_of_a_long_list_differ() -> None:
    weights = (np.arange(5000) % 7).astype(float).tolist()
    ((entries, _),) = _draws(weights, 3000, replace=False, batches=1).items()
    assert len(set(entries)) == 3000
    assert all(weights[entry] > 0 for entry in entries)


@pytest.mark.parametrize("fanout", [-1, 4, 5, 100])
def test_where_no_more_than_the_fanout_have_weight_all_of_them_are_taken(fanout: int) -> None:
    seen = _draws([0.0, 1.0, 0.0, 2.0, 3.0, 0.0, 1e-9], fanout, replace=False, batches=3)
    assert seen == {(1, 3, 4, 6): 3}


def test_a_list_without_weights_gives_nothing() -> None:
    for replace in (False, True):
        assert _draws([0.0, 0.0], 3, replace=replace, batches=2) == {(): 2}
        assert _draws([], 3, replace=replace, batches=2) == {(): 2}


# --- damage


def test_a_damaged_index_is_a_format_error() -> None:
    graph = _graph(1, "range", "in")
    sums, _ = graph.weights(WEIGHTED[0], "w", 0)
    damaged = np.full_like(sums, -1)
    plan = neighbor_plan(seed_type="a", num_neighbors=dict.fromkeys(EDGE_TYPES, (2,)), weight_attr="w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Graph, "weights", lambda *_: (damaged, np.full(NODES, 9)))
        with pytest.raises((FormatError, ValueError), match=r"damaged adjacency|weight_counts"):
            _frame(plan.open(graph), np.arange(NODES // 2))


# --- what is refused


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_weight_is_refused_when_the_graph_is_built(weight: float) -> None:
    bad = np.ones(9)
    bad[7] = weight
    table = ArrayTable("edges.npy", {"src": np.arange(9), "dst": np.arange(9), "w": bad})
    tables = GraphTables(edges={("node", "to", "node"): table}, weights={("node", "to", "node"): ("w",)})
    with pytest.raises(FormatError, match=r"edges.npy, column 'w', row 7: a weight is finite"):
        build_graph(tables, MemoryFolder())


def test_a_column_that_cannot_weigh_is_refused_before_anything_is_read() -> None:
    columns = {"src": np.arange(2), "dst": np.arange(2), "v": np.ones((2, 3)), "b": np.array([True, False])}
    for name, message in (
        ("v", "a weight is one number"),
        ("b", "a weight is one number"),
        ("z", "no column 'z'"),
    ):
        with pytest.raises(ValueError, match=message):
            GraphTables(
                edges={("node", "to", "node"): ArrayTable("edges", columns)},
                weights={("node", "to", "node"): (name,)},
            )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint64])
def test_weights_may_be_any_numbers(dtype: Any) -> None:
    table = ArrayTable(
        "e", {"src": np.arange(4), "dst": np.zeros(4, int), "w": np.array([0, 1, 2, 5], dtype)}
    )
    tables = GraphTables(edges={("node", "to", "node"): table}, weights={("node", "to", "node"): ("w",)})
    folder = MemoryFolder()
    build_graph(tables, folder)
    graph = Graph.open(folder)
    sums, counts = graph.weights(("node", "to", "node"), "w", 0)
    assert sums[:4].tolist() == np.cumsum(oracle.whole_weights([0.0, 1.0, 2.0, 5.0])).tolist()
    assert counts.tolist() == [3, 0, 0, 0]
    graph.verify()
