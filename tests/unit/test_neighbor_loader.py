"""What is in a batch, and which batches make an epoch. Sampled inline: workers give the same bytes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.sampling.khop import reversed_edge_types
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch

EDGE = ("node", "to", "node")
DATA = homogeneous()
HETERO = heterogeneous()


@pytest.fixture(scope="module")
def dataset() -> DistDataset:
    return DistDataset.from_pyg(DATA)


@pytest.fixture(scope="module")
def hetero() -> DistDataset:
    return DistDataset.from_pyg(HETERO)


def _loader(dataset: DistDataset, num_neighbors: Any = (4, 3), nodes: Any = "train", **options: Any) -> Any:
    return DistNeighborLoader(dataset, num_neighbors, nodes, **{"num_workers": 0, "seed": 5, **options})


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("fanouts", [[4, 3], [-1, 2], [3, 0, 2], [0], [40]])
def test_every_row_and_edge_is_one_of_the_graph(edge_dir: Literal["in", "out"], fanouts: list[int]) -> None:
    dataset = DistDataset.from_pyg(DATA, edge_dir=edge_dir)
    for batch in _loader(dataset, fanouts, batch_size=40):
        assert isinstance(batch, Data)
        assert torch.equal(batch.x, DATA.x[batch.n_id])
        assert torch.equal(batch.y, DATA.y[batch.n_id])
        assert torch.equal(batch.edge_attr, DATA.edge_attr[batch.e_id])
        neighbours, targets = DATA.edge_index[:, batch.e_id].flip(0 if edge_dir == "out" else ())
        assert torch.equal(batch.n_id[batch.edge_index[0]], neighbours)
        assert torch.equal(batch.n_id[batch.edge_index[1]], targets)
        assert batch.n_id.unique().numel() == batch.num_nodes == sum(batch.num_sampled_nodes)
        assert batch.num_edges == sum(batch.num_sampled_edges)
        assert len(batch.num_sampled_nodes) == len(fanouts) + 1
        assert all(type(count) is int for count in batch.num_sampled_nodes + batch.num_sampled_edges)
        assert batch.validate()


def test_seeds_come_first_and_input_ids_find_them(dataset: DistDataset) -> None:
    nodes = torch.tensor([9, 250, 3, 77, 8, 120, 4])
    for batch in _loader(dataset, nodes=nodes, batch_size=3, shuffle=True):
        assert torch.equal(nodes[batch.input_id], batch.batch)
        assert torch.equal(batch.n_id[: batch.batch_size], batch.batch)
        assert batch.num_sampled_nodes[0] == batch.batch_size == len(batch.batch)


def test_without_replacement_no_edge_comes_twice_and_no_fanout_is_exceeded(dataset: DistDataset) -> None:
    degrees = torch.bincount(DATA.edge_index[1], minlength=300)
    for batch in _loader(dataset, [4], batch_size=50):
        assert batch.e_id.unique().numel() == len(batch.e_id)
        drawn = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)[: batch.batch_size]
        assert torch.equal(drawn, degrees[batch.batch].clamp(max=4))


def test_with_replacement_every_node_with_neighbours_gets_its_fanout(dataset: DistDataset) -> None:
    degrees = torch.bincount(DATA.edge_index[1], minlength=300)
    for batch in _loader(dataset, [6], batch_size=50, replace=True):
        drawn = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)[: batch.batch_size]
        assert torch.equal(drawn, torch.where(degrees[batch.batch] > 0, 6, 0))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 150, 1000])
def test_every_seed_comes_exactly_once_per_epoch(
    dataset: DistDataset, shuffle: bool, batch_size: int
) -> None:
    nodes = torch.tensor([5, 5, 299, 17, 5, 0])
    loader = _loader(dataset, nodes=nodes, batch_size=batch_size, shuffle=shuffle)
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader) == -(-6 // batch_size)
        seen = torch.cat([batch.input_id for batch in batches])
        assert seen.sort().values.tolist() == list(range(6))
        assert torch.equal(torch.cat([batch.batch for batch in batches]), nodes[seen])


@settings(max_examples=30)
@given(
    nodes=st.lists(st.integers(0, 299), max_size=40),
    batch_size=st.integers(1, 50),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_an_epoch_is_a_partition_of_its_input(
    nodes: list[int], batch_size: int, shuffle: bool, drop_last: bool
) -> None:
    loader = _loader(DATASET, [2], nodes, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
    places = [batch.input_id for batch in loader]
    assert (
        len(places)
        == len(loader)
        == (len(nodes) // batch_size if drop_last else -(-len(nodes) // batch_size))
    )
    assert all(len(place) == batch_size for place in (places if drop_last else places[:-1]))
    flat = [int(i) for place in places for i in place]
    assert len(flat) == len(set(flat)) == (len(places) * batch_size if drop_last else len(nodes))


DATASET = DistDataset.from_pyg(DATA)


def test_epochs_differ_when_shuffled_and_in_their_draws(dataset: DistDataset) -> None:
    loader = _loader(dataset, [2], batch_size=50)
    first, second = list(loader), list(loader)
    assert [batch.batch.tolist() for batch in first] == [batch.batch.tolist() for batch in second]
    assert any(
        len(a.e_id) != len(b.e_id) or not torch.equal(a.e_id, b.e_id)
        for a, b in zip(first, second, strict=True)
    )
    shuffled = _loader(dataset, [2], batch_size=50, shuffle=True)
    first, second = list(shuffled), list(shuffled)
    assert first[0].batch.tolist() != second[0].batch.tolist()


def test_a_run_is_a_function_of_its_seed(dataset: DistDataset) -> None:
    runs = [list(_loader(dataset, batch_size=50, shuffle=True, seed=seed)) for seed in (5, 5, 6)]
    assert all(same_batch(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not same_batch(runs[0][0], runs[2][0])


def test_duplicate_seeds_become_one_node_and_keep_their_places(dataset: DistDataset) -> None:
    (batch,) = _loader(dataset, nodes=torch.tensor([8, 3, 8, 8]), batch_size=9)
    assert batch.batch_size == 2
    assert batch.n_id[:2].tolist() == [8, 3]
    assert batch.batch.tolist() == [8, 3, 8, 8]
    assert batch.input_id.tolist() == [0, 1, 2, 3]
    assert batch.seed_index.tolist() == [0, 1, 0, 0]
    assert torch.equal(batch.y[batch.seed_index], DATA.y[[8, 3, 8, 8]])
    assert batch.num_sampled_nodes[0] == 2


def test_isolated_seeds_come_with_an_empty_edge_index(dataset: DistDataset) -> None:
    (batch,) = _loader(dataset, nodes=torch.tensor([299, 298]), batch_size=2)
    assert batch.edge_index.shape == (2, 0)
    assert batch.edge_index.dtype == torch.int64
    assert batch.edge_attr.shape == (0, 3)
    assert batch.e_id.shape == (0,)
    assert torch.equal(batch.x, DATA.x[[299, 298]])
    assert batch.num_sampled_nodes == [2, 0, 0]
    assert batch.num_sampled_edges == [0, 0]


@pytest.mark.parametrize(
    "graph",
    [Data(num_nodes=5), Data(num_nodes=5, edge_index=torch.empty((2, 0), dtype=torch.int64))],
    ids=["no edge type", "no edge"],
)
def test_a_graph_without_edges_and_features_works(graph: Data) -> None:
    batches = list(_loader(DistDataset.from_pyg(graph), [3, 2], None, batch_size=2))
    assert [batch.n_id.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert all(batch.edge_index.shape == (2, 0) for batch in batches)
    assert batches[2].num_sampled_nodes == [1, 0, 0]
    assert batches[2].num_sampled_edges == [0, 0]
    assert batches[2].num_nodes == 1
    assert "x" not in batches[0]
    assert ("e_id" in batches[0]) == ("edge_index" in graph)


def test_all_kinds_of_input_give_the_same_seeds(dataset: DistDataset) -> None:
    mask = DATA.train_mask
    ids = mask.nonzero().flatten()
    kinds = [mask, "train", ids, ids.int(), ids.numpy(), ids.tolist(), ("node", ids), ("node", "train")]
    runs = [list(_loader(dataset, nodes=kind, batch_size=50)) for kind in kinds]
    assert all(torch.equal(torch.cat([batch.batch for batch in run]), ids) for run in runs)
    # Nodes of a mask have other places in the input than nodes of a list, so that other neighbours are drawn.
    masked, *listed = ([batch.n_id.tolist() for batch in run] for run in runs)
    assert all(run == listed[0] != masked for run in listed)
    assert sum(len(batch.batch) for batch in _loader(dataset, nodes=None, batch_size=50)) == 300


def test_seeds_are_those_that_were_passed_whatever_becomes_of_the_tensor(dataset: DistDataset) -> None:
    for nodes in (torch.arange(5), torch.arange(5).numpy(), torch.tensor([True] * 5 + [False] * 295)):
        loader = _loader(dataset, nodes=nodes, batch_size=5)
        nodes[:] = 7
        assert next(loader).batch.tolist() == [0, 1, 2, 3, 4]


def test_a_default_device_changes_nothing(dataset: DistDataset) -> None:
    expected = list(_loader(dataset, batch_size=50))
    with torch.device("meta"):
        batches = list(_loader(dataset, batch_size=50))
    assert all(map(same_batch, batches, expected))


def test_the_place_of_a_seed_given_by_a_mask_is_its_place_in_the_mask(dataset: DistDataset) -> None:
    mask = torch.zeros(300, dtype=torch.bool)
    mask[[4, 90, 200]] = True
    (batch,) = _loader(dataset, nodes=mask, batch_size=3, shuffle=True)
    assert torch.equal(batch.input_id, batch.batch)
    assert batch.input_id.sort().values.tolist() == [4, 90, 200]


@pytest.mark.parametrize("with_edge", [None, False, True])
def test_edge_ids_are_there_unless_they_are_switched_off(with_edge: bool | None) -> None:
    bare = DistDataset.from_pyg(Data(x=DATA.x, edge_index=DATA.edge_index))
    (batch,) = _loader(bare, nodes=torch.tensor([1]), with_edge=with_edge)
    assert ("e_id" in batch) == ("edge" in batch) == (with_edge is not False)
    if with_edge is not False:
        assert torch.equal(DATA.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])


def test_edge_columns_come_without_edge_ids_too(dataset: DistDataset) -> None:
    options = {"nodes": torch.arange(50), "batch_size": 50}
    (with_ids,) = _loader(dataset, with_edge=True, **options)
    (without,) = _loader(dataset, with_edge=False, **options)
    assert torch.equal(with_ids.edge_attr, without.edge_attr)


def test_a_transform_sees_every_batch_and_its_result_is_the_batch(dataset: DistDataset) -> None:
    loader = _loader(dataset, batch_size=50, transform=lambda batch: (batch.batch_size, batch.x.sum()))
    assert [size for size, _ in loader] == [50] * (len(loader) - 1) + [int(DATA.train_mask.sum()) % 50]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_every_row_and_edge_of_a_hetero_batch_is_one_of_the_graph(edge_dir: Literal["in", "out"]) -> None:
    dataset = DistDataset.from_pyg(HETERO, edge_dir=edge_dir)
    names = reversed_edge_types(HETERO.edge_types) if edge_dir == "out" else {t: t for t in HETERO.edge_types}
    for batch in _loader(dataset, [3, 2], ("item", None), batch_size=20, with_edge=True):
        assert set(batch.node_types) == set(HETERO.node_types)
        assert set(batch.edge_types) == set(names.values())
        for node_type in ("user", "item"):
            assert torch.equal(batch[node_type].x, HETERO[node_type].x[batch[node_type].n_id])
        assert torch.equal(batch["item"].y, HETERO["item"].y[batch["item"].n_id])
        for edge_type in HETERO.edge_types:
            store = batch[names[edge_type]]
            ends = HETERO[edge_type].edge_index[:, store.e_id].flip(0 if edge_dir == "out" else ())
            source, _, target = names[edge_type]
            assert torch.equal(batch[source].n_id[store.edge_index[0]], ends[0])
            assert torch.equal(batch[target].n_id[store.edge_index[1]], ends[1])
        assert batch.validate()


def test_types_that_were_not_met_come_empty_with_the_right_dtype(hetero: DistDataset) -> None:
    (batch,) = _loader(hetero, [2], ("tag", torch.tensor([0])))
    assert batch["user"].x.shape == (0, 4)
    assert batch["user"].x.dtype == torch.float32
    assert batch["user"].n_id.shape == (0,)
    assert batch["user", "buys", "item"].edge_attr.shape == (0, 2)
    assert batch["user", "buys", "item"].edge_index.shape == (2, 0)
    assert batch["tag"].num_nodes == 1
    assert "batch_size" not in batch["user"]
    assert "batch_size" in batch["tag"]


def test_fanouts_by_edge_type_are_followed(hetero: DistDataset) -> None:
    fanouts = {edge_type: [0, 0] for edge_type in hetero.edge_types}
    fanouts["user", "buys", "item"] = [-1, 0]
    fanouts["user", "follows", "user"] = [0, 1]
    for batch in _loader(hetero, fanouts, ("item", None), batch_size=30):
        sampled = batch.num_sampled_edges
        assert sampled["user", "buys", "item"][1] == 0
        assert sampled["user", "follows", "user"][0] == 0
        others = [t for t in sampled if t not in (("user", "buys", "item"), ("user", "follows", "user"))]
        assert all(sampled[edge_type] == [0, 0] for edge_type in others)
        bought = torch.isin(HETERO["user", "buys", "item"].edge_index[1], batch["item"].batch).sum()
        assert sampled["user", "buys", "item"][0] == int(bought)


def test_the_split_of_the_only_type_that_has_it_needs_no_type(hetero: DistDataset) -> None:
    seen = torch.cat([batch["user"].batch for batch in _loader(hetero, [1], "train", batch_size=20)])
    assert torch.equal(seen, HETERO["user"].train_mask.nonzero().flatten())


def test_fewer_seeds_than_a_batch_with_drop_last_is_an_empty_epoch(dataset: DistDataset) -> None:
    loader = _loader(dataset, nodes=torch.tensor([1, 2]), batch_size=3, drop_last=True)
    assert len(loader) == 0
    assert list(loader) == []


def test_node_ids_beyond_32_bits_are_node_ids() -> None:
    from gigl_loader.graph.folder import MemoryFolder
    from gigl_loader.graph.graph import Graph
    from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph

    ids = np.array([-5, 2**62, 7], dtype=np.int64)
    tables = GraphTables(
        edges={EDGE: ArrayTable("edges", {"src": ids[[0, 1]], "dst": ids[[2, 2]]})},
        nodes={"node": NodeTable(ArrayTable("nodes", {"id": ids, "x": np.array([10.0, 20.0, 30.0])}))},
    )
    folder = MemoryFolder()
    build_graph(tables, folder)
    (batch,) = _loader(DistDataset(Graph.open(folder)), [-1], torch.tensor([7]))
    assert batch.n_id.tolist() == [7, -5, 2**62]
    assert batch.x.tolist() == [30.0, 10.0, 20.0]


@pytest.mark.parametrize("hetero", [False, True])
def test_disjoint_trees_share_no_node(hetero: bool) -> None:
    data = heterogeneous() if hetero else homogeneous()
    seeds = torch.tensor([7, 3, 7, 7, 12])
    with DistNeighborLoader(
        DistDataset.from_pyg(data),
        [4, -1],
        ("item", seeds) if hetero else seeds,
        batch_size=5,
        disjoint=True,
        num_workers=0,
        device="cpu",
        seed=3,
    ) as loader:
        batch = next(iter(loader))
    store = batch["item"] if hetero else batch
    assert (store.batch_size, store.seed_index.tolist()) == (5, [0, 1, 2, 3, 4])
    assert store.n_id[:5].tolist() == seeds.tolist()
    assert store.batch[:5].tolist() == [0, 1, 2, 3, 4]
    trees = {kind: batch[kind].batch for kind in batch.node_types} if hetero else {"": batch.batch}
    for kind, tree in trees.items():
        nodes = batch[kind].n_id if hetero else batch.n_id
        assert len(set(zip(tree.tolist(), nodes.tolist(), strict=True))) == len(nodes)
    for kind in batch.edge_types if hetero else [("", "", "")]:
        source, destination = batch[kind].edge_index if hetero else batch.edge_index
        assert torch.equal(trees[kind[0]][source], trees[kind[2]][destination])
    first = [set(store.n_id[store.batch == tree].tolist()) for tree in (0, 2, 3)]
    assert not first[0] == first[1] == first[2], "equal seeds draw independently"
