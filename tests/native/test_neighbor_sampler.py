"""The fused kernel equals the plain-Python oracle bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import native
from tests.support import oracle
from tests.support.oracle import Edge, EdgeType
from tests.support.rules import native_rules

NODE_TYPES = ["a", "b"]
EDGE_TYPES: list[EdgeType] = [("a", "likes", "b"), ("a", "to", "a"), ("b", "of", "a")]


@dataclass
class Case:
    """A random graph and what to sample from it. Node ids are positions, or positions times 7."""

    counts: dict[str, int]
    edges: dict[EdgeType, list[Edge]]
    fanouts: dict[EdgeType, list[int]]
    seeds: list[int]
    edge_dir: str
    replace: bool
    cuts: int
    wide: bool
    on_disk: bool
    scale: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    counts = {"a": draw(st.integers(1, 12)), "b": draw(st.integers(0, 12))}
    scale = draw(st.sampled_from([1, 7]))
    edges: dict[EdgeType, list[Edge]] = {}
    for edge_type in EDGE_TYPES:
        high = (counts[edge_type[0]], counts[edge_type[2]])
        if 0 in high:
            edges[edge_type] = []
            continue
        pair = st.tuples(st.integers(0, high[0] - 1), st.integers(0, high[1] - 1))
        pairs = draw(st.lists(pair, max_size=80))  # self loops and multi-edges come by themselves
        edges[edge_type] = [(s * scale, d * scale, i) for i, (s, d) in enumerate(pairs)]
    hops = draw(st.integers(0, 3))
    fanout = st.sampled_from([-1, 0, 1, 2, 3, 5, 8])
    return Case(
        counts=counts,
        edges=edges,
        fanouts={t: draw(st.lists(fanout, min_size=hops, max_size=hops)) for t in EDGE_TYPES},
        seeds=draw(st.lists(st.integers(0, counts["a"] - 1), max_size=6)),
        edge_dir=draw(st.sampled_from(["in", "out"])),
        replace=draw(st.booleans()),
        cuts=draw(st.integers(1, 4)),
        wide=draw(st.booleans()),
        on_disk=draw(st.booleans()),
        scale=scale,
    )


def _bounds(count: int, parts: int) -> npt.NDArray[np.int64]:
    return np.array([count * p // parts for p in range(parts + 1)], np.int64)


def _adjacency(case: Case, edge_type: EdgeType) -> native.Adjacency:
    """The edge type cut into parts, built by the adjacency kernel part by part."""
    target_end, neighbor_end = (1, 0) if case.edge_dir == "in" else (0, 1)
    target_type = edge_type[2] if case.edge_dir == "in" else edge_type[0]
    table = np.array(case.edges[edge_type], np.int64).reshape(-1, 3)
    targets = table[:, target_end] // case.scale
    bounds = _bounds(case.counts[target_type], case.cuts)
    dtype = np.int64 if case.wide else np.int32
    indptrs, indices, ids = [], [], []
    for low, high in pairwise(bounds):
        mine = table[(low <= targets) & (targets < high)]
        indptr, order = np.empty(high - low + 1, np.int64), np.empty(len(mine), np.int64)
        native.build_adjacency(
            mine[:, target_end] // case.scale - low,
            np.ascontiguousarray(mine[:, neighbor_end]),
            np.ascontiguousarray(mine[:, 2]),
            indptr,
            order,
        )
        indptrs.append(indptr)
        indices.append((mine[order, neighbor_end] // case.scale).astype(dtype))
        ids.append(mine[order, 2].astype(dtype))
    return native.Adjacency(bounds, indptrs, indices, ids, on_disk=case.on_disk)


def _sampler(case: Case) -> native.NeighborSampler:
    places = {node_type: index for index, node_type in enumerate(NODE_TYPES)}
    target, neighbor = (2, 0) if case.edge_dir == "in" else (0, 2)
    node_ids = [
        None if case.scale == 1 else np.arange(case.counts[t], dtype=np.int64) * case.scale
        for t in NODE_TYPES
    ]
    return native.NeighborSampler(
        adjacencies=[_adjacency(case, edge_type) for edge_type in EDGE_TYPES],
        target_types=[places[edge_type[target]] for edge_type in EDGE_TYPES],
        neighbor_types=[places[edge_type[neighbor]] for edge_type in EDGE_TYPES],
        addresses=[oracle.address(edge_type) for edge_type in EDGE_TYPES],
        rules=native_rules([case.fanouts[edge_type] for edge_type in EDGE_TYPES], replace=case.replace),
        node_ids=node_ids,
        num_nodes=[case.counts[node_type] for node_type in NODE_TYPES],
        with_edge_ids=True,
        with_slots=True,
    )


def _check_batch(sampler: native.NeighborSampler, case: Case, key: int) -> None:
    sampler.sample([(0, np.array(case.seeds, np.int64))], key)
    expected = oracle.sample(
        case.edges,
        NODE_TYPES,
        fanouts=case.fanouts,
        seed_type="a",
        seeds=[seed * case.scale for seed in case.seeds],
        key=key,
        edge_dir=case.edge_dir,
        replace=case.replace,
    )
    for index, node_type in enumerate(NODE_TYPES):
        assert sampler.nodes_per_hop(index) == expected.nodes_per_hop[node_type]
        ids = np.empty(len(expected.nodes[node_type]), np.int64)
        sampler.write_node_ids(index, ids)
        assert ids.tolist() == expected.nodes[node_type]
    for index, edge_type in enumerate(EDGE_TYPES):
        count = len(expected.rows[edge_type])
        assert sampler.edges_per_hop(index) == expected.edges_per_hop[edge_type]
        rows, edge_ids = np.empty(count, np.int32), np.empty(count, np.int64)
        colptr = np.empty(sampler.num_targets(index) + 1, np.int64)
        sampler.write_rows(index, rows)
        sampler.write_edge_ids(index, edge_ids)
        sampler.write_colptr(index, colptr)
        edge_index = np.empty((2, count), np.int64)
        native.expand_edges(rows, colptr, edge_index)
        assert edge_index[0].tolist() == expected.rows[edge_type]
        assert edge_index[1].tolist() == expected.targets[edge_type]
        assert edge_ids.tolist() == expected.edge_ids[edge_type]


@settings(max_examples=300)
@given(cases(), st.integers(0, 2**64 - 1))
def test_a_batch_equals_the_oracle(case: Case, key: int) -> None:
    _check_batch(_sampler(case), case, key)


@settings(max_examples=50)
@given(cases(), st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=5))
def test_a_batch_does_not_depend_on_those_before_it(case: Case, keys: Sequence[int]) -> None:
    sampler = _sampler(case)
    for key in keys:
        _check_batch(sampler, case, key)


def _homogeneous(
    edges: Sequence[Edge], count: int, fanouts: Sequence[int], **options: bool
) -> tuple[native.NeighborSampler, Mapping[EdgeType, Sequence[Edge]]]:
    table = np.array(edges, np.int64).reshape(-1, 3)
    indptr, order = np.empty(count + 1, np.int64), np.empty(len(table), np.int64)
    columns = [np.ascontiguousarray(column) for column in table.T]
    native.build_adjacency(columns[1], columns[0], columns[2], indptr, order)
    adjacency = native.Adjacency(
        np.array([0, count]),
        [indptr],
        [columns[0][order].astype(np.int32)],
        [columns[2][order].astype(np.int32)],
    )
    edge_type = ("n", "to", "n")
    sampler = native.NeighborSampler(
        adjacencies=[adjacency],
        target_types=[0],
        neighbor_types=[0],
        addresses=[oracle.address(edge_type)],
        rules=native_rules([fanouts], replace=options.get("replace", False)),
        node_ids=[None],
        num_nodes=[count],
        with_edge_ids=True,
        with_slots=False,
    )
    return sampler, {edge_type: edges}


@pytest.mark.parametrize("fanout", [60, 65, 100, 299, -1])
@pytest.mark.parametrize("replace", [False, True])
def test_large_fanouts_and_degrees_equal_the_oracle(fanout: int, replace: bool) -> None:
    edges = [(i % 211, i % 3, i) for i in range(900)]  # three hubs of 300 edges each
    sampler, graph = _homogeneous(edges, 211, [fanout, 2], replace=replace)
    sampler.sample([(0, np.array([2, 0], np.int64))], 99)
    expected = oracle.sample(
        graph,
        ["n"],
        fanouts={("n", "to", "n"): [fanout, 2]},
        seed_type="n",
        seeds=[2, 0],
        key=99,
        replace=replace,
    )
    rows, ids = (
        np.empty(len(expected.rows["n", "to", "n"]), np.int32),
        np.empty(len(expected.nodes["n"]), np.int64),
    )
    sampler.write_rows(0, rows)
    sampler.write_node_ids(0, ids)
    assert rows.tolist() == expected.rows["n", "to", "n"]
    assert ids.tolist() == expected.nodes["n"]


def test_a_small_batch_after_a_large_one_finds_a_clean_table() -> None:
    edges = [(i, (i * 7) % 5000, i) for i in range(5000)]
    sampler, graph = _homogeneous(edges, 5000, [3, 3])
    for seeds in (list(range(5000)), [17], [3, 4], list(range(0, 5000, 2)), [9]):
        sampler.sample([(0, np.array(seeds, np.int64))], 4)
        expected = oracle.sample(
            graph, ["n"], fanouts={("n", "to", "n"): [3, 3]}, seed_type="n", seeds=seeds, key=4
        )
        ids = np.empty(len(expected.nodes["n"]), np.int64)
        sampler.write_node_ids(0, ids)
        assert ids.tolist() == expected.nodes["n"]


def test_a_seed_outside_its_type_is_refused() -> None:
    sampler, _ = _homogeneous([(0, 1, 0)], 3, [1])
    for seed in (-1, 3):
        with pytest.raises(IndexError, match=rf"seed position {seed} of a type with 3 nodes"):
            sampler.sample([(0, np.array([seed], np.int64))], 0)
    sampler.sample([(0, np.array([1], np.int64))], 0)
    assert sampler.nodes_per_hop(0) == [1, 1]


@pytest.mark.parametrize(
    ("indptr", "indices", "rule"),
    [
        ([0, 1, 5], [0, 1], "indptr does not rise"),
        ([0, -1, 2], [0, 1], "indptr does not rise"),
        ([0, 2, 1], [0, 1], "indptr does not rise"),
        ([0, 1, -(2**63)], [0, 1], "indptr does not rise"),
        ([0, 1, 2**63 - 1], [0, 1], "indptr does not rise"),
        ([0, 1, 2], [0, 7], "neighbour lies outside"),
        ([0, 1, 2], [-1, 0], "neighbour lies outside"),
    ],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_damaged_adjacency_is_refused_and_does_not_crash(
    indptr: list[int], indices: list[int], rule: str, on_disk: bool
) -> None:
    ids = np.arange(2, dtype=np.int32)
    adjacency = native.Adjacency(
        np.array([0, 2]), [np.array(indptr)], [np.array(indices, np.int32)], [ids], on_disk=on_disk
    )
    sampler = native.NeighborSampler(
        adjacencies=[adjacency],
        target_types=[0],
        neighbor_types=[0],
        addresses=[0],
        rules=native_rules([[-1, -1]]),
        node_ids=[None],
        num_nodes=[2],
        with_edge_ids=True,
        with_slots=True,
    )
    with pytest.raises(RuntimeError, match=rule):
        sampler.sample([(0, np.array([0, 1], np.int64))], 0)


def test_a_batch_after_a_refused_one_is_right() -> None:
    """The damage is met after hundreds of nodes, by a sampler whose table has grown by then."""
    edges = [(i + 1, i, i) for i in range(3000)]
    sampler, _ = _homogeneous(edges, 3001, [-1])
    indptr, indices = np.minimum(np.arange(3002), 3000), np.arange(1, 3001, dtype=np.int32)
    indices[2999] = 9999
    damaged = native.Adjacency(np.array([0, 3001]), [indptr], [indices], [np.arange(3000, dtype=np.int32)])
    again = native.NeighborSampler(
        adjacencies=[damaged],
        target_types=[0],
        neighbor_types=[0],
        addresses=[0],
        rules=native_rules([[-1]]),
        node_ids=[None],
        num_nodes=[3001],
        with_edge_ids=True,
        with_slots=True,
    )
    for seeds in ([5, 3], list(range(0, 2000, 3)), [1]):
        with pytest.raises(RuntimeError, match="neighbour lies outside"):
            again.sample([(0, np.array([*range(0, 2900, 2), 2999]))], 0)
        for each in (sampler, again):
            each.sample([(0, np.array(seeds))], 0)
        assert again.nodes_per_hop(0) == sampler.nodes_per_hop(0)
        nodes = [np.empty(sum(each.nodes_per_hop(0)), np.int64) for each in (sampler, again)]
        sampler.write_positions(0, nodes[0])
        again.write_positions(0, nodes[1])
        assert nodes[0].tolist() == nodes[1].tolist()


def test_before_the_first_batch_there_is_an_empty_one() -> None:
    sampler, _ = _homogeneous([(0, 1, 0)], 3, [1])
    colptr = np.empty(1, np.int64)
    sampler.write_colptr(0, colptr)
    assert (sampler.num_targets(0), colptr.tolist()) == (0, [0])


def test_what_is_no_adjacency_is_refused() -> None:
    with pytest.raises(TypeError, match="must be of class Adjacency"):
        native.NeighborSampler(
            adjacencies=[None],  # type: ignore[list-item]
            target_types=[0],
            neighbor_types=[0],
            addresses=[0],
            rules=native_rules([[1]]),
            node_ids=[None],
            num_nodes=[1],
            with_edge_ids=True,
            with_slots=True,
        )
