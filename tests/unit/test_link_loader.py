"""``DistLinkNeighborLoader``: what its batches hold, against the oracle and against the rules of the page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling as PyGNegativeSampling

from gigl_loader import CustomSamplerOptions, DistDataset, DistLinkNeighborLoader, NegativeSampling
from gigl_loader.sampling import negatives as negatives_module
from tests.support import oracle
from tests.support.command_line import run_here
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.oracle import EdgeType

OPTIONS: dict[str, Any] = {"num_workers": 0, "seed": 4, "batch_size": 64}
DATA = homogeneous()
DATASET = DistDataset.from_pyg(DATA)
HETERO = heterogeneous()
BUYS = ("user", "buys", "item")


def _batches(dataset: Any, *arguments: Any, **options: Any) -> list[Any]:
    with DistLinkNeighborLoader(dataset, *arguments, **{**OPTIONS, **options}) as loader:
        return list(loader)


def _first(dataset: Any, *arguments: Any, **options: Any) -> Any:
    with DistLinkNeighborLoader(dataset, *arguments, **{**OPTIONS, **options}) as loader:
        return next(iter(loader))


def _pairs(batch: Any, local: Any, ends: tuple[str, str] | None = None) -> list[tuple[int, int]]:
    """Node ids of local pairs."""
    sources, destinations = (batch.n_id, batch.n_id) if ends is None else (batch[end].n_id for end in ends)
    return list(zip(sources[local[0]].tolist(), destinations[local[1]].tolist(), strict=True))


# Against the oracle


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[EdgeType, list[oracle.Edge]], dict[str, int]]:
    """Two node types, three edge types: multi-edges, loops, hubs and types without edges."""
    counts = {"a": draw(st.integers(1, 12)), "b": draw(st.integers(1, 9))}
    edges: dict[EdgeType, list[oracle.Edge]] = {}
    for edge_type in (("a", "to", "a"), ("a", "to", "b"), ("b", "back", "a")):
        source, _, destination = edge_type
        ends = st.tuples(st.integers(0, counts[source] - 1), st.integers(0, counts[destination] - 1))
        pairs = draw(st.lists(ends, max_size=40))
        edges[edge_type] = [(src, dst, number) for number, (src, dst) in enumerate(pairs)]
    return edges, counts


@settings(max_examples=60)
@given(graphs(), st.data())
def test_batches_are_those_of_the_oracle(graph: Any, data: st.DataObject) -> None:
    edges, counts = graph
    edge_dir: Literal["in", "out"] = data.draw(st.sampled_from(["in", "out"]))
    edge_type = data.draw(st.sampled_from([*edges, ("a", "wants", "b"), ("b", "likes", "b")]))
    source, _, destination = edge_type
    end = st.tuples(st.integers(0, counts[source] - 1), st.integers(0, counts[destination] - 1))
    links = data.draw(st.lists(end, min_size=1, max_size=12))
    mode = data.draw(st.sampled_from([None, "binary", "triplet", "given"]))
    amount = data.draw(st.sampled_from([1, 2] if mode == "triplet" else [0.3, 1, 1.7]))
    strict = data.draw(st.booleans())
    excluded, disjoint = data.draw(st.booleans()), data.draw(st.booleans())
    reverse = data.draw(
        st.sampled_from([each for each in edges if (each[0], each[2]) == (destination, source)] or [None])
    )
    fanouts = data.draw(st.lists(st.sampled_from([-1, 0, 1, 3]), min_size=1, max_size=2))
    weights = {
        "src_weight": data.draw(_node_weights(counts[source]) if mode == "binary" else st.none()),
        "dst_weight": data.draw(_node_weights(counts[destination])),
    }
    dataset = DistDataset.from_pyg(
        _hetero(edges, counts),
        num_partitions=data.draw(st.integers(1, 3)),
        assigner=data.draw(st.sampled_from(["range", "hash"])),
        edge_dir=edge_dir,
    )
    negative: Any = None
    rows = data.draw(_rows(len(links), counts[destination])) if mode == "given" else []
    if mode == "given":
        negative = torch.tensor(rows)
    elif mode is not None:
        given_weights = {
            name: None if each is None else torch.tensor(each, dtype=torch.float32)
            for name, each in weights.items()
        }
        negative = NegativeSampling(mode, amount, strict=strict, **given_weights)
    with DistLinkNeighborLoader(
        dataset,
        fanouts,
        (edge_type, torch.tensor(links).t()),
        neg_sampling=negative,
        exclude_targets=excluded,
        reverse_edge_types=None if reverse is None else {edge_type: reverse},
        with_edge=True,
        disjoint=disjoint,
        batch_size=len(links),
        num_workers=0,
        seed=9,
    ) as loader:
        batch = next(iter(loader))
        told = loader.stats()["negatives_not_strict"]

    key = oracle.request_key(9, 0, range(len(links)), *zip(*links, strict=True))
    drawn: list[tuple[int, int]] = []
    not_strict = 0
    if mode == "given":
        drawn = [(links[i][0], rows[i][a]) for a in range(len(rows[0])) for i in range(len(links))]
    elif mode is not None:
        drawn, not_strict = oracle.negatives(
            key,
            links,
            mode=mode,
            amount=amount,
            src_ids=range(counts[source]),
            dst_ids=range(counts[destination]),
            strict_against={(src, dst) for src, dst, _ in edges.get(edge_type, [])} if strict else None,
            src_weight=weights["src_weight"],
            dst_weight=weights["dst_weight"],
        )
    groups = [(source, [src for src, _ in links]), (destination, [dst for _, dst in links])]
    if mode == "binary":
        groups.append((source, [src for src, _ in drawn]))
    groups.append((destination, [dst for _, dst in drawn]))
    trees = [[number % len(links) for number in range(len(nodes))] for _, nodes in groups]
    none = [number for number, dst in enumerate(groups[-1][1]) if dst == -1]
    for number in reversed(none):
        del groups[-1][1][number], trees[-1][number]
    expected = oracle.sample(
        edges,
        sorted(counts),
        fanouts=dict.fromkeys(edges, fanouts),
        groups=groups,
        trees=trees if disjoint else None,
        key=key,
        edge_dir=edge_dir,
    )
    if excluded:
        if edge_type in edges:
            oracle.without_pairs(expected, edge_type, set(links), edge_dir=edge_dir)
        if reverse is not None:
            turned = {(dst, src) for src, dst in links}
            oracle.without_pairs(expected, reverse, turned, edge_dir=edge_dir)
    assert told == not_strict
    assert ("batch" in batch["a"]) == disjoint
    _check(batch, expected, edge_dir=edge_dir, edge_type=edge_type, links=links, drawn=drawn, mode=mode)


def _rows(count: int, num_nodes: int) -> st.SearchStrategy[list[list[int]]]:
    row = st.integers(1, 3).map(lambda k: st.lists(st.integers(-1, num_nodes - 1), min_size=k, max_size=k))
    return row.flatmap(lambda each: st.lists(each, min_size=count, max_size=count))


def _node_weights(count: int) -> st.SearchStrategy[list[float] | None]:
    weight = st.sampled_from([0.0, 0.5, 1.0, 3.0])
    return st.none() | st.lists(weight, min_size=count, max_size=count).filter(any)


def _hetero(edges: dict[EdgeType, list[oracle.Edge]], counts: dict[str, int]) -> HeteroData:
    data = HeteroData()
    for node_type, count in counts.items():
        data[node_type].num_nodes = count
    for edge_type, listed in edges.items():
        ends = [[edge[row] for edge in listed] for row in (0, 1)]
        data[edge_type].edge_index = torch.tensor(ends, dtype=torch.int64).reshape(2, -1)
    return data


def _check(
    batch: Any,
    expected: oracle.OracleBatch,
    *,
    edge_dir: str,
    edge_type: EdgeType,
    links: list[tuple[int, int]],
    drawn: list[tuple[int, int]],
    mode: str | None,
) -> None:
    names = {each: each for each in expected.rows}
    if edge_dir == "out":  # to->b and back->a are no reverses of each other by name
        names = {each: (each[2], f"rev_{each[1]}", each[0]) for each in names}
    for node_type, nodes in expected.nodes.items():
        assert batch[node_type].n_id.tolist() == nodes
        assert batch[node_type].num_sampled_nodes == expected.nodes_per_hop[node_type]
        if "batch" in batch[node_type]:
            assert batch[node_type].batch.tolist() == expected.trees[node_type]
    for each, name in names.items():
        assert batch[name].edge_index.tolist() == [expected.rows[each], expected.targets[each]]
        assert batch[name].e_id.tolist() == expected.edge_ids[each]
        assert batch[name].num_sampled_edges == expected.edges_per_hop[each]
    source, _, destination = edge_type
    store, ends = batch[edge_type], (source, destination)
    assert store.input_id.tolist() == list(range(len(links)))
    if mode in ("triplet", "given"):
        local = batch[source].src_index, batch[destination].dst_pos_index
        assert _pairs(batch, local, ends) == links
        negatives = batch[destination].dst_neg_index.reshape(len(links), -1).t().reshape(-1)
        found = torch.where(negatives < 0, -1, batch[destination].n_id[negatives])
        assert found.tolist() == [dst for _, dst in drawn]
    else:
        assert _pairs(batch, store.edge_label_index, ends) == [*links, *drawn]
        if mode == "binary":
            assert store.edge_label.tolist() == [1.0] * len(links) + [0.0] * len(drawn)


# Inputs


def test_without_links_all_edges_come_by_ascending_edge_id() -> None:
    batches = _batches(DATASET, [2], batch_size=500)
    pairs = [pair for batch in batches for pair in _pairs(batch, batch.edge_label_index)]
    assert pairs == list(map(tuple, DATA.edge_index.t().tolist()))
    assert torch.cat([batch.input_id for batch in batches]).tolist() == list(range(2400))


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("links", [BUYS, (BUYS, None)])
def test_an_edge_type_stands_for_its_edges(links: Any, edge_dir: Any) -> None:
    dataset = DistDataset.from_pyg(HETERO, num_partitions=3, assigner="hash", edge_dir=edge_dir)
    batches = _batches(dataset, [2], links, batch_size=300)
    pairs = [pair for b in batches for pair in _pairs(b, b[BUYS].edge_label_index, ("user", "item"))]
    assert pairs == list(map(tuple, HETERO[BUYS].edge_index.t().tolist()))


@pytest.mark.parametrize(
    "links",
    [
        torch.tensor([[5, 1], [7, 7]]),
        torch.tensor([[5, 1], [7, 7]], dtype=torch.int32),
        np.array([[5, 1], [7, 7]]),
        [[5, 1], [7, 7]],
        (torch.tensor([5, 1]), torch.tensor([7, 7])),
    ],
)
def test_links_may_be_tensors_arrays_and_lists(links: Any) -> None:
    batch = _first(DATASET, [2], links)
    assert _pairs(batch, batch.edge_label_index) == [(5, 7), (1, 7)]
    assert batch.n_id[:3].tolist() == [5, 1, 7]


@pytest.mark.parametrize(
    ("links", "error", "message"),
    [
        (torch.tensor([[1, 2], [3, 900]]), ValueError, "destinations of links: .*900"),
        (torch.tensor([[-1, 2], [3, 4]]), ValueError, "sources of links: .*-1"),
        (torch.tensor([[1.0], [2.0]]), TypeError, "integer node ids, got torch.float32"),
        (torch.zeros(5, 2, dtype=torch.int64), ValueError, r"must be \[2, M\], got \[5, 2\]: transpose it"),
        (torch.zeros(5, dtype=torch.int64), ValueError, r"must be \[2, M\], got \[5\]"),
        ("links.npy", ValueError, "^edge_label_index is the path of a file, 'links.npy'"),
        ("train", ValueError, "no split 'train'"),
        (("node", torch.zeros(2, 1)), TypeError, r"\(edge type, links\)"),
        ({}, TypeError, "must be a tensor of node ids"),
    ],
)
def test_what_is_no_input_is_refused(links: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _batches(DATASET, [2], links)


def test_edge_types_that_do_not_exist_are_refused_with_those_that_do() -> None:
    dataset = DistDataset.from_pyg(HETERO)
    with pytest.raises(ValueError, match=r"must name one of the edge types .*'buys'"):
        _batches(dataset, [2], torch.tensor([[1], [2]]))
    with pytest.raises(ValueError, match=r"unknown edge type .* run from source to destination: pass"):
        _batches(dataset, [2], ("item", "buys", "user"))
    with pytest.raises(ValueError, match=r"unknown edge type \('tag', 'user'\)"):
        _batches(dataset, [2], ("tag", "user"))
    backward = (("item", "buys", "user"), torch.tensor([[1], [2]]))
    for links in (backward, (("user", "wants", "shop"), torch.tensor([[1], [2]])), ("user", "wants", "item")):
        with pytest.raises(ValueError, match="edge_label_index: unknown edge type"):
            _batches(dataset, [2], links)


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_a_graph_may_have_no_edge(mode: str) -> None:
    links = torch.tensor([[5, 1], [7, 7]])
    for data in (Data(x=torch.rand(9, 2)), Data(x=torch.rand(9, 2), edge_index=torch.empty(2, 0).long())):
        negatives = {"mode": mode, "strict": True}
        batch = _first(
            DistDataset.from_pyg(data), [2, 2], links, neg_sampling=negatives, exclude_targets=True
        )
        ends = batch.edge_label_index if mode == "binary" else [batch.src_index, batch.dst_pos_index]
        assert _pairs(batch, ends)[:2] == [(5, 7), (1, 7)]
        assert batch.edge_index.shape == (2, 0)
        assert torch.equal(batch.x, data.x[batch.n_id])
    data = HeteroData({"a": {"num_nodes": 9}})
    [batch] = _batches(DistDataset.from_pyg(data), [], (("a", "a"), links), batch_size=2)
    assert batch["a"].n_id[batch["a", "a"].edge_label_index].tolist() == links.tolist()
    with pytest.raises(ValueError, match=r"unknown edge type \('node', 'to', 'node'\); known: none"):
        _first(DistDataset.from_pyg(Data(x=torch.rand(9, 2))), [2])


# Negatives and labels


def test_the_forms_of_negative_sampling_mean_the_same() -> None:
    expected = _batches(DATASET, [2], neg_sampling=NegativeSampling("binary", 2))
    for form in (PyGNegativeSampling("binary", 2), {"mode": "binary", "amount": 2}):
        assert all(map(same_batch, _batches(DATASET, [2], neg_sampling=form), expected))
    weighted = PyGNegativeSampling("triplet", 2, src_weight=torch.rand(300))
    plain = _batches(DATASET, [2], neg_sampling=NegativeSampling("triplet", 2))
    assert all(map(same_batch, _batches(DATASET, [2], neg_sampling=weighted), plain))
    one = _batches(DATASET, [2], neg_sampling="binary")
    assert all(map(same_batch, _batches(DATASET, [2], neg_sampling={}), one))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("ternary", ValueError, "'binary' or 'triplet', got 'ternary'"),
        ({"mode": "binary", "amounts": 2}, ValueError, "no field 'amounts'; known: mode, amount"),
        ({"amount": 0}, ValueError, "must be positive"),
        ({"amount": -1.5}, ValueError, "must be positive"),
        ({"amount": math.nan}, ValueError, "must be positive"),
        ({"amount": "2"}, TypeError, "must be a number"),
        ({"mode": "triplet", "amount": 1.5}, ValueError, "whole number for triplets"),
        ({"mode": "triplet", "src_weight": torch.ones(299)}, ValueError, "src_weight needs one weight"),
        ({"dst_weight": torch.ones(299)}, ValueError, r"each of the 300 nodes .* got shape \(299,\)"),
        ({"dst_weight": torch.zeros(300)}, ValueError, "dst_weight: the weights are all zero"),
        ({"dst_weight": torch.full((300,), math.nan)}, ValueError, "dst_weight: .*weight 0 is nan"),
        ({"src_weight": torch.ones(300, dtype=torch.int64)}, TypeError, "must be a float tensor"),
        (3, TypeError, "neg_sampling must be None, 'binary'"),
    ],
)
def test_what_is_no_negative_sampling_is_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _batches(DATASET, [2], neg_sampling=given)


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_negatives_that_are_drawn_in_blocks_are_the_same(
    monkeypatch: pytest.MonkeyPatch, mode: Literal["binary", "triplet"]
) -> None:
    negatives = NegativeSampling(mode, 3, strict=True, dst_weight=torch.arange(300.0))
    whole = _first(DATASET, [2], neg_sampling=negatives)
    monkeypatch.setattr(negatives_module, "_MAX_TOGETHER", 7)
    blocks = _first(DATASET, [2], neg_sampling=negatives)
    assert torch.equal(whole.n_id, blocks.n_id)
    for name in ("edge_label_index", "src_index", "dst_neg_index"):
        if name in whole:
            assert torch.equal(whole[name], blocks[name]), name


def test_a_graph_of_all_edges_has_no_strict_negative() -> None:
    everything = torch.cartesian_prod(torch.arange(4), torch.arange(4)).t()
    dataset = DistDataset.from_pyg(Data(edge_index=everything, num_nodes=4))
    with DistLinkNeighborLoader(
        dataset, [1], neg_sampling=NegativeSampling("binary", 2, strict=True), **OPTIONS
    ) as loader:
        [batch] = loader
        assert loader.stats()["negatives_not_strict"] == 32
    assert batch.edge_label.tolist() == [1.0] * 16 + [0.0] * 32


def test_weights_say_which_nodes_are_negatives() -> None:
    weight = torch.zeros(300)
    weight[[10, 20]] = torch.tensor([1.0, 3.0])
    negatives = NegativeSampling("triplet", 5, dst_weight=weight)
    drawn = torch.cat(
        [b.n_id[b.dst_neg_index].reshape(-1) for b in _batches(DATASET, [1], neg_sampling=negatives)]
    )
    assert set(drawn.tolist()) == {10, 20}
    assert 0.7 < (drawn == 20).float().mean() < 0.8


def test_labels_and_times_follow_their_links() -> None:
    label, time = torch.arange(2400) % 3, torch.arange(2400) * 10
    for batch in _batches(DATASET, [1], edge_label=label, edge_label_time=time, shuffle=True):
        assert torch.equal(batch.edge_label, label[batch.input_id])
        assert torch.equal(batch.edge_label_time, time[batch.input_id])
    given = {"edge_label": label, "edge_label_time": time, "neg_sampling": {"amount": 1.5}}
    for batch in _batches(DATASET, [1], shuffle=True, **given):
        count = len(batch.input_id)
        assert torch.equal(batch.edge_label[:count], label[batch.input_id] + 1)
        assert batch.edge_label[count:].tolist() == [0] * math.ceil(1.5 * count)
        assert batch.edge_label.dtype == torch.int64
        owners = torch.arange(math.ceil(1.5 * count)) % count
        assert torch.equal(batch.edge_label_time[count:], batch.edge_label_time[:count][owners])
    for batch in _batches(DATASET, [1], shuffle=True, edge_label_time=time, neg_sampling="triplet"):
        assert torch.equal(batch.seed_time, time[batch.input_id])
        assert "edge_label_time" not in batch


def test_labels_may_have_several_dimensions() -> None:
    label = torch.rand(2400, 3) + 0.1
    for smallest, more in ((0.1, 0), (0, 1)):
        label[2399, 2] = smallest
        batch = _first(DATASET, [1], edge_label=label, neg_sampling="binary")
        assert torch.equal(batch.edge_label, torch.cat([label[:64] + more, torch.zeros(64, 3)]))


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"edge_label needs one entry for each of 2400 links, got \[7\]"):
        _batches(DATASET, [1], edge_label=torch.ones(7))
    with pytest.raises(ValueError, match="edge_label has no meaning with triplets"):
        _batches(DATASET, [1], edge_label=torch.ones(2400), neg_sampling="triplet")
    with pytest.raises(ValueError, match="edge_label_time needs one entry"):
        _batches(DATASET, [1], edge_label_time=torch.ones(7))


def test_each_epoch_has_negatives_of_its_own() -> None:
    with DistLinkNeighborLoader(DATASET, [1], neg_sampling="binary", **OPTIONS) as loader:
        first, second = next(iter(loader)), next(iter(loader))
    assert torch.equal(first.input_id, second.input_id)
    assert _pairs(first, first.edge_label_index) != _pairs(second, second.edge_label_index)


# Excluded edges


def test_excluded_targets_are_not_in_the_batch_and_nothing_else_changes() -> None:
    links = torch.cat([DATA.edge_index[:, :50], torch.tensor([[3], [3]])], dim=1)  # a loop, too
    plain = _first(DATASET, [-1, 2], links, with_edge=True)
    without = _first(DATASET, [-1, 2], links, with_edge=True, exclude_targets=True)
    pairs = set(map(tuple, links.t().tolist()))
    kept = torch.tensor([pair not in pairs for pair in _pairs(plain, plain.edge_index)])
    assert 0 < int(kept.sum()) < len(kept)
    assert torch.equal(without.n_id, plain.n_id)
    for name in ("edge_index", "e_id", "edge_attr"):
        rows = getattr(plain, name)
        assert torch.equal(getattr(without, name), rows[:, kept] if name == "edge_index" else rows[kept])
    assert sum(without.num_sampled_edges) == int(kept.sum())


def test_the_reverses_of_links_are_excluded_where_they_are_named() -> None:
    edge = ("node", "to", "node")
    links = DATA.edge_index[:, :60].flip(0)
    forward = {tuple(pair) for pair in links.t().tolist()}
    backward = {(dst, src) for src, dst in forward}
    one = _first(DATASET, [-1], links, exclude_targets=True)
    both = _first(DATASET, [-1], links, exclude_targets=True, reverse_edge_types={edge: edge})
    assert set(_pairs(one, one.edge_index)) & (backward - forward)
    assert not set(_pairs(both, both.edge_index)) & (forward | backward)


def test_reverse_types_that_do_not_fit_are_refused() -> None:
    dataset = DistDataset.from_pyg(HETERO)
    with pytest.raises(ValueError, match=r"unknown edge type \('item', 'bought', 'user'\)"):
        _batches(dataset, [1], BUYS, reverse_edge_types={BUYS: ("item", "bought", "user")})
    with pytest.raises(ValueError, match="cannot be excluded with links"):
        _batches(
            dataset, [1], BUYS, exclude_targets=True, reverse_edge_types={BUYS: ("user", "follows", "user")}
        )
    with pytest.raises(TypeError, match="must map an edge type"):
        _batches(dataset, [1], BUYS, exclude_targets=True, reverse_edge_types=[BUYS])


# Other arguments


def test_arguments_of_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="links need KHopNeighborSamplerOptions"):
        _batches(DATASET, [1], sampler_options=CustomSamplerOptions("package.module:Class"))
    with pytest.raises(ValueError, match="the input of this loader is links"):
        _batches(DATASET, [1], seed_weights=torch.ones(2400))
    with pytest.raises(TypeError, match=r"neg_sampling_ratio.*use neg_sampling="):
        _batches(DATASET, [1], neg_sampling_ratio=2.0)
    with pytest.raises(ValueError, match="num_neighbors is needed"):
        _batches(DATASET, None)


def test_links_may_be_the_texts_by_which_tables_named_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst\nann,x\nbob,y\nann,y\n")
    made = run_here("partition", str(tmp_path / "g"), "--edges", f"user,likes,item={tmp_path / 'e.csv'}")
    assert made.returncode == 0, made.stderr
    dataset = DistDataset.open(tmp_path / "g")
    likes = ("user", "likes", "item")
    texts = [["bob", "ann"], ["x", "y"]]
    for links in (texts, np.array(texts), tuple(texts)):
        batch = _first(dataset, [1], (likes, links))
        local = batch[likes].edge_label_index
        assert dataset.original_ids(batch["user"].n_id[local[0]], "user") == texts[0]
        assert dataset.original_ids(batch["item"].n_id[local[1]], "item") == texts[1]
    with pytest.raises(ValueError, match="1 unknown ids of type 'item': 'z'"):
        _first(dataset, [1], (likes, [["bob"], ["z"]]))
