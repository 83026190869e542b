"""Nodes that the graph does not have: a batch with some is that of a graph to which they were added."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import (
    DistDataset,
    DistLinkNeighborLoader,
    DistSubgraphLoader,
    LaborSamplerOptions,
    NewNode,
    PPRSamplerOptions,
    RandomWalkSamplerOptions,
    SamplingError,
)
from gigl_loader.errors import FormatError
from gigl_loader.graph import Graph
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.quantization import Quantization
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.loaders.input_new_nodes import read_new_nodes
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.resources import FreeMemory
from gigl_loader.rpc.graph_store_pb2 import SampleRequest
from gigl_loader.rpc.refusals import Refusal
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.new_nodes import NewNodes
from gigl_loader.sampling.request import InputColumn
from gigl_server.admission import Limits
from gigl_server.sessions.registry import read_request
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import same_batch, weighted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

BUYS, FOLLOWS, REV_BUYS = ("user", "buys", "item"), ("user", "follows", "user"), ("item", "rev_buys", "user")


def tables(data: Any, new: Sequence[NewNode] = ()) -> GraphTables:
    """Return the tables of a PyG object, to which new nodes with their negative ids are added."""
    hetero = hasattr(data, "node_types")
    node_stores = {key: data[key] for key in data.node_types} if hetero else {HOMOGENEOUS_NODE: data}
    edge_stores = {key: data[key] for key in data.edge_types} if hetero else {HOMOGENEOUS_EDGE: data}
    nodes: dict[str, dict[str, Any]] = {
        key: {"id": np.arange(store.num_nodes)}
        | {name: store[name].numpy() for name in ("x", "y", "born") if name in store}
        for key, store in node_stores.items()
    }
    edges: dict[Any, dict[str, Any]] = {
        key: {"src": store.edge_index[0].numpy(), "dst": store.edge_index[1].numpy()}
        | {name: store[name].numpy() for name in ("edge_attr", "w", "t") if name in store}
        for key, store in edge_stores.items()
    }
    ids = dict.fromkeys(nodes, 0)
    for each in new:
        ids[each.type] -= 1
        table = nodes[each.type]
        for name, row in {"id": ids[each.type], **each.features}.items():
            table[name] = np.concatenate([table[name], np.asarray(row, table[name].dtype)[None]])
        for edge_type, (neighbors, columns) in each.edges.items():
            table = edges[edge_type]
            ends = {"src": neighbors, "dst": np.full(len(neighbors), ids[each.type])}
            for name, rows in {**ends, **columns}.items():
                table[name] = np.concatenate([table[name], np.asarray(rows, table[name].dtype)])
    declared = {key: table for key, table in edges.items() if "w" in table}
    return GraphTables(
        edges={key: ArrayTable(str(key), table) for key, table in edges.items()},
        nodes={key: NodeTable(ArrayTable(key, table)) for key, table in nodes.items()},
        weights=dict.fromkeys(declared, ("w",)),
        times={
            **dict.fromkeys(declared, ("t",)),
            **{key: ("born",) for key in nodes if "born" in nodes[key]},
        },
    )


def dataset_of(given: GraphTables, *, parts: int = 2) -> DistDataset:
    folder = MemoryFolder()
    build_graph(given, folder, num_partitions=parts)
    return DistDataset(Graph.open(folder))


def some_edges(kind: Any, ids: Sequence[int], random: np.random.Generator, *, valued: bool) -> Any:
    count = len(ids)
    columns: dict[str, Any] = {}
    if valued:
        columns = {"w": random.random(count).astype(np.float32), "t": random.integers(0, 100, count)}
    if kind == BUYS:
        columns["edge_attr"] = random.random((count, 2)).astype(np.float32)
    elif kind == HOMOGENEOUS_EDGE:
        columns["edge_attr"] = random.random((count, 3)).astype(np.float32)
    return np.array(ids, np.int64), columns


def new_users_and_items() -> list[NewNode]:
    """Two users and an item: with neighbours twice, new neighbours, few neighbours, and none."""
    random = np.random.default_rng(3)
    x = random.random((3, 5)).astype(np.float32)
    first = {
        REV_BUYS: some_edges(REV_BUYS, [*random.integers(0, 90, 9), 4, 4, -1], random, valued=False),
        FOLLOWS: some_edges(FOLLOWS, [7, 3, 3, 19, 100, -2], random, valued=True),
    }
    buyers = {BUYS: some_edges(BUYS, [*random.integers(0, 120, 8), -1], random, valued=True)}
    return [
        NewNode("user", {"x": x[0, :4], "born": 50}, first),
        NewNode("item", {"x": x[2], "y": 1, "born": 20}, buyers),
        NewNode("user", {"x": x[1, :4], "born": 3}, {}),
    ]


def new_nodes() -> list[NewNode]:
    random = np.random.default_rng(4)

    def node(ids: Sequence[int]) -> NewNode:
        features = {"x": random.random(6).astype(np.float32), "y": 2, "born": int(random.integers(0, 100))}
        return NewNode(
            HOMOGENEOUS_NODE,
            features,
            {HOMOGENEOUS_EDGE: some_edges(HOMOGENEOUS_EDGE, ids, random, valued=True)},
        )

    return [node([5, 9, -2, 200, 5, 17]), node([*random.integers(0, 270, 12), -1, -2]), node([])]


HETERO, PLAIN = weighted(hetero=True), weighted()
NEW_USERS, NEW_NODES = new_users_and_items(), new_nodes()
CASES: dict[str, dict[str, Any]] = {
    "uniform": {"num_neighbors": [4, 3]},
    "all neighbours": {"num_neighbors": [-1, 2]},
    "with replacement": {"num_neighbors": [5, 2], "replace": True},
    "weighted": {"num_neighbors": [4, 3], "weight_attr": "w"},
    "in time": {"num_neighbors": [4, 3], "time_attr": "t", "input_time": True},
    "latest": {"num_neighbors": [4, 3], "time_attr": "t", "input_time": True, "temporal_strategy": "last"},
    "strictly earlier": {
        "num_neighbors": [4, 3],
        "time_attr": "t",
        "input_time": True,
        "temporal_strategy": "monotone",
        "temporal_comparison": "<",
    },
    "weighted in time": {"num_neighbors": [4, 3], "time_attr": "t", "input_time": True, "weight_attr": "w"},
    "by times of nodes": {"num_neighbors": [4, 3], "time_attr": "born"},
    "labor": {"num_neighbors": [4, 3], "sampler_options": LaborSamplerOptions()},
    "disjoint": {"num_neighbors": [3, 2], "disjoint": True},
    "induced": {"num_neighbors": [3, 2], "subgraph_type": "induced"},
    "ppr": {"sampler_options": PPRSamplerOptions(max_ppr_nodes=10)},
    "walks": {"sampler_options": RandomWalkSamplerOptions(walk_length=4, walks_per_seed=3)},
}


def without_edge_ids(batch: Any) -> Any:
    """Return a batch without edge ids: new edges have other ones in a graph that has them."""
    for store in batch.edge_stores:
        store.pop("e_id", None)
    return batch


def call_options(options: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {"time": torch.full((count,), 60)} if options.get("input_time") else {}


@pytest.fixture(scope="module")
def added() -> DistDataset:
    return dataset_of(tables(PLAIN, NEW_NODES), parts=3)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables(HETERO), path, num_partitions=2)
    return path


@pytest.fixture(scope="module", params=["one server", "two servers"])
def remote(request: pytest.FixtureRequest, graph: Path) -> Iterator[RemoteDistDataset]:
    with ExitStack() as stack:
        servers = stack.enter_context(servers_of(graph, 1 if request.param == "one server" else 2))
        yield stack.enter_context(RemoteDistDataset.connect(addresses_of(servers)))


@pytest.mark.parametrize("case", CASES)
def test_a_batch_with_new_nodes_is_that_of_a_graph_that_has_them(added: DistDataset, case: str) -> None:
    options, seeds = dict(CASES[case]), torch.tensor([-1, 4, -2, 250, -3])
    times = call_options(options, len(seeds))
    with (
        dataset_of(tables(PLAIN)).sampler(**options, seed=7) as sampler,
        added.sampler(**options, seed=7) as other,
    ):
        for epoch in range(2):
            batch = sampler.sample(seeds, new=NEW_NODES, epoch=epoch, **times)
            expected = other.sample(seeds, epoch=epoch, **times)
            assert same_batch(without_edge_ids(batch), without_edge_ids(expected))
        assert set(batch.n_id[batch.seed_index].tolist()) == set(seeds.tolist())
        # A call without new nodes has none of an earlier call.
        plain = sampler.sample(torch.tensor([4, 250]), **call_options(options, 2))
    with dataset_of(tables(PLAIN), parts=1).sampler(**options, seed=7) as other:
        assert same_batch(plain, other.sample(torch.tensor([4, 250]), **call_options(options, 2)))


@pytest.mark.parametrize("case", ["uniform", "weighted", "by times of nodes", "in time", "ppr"])
def test_new_nodes_of_several_types_travel_to_storage_servers(remote: RemoteDistDataset, case: str) -> None:
    options = dict(CASES[case])
    times = call_options(options, 2)
    with (
        remote.sampler(seed_type="user", **options, seed=7) as sampler,
        dataset_of(tables(HETERO, NEW_USERS)).sampler(seed_type="user", **options, seed=7) as other,
    ):
        batch = sampler.sample(new=NEW_USERS, **times)  # The seeds are the new users.
        expected = other.sample(torch.tensor([-1, -2]), **times)
    assert same_batch(without_edge_ids(batch), without_edge_ids(expected))
    assert batch["user"].n_id[:2].tolist() == [-1, -2]


def test_links_may_end_in_new_nodes(remote: RemoteDistDataset) -> None:
    links = torch.tensor([[-1, 5, -2, -1], [-1, -1, 7, 60]])
    options: Any = {
        "num_neighbors": [3, 2],
        "seed_type": BUYS,
        "loader_class": DistLinkNeighborLoader,
        "seed": 7,
    }
    with (
        remote.sampler(**options) as sampler,
        dataset_of(tables(HETERO, NEW_USERS)).sampler(**options) as other,
    ):
        batch = sampler.sample(links, new=NEW_USERS)
        expected = other.sample(links)
    assert same_batch(without_edge_ids(batch), without_edge_ids(expected))


def test_subgraphs_around_new_nodes_have_their_edges(added: DistDataset) -> None:
    options: Any = {"num_neighbors": [4, 3], "loader_class": DistSubgraphLoader, "seed": 7}
    with dataset_of(tables(PLAIN)).sampler(**options) as sampler, added.sampler(**options) as other:
        seeds = torch.tensor([-2, 11])
        expected = other.sample(seeds)
        assert same_batch(without_edge_ids(sampler.sample(seeds, new=NEW_NODES)), without_edge_ids(expected))


def test_features_may_be_the_only_column_and_edges_a_list() -> None:
    data = DistDataset.from_pyg(
        type(PLAIN)(x=torch.arange(20.0).reshape(10, 2), edge_index=torch.tensor([[1, 2, 3], [0, 0, 1]]))
    )
    with data.sampler([-1, -1]) as sampler:
        batch = sampler.sample(new=[NewNode(features=[7.5, 8.5], edges=[0, 1]), NewNode(features=[1, 2])])
        pairs: list[Any] = [(0, 1), (np.int64(0), 1), ([0, 1], {})]
        for edges in pairs:
            again = sampler.sample(new=[NewNode(features=[7.5, 8.5], edges=edges), NewNode(features=[1, 2])])
            assert torch.equal(again.n_id, batch.n_id)
    assert batch.n_id.tolist() == [-1, -2, 0, 1, 2, 3]
    assert batch.x[:2].tolist() == [[7.5, 8.5], [1.0, 2.0]]
    assert batch.n_id[batch.edge_index].tolist() == [[0, 1, 1, 2, 3], [-1, -1, 0, 0, 1]]


@pytest.mark.parametrize("how", ["int8", "uint4 per row"])
def test_features_of_new_nodes_are_quantised_as_the_graph_has_them(how: str) -> None:
    random = np.random.default_rng(0)
    kind, per = how.split(" per ", maxsplit=1)[0], "row" if " per " in how else "column"
    x = random.random((12, 6)).astype(np.float32)
    edges = ArrayTable("edges", {"src": np.arange(11), "dst": np.arange(1, 12)})

    def build(count: int, ids: Sequence[int]) -> DistDataset:
        nodes = NodeTable(ArrayTable("nodes", {"id": np.array(ids), "x": x[:count]}))
        quantize: Any = {HOMOGENEOUS_NODE: {"x": Quantization(kind, per)}}  # type: ignore[arg-type]
        return dataset_of(GraphTables({HOMOGENEOUS_EDGE: edges}, {"node": nodes}, quantize=quantize))

    x[11] = x[3]  # Within the range of the others.
    options: Any = {"num_neighbors": [-1], "seed": 7}
    with build(12, range(12)).sampler(**options) as sampler:
        batch = sampler.sample(torch.tensor([-1, 3]), new=[NewNode(features={"x": x[3]}, edges=[1, 2])])
    assert torch.equal(batch.x[0], batch.x[1])


def test_documents_of_new_nodes_are_refused_or_read_whatever_their_bytes() -> None:
    graph = dataset_of(tables(HETERO))
    document = read_new_nodes(graph, NEW_USERS, ColumnPlan())[0].document
    assert NewNodes.read(document, graph.schema).document == document
    random = np.random.default_rng(5)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(document)
        for _ in range(int(random.integers(1, 4))):
            damaged[int(random.integers(0, len(damaged)))] = int(random.integers(0, 256))
        try:
            new = NewNodes.read(
                bytes(damaged[: int(random.integers(len(damaged) // 2, len(damaged) + 1))]), graph.schema
            )
        except FormatError:
            refused += 1
            continue
        for edge_type, lists in new.lists.items():
            kind = graph.schema.neighbor_type(edge_type)
            assert lists.neighbors.max(initial=0) < graph.schema.nodes[kind].count + new.counts[kind]
            assert len(lists.degrees) == new.counts[graph.schema.target_type(edge_type)]
    assert refused > 1000


def test_only_interactive_channels_bring_new_nodes() -> None:
    graph = dataset_of(tables(HETERO))
    document = read_new_nodes(graph, NEW_USERS, ColumnPlan())[0].document
    seeds = np.array([graph.schema.nodes["user"].count + 1], "<i8").tobytes()
    message = SampleRequest(inputs=seeds, index=np.zeros(1, "<i8").tobytes(), new_nodes=document)
    columns = (InputColumn("seed", node_type="user"),)
    read = partial(read_request, message, columns, schema=graph.schema, limits=Limits())
    with pytest.raises(Refusal, match="only requests of interactive channels bring new nodes"):
        read()
    request = read(interactive=True)
    assert request.new is not None
    assert request.new.counts == {"item": 1, "tag": 0, "user": 2}
    message.inputs = np.array([graph.schema.nodes["user"].count + 2], "<i8").tobytes()
    with pytest.raises(Refusal, match="seeds 122 to 122 lie outside of 122 nodes"):
        read(interactive=True)


GOOD = {"x": np.zeros(4, np.float32), "born": 1}
WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "no list": (NewNode("user", GOOD), TypeError, "must be a list of NewNode"),
    "no node": ([GOOD], TypeError, r"new\[0\] must be a NewNode, got a dict"),
    "type": ([NewNode("shop")], ValueError, r"new\[0\]: unknown node type 'shop'; known: item, tag, user"),
    "no column": ([NewNode("user", {"born": 1})], ValueError, r"new\[0\]: the column 'x' is missing"),
    "unknown column": ([NewNode("user", {**GOOD, "age": 3})], ValueError, "have no column 'age'; known: "),
    "shape": (
        [NewNode("user", {**GOOD, "x": [1.0]})],
        ValueError,
        r"'x' must have the shape \[1, 4\]",
    ),
    "dtype": ([NewNode("user", {**GOOD, "born": 1.5})], TypeError, "column 'born' must hold I64"),
    "no mapping": ([NewNode("user", [1.0] * 4)], TypeError, "features must be a mapping by column"),
    "edge type": ([NewNode("user", GOOD, {("a", "b", "c"): [1]})], ValueError, "unknown edge type"),
    "direction": (
        [NewNode("user", GOOD, {BUYS: ([1], {})})],
        ValueError,
        "do not lead to nodes of type 'user'",
    ),
    "edges": ([NewNode("user", GOOD, [1, 2])], TypeError, "edges must be a mapping by edge type"),
    "neighbour": (
        [NewNode("user", GOOD, {REV_BUYS: [90]})],
        ValueError,
        "unknown node ids .*: 90",
    ),
    "new neighbour": (
        [NewNode("user", GOOD, {REV_BUYS: [-1]})],
        ValueError,
        "-1 is no new node of type",
    ),
    "edge column": (
        [NewNode("user", GOOD, {FOLLOWS: [3]})],
        ValueError,
        "lack the column 't', which",
    ),
    "too many": ([NewNode("user", GOOD)] * 1025, ValueError, "at most 1,024 new nodes of a type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_new_nodes_are_refused_by_name(remote: RemoteDistDataset, case: str) -> None:
    new, kind, text = WRONG[case]
    with remote.sampler([3], "user") as sampler, pytest.raises(kind, match=text):
        sampler.sample(new=new)


def test_values_that_only_a_draw_needs_are_missed_by_name(remote: RemoteDistDataset) -> None:
    options: Any = {"edge_columns": [], "weight_attr": "w"}
    with remote.sampler([3], "user", **options) as sampler:
        with pytest.raises(SamplingError, match=r"follows.*have no 'w', which the batch needs"):
            sampler.sample(new=[NewNode("user", GOOD, {FOLLOWS: [3]})])
        with pytest.raises(SamplingError, match=r"'w' of edges .* is negative or not finite"):
            sampler.sample(new=[NewNode("user", GOOD, {FOLLOWS: ([3], {"w": [-1.0]})})])


def test_seeds_are_needed(remote: RemoteDistDataset) -> None:
    with remote.sampler([3], "user") as sampler:
        with pytest.raises(TypeError, match=r"a call needs seeds: sample\(nodes\), or"):
            sampler.sample()
        with pytest.raises(ValueError, match="at least one seed"):
            sampler.sample(new=[NewNode("item", {"x": np.zeros(5), "y": 0, "born": 0})])
        with pytest.raises(ValueError, match="-2 is no new node of type 'user': 1 are given"):
            sampler.sample(torch.tensor([-2]), new=[NewNode("user", GOOD)])


def test_a_graph_whose_ids_do_not_fit_in_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    free = FreeMemory(16 * 300 - 1, "this test")
    monkeypatch.setattr("gigl_loader.sampling.new_nodes.free_memory", lambda: free)
    with dataset_of(tables(PLAIN)).sampler([3]) as sampler:
        with pytest.raises(SamplingError, match=r"take 0.0 GB of memory at first, 16 bytes for each node"):
            sampler.sample(new=NEW_NODES)
        assert len(sampler.sample([3]).n_id)


def test_a_graph_with_negative_ids_cannot_have_new_nodes(added: DistDataset) -> None:
    with added.sampler([3]) as sampler, pytest.raises(SamplingError, match="'node' with negative ids"):
        sampler.sample(new=NEW_NODES)
