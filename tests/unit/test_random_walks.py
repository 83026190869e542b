"""Random walks: against the oracle, in what they visit, and what does not go with them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    RandomWalkSamplerOptions,
)
from gigl_loader.sampling import walk_sampler as walks_module
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.costs import BatchBounds, BatchTooLarge
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.walks import WalkPlan
from tests.support import oracle
from tests.support.plans import seed_request
from tests.support.pyg_graphs import graph_of, heterogeneous, homogeneous, weighted

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS: dict[str, Any] = {"num_workers": 0, "device": "cpu", "seed": 5}
EDGE = ("node", "to", "node")


def first(dataset: DistDataset, nodes: Any, options: RandomWalkSamplerOptions, **more: Any) -> Any:
    given_options = {**OPTIONS, "batch_size": 1000, **more}
    with DistNeighborLoader(dataset, None, nodes, sampler_options=options, **given_options) as loader:
        return next(iter(loader))


def lists_of(edges: Sequence[tuple[int, int]], edge_dir: str) -> dict[int, list[int]]:
    """Return the neighbours of each node in the order of its list."""
    found: dict[int, list[int]] = {}
    for source, destination in edges:
        target, neighbor = (destination, source) if edge_dir == "in" else (source, destination)
        found.setdefault(target, []).append(neighbor)
    return {node: sorted(listed) for node, listed in found.items()}


def walked(batch: Any) -> list[list[int]]:
    """Return the walks of a homogeneous batch as node ids."""
    return [[-1 if node < 0 else int(batch.n_id[node]) for node in row] for row in batch.walks.tolist()]


@settings(max_examples=30)
@given(st.data())
def test_walks_are_those_of_the_oracle(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    node = st.integers(0, count - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=40))
    seeds = data.draw(st.lists(node, min_size=1, max_size=5))
    length, per_seed = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    p, q = data.draw(st.sampled_from([(1.0, 1.0), (0.25, 4.0), (3.0, 0.5), (100.0, 100.0)]))
    edge_dir: Literal["in", "out"] = data.draw(st.sampled_from(["in", "out"]))
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    dataset = DistDataset.from_pyg(
        Data(edge_index=edge_index, num_nodes=count),
        edge_dir=edge_dir,
        num_partitions=data.draw(st.integers(1, 3)),
        assigner=data.draw(st.sampled_from(["range", "hash"])),
    )
    batch = first(dataset, torch.tensor(seeds), RandomWalkSamplerOptions(length, per_seed, p=p, q=q))
    key = oracle.request_key(5, 0, range(len(seeds)), seeds)
    path = [(EDGE, lists_of(edges, edge_dir))] * length
    starts = [seed for seed in seeds for _ in range(per_seed)]
    expected = [oracle.random_walk(key, number, start, path, p=p, q=q) for number, start in enumerate(starts)]
    assert walked(batch) == expected
    assert batch.n_id.tolist() == list(
        dict.fromkeys([*seeds, *(node for walk in expected for node in walk if node >= 0)])
    )


def test_a_metapath_is_followed_and_repeated() -> None:
    data = heterogeneous()
    dataset = DistDataset.from_pyg(data, num_partitions=3, assigner="hash", edge_dir="out")
    buys, bought = ("user", "buys", "item"), ("item", "rev_buys", "user")
    options = RandomWalkSamplerOptions(5, 2, metapath=[buys, bought])
    seeds = [4, 9, 4]
    batch = first(dataset, ("user", torch.tensor(seeds)), options)
    lists = [lists_of(list(map(tuple, data[each].edge_index.t().tolist())), "out") for each in (buys, bought)]
    path = [((buys, bought)[step % 2], lists[step % 2]) for step in range(5)]
    key = oracle.request_key(5, 0, range(len(seeds)), seeds)
    for number, row in enumerate(batch.walks.tolist()):
        types = ["user", "item"] * 3
        found = [-1 if at < 0 else int(batch[kind].n_id[at]) for kind, at in zip(types, row, strict=True)]
        assert found == oracle.random_walk(key, number, seeds[number // 2], path)
    assert batch["tag"].num_nodes == 0


def test_the_most_visited_nodes_are_counted_over_the_walks_of_a_seed() -> None:
    dataset = DistDataset.from_pyg(homogeneous(), num_partitions=3, assigner="hash")
    seeds = torch.tensor([5, 3, 5, 299])
    walks = walked(first(dataset, seeds, RandomWalkSamplerOptions(6, 20)))
    batch = first(dataset, seeds, RandomWalkSamplerOptions(6, 20, top_k=3))
    visits: dict[int, Counter[int]] = {}
    for row in walks:
        visits.setdefault(row[0], Counter()).update(node for node in row[1:] if node >= 0)
    expected = []
    for seed, counts in visits.items():
        ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:3]
        expected += [(node, seed, number / counts.total()) for node, number in ranked]
    nodes, owners = batch.n_id[batch.edge_index].tolist()
    found = list(zip(nodes, owners, batch.edge_attr.tolist(), strict=True))
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    assert [each[2] for each in found] == pytest.approx([each[2] for each in expected])
    assert batch.n_id[:3].tolist() == [5, 3, 299]
    assert set(batch.n_id.tolist()) == {5, 3, 299, *nodes}
    assert "walks" not in batch


def test_most_visited_nodes_are_those_at_which_the_metapath_ends() -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    path = [("user", "buys", "item"), ("item", "rev_buys", "user")]  # In-edges: item, user, item.
    batch = first(
        dataset, ("item", torch.arange(20)), RandomWalkSamplerOptions(4, 10, metapath=path, top_k=2)
    )
    store = batch["item", "walk", "item"]
    assert store.edge_attr.dtype == torch.float32
    assert store.edge_index.shape[1] == len(store.edge_attr) > 0
    assert batch["user"].num_nodes == 0
    assert (torch.bincount(store.edge_index[1]) <= 2).all()


@pytest.mark.parametrize("options", [{"p": 0.1, "q": 5.0}, {"top_k": 3}])
def test_walks_that_are_continued_in_blocks_are_the_same(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    dataset = DistDataset.from_pyg(homogeneous(), num_partitions=2)
    walks = RandomWalkSamplerOptions(6, 4, **options)
    whole = first(dataset, torch.arange(50), walks)
    monkeypatch.setattr(walks_module, "_MAX_WALKS", 7)
    blocks = first(dataset, torch.arange(50), walks)
    assert whole.to_dict().keys() == blocks.to_dict().keys()
    for name in ("n_id", "walks", "edge_index", "edge_attr"):
        if name in whole:
            assert torch.equal(whole[name], blocks[name]), name


def test_p_and_q_keep_walks_near_or_send_them_away() -> None:
    sides = 40
    edges = [(a, (a + step) % sides) for a in range(sides) for step in (1, 2, -1, -2)]
    dataset = DistDataset.from_pyg(Data(edge_index=torch.tensor(edges).t(), num_nodes=sides))
    returns, spans = [], []
    for p, q in ((0.05, 1.0), (50.0, 1.0), (1.0, 0.05), (1.0, 50.0)):
        batch = first(dataset, torch.arange(sides), RandomWalkSamplerOptions(10, 10, p=p, q=q))
        walks = batch.n_id[batch.walks]
        returns.append((walks[:, 2:] == walks[:, :-2]).float().mean().item())
        steps = (walks - walks[:, :1] + sides // 2) % sides - sides // 2
        spans.append(steps[:, -1].abs().float().mean().item())
    assert returns[0] > 0.6
    assert returns[1] < 0.1
    assert spans[2] > 1.5 * spans[3]


def test_examples_of_heterogeneous_graphs_need_a_metapath_that_fits() -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    items = ("item", None)
    for options, message in (
        (RandomWalkSamplerOptions(2), "walks need a metapath"),
        (RandomWalkSamplerOptions(2, metapath=[]), "metapath is empty"),
        (RandomWalkSamplerOptions(2, metapath=[("a", "b", "c")]), "metapath: unknown edge type"),
        (RandomWalkSamplerOptions(2, metapath=[("item", "has", "tag")]), "and would be at 'item'"),
        (RandomWalkSamplerOptions(2, metapath=[("user", "buys", "item")]), "and would be at 'user'"),
        (
            RandomWalkSamplerOptions(1, metapath=[("user", "buys", "item"), ("item", "rev_buys", "user")]),
            "less than the 2 steps of the metapath",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            first(dataset, items, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"walk_length": 0}, "walk_length must be at least 1"),
        ({"walk_length": 254}, r"walk_length must lie in \[1, 253\], got 254"),
        ({"walk_length": 2**40}, r"walk_length must lie in \[1, 253\], got 1099511627776"),
        ({"walk_length": 2, "walks_per_seed": 0}, "walks_per_seed must be at least 1"),
        ({"walk_length": 2, "p": 0.0}, "p must lie in"),
        ({"walk_length": 2, "q": float("nan")}, "q must lie in"),
        ({"walk_length": 2, "top_k": 0}, "top_k must be at least 1"),
    ],
)
def test_options_that_cannot_be_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        first(DistDataset.from_pyg(homogeneous()), None, RandomWalkSamplerOptions(**options))


def test_a_bias_is_a_number() -> None:
    options: Any = {"walk_length": 2, "q": "a"}
    with pytest.raises(TypeError, match="q must be a number, got 'a'"):
        first(DistDataset.from_pyg(homogeneous()), None, RandomWalkSamplerOptions(**options))


@pytest.mark.parametrize("more", [{"disjoint": True}, {"weight_attr": "w"}, {"replace": True}])
def test_what_has_no_meaning_for_walks_is_refused_by_name(more: Any) -> None:
    dataset = DistDataset.from_pyg(weighted(hetero=False), weight_attr="w")
    with pytest.raises(ValueError, match=f"{next(iter(more))} has no meaning for random walks"):
        first(dataset, None, RandomWalkSamplerOptions(2), **more)
    with pytest.raises(ValueError, match="links need KHop"):
        DistLinkNeighborLoader(dataset, [2], sampler_options=RandomWalkSamplerOptions(2), **OPTIONS)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("excluded", [False, True])
def test_walks_start_at_anchors_and_labels_and_end_before_excluded_edges(
    edge_dir: Any, excluded: bool
) -> None:
    data, anchors = homogeneous(), [7, 3, 7, 250, 299]
    dataset = DistDataset.from_pyg(data, edge_dir=edge_dir, num_partitions=3, assigner="hash")
    edges = sorted(map(tuple, data.edge_index.t().tolist()))
    labels = [there for anchor in dict.fromkeys(anchors) for here, there in edges if here == anchor]
    walks = RandomWalkSamplerOptions(6, 20)
    given: dict[str, Any] = {"exclude_targets": excluded, "sampler_options": walks, "batch_size": 10}
    with DistABLPLoader(dataset, None, torch.tensor(anchors), **given, **OPTIONS) as loader:
        batch = next(iter(loader))
    seeds = list(dict.fromkeys([*anchors, *labels]))
    pairs = {pair for pair in edges if pair[0] in anchors} if excluded else set()
    pairs |= {(there, here) for here, there in pairs}
    path, expected = [(EDGE, lists_of(edges, edge_dir))] * 6, []
    for number, seed in enumerate(each for each in seeds for _ in range(20)):
        walk = oracle.random_walk(oracle.request_key(5, 0, range(5), anchors), number, seed, path)
        cut = next((step for step in range(6) if (walk[step], walk[step + 1]) in pairs), 6)
        expected.append([*walk[: cut + 1], *[-1] * (6 - cut)])
    assert walked(batch) == expected
    assert batch.n_id[: len(seeds)].tolist() == seeds
    assert batch.n_id[batch.y_positive[1]].tolist() == labels
    assert any(-1 in walk and walk[0] in labels for walk in expected) == excluded


@pytest.mark.parametrize("top_k", [None, 3])
def test_seeds_of_several_types_have_metapaths_of_their_own(top_k: int | None) -> None:
    """Walks are numbered through the types, in their order. Without a mapping, other types have none."""
    data = heterogeneous()
    dataset = DistDataset.from_pyg(data, num_partitions=2, edge_dir="out")
    buys, bought = ("user", "buys", "item"), ("item", "rev_buys", "user")
    given: dict[str, Any] = {"supervision_edge_type": buys, "batch_size": 10, "exclude_targets": False}

    def batch_of(metapath: Any) -> Any:
        options = RandomWalkSamplerOptions(4, 5, metapath=metapath, top_k=top_k)
        nodes = ("user", torch.tensor([4, 9]))
        with DistABLPLoader(dataset, None, nodes, sampler_options=options, **given, **OPTIONS) as loader:
            return next(iter(loader))

    one, both = batch_of([buys, bought]), batch_of({"user": [buys, bought], "item": [bought, buys]})
    if top_k is not None:
        assert [each for each in both.edge_types if each[1] == "walk"] == [
            (kind, "walk", kind) for kind in ("item", "user")
        ]
        assert [each for each in one.edge_types if each[1] == "walk"] == [("user", "walk", "user")]
        owners = both["item", "walk", "item"].edge_index[1].unique()
        assert owners.max() < len(both.y_positive[1].unique())
        return
    assert one.walks.shape == (10, 5)
    assert list(both.walks) == ["item", "user"]
    lists = {
        each: lists_of(list(map(tuple, data[each].edge_index.t().tolist())), "out") for each in (buys, bought)
    }
    key, number = oracle.request_key(5, 0, range(2), [4, 9]), 0
    for kind, steps in (("item", [bought, buys]), ("user", [buys, bought])):
        types = [kind, steps[0][2]] * 2 + [kind]
        count = len(both.walks[kind]) // 5
        for row in both.walks[kind].tolist():
            found = [-1 if at < 0 else int(both[each].n_id[at]) for each, at in zip(types, row, strict=True)]
            start = int(
                both[kind].n_id[number // 5 if kind == "item" else number // 5 - len(both.walks["item"]) // 5]
            )
            path = [(steps[step % 2], lists[steps[step % 2]]) for step in range(4)]
            assert found == oracle.random_walk(key, number, start, path)
            number += 1
        assert count == (2 if kind == "user" else len(both.y_positive[1].unique()))
    with pytest.raises(ValueError, match="is for seeds of user, item, got"):
        batch_of({"tag": [buys]})


def test_a_graph_without_edges_gives_walks_that_end_at_once() -> None:
    graph = HeteroData()
    graph["a"].num_nodes = 3
    graph["a", "to", "a"].edge_index = torch.empty((2, 0), dtype=torch.int64)
    batch = first(DistDataset.from_pyg(graph), ("a", None), RandomWalkSamplerOptions(3))
    assert batch.walks.tolist() == [[seed, -1, -1, -1] for seed in range(3)]


def test_the_bound_of_walks_counts_candidates_and_not_steps() -> None:
    graph = graph_of(homogeneous())
    plan = WalkPlan(seed_type="node", path=(EDGE,) * 100, walks_per_seed=2, p=1e-6, q=1e6)
    bounds = BatchBounds(edges=1 << 26, nbytes=1 << 30, draws=1 << 26)
    seeds = np.arange(5000) % 300
    for p, q, refused in ((1.0, 1.0, False), (0.25, 4.0, False), (1e-6, 1e6, True)):
        batch_plan = BatchPlan(sampler=replace(plan, p=p, q=q), run_seed=1, columns=ColumnPlan())
        sampler = batch_plan.open(graph, bounds=bounds)
        if not refused:
            assert sampler.sample(seed_request(0, 0, seeds[:50])).layout.nbytes
            continue
        told = (
            "walks from 5,000 seeds draw up to 126,7.*candidates, more than 67,108,864: ask for fewer seeds"
        )
        with pytest.raises(BatchTooLarge, match=told):
            sampler.sample(seed_request(0, 0, seeds))
