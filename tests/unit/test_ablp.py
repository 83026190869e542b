"""``DistABLPLoader``: its batches against the oracle and the rules of the page, and its input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from gigl_client import RemoteDistDataset
from gigl_loader import (
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    FormatError,
    SamplingError,
)
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support import oracle
from tests.support.clusters import addresses_of, servers_of
from tests.support.command_line import run_here
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch

if TYPE_CHECKING:
    from pathlib import Path


OPTIONS: dict[str, Any] = {"num_workers": 0, "seed": 4, "batch_size": 64}
EDGE = ("node", "to", "node")
BUYS, FOLLOWS = ("user", "buys", "item"), ("user", "follows", "user")
DATA, HETERO = homogeneous(), heterogeneous()
DATASET = DistDataset.from_pyg(DATA)


def _first(dataset: Any, *arguments: Any, **options: Any) -> Any:
    with DistABLPLoader(dataset, *arguments, **{**OPTIONS, **options}) as loader:
        return next(iter(loader))


@settings(max_examples=30)
@given(st.data())
def test_batches_are_those_of_the_oracle(data: st.DataObject) -> None:
    counts = {"a": data.draw(st.integers(1, 10)), "b": data.draw(st.integers(1, 8))}
    edges: dict[Any, list[oracle.Edge]] = {}
    likes, liked_by = ("a", "likes", "b"), ("b", "liked_by", "a")
    known = (likes, ("a", "owns", "b"), ("a", "near", "a"), ("b", "rev_likes", "a"), liked_by)
    for edge_type in known:
        source, _, destination = edge_type
        ends = st.tuples(st.integers(0, counts[source] - 1), st.integers(0, counts[destination] - 1))
        listed = data.draw(st.lists(ends, max_size=40))
        edges[edge_type] = [(src, dst, number) for number, (src, dst) in enumerate(listed)]
    types = data.draw(
        st.sampled_from(
            [
                [("a", "likes", "b")],
                [("a", "near", "a")],
                [("a", "near", "a"), ("a", "likes", "b")],
                [("a", "owns", "b"), ("a", "likes", "b")],
            ]
        )
    )
    anchors = data.draw(st.lists(st.integers(0, counts["a"] - 1), min_size=1, max_size=6))
    cap, randoms = data.draw(st.none() | st.integers(1, 4)), data.draw(st.integers(0, 12))
    excluded, disjoint = data.draw(st.booleans()), data.draw(st.booleans())
    reverses = data.draw(st.sampled_from([None, {likes: liked_by}]))
    edge_dir: Literal["in", "out"] = data.draw(st.sampled_from(["in", "out"]))
    fanouts = data.draw(st.lists(st.sampled_from([-1, 0, 2]), min_size=1, max_size=2))
    graph = HeteroData()
    for node_type, count in counts.items():
        graph[node_type].num_nodes = count
    for edge_type, edge_list in edges.items():
        rows = [[edge[row] for edge in edge_list] for row in (0, 1)]
        graph[edge_type].edge_index = torch.tensor(rows, dtype=torch.int64).reshape(2, -1)
    dataset = DistDataset.from_pyg(
        graph,
        num_partitions=data.draw(st.integers(1, 3)),
        assigner=data.draw(st.sampled_from(["range", "hash"])),
        edge_dir=edge_dir,
    )
    batch = _first(
        dataset,
        fanouts,
        ("a", torch.tensor(anchors)),
        supervision_edge_type=types,
        max_labels_per_anchor=cap,
        num_random_negatives=randoms,
        exclude_targets=excluded,
        reverse_edge_types=reverses,
        disjoint=disjoint,
        with_edge=True,
    )

    key = oracle.request_key(4, 0, range(len(anchors)), anchors)
    distinct = anchors if disjoint else list(dict.fromkeys(anchors))
    found = {
        each: oracle.labels(key, distinct, edges[each], edge_type=each, cap=cap, disjoint=disjoint)
        for each in sorted(types)
    }
    drawn = {each: oracle.random_nodes(key, each, range(counts[each[2]]), randoms) for each in sorted(types)}
    groups = [("a", distinct)]
    groups += [(each[2], [node for nodes in listed for node in nodes]) for each, listed in found.items()]
    groups += [(each[2], nodes) for each, nodes in drawn.items()]
    expected = oracle.sample(
        edges,
        sorted(counts),
        fanouts=dict.fromkeys(edges, fanouts),
        groups=groups,
        trees=_trees(len(distinct), list(found.values()), randoms) if disjoint else None,
        key=key,
        edge_dir=edge_dir,
    )
    if excluded:
        for each, labels in found.items():
            pairs = {(anchor, node) for anchor, nodes in zip(distinct, labels, strict=True) for node in nodes}
            oracle.without_pairs(expected, each, pairs, edge_dir=edge_dir)
            if each == likes:
                turned = {(node, anchor) for anchor, node in pairs}
                for reverse in [("b", "rev_likes", "a"), *([liked_by] if reverses else [])]:
                    oracle.without_pairs(expected, reverse, turned, edge_dir=edge_dir)

    for node_type, nodes in expected.nodes.items():
        assert batch[node_type].n_id.tolist() == nodes
    ids = [edge_id for each in batch.edge_types for edge_id in batch[each].e_id.tolist()]
    assert sorted(ids) == sorted(edge_id for listed in expected.edge_ids.values() for edge_id in listed)
    if disjoint:
        assert {kind: batch[kind].batch.tolist() for kind in expected.trees} == expected.trees
    else:
        assert batch["a"].batch.tolist() == anchors
    assert batch["a"].batch_size == len(distinct)
    assert batch["a"].n_id[batch["a"].seed_index].tolist() == anchors
    for each in types:
        positive = batch.y_positive if len(types) == 1 else batch.y_positive[each]
        told = [(index, node) for index, nodes in enumerate(found[each]) for node in nodes]
        assert list(zip(positive[0].tolist(), batch[each[2]].n_id[positive[1]].tolist(), strict=True)) == told
        if randoms:
            index = batch.random_negative_index if len(types) == 1 else batch.random_negative_index[each]
            assert batch[each[2]].n_id[index].tolist() == drawn[each]


def _trees(anchors: int, labels: list[list[list[int]]], randoms: int) -> list[list[int]]:
    """Return the trees of anchors, of their labels by type, and of the random negatives of as many types."""
    of_labels = [[tree for tree, nodes in enumerate(listed) for _ in nodes] for listed in labels]
    begins = [anchors + number * randoms for number in range(len(labels))]
    return [list(range(anchors)), *of_labels, *(list(range(each, each + randoms)) for each in begins)]


def test_labels_are_the_edges_of_the_type() -> None:
    batch = _first(DATASET, [2], torch.tensor([5, 3, 5, 299]), supervision_edge_type=EDGE)
    assert batch.batch.tolist() == [5, 3, 5, 299]
    assert (batch.batch_size, batch.seed_index.tolist()) == (3, [0, 1, 0, 2])
    pairs = list(
        zip(batch.n_id[batch.y_positive[0]].tolist(), batch.n_id[batch.y_positive[1]].tolist(), strict=True)
    )
    edges = sorted(map(tuple, DATA.edge_index.t().tolist()))
    assert pairs == [edge for anchor in (5, 3) for edge in edges if edge[0] == anchor]
    assert "random_negative_index" not in batch


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_partitions", [1, 3])
def test_label_sets_take_the_place_of_edges(edge_dir: Any, num_partitions: int) -> None:
    positive = torch.tensor([[3, 3, 9, 3, 3], [7, 2, 1, 7, 80]])  # A pair comes twice.
    negative = torch.tensor([[9, 3], [4, 5]])
    dataset = DistDataset.from_pyg(
        HETERO,
        labels={("user", "clicks", "item"): (positive, negative), BUYS: positive[:, :2]},
        edge_dir=edge_dir,
        num_partitions=num_partitions,
        assigner="hash",
    )
    assert ("user", "clicks", "item") not in dataset.edge_types
    types = [("user", "clicks", "item"), BUYS]
    batch = _first(dataset, [2], ("user", [3, 9, 5]), supervision_edge_type=types)

    def pairs(found: Any) -> list[tuple[int, int]]:
        users, items = batch["user"].n_id[found[0]], batch["item"].n_id[found[1]]
        return list(zip(users.tolist(), items.tolist(), strict=True))

    clicks = ("user", "clicks", "item")
    assert pairs(batch.y_positive[clicks]) == [(3, 2), (3, 7), (3, 7), (3, 80), (9, 1)]
    assert pairs(batch.y_positive[BUYS]) == [(3, 2), (3, 7)]
    assert list(batch.y_negative) == [clicks]
    assert pairs(batch.y_negative[clicks]) == [(3, 5), (9, 4)]
    assert clicks not in batch.edge_types
    assert batch["user"].batch.tolist() == [3, 9, 5]


@pytest.mark.parametrize(("hetero", "edge_dir"), [(False, "in"), (False, "out"), (True, "in")])
def test_edges_to_positive_and_negative_labels_are_excluded_in_both_directions(
    hetero: bool, edge_dir: Any
) -> None:
    """In a homogeneous graph, whatever the label set is called. Every other edge stays."""
    data, name = (HETERO, BUYS) if hetero else (DATA, ("node", "clicks", "node"))
    ends = HETERO[BUYS].edge_index if hetero else DATA.edge_index
    labels = (ends[:, :60], ends[:, 60:120])
    dataset = DistDataset.from_pyg(data, labels={name: labels}, edge_dir=edge_dir)
    anchors = ends[0, :120].unique()

    def sampled(*, excluded: bool) -> dict[Any, set[tuple[int, int]]]:
        given = ("user", anchors) if hetero else anchors
        batch = _first(dataset, [-1], given, batch_size=300, exclude_targets=excluded)
        found = {}
        for kind in batch.edge_types if hetero else [EDGE]:
            store, here, there = (batch[kind], batch[kind[0]], batch[kind[2]]) if hetero else (batch,) * 3
            rows = (here.n_id[store.edge_index[0]].tolist(), there.n_id[store.edge_index[1]].tolist())
            found[kind] = set(zip(*rows, strict=True))
        return found

    whole, kept = sampled(excluded=False), sampled(excluded=True)
    gone = {(here, there) for each in labels for here, there in each.t().tolist()}
    turned = {(there, here) for here, there in gone}
    removed = {BUYS: gone, ("item", "rev_buys", "user"): turned} if hetero else {EDGE: gone | turned}
    assert {kind: edges - removed.get(kind, set()) for kind, edges in whole.items()} == kept
    assert all(whole[kind] != kept[kind] for kind in [BUYS] if hetero)
    assert hetero or len(whole[EDGE] - kept[EDGE]) > 100


def test_the_supervision_type_may_be_left_out_where_there_is_one() -> None:
    nodes = torch.tensor([5, 3])
    assert same_batch(_first(DATASET, [2], nodes), _first(DATASET, [2], nodes, supervision_edge_type=EDGE))
    clicks = ("node", "clicks", "node")
    labelled = DistDataset.from_pyg(DATA, labels={clicks: torch.tensor([[5, 3], [7, 8]])})
    assert _first(labelled, [2], nodes).y_positive[0].tolist() == [0, 1]
    several = DistDataset.from_pyg(
        DATA, labels={(*clicks[:1], name, "node"): nodes.repeat(2, 1) for name in "ab"}
    )
    for dataset in (several, DistDataset.from_pyg(HETERO)):
        with pytest.raises(ValueError, match="supervision_edge_type must be one of"):
            _first(dataset, [2])


def test_label_sets_are_no_edges_of_neighborhoods() -> None:
    labels = {("node", "likes", "node"): torch.randint(0, 300, (2, 900))}
    with_labels = DistDataset.from_pyg(DATA, labels=labels)
    options: dict[str, Any] = {"num_workers": 0, "seed": 4, "batch_size": 50}
    batches = [next(iter(DistNeighborLoader(each, [5, 5], **options))) for each in (DATASET, with_labels)]
    assert same_batch(*batches)
    assert with_labels.num_edges == DATASET.num_edges


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ({("user", "clicks"): torch.zeros(2, 1)}, TypeError, r"\(anchor type, relation, label type\)"),
        ({("user", "clicks", "shop"): torch.zeros(2, 1)}, ValueError, "node type 'shop' is not in the graph"),
        ({BUYS: torch.zeros(2, 1)}, ValueError, r"positive labels of .* not integer node ids \[2, P\]"),
        ({BUYS: torch.zeros(3, 2, dtype=torch.int64)}, ValueError, r"not integer node ids \[2, P\]"),
        (
            {BUYS: (torch.zeros(2, 1, dtype=torch.int64),) * 3},
            ValueError,
            r"positive ones, or \(positive, neg",
        ),
        ({BUYS: torch.tensor([[1], [900]])}, FormatError, "unknown node id 900"),
    ],
)
def test_labels_that_cannot_be_are_refused(labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DistDataset.from_pyg(HETERO, labels=labels)


@pytest.mark.slow
def test_label_sets_are_built_from_tables_and_verified(tmp_path: Path) -> None:
    files = {
        "edges.csv": "src,dst\nann,tea\nbob,jam\nann,jam\n",
        "clicks.csv": "src,dst,when\nann,jam,1\nbob,tea,2\n",
        "hides.csv": "src,dst\nbob,jam\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    graph = tmp_path / "graph"
    made = run_here(
        "partition",
        str(graph),
        "--edges",
        f"user,buys,item={tmp_path}/edges.csv",
        "--labels",
        f"user,clicks,item={tmp_path}/clicks.csv",
        "--labels",
        f"user,clicks,item:negative={tmp_path}/hides.csv",
        "--json",
    )
    assert made.returncode == 0, made.stderr
    assert [entry["count"] for entry in json.loads(made.stdout)["schema"]["labels"]] == [1, 2]
    shown = run_here("inspect", str(graph), "--verify")
    assert shown.returncode == 0, shown.stderr
    assert "user,clicks,item" in shown.stdout
    dataset = DistDataset.open(graph)
    batch = _first(dataset, [1], ("user", ["bob", "ann"]), supervision_edge_type=("user", "clicks", "item"))
    names = dataset.original_ids(batch["item"].n_id, "item")
    assert [names[label] for label in batch.y_positive[1]] == ["tea", "jam"]
    assert [names[label] for label in batch.y_negative[1]] == ["jam"]
    refused = run_here(
        "partition", str(tmp_path / "no"), "--edges", f"{tmp_path}/edges.csv", "--labels", "clicks=x.csv"
    )
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--labels" in refused.stderr


def test_as_dict_has_an_entry_for_every_anchor() -> None:
    nodes = torch.tensor([5, 3, 299])  # The last has no edge.
    plain = _first(DATASET, [2], nodes, supervision_edge_type=EDGE)
    by_anchor = _first(DATASET, [2], nodes, supervision_edge_type=EDGE, as_dict=True).y_positive
    assert list(by_anchor) == [0, 1, 2]
    for anchor, labels in by_anchor.items():
        assert labels.tolist() == plain.y_positive[1][plain.y_positive[0] == anchor].tolist()
    assert len(by_anchor[2]) == 0
    several = _first(
        DistDataset.from_pyg(HETERO),
        [2],
        ("user", torch.arange(4)),
        supervision_edge_type=[BUYS, FOLLOWS],
        as_dict=True,
    )
    assert {each: list(labels) for each, labels in several.y_positive.items()} == {
        BUYS: [0, 1, 2, 3],
        FOLLOWS: [0, 1, 2, 3],
    }


def test_a_cap_keeps_others_in_another_epoch() -> None:
    options = {"supervision_edge_type": EDGE, "max_labels_per_anchor": 2, **OPTIONS}
    with DistABLPLoader(DATASET, [1], torch.arange(60), **options) as loader:
        epochs = [next(iter(loader)) for _ in range(2)]
    degrees = torch.bincount(DATA.edge_index[0], minlength=300)[:60]
    for batch in epochs:
        assert torch.equal(torch.bincount(batch.y_positive[0], minlength=60), degrees.clamp(max=2))
    first, second = (batch.n_id[batch.y_positive[1]].tolist() for batch in epochs)
    assert first != second


def test_random_negatives_differ_while_there_are_enough() -> None:
    dataset = DistDataset.from_pyg(HETERO)
    few = _first(dataset, [1], ("user", [1]), supervision_edge_type=BUYS, num_random_negatives=80)
    nodes = few["item"].n_id[few.random_negative_index].tolist()
    assert (len(nodes), len(set(nodes))) == (80, 80)
    many = _first(dataset, [1], ("user", [1]), supervision_edge_type=BUYS, num_random_negatives=200)
    nodes = many["item"].n_id[many.random_negative_index].tolist()
    assert sorted({nodes.count(node) for node in range(90)}) == [2, 3]


def test_one_type_in_a_list_is_as_without_the_list() -> None:
    dataset = DistDataset.from_pyg(HETERO)
    batch = _first(dataset, [1], ("user", [1, 2]), supervision_edge_type=[BUYS])
    assert isinstance(batch.y_positive, torch.Tensor)


def test_anchors_may_be_a_split() -> None:
    dataset = DistDataset.from_pyg(HETERO)
    batch = _first(dataset, [1], "train", supervision_edge_type=BUYS)
    train = HETERO["user"].train_mask.nonzero().reshape(-1)
    assert torch.equal(batch["user"].batch, train[:64])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"supervision_edge_type": ("item", "buys", "user")},
            ValueError,
            r"run from source to destination: pass",
        ),
        ({"supervision_edge_type": "buys"}, TypeError, r"must be \(source, relation, destination\)"),
        ({"supervision_edge_type": []}, ValueError, "is empty"),
        ({"supervision_edge_type": [BUYS, BUYS]}, ValueError, "a type twice"),
        ({"supervision_edge_type": [BUYS, ("item", "has", "tag")]}, ValueError, "from several node types"),
        ({"supervision_edge_type": ("item", "has", "tag")}, ValueError, "anchors are nodes of type 'user'"),
        ({"max_labels_per_anchor": 0}, ValueError, "max_labels_per_anchor must be at least 1"),
        ({"num_random_negatives": -1}, ValueError, "num_random_negatives must be at least 0"),
        ({"as_dict": 2}, TypeError, "as_dict must be True or False"),
        ({"sampler_options": CustomSamplerOptions("a.b:C")}, ValueError, "need KHopNeighborSamplerOptions"),
        ({"input_nodes": ("user", [500])}, ValueError, "500"),
        ({"reverse_edge_types": [BUYS]}, TypeError, "must map an edge type to the one"),
        (
            {"reverse_edge_types": {BUYS: ("item", "sold", "user")}},
            ValueError,
            "reverse_edge_types: unknown edge type",
        ),
        ({"reverse_edge_types": {BUYS: FOLLOWS}}, ValueError, "no edges from 'item' to 'user'"),
    ],
)
def test_what_does_not_fit_is_refused(options: Any, error: type[Exception], message: str) -> None:
    given = {"supervision_edge_type": BUYS, "input_nodes": ("user", [1]), **options}
    with pytest.raises(error, match=message):
        _first(DistDataset.from_pyg(HETERO), [1], **given)


def test_more_trees_than_there_can_be_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.sampling.seeds.MAX_TREES", 8)
    options = {"supervision_edge_type": EDGE, "batch_size": 3, "disjoint": True}
    _first(DATASET, [2], None, num_random_negatives=5, **options)
    with pytest.raises(SamplingError, match="at most 8 disjoint trees: ask for fewer entries"):
        _first(DATASET, [2], None, num_random_negatives=6, **options)


# --- Anchors with all of their labels, fetched from datasets of every kind


CLICKS = ("user", "clicks", "item")
POSITIVE = torch.tensor([[3, 3, 9, 3, 3], [7, 2, 1, 7, 80]])  # A pair comes twice.
NEGATIVE = torch.tensor([[9, 3], [4, 5]])


def pairs_of(edges: torch.Tensor, anchors: list[int]) -> list[list[int]]:
    """Return those of the pairs that lead from ``anchors``, ascending."""
    return sorted(pair for pair in edges.t().tolist() if pair[0] in anchors)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize(("parts", "assigner"), [(1, "range"), (3, "hash")])
def test_labels_are_a_label_set_or_the_edges(edge_dir: Any, parts: int, assigner: Any) -> None:
    data = heterogeneous()
    dataset = DistDataset.from_pyg(
        data,
        labels={CLICKS: (POSITIVE, NEGATIVE)},
        edge_dir=edge_dir,
        num_partitions=parts,
        assigner=assigner,
    )
    [clicks] = dataset.fetch_ablp_input(None, "user", CLICKS).values()
    assert clicks.anchors.tolist() == list(range(data["user"].num_nodes))
    assert clicks.positive.t().tolist() == sorted(POSITIVE.t().tolist())
    assert clicks.negative is not None
    assert clicks.negative.t().tolist() == sorted(NEGATIVE.t().tolist())

    [buys] = dataset.fetch_ablp_input("train", supervision_edge_type=BUYS).values()
    train = dataset.fetch_node_ids("train", "user")[0].tolist()
    assert buys.anchors.tolist() == train
    assert buys.positive.t().tolist() == pairs_of(data[BUYS].edge_index, train)
    assert buys.negative is None
    share = dataset.fetch_ablp_input("train", supervision_edge_type=BUYS)
    with DistABLPLoader(
        dataset, [2], share, supervision_edge_type=BUYS, batch_size=999, num_workers=0, device="cpu"
    ) as loader:
        assert next(loader)["user"].batch.tolist() == train


def test_servers_give_the_same_by_server_and_share(tmp_path: Path) -> None:
    data = homogeneous()
    build_graph(tables_from_pyg(data), tmp_path / "graph", num_partitions=3, assigner="hash")
    [whole] = DistDataset.open(tmp_path / "graph").fetch_ablp_input().values()
    assert whole.positive.t().tolist() == sorted(data.edge_index.t().tolist())
    with (
        servers_of(tmp_path / "graph", 3) as servers,
        RemoteDistDataset.connect(addresses_of(servers)[0], timeout=60) as dataset,
    ):
        found = dataset.fetch_ablp_input()
        assert list(found) == [0, 1, 2]
        assert {server: each.anchors.tolist() for server, each in found.items()} == {
            server: ids.tolist() for server, ids in dataset.fetch_node_ids().items()
        }
        positive = torch.cat([each.positive for each in found.values()], dim=1)
        assert sorted(positive.t().tolist()) == whole.positive.t().tolist()

        shares = [dataset.fetch_ablp_input(rank=rank, world_size=2, balance="seeds") for rank in range(2)]
        joined = [torch.cat([share[server].positive for share in shares], dim=1) for server in range(3)]
        assert [each.tolist() for each in joined] == [each.positive.tolist() for each in found.values()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "item", BUYS), "leads from 'user', not from anchors of type 'item'"),
        (("train", "user", ("item", "buys", "user")), "unknown edge type .* run from source to destination"),
        (("train", "user", None), "supervision_edge_type must be one of"),
        (("dev", "user", BUYS), "no split 'dev'"),
    ],
)
def test_mistakes_are_named(arguments: Any, message: str) -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    with pytest.raises(ValueError, match=message):
        dataset.fetch_ablp_input(*arguments)
