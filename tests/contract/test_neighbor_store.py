"""What every ``NeighborStore`` promises. One suite for all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from gigl_loader.sampling.store import EdgeRequest, FeatureRequest, InducedRequest, NeighborRequest
from gigl_loader.tensors import as_rows
from tests.support import oracle
from tests.support.plans import rule
from tests.support.stores import STORE_KINDS, StoreGraph, StoreKind, store_graphs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.store import Neighbors, NeighborStore

KEY = 0x1234_5678_9ABC_DEF0


@pytest.fixture(params=STORE_KINDS, ids=str, scope="module")
def kind(request: pytest.FixtureRequest) -> StoreKind:
    found: StoreKind = request.param
    return found


@pytest.fixture(params=store_graphs(), ids=str, scope="module")
def graph(request: pytest.FixtureRequest) -> StoreGraph:
    found: StoreGraph = request.param
    return found


@pytest.fixture(scope="module")
def stores(kind: StoreKind, graph: StoreGraph) -> Iterator[list[NeighborStore]]:
    """One store per partition."""
    with kind.open(graph.graph) as opened:
        yield opened


def _ask(edge_type: EdgeType, targets: npt.NDArray[Any], **changes: Any) -> NeighborRequest:
    given: dict[str, Any] = {
        "hop": 1,
        "with_edge_ids": True,
        "with_slots": True,
        **changes,
    }
    drawn = {name: given.pop(name) for name in ("fanout", "replace") if name in given}
    return NeighborRequest(
        rule=rule(**drawn), edge_type=edge_type, targets=targets.astype(np.int64), key=KEY, **given
    )


def _own(graph: StoreGraph, node_type: NodeType, part: int) -> npt.NDArray[np.int64]:
    low, high = graph.graph.bounds(node_type)[part : part + 2]
    return np.arange(low, high, dtype=np.int64)


@pytest.mark.parametrize("fanout", [-1, 0, 1, 3, 70])
@pytest.mark.parametrize("replace", [False, True])
def test_draws_are_those_of_the_written_rules(
    stores: list[NeighborStore], graph: StoreGraph, *, fanout: int, replace: bool
) -> None:
    for edge_type in graph.graph.schema.edges:
        for part, store in enumerate(stores):
            targets = _own(graph, graph.target_type(edge_type), part)[::-1]
            found = store.sample(_ask(edge_type, targets, fanout=fanout, replace=replace))
            _check(graph, edge_type, part, targets, found, fanout=fanout, replace=replace)


def _check(
    graph: StoreGraph, edge_type: EdgeType, part: int, targets: Any, found: Neighbors, **rules: Any
) -> None:
    assert found.counts.dtype == np.int32
    assert found.positions.dtype in (np.int32, np.int64)
    assert found.edge_ids is not None
    assert found.slots is not None
    topology = graph.graph.topology(edge_type, part)
    lists = graph.adjacency(edge_type)
    ids = graph.node_ids(graph.target_type(edge_type), targets)
    ends = np.cumsum(found.counts)
    for node, end, count in zip(ids.tolist(), ends.tolist(), found.counts.tolist(), strict=True):
        neighbors = lists.get(node, [])
        places = oracle.pick(KEY, 1, oracle.address(edge_type), node, degree=len(neighbors), **rules)
        mine = slice(end - count, end)
        neighbor_ids = graph.node_ids(graph.neighbor_type(edge_type), found.positions[mine]).tolist()
        pairs = list(zip(neighbor_ids, found.edge_ids[mine].tolist(), strict=True))
        assert pairs == [neighbors[place] for place in places]
    assert np.array_equal(topology["indices"][found.slots], found.positions)
    assert np.array_equal(topology["edge_ids"][found.slots], found.edge_ids)
    assert len(found.positions) == found.counts.sum()


def test_only_what_is_asked_for_comes(stores: list[NeighborStore], graph: StoreGraph) -> None:
    edge_type = next(iter(graph.graph.schema.edges))
    targets = _own(graph, graph.target_type(edge_type), 0)
    whole = stores[0].sample(_ask(edge_type, targets))
    bare = stores[0].sample(_ask(edge_type, targets, with_edge_ids=False, with_slots=False))
    assert (bare.edge_ids, bare.slots) == (None, None)
    assert np.array_equal(bare.positions, whole.positions)
    assert np.array_equal(bare.counts, whole.counts)


def test_nothing_asked_is_nothing_found(stores: list[NeighborStore], graph: StoreGraph) -> None:
    for edge_type in graph.graph.schema.edges:
        found = stores[0].sample(_ask(edge_type, np.empty(0)))
        assert (len(found.counts), len(found.positions)) == (0, 0)


def test_rows_are_written_to_their_places_and_nowhere_else(
    stores: list[NeighborStore], graph: StoreGraph
) -> None:
    for kind, columns in graph.columns().items():
        for part, store in enumerate(stores):
            rows = graph.rows(kind, part)[::2][::-1].copy()
            places = np.arange(len(rows), dtype=np.int64) * 3 + 1
            arrays = [graph.stored(kind, name, part) for name in columns]
            widths = [graph.row_bytes(kind, name) for name in columns]
            out = [np.full((3 * len(rows) + 2, width), 0xAB, np.uint8) for width in widths]
            store.gather(FeatureRequest(kind=kind, columns=columns, rows=rows), places, out)
            for matrix, array, width in zip(out, arrays, widths, strict=True):
                expected = np.full_like(matrix, 0xAB)
                expected[places] = as_rows(array, width)[rows - graph.rows(kind, part)[:1]]
                assert np.array_equal(matrix, expected)


def test_many_rows_of_many_bytes_are_exact(stores: list[NeighborStore], graph: StoreGraph) -> None:
    """More than any piece that a wire may cut an answer into."""
    node_type = next(iter(graph.graph.schema.nodes))
    rows = np.resize(_own(graph, node_type, 0), 50_000)
    places = np.random.default_rng(0).permutation(len(rows))
    width = graph.row_bytes(node_type, "x")
    out = np.zeros((len(rows), width), np.uint8)
    stores[0].gather(FeatureRequest(kind=node_type, columns=("x",), rows=rows), places, [out])
    source = as_rows(graph.stored(node_type, "x", 0), width)
    assert np.array_equal(out[places], source[rows - rows[0]])


def test_edges_are_found_where_they_are_and_nowhere_else(
    stores: list[NeighborStore], graph: StoreGraph
) -> None:
    for edge_type in graph.graph.schema.edges:
        lists = graph.adjacency(edge_type)
        neighbor_type = graph.neighbor_type(edge_type)
        count = graph.graph.schema.nodes[neighbor_type].count
        for part, store in enumerate(stores):
            own = _own(graph, graph.target_type(edge_type), part)
            targets, neighbors = (
                each.reshape(-1) for each in np.meshgrid(own[::3], np.arange(count, dtype=np.int64))
            )
            found = store.contains(EdgeRequest(edge_type=edge_type, targets=targets, neighbors=neighbors))
            ids = graph.node_ids(graph.target_type(edge_type), targets).tolist()
            neighbor_ids = graph.node_ids(neighbor_type, neighbors).tolist()
            known = {node: {neighbor for neighbor, _ in listed} for node, listed in lists.items()}
            expected = [n in known.get(t, ()) for t, n in zip(ids, neighbor_ids, strict=True)]
            assert found.dtype == np.bool_
            assert found.tolist() == expected


def test_edges_of_nodes_that_the_partition_lacks_are_refused(
    stores: list[NeighborStore], graph: StoreGraph
) -> None:
    edge_type = next(iter(graph.graph.schema.edges))
    own = _own(graph, graph.target_type(edge_type), 0)[:1]
    foreign = graph.graph.bounds(graph.target_type(edge_type))[1:2]
    count = graph.graph.schema.nodes[graph.neighbor_type(edge_type)].count
    zero = np.zeros(1, np.int64)
    for targets, neighbors in ((foreign, zero), (own, zero - 1), (own, zero + count)):
        with pytest.raises(ValueError, match=r"outside|position"):
            stores[0].contains(EdgeRequest(edge_type=edge_type, targets=targets, neighbors=neighbors))
    with pytest.raises(ValueError, match="edge type"):
        stores[0].contains(EdgeRequest(edge_type=("no", "such", "type"), targets=own, neighbors=zero))
    empty = EdgeRequest(edge_type=edge_type, targets=zero[:0], neighbors=zero[:0])
    assert stores[0].contains(empty).tolist() == []


def _induced(edge_type: EdgeType, targets: Any, nodes: Any, **changes: Any) -> InducedRequest:
    given: dict[str, Any] = {"with_edge_ids": True, "with_slots": True, **changes}
    return InducedRequest(
        edge_type=edge_type, targets=targets.astype(np.int64), nodes=nodes.astype(np.int64), **given
    )


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_induced_edges_are_all_that_lead_from_the_nodes(
    stores: list[NeighborStore], graph: StoreGraph, share: float
) -> None:
    random = np.random.default_rng(5)
    for edge_type in graph.graph.schema.edges:
        neighbor_type, target_type = graph.neighbor_type(edge_type), graph.target_type(edge_type)
        count = graph.graph.schema.nodes[neighbor_type].count
        nodes = np.sort(random.permutation(count)[: int(np.ceil(count * share))])
        known = set(graph.node_ids(neighbor_type, nodes).tolist())
        lists = graph.adjacency(edge_type)
        for part, store in enumerate(stores):
            targets = _own(graph, target_type, part)[::-1]
            found = store.induced(_induced(edge_type, targets, nodes))
            ids = graph.node_ids(target_type, targets).tolist()
            expected = [[pair for pair in lists.get(node, []) if pair[0] in known] for node in ids]
            assert found.edge_ids is not None
            assert found.slots is not None
            assert found.counts.tolist() == [len(each) for each in expected]
            neighbors = graph.node_ids(neighbor_type, found.positions).tolist()
            pairs = list(zip(neighbors, found.edge_ids.tolist(), strict=True))
            assert pairs == [pair for each in expected for pair in each]
            topology = graph.graph.topology(edge_type, part)
            assert np.array_equal(topology["edge_ids"][found.slots], found.edge_ids)
            bare = store.induced(_induced(edge_type, targets, nodes, with_edge_ids=False, with_slots=False))
            assert (bare.edge_ids, bare.slots) == (None, None)
            assert np.array_equal(bare.positions, found.positions)
            assert len(store.induced(_induced(edge_type, targets[:0], nodes)).counts) == 0


def test_induced_edges_of_what_the_partition_lacks_are_refused(
    stores: list[NeighborStore], graph: StoreGraph
) -> None:
    edge_type = next(iter(graph.graph.schema.edges))
    own = _own(graph, graph.target_type(edge_type), 0)[:1]
    foreign = graph.graph.bounds(graph.target_type(edge_type))[1:2]
    count = graph.graph.schema.nodes[graph.neighbor_type(edge_type)].count
    zero = np.zeros(1, np.int64)
    for targets, nodes in ((foreign, zero), (own - 1 - own, zero), (own, zero - 1), (own, zero + count)):
        with pytest.raises(ValueError, match=r"outside|position"):
            stores[0].induced(_induced(edge_type, targets, nodes))
    with pytest.raises(ValueError, match="edge type"):
        stores[0].induced(_induced(("no", "such", "type"), own, zero))


def test_threads_may_ask_at_once(stores: list[NeighborStore], graph: StoreGraph) -> None:
    edge_type = next(iter(graph.graph.schema.edges))
    targets = _own(graph, graph.target_type(edge_type), 0)
    expected = [stores[0].sample(_ask(edge_type, targets, hop=hop)).positions.tolist() for hop in range(20)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda hop: stores[0].sample(_ask(edge_type, targets, hop=hop)), range(20))
    assert [each.positions.tolist() for each in found] == expected


def test_what_the_partition_lacks_is_refused(stores: list[NeighborStore], graph: StoreGraph) -> None:
    edge_type = next(iter(graph.graph.schema.edges))
    node_type = next(iter(graph.graph.schema.nodes))
    foreign = graph.graph.bounds(graph.target_type(edge_type))[1:2]
    out = [np.zeros((1, graph.row_bytes(node_type, "x")), np.uint8)]
    here = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="edge type"):
        stores[0].sample(_ask(("no", "such", "type"), foreign))
    for targets in (foreign, np.array([-1])):
        with pytest.raises(ValueError, match="outside"):
            stores[0].sample(_ask(edge_type, targets))
    for rows in (graph.graph.bounds(node_type)[1:2], np.array([-1])):
        with pytest.raises(ValueError, match=r"row|outside"):
            stores[0].gather(FeatureRequest(kind=node_type, columns=("x",), rows=rows), here, out)
    with pytest.raises(ValueError, match="no column"):
        stores[0].gather(FeatureRequest(kind=node_type, columns=("absent",), rows=here), here, out)
    with pytest.raises(ValueError, match="node type"):
        stores[0].gather(FeatureRequest(kind="absent", columns=("x",), rows=here), here, out)


def test_a_refusal_harms_no_later_ask(stores: list[NeighborStore], graph: StoreGraph) -> None:
    edge_type = next(iter(graph.graph.schema.edges))
    targets = _own(graph, graph.target_type(edge_type), 0)
    before = stores[0].sample(_ask(edge_type, targets))
    with pytest.raises(ValueError, match="outside"):
        stores[0].sample(_ask(edge_type, np.array([-1])))
    assert np.array_equal(stores[0].sample(_ask(edge_type, targets)).positions, before.positions)


def test_closing_twice_is_fine(kind: StoreKind, graph: StoreGraph) -> None:
    with kind.open(graph.graph) as stores:
        for store in stores:
            store.close()
            store.close()
