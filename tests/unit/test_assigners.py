"""Assigners: fixed functions of node ids, of edges in their order, and of KaMinPar's cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.graph import Graph
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.partition import locality as module
from gigl_loader.partition.assigners import HashAssigner, RangeAssigner, assigner_named
from gigl_loader.partition.locality import NodeStream, bounds_of_load
from tests.support.greedy_oracle import fewest_and_most, greedy_owners, stream_order
from tests.support.owners import owners_of
from tests.support.tables import PlainGraph, files_of, plain_graphs

_MASK = 2**64 - 1


def _mix64(value: int) -> int:
    """The finaliser of splitmix64, from its paper."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=50), st.integers(1, 9))
def test_hash_is_the_documented_one(ids: list[int], parts: int) -> None:
    found = HashAssigner().assign("node", np.array(sorted(ids), dtype=np.int64), parts)
    assert found.tolist() == [_mix64(node & _MASK) % parts for node in sorted(ids)]


def test_hash_does_not_change_when_nodes_come() -> None:
    few = HashAssigner().assign("node", np.arange(0, 100, 2), 4)
    many = HashAssigner().assign("node", np.arange(100), 4)
    np.testing.assert_array_equal(few, many[::2])


def test_hash_is_balanced() -> None:
    sizes = np.bincount(HashAssigner().assign("node", np.arange(40_000) * 1024, 4))
    assert sizes.min() > 9_700


@given(st.integers(0, 100), st.integers(1, 12))
def test_ranges_differ_by_at_most_one_node(count: int, parts: int) -> None:
    found = RangeAssigner().assign("node", np.arange(count) * 3, parts)
    sizes = np.bincount(found, minlength=parts)
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(found) >= 0).all()
    np.testing.assert_array_equal(np.diff(RangeAssigner.bounds(count, parts)), sizes)


def test_assigners_go_by_name() -> None:
    assert assigner_named("hash").name == "hash"
    own = RangeAssigner()
    assert assigner_named(own) is own
    with pytest.raises(
        ValueError, match="unknown assigner 'metis'; known: range, hash, ldg, kaminpar, or a table"
    ):
        assigner_named("metis")


# --- LDG owners equal those of a plain-Python reference, are balanced, and depend on the graph alone


_SETTINGS = settings(max_examples=60)


def reference(plain: PlainGraph, num_partitions: int) -> dict[str, list[int]]:
    types = sorted(plain.nodes)
    ids = {node_type: sorted(plain.nodes[node_type]) for node_type in types}
    order = stream_order([len(ids[node_type]) for node_type in types])
    place = {(types[number], ids[types[number]][rank]): at for at, (number, rank) in enumerate(order)}
    edges = [
        (place[kind[0], src], place[kind[2], dst])
        for kind, each in plain.edges.items()
        for src, dst, _ in each.rows
    ]
    owners = greedy_owners([number for number, _ in order], edges, num_partitions)
    return {kind: [owners[place[kind, node]] for node in ids[kind]] for kind in types}


@_SETTINGS
@given(plain_graphs(), st.integers(2, 5), st.sampled_from([None, 3000]))
def test_owners_are_those_of_the_reference(plain: PlainGraph, parts: int, limit: int | None) -> None:
    folder = MemoryFolder()
    build_graph(plain.tables(), folder, num_partitions=parts, assigner="ldg", memory_limit=limit)
    assert owners_of(Graph.open(folder)) == reference(plain, parts)


@given(st.integers(0, 10_000), st.integers(1, 300))
def test_a_partition_has_within_five_percent_of_the_mean(count: int, parts: int) -> None:
    fewest, most = bounds_of_load(count, parts)
    assert (fewest, most) == fewest_and_most(count, parts)
    assert fewest * parts <= count <= most * parts
    assert count / parts * 0.95 - 1 < fewest
    assert most < count / parts * 1.05 + 1


@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 9), st.data())
def test_a_stream_has_every_node_once(counts: list[int], windows: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_WINDOWS", windows)
        stream = NodeStream({str(number): count for number, count in enumerate(counts)})
        begin, end = sorted(data.draw(st.tuples(*[st.integers(0, stream.size)] * 2)))
        kinds = stream.kinds(begin, end).tolist()
        places = {
            int(place): (number, rank)
            for number, count in enumerate(counts)
            for rank, place in enumerate(stream.places(str(number), np.arange(count)))
        }
        values = np.arange(stream.size) * 10
        of_type = {number: stream.of_type(str(number), values, rows=7) for number in range(len(counts))}
    order = stream_order(counts, windows) if len(counts) > 1 else [(0, rank) for rank in range(counts[0])]
    assert places == dict(enumerate(order))
    assert kinds == [number for number, _ in order[begin:end]]
    for number, found in of_type.items():
        assert found.tolist() == [10 * at for at, (of, _) in enumerate(order) if of == number]


def communities(nodes: int, edges: int, size: int, seed: int = 0) -> GraphTables:
    """Most edges stay within communities of ``size`` nodes, whose ids lie anywhere."""
    random = np.random.default_rng(seed)
    shuffled = random.permutation(nodes)
    src = random.integers(0, nodes, edges)
    near = src // size * size + random.integers(0, size, edges)
    dst = np.where(random.random(edges) < 0.9, near, random.integers(0, nodes, edges)) % nodes
    table = ArrayTable("edges", {"src": shuffled[src], "dst": shuffled[dst]})
    return GraphTables({HOMOGENEOUS_EDGE: table}, {HOMOGENEOUS_NODE: NodeTable(count=nodes)})


def cut_of(graph: Graph) -> int:
    bounds = graph.bounds(HOMOGENEOUS_NODE)
    owner = np.repeat(np.arange(graph.schema.num_partitions), np.diff(bounds))
    return sum(
        int((owner[graph.topology(HOMOGENEOUS_EDGE, part)["indices"]] != part).sum())
        for part in range(graph.schema.num_partitions)
    )


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_communities_stay_together(parts: int) -> None:
    tables = communities(4000, 60_000, size=100)
    folders = {assigner: MemoryFolder() for assigner in ("hash", "ldg")}
    for assigner, folder in folders.items():
        build_graph(tables, folder, num_partitions=parts, assigner=assigner)
    graphs = {assigner: Graph.open(folder) for assigner, folder in folders.items()}
    assert cut_of(graphs["ldg"]) <= 0.75 * cut_of(graphs["hash"])
    sizes = np.diff(graphs["ldg"].bounds(HOMOGENEOUS_NODE)) / (4000 / parts)
    assert 0.95 <= sizes.min() <= sizes.max() <= 1.05


def with_hub(edges: int) -> GraphTables:
    """Most edges lead to one node, so that its list alone is larger than memory."""
    random = np.random.default_rng(1)
    dst = np.where(random.random(edges) < 0.7, 150, random.integers(0, 200, edges))
    table = ArrayTable("edges", {"src": random.integers(0, 200, edges), "dst": dst})
    return GraphTables({HOMOGENEOUS_EDGE: table}, {HOMOGENEOUS_NODE: NodeTable(count=200)})


@pytest.mark.parametrize("limit", [24_000, 60_000, 400_000])
@pytest.mark.parametrize("tables", [with_hub(3000), communities(300, 4000, size=20)])
def test_little_memory_changes_nothing(tmp_path: Path, limit: int, tables: GraphTables) -> None:
    built: dict[str, Any] = {"num_partitions": 3, "assigner": "ldg"}
    build_graph(tables, tmp_path / "much", **built)
    build_graph(tables, tmp_path / "little", **built, memory_limit=limit)
    assert files_of(tmp_path / "much") == files_of(tmp_path / "little")


def test_the_order_of_the_edges_changes_no_owner() -> None:
    random = np.random.default_rng(2)
    src, dst = random.integers(0, 200, (2, 2000))
    found = []
    for order in (np.arange(2000), random.permutation(2000)):
        folder = MemoryFolder()
        edges = ArrayTable("edges", {"src": src[order], "dst": dst[order]})
        tables = GraphTables({HOMOGENEOUS_EDGE: edges}, {HOMOGENEOUS_NODE: NodeTable(count=200)})
        build_graph(tables, folder, num_partitions=4, assigner="ldg")
        found.append(owners_of(Graph.open(folder)))
    assert found[0] == found[1]


def test_one_partition_needs_no_pass_over_the_edges() -> None:
    steps: list[str] = []
    build_graph(
        communities(50, 100, size=10),
        MemoryFolder(),
        assigner="ldg",
        progress=lambda step, done, total: steps.append(step),
    )
    assert not any("ldg" in step or "placing" in step for step in steps)


# --- KaMinPar's cut is taken as it is, and what it cannot hold is refused


RING = ("user", "knows", "user")
BUYS = ("user", "buys", "item")
GROUPS, SIZE = 4, 40


def groups() -> GraphTables:
    """Four groups of users and items, some edges twice or from a node to itself, and one between groups."""
    random = np.random.default_rng(0)
    group = random.integers(0, GROUPS, 3000)
    src, dst, item = (group + GROUPS * random.integers(0, SIZE, 3000) for _ in range(3))
    src[0], dst[0] = 0, 1
    return GraphTables(
        edges={
            RING: ArrayTable("knows", {"src": src, "dst": dst}),
            BUYS: ArrayTable("buys", {"src": src, "dst": item}),
        },
        nodes={kind: NodeTable(count=GROUPS * SIZE) for kind in ("user", "item")},
    )


def test_groups_lie_apart(tmp_path: Path) -> None:
    for name in ("one", "other"):
        build_graph(groups(), tmp_path / name, num_partitions=GROUPS, assigner="kaminpar")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "other")
    found = owners_of(Graph.open(tmp_path / "one"))
    of_group = {node % GROUPS: owner for node, owner in enumerate(found["user"])}
    assert sorted(of_group.values()) == list(range(GROUPS))
    for owners in found.values():
        assert owners == [of_group[node % GROUPS] for node in range(GROUPS * SIZE)]


@pytest.mark.parametrize("parts", [1, 3])
def test_a_graph_without_edges_is_dealt_out(parts: int) -> None:
    folder = MemoryFolder()
    tables = GraphTables(edges={}, nodes={"node": NodeTable(count=7)})
    schema = build_graph(tables, folder, num_partitions=parts, assigner="kaminpar")
    assert np.diff(schema.nodes["node"].bounds).tolist() == ([7] if parts == 1 else [3, 2, 2])


def test_a_graph_beyond_the_memory_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kaminpar's graph of 320 nodes and 6,000 edges needs .* raise the"):
        build_graph(groups(), MemoryFolder(), num_partitions=2, assigner="kaminpar", memory_limit=1_000_000)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.partition.locality.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'gigl-loader\[kaminpar\]'"):
        build_graph(groups(), MemoryFolder(), num_partitions=2, assigner="kaminpar")
