"""What holds for every kind of plan: the same batches in every mode, and epochs that go on elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import (
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubgraphLoader,
    LaborSamplerOptions,
    NegativeSampling,
    PPRMetaPath,
    PPRSamplerOptions,
    RandomWalkSamplerOptions,
    audit,
)
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, EdgeSplits
from gigl_loader.loaders.replay import Recording, Replay
from gigl_loader.partition import GraphTables, build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, check_same, servers_of
from tests.support.pyg_graphs import weighted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.pairs

BUYS, WANTS = ("user", "buys", "item"), ("user", "wants", "item")
BOUGHT = ("item", "rev_buys", "user")
HALVED = "tests.support.user_samplers:Halved"
HARD = "tests.support.user_samplers:Hard"
OPTIONS: dict[str, Any] = {"batch_size": 60, "shuffle": True, "seed": 5, "device": "cpu", "timeout": 60.0}


@dataclass(frozen=True)
class Kind:
    """A kind of plan, as the loader is told of it."""

    num_neighbors: Any
    options: dict[str, Any]
    other: dict[str, Any]
    """Options that make another plan."""
    difference: str
    """Told where a state of one plan is given to the other."""
    loader: Any = DistNeighborLoader
    split: str | None = None
    """Of edges, whose links are the input."""
    alone: dict[str, Any] = field(default_factory=dict)
    """What a batch by itself is told of its entries: by ``input_id``."""
    numbered: bool = False
    """Draws depend on the number of the batch, which is 0 for a batch by itself."""

    def input(self, *, hetero: bool) -> Any:
        """Return the input of the loader."""
        if self.loader in _LINKS:
            return (BUYS, self.split) if hetero else self.split
        if self.loader in (_anchors, _channels, _labelled, _walks):
            return ("user", None) if hetero else None
        return ("item", None) if hetero else None

    def entries(self, batch: Any, *, hetero: bool) -> tuple[Any, Any]:
        """Return the input of one batch, and its ``input_id``: by type, where seeds are of several."""
        if self.loader is _mixed and hetero:
            stores = {kind: batch[kind] for kind in _SEED_TYPES}
            nodes = {kind: store.n_id[store.seed_index] for kind, store in stores.items()}
            return nodes, {kind: store.input_id for kind, store in stores.items()}
        if self.loader not in _LINKS:
            store = (
                batch["user" if self.loader in (_anchors, _channels, _labelled, _walks) else "item"]
                if hetero
                else batch
            )
            return store.n_id[store.seed_index], store.input_id
        links = WANTS if self.loader is _wanted else BUYS
        store, ends = (batch[links], ("user", "item")) if hetero else (batch, None)
        sources, destinations = (batch.n_id, batch.n_id) if ends is None else (batch[t].n_id for t in ends)
        if "edge_label_index" in store:
            local = store.edge_label_index[:, : len(store.input_id)]
        else:
            places = (batch, batch) if ends is None else (batch["user"], batch["item"])
            local = torch.stack([places[0].src_index, places[1].dst_pos_index])
        return torch.stack([sources[local[0]], destinations[local[1]]]), store.input_id


def label_sets(*, hetero: bool) -> dict[Any, Any]:
    """Positive and negative labels of a type that is no edge type. Some pairs come twice."""
    random = torch.Generator().manual_seed(3)
    ends = [("user", 120), ("item", 90)] if hetero else [("node", 300), ("node", 300)]
    pairs = [
        torch.stack([torch.randint(0, count // 2, (size,), generator=random) for _, count in ends])
        for size in (500, 300)
    ]
    return {(ends[0][0], "clicks", ends[1][0]): tuple(pairs)}


def tables_of(data: Any, *, hetero: bool) -> GraphTables:
    """Return the tables of a graph with weights, times, label sets, quantised columns, and edges held out."""
    times: dict[Any, str] = dict.fromkeys(["item", "user"] if hetero else ["node"], "born")
    times[BUYS if hetero else HOMOGENEOUS_EDGE] = "t"
    some = {"user": {"x": "uint4:per-row"}, BUYS: {"edge_attr": "int8"}}
    quantize = some if hetero else {"x": "int8", "edge_attr": "uint2:per-row"}
    labels = label_sets(hetero=hetero)
    tables = tables_from_pyg(data, weight_attr="w", time_attr=times, labels=labels, quantize=quantize)
    splits = EdgeSplits(fractions={"train": 0.9, "val": 0.1})
    return replace(tables, splits={BUYS if hetero else HOMOGENEOUS_EDGE: splits}, message_edges=("train",))


def _labelled(dataset: Any, num_neighbors: Any, nodes: Any, **options: Any) -> DistABLPLoader:
    edge_type = ("node", "clicks", "node") if nodes is None else ("user", "clicks", "item")
    return DistABLPLoader(dataset, num_neighbors, nodes, supervision_edge_type=edge_type, **options)


def _anchors(
    dataset: Any, num_neighbors: Any, nodes: Any, *, walks: Any = None, **options: Any
) -> DistABLPLoader:
    edge_type = ("node", "to", "node") if nodes is None else BUYS
    if walks is not None:
        metapath = None if nodes is None else {"user": [BOUGHT, BUYS], "item": [BUYS, BOUGHT]}
        options["sampler_options"] = RandomWalkSamplerOptions(**walks, metapath=metapath)
    return DistABLPLoader(dataset, num_neighbors, nodes, supervision_edge_type=edge_type, **options)


def _channels(dataset: Any, num_neighbors: Any, nodes: Any, **options: Any) -> DistABLPLoader:
    """Make a loader of PageRank around anchors; in a heterogeneous graph, of two channels and with edges."""
    if nodes is not None:
        ratios = {PPRMetaPath((("user", "follows", "user"), BOUGHT)): 0.4, (BUYS, BOUGHT): 0.6}
        added = {"typed_channel_ratios": ratios, "include_sampled_edges": True}
        options["sampler_options"] = replace(options["sampler_options"], **added)
    return _anchors(dataset, num_neighbors, nodes, **options)


def _timed(dataset: Any, num_neighbors: Any, nodes: Any, **options: Any) -> Any:
    """Return a loader in time, whose seeds have the times that are given by their number."""
    count = dataset.schema.nodes["node" if nodes is None else nodes[0]].count
    times = {name: options.pop(name)[:count] for name in [*options] if name.startswith("input_time")}
    return DistNeighborLoader(dataset, num_neighbors, nodes, **times, **options)


def _by_type(dataset: Any, num_neighbors: Any, nodes: Any, *, named: bool, **options: Any) -> Any:
    """Return a loader that names weights and times of one type; another type has such a column, too."""
    kind = HOMOGENEOUS_EDGE if nodes is None else BUYS
    columns = {"time_attr": {kind: "t"}, **({"weight_attr": {kind: "w"}} if named else {})}
    return _timed(dataset, num_neighbors, nodes, **columns, **options)


def _timed_links(dataset: Any, num_neighbors: Any, links: Any, **options: Any) -> DistLinkNeighborLoader:
    """Return a loader of a few links in times of nodes."""
    edge_type = HOMOGENEOUS_EDGE if links is None else links[0]
    index = (torch.arange(240) % 70).reshape(2, 120)
    times = torch.arange(120) % 60
    return DistLinkNeighborLoader(
        dataset, num_neighbors, (edge_type, index), edge_label_time=times, **options
    )


def _wanted(dataset: Any, num_neighbors: Any, links: Any, **options: Any) -> DistLinkNeighborLoader:
    """Return a loader of links of a type that the graph has no edges of."""
    edge_type = ("node", "wants", "node") if links is None else WANTS
    index = (torch.arange(240) * 7 % 70).reshape(2, 120)
    return DistLinkNeighborLoader(dataset, num_neighbors, (edge_type, index), **options)


def _given_links(
    dataset: Any, num_neighbors: Any, links: Any, *, negatives: Any, **options: Any
) -> DistLinkNeighborLoader:
    """Return a loader of a few links with negatives of their own."""
    edge_type = HOMOGENEOUS_EDGE if links is None else links[0]
    index = (torch.arange(240) % 70).reshape(2, 120)
    return DistLinkNeighborLoader(
        dataset, num_neighbors, (edge_type, index), neg_sampling=negatives, **options
    )


_LINKS = (DistLinkNeighborLoader, _timed_links, _given_links, _wanted)
GIVEN = torch.where(torch.arange(360) % 5 > 0, 7 * torch.arange(360) % 83, -1).reshape(120, 3)


_SEED_TYPES = ("user", "item")


def _mixed(dataset: Any, num_neighbors: Any, nodes: Any, *, walks: Any = None, **options: Any) -> Any:
    """Make a loader of seeds of two node types; in a homogeneous graph, of its only one."""
    if walks is not None:
        metapath = None if nodes is None else {"user": [BOUGHT, BUYS], "item": [BUYS, BOUGHT]}
        options["sampler_options"] = RandomWalkSamplerOptions(**walks, metapath=metapath)
    seeds = {"node": None} if nodes is None else {"user": None, "item": torch.arange(70).flip(0)}
    return DistNeighborLoader(dataset, num_neighbors, seeds, **options)


def _both(dataset: Any, num_neighbors: Any, nodes: Any, **options: Any) -> DistNeighborLoader:
    """Make a loader of batches in both directions, over the types that have a reverse or are their own."""
    if nodes is not None:
        none, types = [0] * len(num_neighbors), dataset.edge_types
        reversible = [each for each in types if "buys" in each[1] or each[0] == each[2]]
        num_neighbors = {each: num_neighbors if each in reversible else none for each in types}
    return DistNeighborLoader(dataset, num_neighbors, nodes, **options)


def _walks(dataset: Any, num_neighbors: Any, nodes: Any, *, walks: Any, **options: Any) -> DistNeighborLoader:
    metapath = None
    if nodes is not None:
        there, back = ("item", "rev_buys", "user"), BUYS
        metapath = [there, back] if "top_k" in walks else [("user", "follows", "user")]
    walk = RandomWalkSamplerOptions(**walks, metapath=metapath)
    return DistNeighborLoader(dataset, num_neighbors, nodes, sampler_options=walk, **options)


KINDS = {
    "neighbor": Kind([4, 3], {"replace": True}, {}, "replace is False here, True in the state"),
    "columns": Kind([4, 3], {"node_columns": ["y"], "edge_columns": []}, {}, "node_columns"),
    "weighted": Kind([4, 3], {"weight_attr": "w"}, {}, "weight_attr is None here, w in the state"),
    "disjoint": Kind(
        [4, 3],
        {"disjoint": True, "weight_attr": "w"},
        {"weight_attr": "w"},
        "disjoint is",
    ),
    "in time": Kind(
        [4, 3],
        {"time_attr": "t", "input_time": torch.arange(300) % 90, "weight_attr": "w"},
        {"time_attr": "t", "input_time": torch.arange(300) % 90},
        "weight_attr is None here, w in the state",
        _timed,
        alone={"time": torch.arange(300) % 90},
    ),
    "columns by type": Kind(
        [4, 3],
        {"named": True, "input_time": torch.arange(300) % 90},
        {"named": False, "input_time": torch.arange(300) % 90},
        "weight_attr is None here",
        _by_type,
        alone={"time": torch.arange(300) % 90},
    ),
    "the last in time": Kind(
        [4, 3],
        {"time_attr": "born", "temporal_strategy": "last"},
        {"time_attr": "born"},
        "last is",
    ),
    "monotone": Kind(
        [4, 3, 3],
        {
            "time_attr": "t",
            "temporal_strategy": "monotone",
            "input_time": torch.arange(300) % 90,
            "weight_attr": "w",
        },
        {"time_attr": "t", "input_time": torch.arange(300) % 90, "weight_attr": "w"},
        "monotone is",
        _timed,
        alone={"time": torch.arange(300) % 90},
    ),
    "strictly earlier": Kind(
        [4, 3, 3],
        {
            "time_attr": "t",
            "temporal_strategy": "monotone",
            "temporal_comparison": "<",
            "input_time": torch.arange(300) % 90,
            "weight_attr": "w",
        },
        {
            "time_attr": "t",
            "temporal_strategy": "monotone",
            "input_time": torch.arange(300) % 90,
            "weight_attr": "w",
        },
        "strictly_earlier is None here, True in the state",
        _timed,
        alone={"time": torch.arange(300) % 90},
    ),
    "windows": Kind(
        [4, 3],
        {"time_attr": "born", "temporal_strategy": "last", "input_time_start": torch.arange(300) % 50},
        {"time_attr": "born", "temporal_strategy": "last", "time_window": 9},
        "time_window is",
        _timed,
        alone={"time_start": torch.arange(300) % 50},
    ),
    "anchors in time": Kind(
        [4, 3],
        {
            "time_attr": "born",
            "temporal_strategy": "monotone",
            "time_window": (9, 70),
            "max_labels_per_anchor": 3,
        },
        {"time_attr": "born", "temporal_strategy": "monotone", "time_window": 60, "max_labels_per_anchor": 3},
        "time_window is",
        _anchors,
    ),
    "links in time": Kind(
        [4, -1],
        {"time_attr": "born", "time_window": 30, "neg_sampling": "binary", "batch_size": 25},
        {
            "time_attr": "born",
            "time_window": 30,
            "neg_sampling": {"mode": "binary", "amount": 2},
            "batch_size": 25,
        },
        "negatives is",
        _timed_links,
        alone={"time": torch.arange(120) % 60},
    ),
    "links strictly earlier": Kind(
        [4, -1],
        {
            "time_attr": "born",
            "time_window": 30,
            "temporal_comparison": "<",
            "neg_sampling": "binary",
            "batch_size": 25,
        },
        {"time_attr": "born", "time_window": 30, "neg_sampling": "binary", "batch_size": 25},
        "strictly_earlier is",
        _timed_links,
        alone={"time": torch.arange(120) % 60},
    ),
    "given negatives": Kind(
        [3, 2],
        {"negatives": GIVEN, "disjoint": True, "batch_size": 25},
        {"negatives": GIVEN[:, :2], "disjoint": True, "batch_size": 25},
        "given is 2 here, 3 in the state",
        _given_links,
        alone={"negatives": GIVEN},
    ),
    "custom negatives": Kind(
        [3, 2],
        {"neg_sampling": CustomSamplerOptions(HARD, k=2), "exclude_targets": True, "batch_size": 200},
        {"neg_sampling": CustomSamplerOptions(HARD, k=1), "exclude_targets": True, "batch_size": 200},
        "custom is",
        DistLinkNeighborLoader,
    ),
    "labor": Kind([4, 3], {"sampler_options": LaborSamplerOptions()}, {}, "labor is"),
    "dependent batches": Kind(
        [4, 3],
        {"sampler_options": LaborSamplerOptions(batch_dependency=3)},
        {"sampler_options": LaborSamplerOptions()},
        "batch_dependency is None here, 3 in the state",
        numbered=True,
    ),
    "induced": Kind(
        [4, 3], {"subgraph_type": "induced", "weight_attr": "w"}, {"weight_attr": "w"}, "subgraph_type is"
    ),
    "subgraphs": Kind(None, {}, {"with_edge": False}, "with_edge is", DistSubgraphLoader),
    "bidirectional": Kind(
        [4, 3],
        {"subgraph_type": "bidirectional", "disjoint": True},
        {"disjoint": True},
        "subgraph_type is",
        _both,
    ),
    "seeds by type": Kind(
        [4, 3],
        {"weight_attr": "w", "disjoint": True, "replace": True},
        {"weight_attr": "w", "replace": True},
        "disjoint is",
        _mixed,
    ),
    "seeds by type in time": Kind(
        [4, 3, 3],
        {"time_attr": "born", "temporal_strategy": "monotone", "temporal_comparison": "<", "time_window": 60},
        {"time_attr": "born", "temporal_strategy": "monotone", "time_window": 60},
        "strictly_earlier is",
        _mixed,
    ),
    "seeds by type, visits": Kind(
        None,
        {"walks": {"walk_length": 4, "walks_per_seed": 3, "top_k": 3}},
        {"walks": {"walk_length": 4, "walks_per_seed": 3}},
        "top_k is None here, 3 in the state",
        _mixed,
    ),
    "seeds by type, PageRank": Kind(
        None,
        {"sampler_options": PPRSamplerOptions(eps=1e-2, num_neighbors_per_hop=5)},
        {"sampler_options": PPRSamplerOptions(eps=1e-3, num_neighbors_per_hop=5)},
        "eps is",
        _mixed,
    ),
    "walks": Kind(
        None,
        {"walks": {"walk_length": 5, "walks_per_seed": 3, "p": 0.5, "q": 2.0}},
        {"walks": {"walk_length": 5, "walks_per_seed": 2, "p": 0.5, "q": 2.0}},
        "walks_per_seed is 2 here, 3 in the state",
        _walks,
    ),
    "visits": Kind(
        None,
        {"walks": {"walk_length": 4, "walks_per_seed": 6, "top_k": 3}},
        {"walks": {"walk_length": 4, "walks_per_seed": 6, "top_k": 2}},
        "top_k is 2 here, 3 in the state",
        _walks,
    ),
    "ppr": Kind(
        None,
        {"sampler_options": PPRSamplerOptions(num_neighbors_per_hop=5)},
        {"sampler_options": PPRSamplerOptions(eps=1e-3, num_neighbors_per_hop=5)},
        "eps is 0.001 here, 0.0001 in the state",
    ),
    "custom": Kind(
        None,
        {"sampler_options": CustomSamplerOptions(HALVED, fanout=6, keep=0.7)},
        {"sampler_options": CustomSamplerOptions(HALVED, fanout=3)},
        "arguments is",
    ),
    "links": Kind(
        [4, 3],
        {"batch_size": 200, "neg_sampling": {"mode": "binary", "amount": 1.5, "strict": True}},
        {"neg_sampling": "binary", "batch_size": 200},
        "negatives is",
        DistLinkNeighborLoader,
    ),
    "triplets": Kind(
        [3, -1],
        {
            "batch_size": 200,
            "neg_sampling": NegativeSampling("triplet", 2, strict=True),
            "exclude_targets": True,
            "weight_attr": "w",
        },
        {"neg_sampling": NegativeSampling("triplet", 2, strict=True), "batch_size": 200, "weight_attr": "w"},
        "excluded is",
        DistLinkNeighborLoader,
    ),
    "links of no edge type": Kind(
        [3, 2],
        {"batch_size": 50, "neg_sampling": "triplet", "exclude_targets": True},
        {"batch_size": 50, "neg_sampling": "binary", "exclude_targets": True},
        "negatives is",
        _wanted,
    ),
    "links held out": Kind(
        [3, 2],
        {
            "batch_size": 50,
            "neg_sampling": {"mode": "binary", "amount": 2, "strict": True},
            "disjoint": True,
        },
        {
            "batch_size": 50,
            "neg_sampling": {"mode": "binary", "amount": 1, "strict": True},
            "disjoint": True,
        },
        "negatives is",
        DistLinkNeighborLoader,
        split="val",
    ),
    "anchors": Kind(
        [3, 2],
        {"max_labels_per_anchor": 3, "num_random_negatives": 9, "sampler_options": LaborSamplerOptions()},
        {"max_labels_per_anchor": 4, "num_random_negatives": 9, "sampler_options": LaborSamplerOptions()},
        "max_labels is 4 here, 3 in the state",
        _anchors,
    ),
    "anchors by PageRank": Kind(
        None,
        {"num_random_negatives": 9, "weight_attr": "w", "sampler_options": PPRSamplerOptions(eps=1e-2)},
        {"num_random_negatives": 9, "sampler_options": PPRSamplerOptions(eps=1e-2)},
        "weight_attr is None here, w in the state",
        _channels,
    ),
    "anchors by walks": Kind(
        None,
        {"max_labels_per_anchor": 3, "walks": {"walk_length": 4, "walks_per_seed": 3}},
        {"max_labels_per_anchor": 3, "walks": {"walk_length": 4, "walks_per_seed": 3, "top_k": 2}},
        "top_k is 2 here, None in the state",
        _anchors,
    ),
    "label sets": Kind(
        [3, 2],
        {"max_labels_per_anchor": 3, "as_dict": True, "disjoint": True},
        {"as_dict": True, "disjoint": True},
        "max_labels is None here, 3 in the state",
        _labelled,
    ),
}


@dataclass(frozen=True)
class Stored:
    """A graph in three partitions, and the servers that hold it."""

    dataset: DistDataset = field(repr=False)
    address: str
    data: Any = field(repr=False)
    hetero: bool


def _loader(dataset: Any, stored: Stored, kind: Kind, **options: Any) -> Any:
    given = {**OPTIONS, **kind.options, **options}
    return kind.loader(dataset, kind.num_neighbors, kind.input(hetero=stored.hetero), **given)


def _epochs(dataset: Any, stored: Stored, kind: Kind, **options: Any) -> list[Any]:
    with _loader(dataset, stored, kind, **options) as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.fixture(scope="module", params=["homogeneous", "heterogeneous"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    hetero = request.param == "heterogeneous"
    path = tmp_path_factory.mktemp("kinds") / "graph"
    data = weighted(hetero=hetero)
    build_graph(tables_of(data, hetero=hetero), path, num_partitions=3, assigner="hash")
    # One server asks others for neighbours, the others for features alone.
    special = {rank: {"topology": "all"} for rank in (1, 2)}
    with servers_of(path, 3, allow_samplers=(HALVED, HARD), special=special) as servers:
        yield Stored(DistDataset.open(path), addresses_of(servers)[0], data, hetero)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def expected(stored: Stored, kind: Kind) -> list[Any]:
    return _epochs(stored.dataset, stored, kind, num_workers=0)


@pytest.mark.some(3)
def test_workers_give_the_batches_of_the_embedded_loader(
    stored: Stored, kind: Kind, expected: list[Any]
) -> None:
    check_same(_epochs(stored.dataset, stored, kind, num_workers=2), expected)


@pytest.mark.some(4)
def test_partitioning_changes_no_batch(
    stored: Stored, kind: Kind, expected: list[Any], tmp_path: Path
) -> None:
    build_graph(tables_of(stored.data, hetero=stored.hetero), tmp_path / "whole")
    check_same(_epochs(DistDataset.open(tmp_path / "whole"), stored, kind, num_workers=0), expected)


@pytest.mark.some(14)
@pytest.mark.parametrize("transport", ["ring", "network"])
@pytest.mark.parametrize("rows", ["through", "direct"])
def test_storage_servers_give_the_batches_of_the_embedded_loader(
    stored: Stored, kind: Kind, expected: list[Any], transport: Any, rows: Any
) -> None:
    with RemoteDistDataset.connect(stored.address, transport=transport, rows=rows, timeout=60) as dataset:
        check_same(_epochs(dataset, stored, kind), expected)


@pytest.mark.slow
def test_an_epoch_goes_on_where_it_was_left(stored: Stored, kind: Kind, expected: list[Any]) -> None:
    with _loader(stored.dataset, stored, kind) as loader:
        list(islice(loader, 1))
        state = json.loads(json.dumps(loader.state_dict()))
    with (
        RemoteDistDataset.connect(stored.address, timeout=60) as dataset,
        _loader(dataset, stored, kind) as other,
    ):
        other.load_state_dict(state)
        check_same(list(other), expected[1 : len(other)])


@pytest.mark.some(4)
def test_one_batch_by_itself_is_the_same_everywhere(stored: Stored, kind: Kind, expected: list[Any]) -> None:
    batch = expected[0 if kind.numbered else 1]
    entries, places = kind.entries(batch, hetero=stored.hetero)
    with RemoteDistDataset.connect(stored.address, timeout=60) as remote:
        for dataset in (stored.dataset, remote):
            with _loader(dataset, stored, kind, num_workers=0) as loader:
                alone = {name: values[places] for name, values in kind.alone.items()}
                check_same([loader(places)], [batch])
                _, found = kind.entries(loader.sample(entries, epoch=0, **alone), hetero=stored.hetero)
            pairs = (
                [(found[each], places[each]) for each in places]
                if isinstance(places, dict)
                else [(found, places)]
            )
            assert [each.tolist() for each, _ in pairs] == [list(range(len(each))) for _, each in pairs]


@pytest.mark.some(4)
def test_audits_agree_in_every_mode_and_find_no_late_edge_and_each_seed_once(
    stored: Stored, kind: Kind
) -> None:
    with RemoteDistDataset.connect(stored.address, timeout=60) as remote:
        reports = []
        datasets: list[Any] = [stored.dataset, remote]
        for dataset in datasets:
            with _loader(dataset, stored, kind, num_workers=0) as loader:
                reports.append(audit(loader))
    first, second = ([each.to_json() for each in report.findings] for report in reports)
    assert first == second
    is_excluded = kind.options.get("exclude_targets", kind.loader in (_anchors, _channels, _labelled))
    for each in reports[0].findings:
        assert not each.violations or (each.check == "targets" and not is_excluded)


def test_a_state_of_another_plan_is_refused(stored: Stored, kind: Kind) -> None:
    with _loader(stored.dataset, stored, kind, num_workers=0) as loader:
        state = loader.state_dict()
    options = {**OPTIONS, **kind.other, "num_workers": 0}
    with (
        kind.loader(stored.dataset, kind.num_neighbors, kind.input(hetero=stored.hetero), **options) as other,
        pytest.raises(ValueError, match=kind.difference),
    ):
        other.load_state_dict(state)


@pytest.mark.some(3)
def test_ledgers_are_equal_in_every_mode_and_are_replayed_in_every_other(
    stored: Stored, kind: Kind, tmp_path: Path
) -> None:
    build_graph(tables_of(stored.data, hetero=stored.hetero), tmp_path / "whole")
    whole = DistDataset.open(tmp_path / "whole")
    with RemoteDistDataset.connect(stored.address, timeout=60) as remote:
        recordings = []
        datasets: list[tuple[str, Any]] = [("here", whole), ("store", remote)]
        for name, dataset in datasets:
            with _loader(dataset, stored, kind, num_workers=int(name == "store")) as loader:
                loader.ledger(tmp_path / name)
                list(islice(loader, 2))
            recordings.append(Recording.read(tmp_path / name, lambda *_: True))
        told = [
            [(each.batch, each.fields["request"], each.fields["frame"]) for each in recording.chosen]
            for recording in recordings
        ]
        assert told[0] == told[1]
        assert len(told[0]) == 2
        others: list[Any] = [remote, stored.dataset]
        for recording, dataset in zip(recordings, others, strict=True):
            with Replay(recording, dataset, allowed_samplers={HALVED, HARD}, timeout_s=60) as replay:
                assert [replay.compare(each) for each in recording.chosen] == [(), ()]
