"""Inputs of loaders in the forms that users of PyG, GiGL and GLT pass, and inputs of nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import HeteroData
from torch_geometric.loader import ZipLoader
from torch_geometric.sampler import NumNeighbors

from gigl_client import RemoteDistDataset
from gigl_loader import (
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    RandomWalkSamplerOptions,
    write_embeddings,
)
from gigl_loader.graph.schema import EdgeSplits
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch, weighted
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPTIONS: dict[str, Any] = {"num_workers": 0, "seed": 4, "batch_size": 16, "device": "cpu", "timeout": 20}
BUYS = ("user", "buys", "item")
HETERO = DistDataset.from_pyg(heterogeneous())


def _first(*arguments: Any, loader: Any = DistNeighborLoader, **options: Any) -> Any:
    with loader(*arguments, **{**OPTIONS, **options}) as opened:
        return next(iter(opened))


# Inputs of nothing


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In three partitions; no node is in the split "test", no edge in "val"."""
    data = homogeneous()
    data.test_mask[:] = False
    path = tmp_path_factory.mktemp("graphs") / "graph"
    tables = tables_from_pyg(data)
    splits = {kind: EdgeSplits(fractions={"train": 1.0, "val": 0.0}) for kind in tables.edges}
    tables = type(tables)(edges=tables.edges, nodes=tables.nodes, splits=splits)
    build_graph(tables, path, num_partitions=3, assigner="hash")
    return path


@pytest.fixture(scope="module", params=["embedded", "workers", "graph store"])
def mode(request: pytest.FixtureRequest, graph: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A dataset, and options of its loaders."""
    if request.param != "graph store":
        yield DistDataset.open(graph), {"num_workers": 2 if request.param == "workers" else 0}
        return
    with (
        servers_of(graph, 2) as servers,
        RemoteDistDataset.connect(addresses_of(servers)[0], timeout=20) as dataset,
    ):
        yield dataset, {"num_workers": 1}


NOTHING: list[tuple[Any, Any, dict[str, Any], str]] = [
    (DistNeighborLoader, torch.tensor([], dtype=torch.int64), {}, "seed of node type 'node'"),
    (DistNeighborLoader, torch.tensor([]), {"seed_weights": torch.empty(0)}, "seed of node type 'node'"),
    (DistNeighborLoader, [], {"drop_last": True, "shuffle": True}, "seed of node type 'node'"),
    (DistNeighborLoader, torch.zeros(300, dtype=torch.bool), {}, "seed of node type 'node'"),
    (DistNeighborLoader, {0: torch.tensor([])}, {}, "seed of node type 'node'"),
    (DistNeighborLoader, "test", {"disjoint": True}, "seed of node type 'node' in split 'test'"),
    (
        DistABLPLoader,
        "test",
        {"supervision_edge_type": ("node", "node")},
        "seed of node type 'node' in split 'test'",
    ),
    (
        DistLinkNeighborLoader,
        torch.empty(2, 0),
        {"neg_sampling": "binary", "edge_label": torch.empty(0), "edge_label_time": []},
        "link of type ('node', 'to', 'node')",
    ),
    (
        DistLinkNeighborLoader,
        "val",
        {"neg_sampling": "triplet"},
        "link of type ('node', 'to', 'node') in split 'val'",
    ),
]


@pytest.mark.parametrize(("loader", "given", "options", "name"), NOTHING, ids=range(len(NOTHING)))
def test_an_input_of_nothing_gives_epochs_of_no_batch_and_one_warning(
    *,
    graph: Path,
    mode: Any,
    loader: Any,
    given: Any,
    options: Any,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset, of_mode = mode
    with loader(dataset, [2, 1], given, **{**OPTIONS, **options, **of_mode}) as opened:
        assert (len(opened), list(opened), list(opened), opened.epoch) == (0, [], [], 2)
        assert (opened.stats()["batches"], opened.stats()["workers"]) == (0, [])
        state = opened.state_dict()
        with pytest.raises(ValueError, match="needs at least one"):
            opened.sample(torch.empty(2, 0) if loader is DistLinkNeighborLoader else [])
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == [
        f"{opened.name}: the input has no {name}: its epochs have no batch"
    ]
    with loader(DistDataset.open(graph), [2, 1], given, **{**OPTIONS, **options}) as other:
        other.load_state_dict(state)
        assert (list(other), other.epoch) == ([], 3)


@pytest.mark.parametrize("options", [{}, {"even_batches": False}, {"drop_last": True, "shuffle": True}])
def test_ranks_that_share_nothing_get_no_batch_and_one_warning(
    options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def program(_: Any) -> list[Any]:
        with DistNeighborLoader(HETERO, [2], ("tag", []), name="none", **{**OPTIONS, **options}) as loader:
            return [len(loader), *loader, *loader]

    assert run_ranks(3, program) == [[0], [0], [0]]
    assert caplog.text.count("none: the input has no seed of node type 'tag'") == 1


@pytest.mark.some(1)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_hosts_that_share_nothing_get_no_batch(graph: Path, num_workers: int) -> None:
    def program(group: Any) -> list[Any]:
        parts = [[0, 2], [1]][group.rank]
        options = {**OPTIONS, "num_workers": num_workers, "name": "none"}
        with (
            DistDataset.open(graph, partitions=parts, timeout=60) as dataset,
            DistNeighborLoader(dataset, [2], "test", **options) as nodes,
            DistLinkNeighborLoader(dataset, [2], torch.empty(2, 0), **options) as links,
        ):
            return [len(nodes), *nodes, len(links), *links]

    assert run_ranks(2, program, hosts=["a", "b"]) == [[0, 0], [0, 0]]


def test_a_rank_may_have_nothing_of_an_input_that_the_user_shared_out() -> None:
    def program(group: Any) -> list[int]:
        given = torch.arange(5 * group.rank)
        options = {**OPTIONS, "batch_size": 2, "name": "part"}
        with DistNeighborLoader(HETERO, [2], ("item", given), sharding="none", **options) as loader:
            return [len(batch["item"].input_id) for _ in range(2) for batch in loader]

    assert run_ranks(2, program) == [[], [2, 2, 1, 2, 2, 1]]


def test_embeddings_of_nothing_are_files_of_no_row(tmp_path: Path) -> None:
    with DistNeighborLoader(DistDataset.from_pyg(homogeneous()), [2], [], **OPTIONS) as loader:
        for _ in range(2):
            assert write_embeddings(loader, lambda batch: batch.x, tmp_path) == 0


# Types of nodes


def test_a_node_type_stands_for_all_of_its_nodes() -> None:
    for name, options in (("item", {}), ("user", {"supervision_edge_type": BUYS, "loader": DistABLPLoader})):
        expected = _first(HETERO, [2], (name, None), **options)
        assert same_batch(_first(HETERO, [2], name, **options), expected)
        assert expected[name].input_id.tolist() == list(range(16))
    with pytest.raises(ValueError, match=r"anchors are nodes of type 'item', and .* leads from 'user'"):
        _first(HETERO, [2], "item", supervision_edge_type=BUYS, loader=DistABLPLoader)
    one_type = DistDataset.from_pyg(homogeneous())
    assert same_batch(_first(one_type, [2], "node"), _first(one_type, [2]))


def test_none_in_place_of_a_type_names_none() -> None:
    """As in PyG's distributed loaders."""
    data = homogeneous()
    dataset = DistDataset.from_pyg(data)
    assert same_batch(_first(dataset, [2], (None, torch.arange(9))), _first(dataset, [2], torch.arange(9)))
    links = {"loader": DistLinkNeighborLoader}
    expected = _first(dataset, [2], data.edge_index, **links)
    assert same_batch(_first(dataset, [2], (None, data.edge_index), **links), expected)
    with pytest.raises(ValueError, match="must name one of the edge types"):
        _first(HETERO, [2], (None, data.edge_index), **links)


def test_a_name_of_a_node_type_and_of_a_split_is_refused() -> None:
    data = HeteroData()
    data["train"].num_nodes, data["b"].num_nodes = 3, 4
    data["b"].train_mask = torch.tensor([True, False, True, False])
    data["b", "to", "train"].edge_index = torch.tensor([[0], [1]])
    dataset = DistDataset.from_pyg(data)
    rule = r"'train' is a node type and a split: pass \('train', None\) .* or \('b', 'train'\) for the split"
    with pytest.raises(ValueError, match=rule):
        _first(dataset, [1], "train")
    assert _first(dataset, [1], ("train", None))["train"].n_id[:3].tolist() == [0, 1, 2]
    assert _first(dataset, [1], ("b", "train"))["b"].n_id.tolist() == [0, 2]


# Types of edges, and fanouts by type


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (lambda kind: ([2], kind), {"loader": DistLinkNeighborLoader}),
        (lambda kind: ([2], (kind, torch.tensor([[5, 1], [7, 7]]))), {"loader": DistLinkNeighborLoader}),
        (lambda kind: ({kind: [3, 1]}, "item"), {}),
        (lambda kind: ([2], "item"), lambda kind: {"edge_columns": {kind: []}}),
        (
            lambda _: ([2], "user"),
            lambda kind: {"supervision_edge_type": kind, "loader": DistABLPLoader},
        ),
        (
            lambda kind: ([-1], kind),
            lambda kind: {
                "exclude_targets": True,
                "reverse_edge_types": {
                    kind: ("item", "user") if len(kind) == 2 else ("item", "rev_buys", "user")
                },
                "loader": DistLinkNeighborLoader,
            },
        ),
        (
            lambda _: (None, "item"),
            lambda kind: {"sampler_options": RandomWalkSamplerOptions(1, metapath=[kind])},
        ),
    ],
    ids=["links", "pairs", "num_neighbors", "columns", "supervision", "reverse", "metapath"],
)
def test_the_ends_name_an_edge_type_where_one_type_joins_them(arguments: Any, options: Any) -> None:
    full, ends = (
        _first(HETERO, *arguments(kind), **(options(kind) if callable(options) else options))
        for kind in (BUYS, ("user", "item"))
    )
    assert same_batch(full, ends)


def test_ends_that_several_types_join_are_refused_with_the_types() -> None:
    data = heterogeneous()
    data["user", "sees", "item"].edge_index = torch.tensor([[0], [1]])
    dataset = DistDataset.from_pyg(data)
    rule = r"several edge types join \('user', 'item'\): .*'buys'.*'sees'.*: name one"
    with pytest.raises(ValueError, match=f"num_neighbors: {rule}"):
        _first(dataset, {("user", "item"): [1]}, "item")
    with pytest.raises(ValueError, match=f"edge_label_index: {rule}"):
        _first(dataset, [1], ("user", "item"), loader=DistLinkNeighborLoader)
    with pytest.raises(ValueError, match=r"unknown edge type \('tag', 'user'\); known: "):
        _first(dataset, {("tag", "user"): [1]}, "item")
    assert dataset.fetch_ablp_input(supervision_edge_type=("item", "tag"))[0].positive.shape[1]


@pytest.mark.parametrize("default", [None, [4, 0]])
def test_fanouts_of_types_that_are_left_out(default: list[int] | None) -> None:
    """They are those that PyG's class has, and 0 where it has none."""
    values = {BUYS: [3, -1], ("item", "has", "tag"): [0, 2]}
    given = NumNeighbors(values, default=default)
    of_pyg = NumNeighbors(values, default=default or [0, 0]).get_values(HETERO.edge_types)
    for fanouts in (given, *([values] if default is None else [])):
        with DistNeighborLoader(HETERO, fanouts, "item", **OPTIONS) as loader:
            plan: Any = loader.plan.sampler
            assert plan.num_neighbors == {kind: tuple(hops) for kind, hops in of_pyg.items()}
    assert same_batch(_first(HETERO, given, "item"), _first(HETERO, of_pyg, "item"))
    assert same_batch(_first(HETERO, NumNeighbors([3, 2]), "item"), _first(HETERO, [3, 2], "item"))


# Places in the input


MASK = torch.arange(300) % 3 == 1
IN_TIME = DistDataset.from_pyg(weighted(), time_attr="born")
LABELS = {"edge_label": torch.arange(2400), "edge_label_time": torch.arange(2400) % 90}


@pytest.mark.parametrize(
    ("loader", "given", "options", "count"),
    [
        (
            DistNeighborLoader,
            "train",
            {"shuffle": True, "num_workers": 1},
            int(homogeneous().train_mask.sum()),
        ),
        (DistNeighborLoader, [9, 9, 250, 3] * 8, {"transform": lambda batch: batch}, 32),
        (DistNeighborLoader, MASK, {"time_attr": "born", "input_time": torch.arange(300) % 90}, 100),
        (DistNeighborLoader, torch.arange(40).flip(0), {"seed_weights": torch.rand(40)}, 40),
        (DistLinkNeighborLoader, None, {"neg_sampling": "binary", "batch_size": 500, **LABELS}, 2400),
    ],
    ids=["split", "ids", "mask", "weights", "links"],
)
def test_a_loader_takes_places_in_its_input(loader: Any, given: Any, options: Any, count: int) -> None:
    with loader(IN_TIME, [3, 2], given, **{**OPTIONS, **options}) as opened:
        assert (len(opened.dataset), opened.dataset.num_nodes) == (count, 300)
        opened.set_epoch(1)
        batches = list(opened)
        opened.set_epoch(1)
        made = opened.stats()["batches"]
        for batch in batches:
            places = batch.input_id
            if given is MASK:  # They count the selected nodes.
                places = torch.searchsorted(MASK.nonzero().flatten(), places)
            for form in (places, places.int().numpy(), places.tolist()):
                assert same_batch(opened(form), batch)
        assert opened.stats()["batches"] == made


@pytest.mark.parametrize(
    "places", [[], [1.5], [True], [-1], [160, 161], torch.tensor([[1]]), 1, ["train"]], ids=str
)
def test_what_is_no_place_in_the_input_is_refused(places: Any) -> None:
    rule = "^(places in the input must be 1-D|(-1|161) is no place in an input of 161 entries)"
    with (
        DistNeighborLoader(IN_TIME, [2], torch.arange(161), **OPTIONS) as loader,
        pytest.raises(ValueError, match=rule),
    ):
        loader(places)


@pytest.mark.parametrize("filter_per_worker", [None, True, False])
def test_loaders_go_into_pygs_zip_loader(filter_per_worker: bool | None) -> None:
    with (
        DistNeighborLoader(IN_TIME, [2], "train", **OPTIONS) as nodes,
        DistLinkNeighborLoader(IN_TIME, [2], torch.randint(0, 300, (2, 50)), **OPTIONS) as links,
    ):
        zipped = list(ZipLoader([nodes, links], filter_per_worker=filter_per_worker, batch_size=20))
        assert [len(first.input_id) for first, _ in zipped] == [20, 20, 10]
        for first, second in zipped:
            assert torch.equal(first.input_id, second.input_id)
            assert same_batch(first, nodes(first.input_id))
            assert same_batch(second, links(second.input_id))


def test_a_loader_collates_for_a_data_loader() -> None:
    with DistNeighborLoader(IN_TIME, [2], "train", **OPTIONS) as loader:
        entries: Any = range(len(loader.dataset))
        for num_workers in (0, 2):
            options: Any = {"shuffle": True, "collate_fn": loader.collate_fn, "num_workers": num_workers}
            chosen = list(DataLoader(entries, 16, **options))
            assert sorted(int(place) for batch in chosen for place in batch.input_id) == list(entries)
            assert all(same_batch(batch, loader(batch.input_id)) for batch in chosen)


def test_worker_processes_of_a_data_loader_cannot_ask_storage_servers(graph: Path) -> None:
    with (
        servers_of(graph, 1) as servers,
        RemoteDistDataset.connect(addresses_of(servers)[0], timeout=20) as dataset,
        DistNeighborLoader(dataset, [2], "train", **OPTIONS) as loader,
    ):
        entries: Any = range(len(loader.dataset))
        chosen = DataLoader(entries, 16, collate_fn=loader.collate_fn, num_workers=1)
        with pytest.raises(RuntimeError, match="DataLoader and ZipLoader: num_workers=0"):
            list(chosen)


def test_the_data_of_a_loader_are_pygs_stores() -> None:
    with DistNeighborLoader(IN_TIME, [2], "train", **OPTIONS) as loader:
        features, edges = loader.data
        assert loader.data is loader.data
        assert torch.equal(features.get_tensor(group_name=None, attr_name="x", index=None), weighted().x)
        assert len(edges) == 1
        with pytest.raises(AttributeError, match="no Data that has 'num_classes': batches have all columns"):
            _ = loader.data.num_classes
        with pytest.raises(AttributeError, match="'n_id' cannot be set: leave the line out"):
            loader.data.n_id = torch.arange(9)
        with pytest.raises(AttributeError, match=r"'x' cannot be deleted: .* node_columns="):
            del loader.data.x
