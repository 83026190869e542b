"""PyG's loaders over ``GiglSampler`` give the batches of this library's own loaders."""

from __future__ import annotations

import pickle
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch_geometric.loader import LinkLoader, NeighborLoader, NodeLoader
from torch_geometric.nn import GraphSAGE, to_hetero
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.pyg import GiglSampler
from gigl_loader.sampling.khop import reversed_edge_types
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_datasets import Built
from tests.support.pyg_graphs import heterogeneous, homogeneous, weighted
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from gigl_loader.group import RankGroup

SEED = 11
FANOUTS = [4, 3]
BUYS = ("user", "buys", "item")
EDGE = ("node", "to", "node")


def node_ids(built: Built, node_type: str) -> torch.Tensor:
    """Return the node id of each index."""
    ids: torch.Tensor = built.features.get_tensor(built.group(node_type), "n_id", None)
    return ids


def seed_type(built: Built) -> str:
    return "user" if built.hetero else "node"


def link_type(built: Built) -> Any:
    return ("user", "buys", "item") if built.hetero else EDGE


def check_output(out: Any, batch: Any, built: Built) -> None:
    """Fail unless PyG's output has the nodes and edges of a batch, in their order."""
    schema = built.dataset.schema
    outward = schema.edge_dir == "out"
    if not built.hetero:
        assert isinstance(out, SamplerOutput)
        assert torch.equal(node_ids(built, "node")[out.node], batch.n_id)
        found = torch.stack([out.col, out.row] if outward else [out.row, out.col])
        assert torch.equal(found, batch.edge_index)
        assert torch.equal(out.edge, batch.e_id)
        assert out.num_sampled_nodes == batch.num_sampled_nodes
        assert out.num_sampled_edges == batch.num_sampled_edges
        return
    assert isinstance(out, HeteroSamplerOutput)
    types = reversed_edge_types(schema.edges) if outward else {each: each for each in schema.edges}
    assert out.node.keys() == set(batch.node_types)
    for kind, node in out.node.items():
        assert torch.equal(node_ids(built, kind)[node], batch[kind].n_id)
    assert {types[kind] for kind in out.row} == set(batch.edge_types)
    for kind, row in out.row.items():
        found = torch.stack([out.col[kind], row] if outward else [row, out.col[kind]])
        assert torch.equal(found, batch[types[kind]].edge_index)
        assert torch.equal(out.edge[kind], batch[types[kind]].e_id)
    assert out.num_sampled_nodes == batch.num_sampled_nodes
    assert {types[kind]: counts for kind, counts in out.num_sampled_edges.items()} == batch.num_sampled_edges


# The same batches as this library's own loaders


@pytest.mark.some(8)
@pytest.mark.parametrize("disjoint", [False, True])
def test_nodes_are_sampled_as_by_the_own_loader(built: Built, disjoint: bool) -> None:
    kind = seed_type(built)
    options: dict[str, Any] = {"seed": SEED, "disjoint": disjoint, "with_edge": True}
    seeds = torch.tensor([7, 3, 40, 2])
    with (
        GiglSampler(built.dataset, FANOUTS, **options) as sampler,
        DistNeighborLoader(built.dataset, FANOUTS, (kind, None), num_workers=0, **options) as loader,
    ):
        for epoch in (0, 2):
            sampler.set_epoch(epoch)
            for nodes in (seeds, seeds[1:]):
                asked = NodeSamplerInput(torch.arange(len(nodes)), nodes, input_type=built.group(kind))
                out = sampler.sample_from_nodes(asked)
                batch = loader.sample(node_ids(built, kind)[nodes], epoch=epoch)
                check_output(out, batch, built)
                assert torch.equal(out.metadata[0], asked.input_id)
                assert out.metadata[1] is None
                if not disjoint:
                    assert out.batch is None
                elif built.hetero:
                    assert all(torch.equal(out.batch[each], batch[each].batch) for each in batch.node_types)
                else:
                    assert torch.equal(out.batch, batch.batch)


NEGATIVES = {
    "none": None,
    "binary": NegativeSampling("binary", 1.5),
    "triplet": NegativeSampling("triplet"),
    "triplets": NegativeSampling("triplet", 3),
}


@pytest.mark.some(12)
@pytest.mark.parametrize(
    ("negatives", "disjoint"), [("none", True), ("binary", False), ("triplet", False), ("triplets", True)]
)
def test_links_are_sampled_as_by_the_own_loader(built: Built, negatives: str, disjoint: bool) -> None:
    kind = link_type(built)
    neg_sampling = NEGATIVES[negatives]
    options: dict[str, Any] = {"seed": SEED, "disjoint": disjoint, "with_edge": True}
    links = built.edge_index(kind)[:, [5, 9, 200, 5]]
    ids = torch.stack([node_ids(built, kind[0])[links[0]], node_ids(built, kind[2])[links[1]]])
    with (
        GiglSampler(built.dataset, FANOUTS, **options) as sampler,
        DistLinkNeighborLoader(
            built.dataset, FANOUTS, (kind, ids), neg_sampling=neg_sampling, num_workers=0, **options
        ) as loader,
    ):
        sampler.set_epoch(3)
        asked = EdgeSamplerInput(torch.arange(4), *links, input_type=kind if built.hetero else None)
        out = sampler.sample_from_edges(asked, neg_sampling)
        batch = loader.sample(ids, epoch=3)
        check_output(out, batch, built)
        of_links, of_src, of_dst = (
            (batch[kind], batch[kind[0]], batch[kind[2]]) if built.hetero else (batch, batch, batch)
        )
        if negatives.startswith("triplet"):
            assert torch.equal(out.metadata[1], of_src.src_index)
            assert torch.equal(out.metadata[2], of_dst.dst_pos_index)
            assert torch.equal(out.metadata[3], of_dst.dst_neg_index)
        else:
            assert torch.equal(out.metadata[1], of_links.edge_label_index)
            if neg_sampling is None:
                assert out.metadata[2] is None
            else:
                assert torch.equal(out.metadata[2], of_links.edge_label)
        if disjoint:
            trees = out.batch[kind[2]] if built.hetero else out.batch
            assert torch.equal(trees, of_dst.batch)


def test_weights_and_replacement_are_those_of_the_own_loader() -> None:
    dataset = DistDataset.from_pyg(weighted(), weight_attr="w", num_partitions=2)
    seeds = torch.arange(20)
    options: dict[str, Any] = {"seed": SEED, "weight_attr": "w", "replace": True}
    with DistNeighborLoader(dataset, FANOUTS, num_workers=0, **options) as loader:
        batch = loader.sample(seeds)
    out = GiglSampler(dataset, FANOUTS, **options).sample_from_nodes(NodeSamplerInput(seeds, seeds))
    assert torch.equal(torch.stack([out.row, out.col]), batch.edge_index)
    assert torch.equal(out.edge, batch.e_id)


def test_fanouts_may_differ_by_type_and_edge_ids_may_be_left_out() -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    fanouts = {kind: [2, 1] if kind[2] == "user" else [0, 0] for kind in dataset.edge_types}
    sampler = GiglSampler(dataset, fanouts, with_edge=False)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(5), input_type="user"))
    assert set(out.edge.values()) == {None}
    assert all(not len(row) for kind, row in out.row.items() if kind[2] != "user")


def test_hosts_with_a_part_each_give_the_same_batches(tmp_path: Path) -> None:
    data = homogeneous()
    build_graph(tables_from_pyg(data), tmp_path / "graph", num_partitions=2, assigner="hash")
    expected = batches_of(DistDataset.open(tmp_path / "graph"))

    def program(group: RankGroup) -> list[Any]:
        with DistDataset.open(tmp_path / "graph", partitions=group.rank, timeout=30) as dataset:
            features, graph = dataset.as_pyg()
            assert torch.equal(features.get_tensor(None, "x", None), data.x)
            assert torch.equal(features.get_tensor(EDGE, "edge_attr", None), data.edge_attr)
            assert torch.equal(torch.stack(graph.get_edge_index(None, "coo")), data.edge_index)
            with pytest.raises(TypeError, match="pass num_workers=0"):
                pickle.dumps(features)
            return batches_of(dataset)

    for found in run_ranks(2, program, hosts=["a", "b"]):
        assert isinstance(found, list), found
        check_same_batches(found, expected)


# PyG's loaders


def node_loader(built: Built, sampler: GiglSampler, nodes: torch.Tensor, **options: Any) -> NodeLoader:
    seeds = (seed_type(built), nodes) if built.hetero else nodes
    return NodeLoader((built.features, built.graph), sampler, seeds, **options)


def check_rows(batch: Any, built: Built) -> None:
    """Fail unless nodes have their rows, and edges the ends that the object's edges have."""
    for kind, name in built.node_columns:
        store = batch[kind] if built.hetero else batch
        whole = built.store(kind)[name]
        rows = torch.empty(len(whole), dtype=torch.int64)
        rows[built.ranks(kind)] = torch.arange(len(whole))
        ids = node_ids(built, kind)
        assert torch.equal(store[name], whole[rows[torch.searchsorted(ids, store.n_id)]])
    for kind in built.edge_types:
        store = batch[kind] if built.hetero else batch
        if "edge_index" not in store:
            continue
        ends = built.edge_index(kind)[:, store.e_id]
        for place, node_type in ((0, kind[0]), (1, kind[2])):
            of_batch = (batch[node_type] if built.hetero else batch).n_id
            assert torch.equal(of_batch[store.edge_index[place]], node_ids(built, node_type)[ends[place]])


@pytest.mark.some(2)
def test_a_model_trains_with_node_loader(built: Built) -> None:
    nodes = torch.arange(0, 48)
    with GiglSampler(built.dataset, FANOUTS, seed=SEED, with_edge=True) as sampler:
        loader = node_loader(built, sampler, nodes, batch_size=20, shuffle=True)
        model = GraphSAGE((-1, -1), 8, num_layers=2, out_channels=3)
        seen = []
        for batch in loader:
            check_rows(batch, built)
            store = batch[seed_type(built)] if built.hetero else batch
            assert store.batch_size == len(store.input_id)
            seen.append(store.input_id)
            ids = node_ids(built, seed_type(built))[nodes[store.input_id]]
            assert torch.equal(store.n_id[: store.batch_size], ids)
            if built.hetero:
                for kind in batch.node_types:
                    if "x" not in batch[kind]:
                        batch[kind].x = torch.zeros(batch[kind].num_nodes, 2)
                hetero = to_hetero(GraphSAGE((-1, -1), 8, num_layers=2, out_channels=3), batch.metadata())
                out = hetero(batch.x_dict, batch.edge_index_dict)["user"]
            else:
                out = model(batch.x, batch.edge_index)
            out[: store.batch_size].square().mean().backward()
        assert torch.equal(torch.cat(seen).sort().values, torch.arange(48))


@pytest.mark.some(3)
def test_a_model_trains_with_link_loader(built: Built) -> None:
    kind = link_type(built)
    links = built.edge_index(kind)[:, :50]
    with GiglSampler(built.dataset, FANOUTS, seed=SEED, with_edge=True) as sampler:
        loader = LinkLoader(
            (built.features, built.graph),
            sampler,
            (kind if built.hetero else None, links),
            edge_label=torch.arange(50) % 3,
            neg_sampling=NegativeSampling("binary"),
            batch_size=25,
        )
        for number, batch in enumerate(loader):
            check_rows(batch, built)
            store = batch[kind] if built.hetero else batch
            expected = torch.cat([torch.arange(25 * number, 25 * number + 25) % 3 + 1, torch.zeros(25)])
            assert torch.equal(store.edge_label, expected.long())
            src, dst = store.edge_label_index
            sources, targets = (batch[kind[0]], batch[kind[2]]) if built.hetero else (batch, batch)
            wanted = links[:, store.input_id]
            assert torch.equal(sources.n_id[src[:25]], node_ids(built, kind[0])[wanted[0]])
            assert torch.equal(targets.n_id[dst[:25]], node_ids(built, kind[2])[wanted[1]])
            score = (sources.x[src][:, :4] * targets.x[dst][:, :4]).sum(-1)
            assert score.shape == store.edge_label.shape


def test_pygs_neighbor_loader_takes_the_sampler() -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    sampler = GiglSampler(dataset, FANOUTS, seed=SEED)
    for seeds in (torch.arange(12).flip(0), torch.arange(dataset.num_nodes) % 9 == 4):
        pygs = NeighborLoader(dataset.as_pyg(), None, seeds, neighbor_sampler=sampler, batch_size=5)
        with DistNeighborLoader(dataset, FANOUTS, seeds, seed=SEED, num_workers=0, batch_size=5) as loader:
            for batch, expected in zip(pygs, loader, strict=True):
                for name in ("n_id", "e_id", "edge_index", "x", "y", "input_id"):
                    assert torch.equal(batch[name], expected[name])


def test_all_edges_of_a_type_and_all_nodes_of_a_type() -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    sampler = GiglSampler(dataset, [2])
    stores = dataset.as_pyg()
    assert len(LinkLoader(stores, sampler, ("user", "buys", "item"), batch_size=100)) == 7
    nodes = list(NodeLoader(stores, sampler, "tag", batch_size=4))
    assert [batch["tag"].batch_size for batch in nodes] == [4, 3]


# Worker processes


@pytest.fixture(scope="module")
def tracker() -> None:
    """The tracker of multiprocessing serves the whole process, with a pipe that stays."""
    resource_tracker.ensure_running()


def batches_of(dataset: Any, **options: Any) -> list[Any]:
    sampler = GiglSampler(dataset, FANOUTS, seed=SEED)
    return list(NodeLoader(dataset.as_pyg(), sampler, torch.arange(40), batch_size=10, **options))


def check_same_batches(found: list[Any], expected: list[Any]) -> None:
    for batch, other in zip(found, expected, strict=True):
        for name in ("n_id", "e_id", "edge_index", "x", "y", "input_id"):
            assert torch.equal(batch[name], other[name])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.usefixtures("tracker", "no_leftovers")
def test_workers_of_a_data_loader_make_the_same_batches(method: str, place: str, tmp_path: Path) -> None:
    data = homogeneous()
    if place == "memory":
        dataset = DistDataset.from_pyg(data, num_partitions=2)
    else:
        build_graph(tables_from_pyg(data), tmp_path / "graph", num_partitions=2)
        dataset = DistDataset.open(tmp_path / "graph")
    expected = batches_of(dataset)
    sampler = GiglSampler(dataset, FANOUTS, seed=SEED)
    stores = dataset.as_pyg()
    # What the parent has open is not for its children.
    sampler.sample_from_nodes(NodeSamplerInput(torch.arange(3), torch.arange(3)))
    stores[0].get_tensor(None, "x", 0)
    loader = NodeLoader(
        stores, sampler, torch.arange(40), batch_size=10, num_workers=2, multiprocessing_context=method
    )
    check_same_batches(list(loader), expected)


def test_workers_are_refused_with_a_graph_on_servers(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph")
    with (
        servers_of(tmp_path / "graph", 1) as servers,
        RemoteDistDataset.connect(addresses_of(servers), timeout=30) as dataset,
        GiglSampler(dataset, FANOUTS, seed=SEED) as sampler,
    ):
        loader = NodeLoader(dataset.as_pyg(), sampler, torch.arange(40), batch_size=10, num_workers=1)
        with pytest.raises(RuntimeError, match="pass num_workers=0"):
            next(iter(loader))
        with pytest.raises(TypeError, match="pass num_workers=0"):
            pickle.dumps(sampler)
        assert len(batches_of(dataset)) == 4


def test_a_sampler_keeps_its_run_in_another_process(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph")
    dataset = DistDataset.open(tmp_path / "graph")
    sampler = GiglSampler(dataset, FANOUTS)
    sampler.set_epoch(4)
    copy = pickle.loads(pickle.dumps(sampler))
    assert (copy.seed, copy.epoch) == (sampler.seed, 4)
    asked = NodeSamplerInput(torch.arange(9), torch.arange(9))
    assert torch.equal(copy.sample_from_nodes(asked).row, sampler.sample_from_nodes(asked).row)


# What is refused and closed


def test_what_does_not_fit_is_refused_by_name() -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    sampler = GiglSampler(dataset, [2])
    nodes = torch.arange(3)
    with pytest.raises(ValueError, match="input_nodes must name one of the node types 'item', 'tag', 'user'"):
        sampler.sample_from_nodes(NodeSamplerInput(None, nodes))
    with pytest.raises(ValueError, match="1 unknown nodes of type 'tag', of which there are 7: 7"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0, 7]), input_type="tag"))
    with pytest.raises(ValueError, match=r"has a seed twice.*disjoint=True"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([1, 1]), input_type="tag"))
    with pytest.raises(ValueError, match="unknown edge type"):
        sampler.sample_from_edges(EdgeSamplerInput(None, nodes, nodes, input_type=("a", "b", "c")))
    with pytest.raises(ValueError, match="no meaning without time_attr"):
        sampler.sample_from_edges(EdgeSamplerInput(None, nodes, nodes, time=nodes, input_type=BUYS))
    with pytest.raises(TypeError, match="no argument 'depth'"):
        sampler.sample_from_nodes(NodeSamplerInput(None, nodes, input_type="tag"), depth=2)
    with pytest.raises(TypeError, match="dataset must be a DistDataset"):
        GiglSampler(heterogeneous(), [2])
    with pytest.raises(ValueError, match=r"fanout|num_neighbors"):
        GiglSampler(dataset, {("user", "knows", "user"): [2]})


def test_repeated_seeds_have_a_tree_each() -> None:
    sampler = GiglSampler(DistDataset.from_pyg(homogeneous()), [3], disjoint=True)
    out = sampler.sample_from_nodes(NodeSamplerInput(torch.arange(3), torch.tensor([4, 4, 5])))
    assert out.node[:3].tolist() == [4, 4, 5]
    assert out.batch[:3].tolist() == [0, 1, 2]


@pytest.mark.usefixtures("no_leftovers")
def test_sources_end_with_the_sampler(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    asked = NodeSamplerInput(torch.arange(3), torch.arange(3))
    with servers_of(tmp_path / "graph", 2) as servers:
        dataset = RemoteDistDataset.connect(addresses_of(servers), timeout=30)
        sampler = GiglSampler(dataset, FANOUTS, seed=SEED)
        first = sampler.sample_from_nodes(asked)
        assert len(dataset._sources) == 1
        sampler.sample_from_nodes(asked)
        assert len(dataset._sources) == 1
        sampler.close()
        sampler.close()
        assert torch.equal(sampler.sample_from_nodes(asked).row, first.row)
        del sampler
        other = GiglSampler(dataset, FANOUTS, seed=SEED)
        other.sample_from_nodes(asked)
        dataset.close()
        with pytest.raises(ValueError, match="the dataset was closed"):
            other.sample_from_nodes(asked)


def test_the_sampler_is_a_value_of_its_arguments() -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    sampler = GiglSampler(dataset, FANOUTS, seed=SEED)
    assert repr(sampler) == f"GiglSampler({dataset!r}, [4, 3], seed=11)"
    assert sampler.edge_permutation is None
    with pytest.raises(ValueError, match="epoch"):
        sampler.set_epoch(-1)
