"""Personalised PageRank: against the oracle, against exact scores, and what batches have of it."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    PPRMetaPath,
    PPRSamplerOptions,
)
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.costs import BatchBounds, TooManyEdges
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.plan import BatchPlan, SamplerArguments
from gigl_loader.sampling.plans import read_plan
from tests.support.plans import seed_request
from tests.support.ppr_oracle import exact_pagerank, lists_of_edges, merged, push
from tests.support.pyg_graphs import graph_of, heterogeneous, homogeneous, weighted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.oracle import EdgeType
    from tests.support.ppr_oracle import Lists

OPTIONS: dict[str, Any] = {"num_workers": 0, "device": "cpu", "seed": 5}
EDGE = ("node", "to", "node")
TYPES = (("a", "x", "a"), ("a", "y", "b"), ("b", "x", "a"), ("b", "z", "c"))
COUNTS = {"a": 9, "b": 7, "c": 4}


def first(dataset: DistDataset, nodes: Any, options: PPRSamplerOptions, **more: Any) -> Any:
    given_options = {**OPTIONS, "batch_size": 1000, **more}
    with DistNeighborLoader(dataset, None, nodes, sampler_options=options, **given_options) as loader:
        return next(iter(loader))


def neighbors_of(batch: Any, seed_type: str = "node") -> dict[int, list[tuple[Any, ...]]]:
    """Return the neighbours of each seed id, type by type: node, and its row of ``edge_attr``."""
    found = defaultdict(list)
    stores = (
        [(seed_type, batch)]
        if isinstance(batch, Data)
        else [(kind[2], batch[kind]) for kind in batch.edge_types if kind[:2] == (seed_type, "ppr")]
    )
    for node_type, store in stores:
        seeds, nodes = (batch, batch) if isinstance(batch, Data) else (batch[seed_type], batch[node_type])
        for seed, node, row in zip(*store.edge_index.tolist(), store.edge_attr.tolist(), strict=True):
            found[int(seeds.n_id[seed])].append(((node_type, int(nodes.n_id[node])), *row))
    return found


def graph_with(
    edges: Mapping[EdgeType, Sequence[tuple[int, int]]],
    weights: Mapping[EdgeType, Sequence[float]] | None = None,
) -> HeteroData:
    data = HeteroData()
    for node_type, count in COUNTS.items():
        data[node_type].num_nodes = count
    for edge_type, pairs in edges.items():
        data[edge_type].edge_index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()
    for edge_type, of_type in (weights or {}).items():
        data[edge_type].w = torch.tensor(of_type, dtype=torch.float32)
    return data


def channels_of(edge_dir: str) -> dict[str, Any]:
    """Channels by name. Paths follow adjacency lists."""
    there, back = ("a", "y", "b"), ("b", "x", "a")
    first, second = (back, there) if edge_dir == "in" else (there, back)  # Both lead from a to b and back.
    return {
        "none": None,
        "types": {TYPES[0]: 0.5, (TYPES[1], TYPES[2]): 0.3, TYPES[3]: 0.2},
        "path": {PPRMetaPath((first, second)): 0.6, tuple(TYPES): 0.4},
        "repeated": {PPRMetaPath((first, second), repeat_from=0): 1.0},
        "prefix": {PPRMetaPath(((TYPES[0],), TYPES[0]), repeat_from=1): 0.45, PPRMetaPath((first,)): 0.55},
    }


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    edges = {
        each: draw(
            st.lists(
                st.tuples(st.integers(0, COUNTS[each[0]] - 1), st.integers(0, COUNTS[each[2]] - 1)),
                max_size=40,
            )
        )
        for each in TYPES
    }
    seed_type = draw(st.sampled_from(sorted(COUNTS)))
    edge_dir = draw(st.sampled_from(["in", "out"]))
    channels = draw(st.sampled_from(sorted(channels_of(edge_dir))))
    if channels not in ("none", "types"):
        seed_type = "a"
    weights = {
        each: [draw(st.sampled_from([0.0, 0.25, 1.0, 1.625, 3.0])) for _ in edges[each]] for each in TYPES[:2]
    }
    return {
        "edges": edges,
        "weights": draw(st.sampled_from([None, weights])),
        "edge_dir": edge_dir,
        "partitions": draw(st.integers(1, 3)),
        "assigner": draw(st.sampled_from(["range", "hash"])),
        "seed_type": seed_type,
        "seeds": draw(st.lists(st.integers(0, COUNTS[seed_type] - 1), min_size=1, max_size=5)),
        "options": PPRSamplerOptions(
            alpha=draw(st.sampled_from([0.05, 0.25, 0.5, 0.9])),
            eps=draw(st.sampled_from([1e-3, 1e-2, 0.1])),
            max_ppr_nodes=draw(st.sampled_from([1, 3, 8, 50])),
            enable_residual_topup=draw(st.booleans()),
            num_neighbors_per_hop=draw(st.sampled_from([1, 3, 7, 1000])),
            max_fetch_iterations=draw(st.sampled_from([None, None, 1, 2, 3])),
            typed_channel_ratios=channels_of(edge_dir)[channels],
            include_sampled_edges=draw(st.booleans()),
        ),
    }


@settings(max_examples=30)
@given(cases())
def test_neighbours_are_those_of_the_oracle(case: dict[str, Any]) -> None:
    """In one native pass, and round by round over partitions: frames are equal byte for byte."""
    options, seed_type, seeds, weights = case["options"], case["seed_type"], case["seeds"], case["weights"]
    folder = MemoryFolder()
    data, weight = graph_with(case["edges"], weights), None if weights is None else "w"
    build_graph(
        tables_from_pyg(data, weight_attr=weight),
        folder,
        num_partitions=case["partitions"],
        assigner=case["assigner"],
        edge_dir=case["edge_dir"],
    )
    graph = Graph.open(folder)
    arguments = SamplerArguments(weight_attr=weight, with_edge=True)
    plan = BatchPlan(sampler=options.plan(graph.schema, seed_type, arguments), run_seed=5)
    assert read_plan(plan.to_json(), graph.schema) == plan
    frames = []
    with closing(PartitionedStore.whole(graph)) as store:
        for sampler in (plan.open(graph), plan.open(graph, store)):
            for _ in range(2):  # In the same memory.
                sampled = sampler.sample(seed_request(0, 0, graph.positions(seed_type, np.array(seeds))))
                buffer = np.zeros(sampled.layout.nbytes, np.uint8)
                sampled.write(buffer)
                frames.append(buffer.tobytes())
    assert len(set(frames)) == 1

    given: dict[str, Any] = {"weight_attr": weight, "with_edge": True}
    batch = first(DistDataset(graph), (seed_type, torch.tensor(seeds)), options, **given)
    found = neighbors_of(batch, seed_type)
    lists = lists_of_edges(case["edges"], case["edge_dir"], weights)
    for seed in seeds:
        assert found[seed] == expected_neighbors(lists, (seed_type, seed), options)
    assert batch[seed_type].n_id[: len(set(seeds))].tolist() == list(dict.fromkeys(seeds))
    if options.include_sampled_edges:
        for edge_type, pairs in case["edges"].items():
            of_type = (weights or {}).get(edge_type, [1.0] * len(pairs))
            source, destination = (set(batch[edge_type[end]].n_id.tolist()) for end in (0, 2))
            kept = [
                number
                for number, (here, there) in enumerate(pairs)
                if here in source and there in destination and of_type[number] > 0
            ]
            store_of = next(
                batch[each] for each in batch.edge_types if names_of(each, edge_type, case["edge_dir"])
            )
            assert sorted(store_of.e_id.tolist()) == kept


def names_of(message_type: EdgeType, edge_type: EdgeType, edge_dir: str) -> bool:
    """Return whether a batch has the edges of a type under this name."""
    source, relation, destination = edge_type
    return message_type == (edge_type if edge_dir == "in" else (destination, f"rev_{relation}", source))


def expected_neighbors(
    lists: Mapping[EdgeType, Lists],
    seed: tuple[str, int],
    options: PPRSamplerOptions,
    excluded: frozenset[tuple[EdgeType, int, int]] = frozenset(),
) -> list[tuple[Any, ...]]:
    """Return the neighbours of a seed by the oracle, as ``neighbors_of`` does."""
    ratios = options.typed_channel_ratios or {tuple(TYPES): 1.0}
    channels = []
    for key in ratios:
        if isinstance(key, PPRMetaPath):
            steps, repeat_from = key.alternatives, key.repeat_from
        else:
            steps, repeat_from = ((key if isinstance(key[0], tuple) else (key,)),), 0
        pushed = push(
            lists,
            seed,
            alpha=options.alpha,
            eps=options.eps,
            max_neighbors=options.num_neighbors_per_hop,
            max_rounds=options.max_fetch_iterations,
            steps=steps,
            repeat_from=repeat_from,
            excluded=excluded,
        )
        assert pushed.passed <= 1 / (options.alpha * options.eps) + 160
        channels.append(pushed.kept(options.max_ppr_nodes, top_up=options.enable_residual_topup))
    if options.typed_channel_ratios is None:
        [kept] = channels
        return [
            ((kind, node), float(score), closeness(hop))
            for kind, listed in kept.items()
            for node, score, hop in listed
        ]
    rows = merged(channels, shares_of(list(ratios.values()), options.max_ppr_nodes))
    return [
        (
            (kind, node),
            float(max(scores)),
            max(map(closeness, hops)),
            *(
                value
                for score, hop in zip(scores, hops, strict=True)
                for value in (float(score), closeness(hop), float(hop >= 0))
            ),
        )
        for kind, listed in rows.items()
        for node, scores, hops in listed
    ]


def closeness(hop: int) -> float:
    return 0.0 if hop < 0 else float(np.float32(1) / np.float32(1 + hop))


def shares_of(ratios: list[float], count: int) -> list[int]:
    """Whole numbers in proportion to the ratios: those of the largest remainders are rounded up."""
    shares = [int(ratio * count) for ratio in ratios]
    order = sorted(range(len(ratios)), key=lambda number: (shares[number] - ratios[number] * count, number))
    for number in order[: count - sum(shares)]:
        shares[number] += 1
    return shares


def preferential() -> Data:
    """A graph with hubs: each node joins three that are there, in proportion to their degrees."""
    random, ends, pairs = np.random.default_rng(2), [0, 1, 1, 2, 2, 0], {(0, 1), (1, 2), (0, 2)}
    for node in range(3, 150):
        for other in set(random.choice(ends, 3).tolist()):
            pairs.add((other, node))
            ends += [other, node]
    edges = torch.tensor(sorted(pairs)).t()
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=150)


def digits() -> Data:
    """The digits of scikit-learn, joined with their nearest neighbours in both directions."""
    pixels, _ = load_digits(return_X_y=True)
    pixels = pixels[:400]
    _, near = NearestNeighbors(n_neighbors=6).fit(pixels).kneighbors(pixels)
    pairs = {(node, int(each)) for node, row in enumerate(near) for each in row[1:]}
    pairs |= {(there, here) for here, there in pairs}
    return Data(edge_index=torch.tensor(sorted(pairs)).t(), num_nodes=len(pixels))


@pytest.mark.some(4)
@pytest.mark.parametrize("make", [preferential, digits])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize(("alpha", "eps"), [(0.5, 1e-4), (0.15, 1e-3), (0.85, 1e-2)])
def test_scores_are_below_exact_ones_by_less_than_eps_times_the_degree(
    make: Any, edge_dir: Literal["in", "out"], alpha: float, eps: float
) -> None:
    data = make()
    dense = np.zeros((data.num_nodes, data.num_nodes))
    np.add.at(dense, tuple(data.edge_index.numpy()), 1.0)
    degrees = dense.sum(axis=1)
    seeds = [0, 5, 33, 5]
    options = PPRSamplerOptions(alpha, eps, max_ppr_nodes=1000, enable_residual_topup=False)
    batch = first(
        DistDataset.from_pyg(data, num_partitions=2, edge_dir=edge_dir), torch.tensor(seeds), options
    )
    topped = neighbors_of(
        first(DistDataset.from_pyg(data), torch.tensor(seeds), PPRSamplerOptions(alpha, eps))
    )
    for seed, listed in neighbors_of(batch).items():
        exact = exact_pagerank(dense / degrees[:, None], seed, alpha)
        scores = np.zeros(len(exact))
        for (_, node), score, _ in listed:
            scores[node] = score
        assert (scores <= exact + 1e-15).all()
        assert (exact - scores <= eps * degrees + 1e-7).all()
        assert listed[0][0][1] == seed or alpha < 0.5
        for (_, node), score, _ in topped[seed]:
            assert scores[node] <= score <= exact[node] + 1e-15


def test_examples_of_types_are_taken_together_and_returned_apart() -> None:
    dataset = DistDataset.from_pyg(heterogeneous(), num_partitions=3, assigner="hash")
    batch = first(dataset, ("item", torch.arange(20)), PPRSamplerOptions(max_ppr_nodes=12))
    assert batch.edge_types == [("item", "ppr", each) for each in ("item", "tag", "user")]
    for edge_type in batch.edge_types:
        store = batch[edge_type]
        assert store.edge_index.dtype == torch.int64
        assert store.edge_attr.dtype == torch.float32
        assert store.edge_attr.shape == (store.edge_index.shape[1], 2)
        seeds = store.edge_index[0]
        assert (seeds.diff() >= 0).all()
        same = seeds.diff() == 0
        assert (store.edge_attr[:, 0].diff()[same] <= 0).all()
        assert torch.bincount(seeds).max() == (7 if edge_type[2] == "tag" else 12)
    assert batch["item"].batch_size == 20
    assert batch["user"].x.shape == (batch["user"].num_nodes, 4)
    assert "num_sampled_edges" not in batch


def test_ties_are_in_ascending_order_of_node_id() -> None:
    """Also where nodes with equal scores are too many for the places that are left."""
    ids = torch.tensor([[0, 7], [0, 3], [0, 9], [0, 1]]).t()
    data = Data(edge_index=torch.cat([ids, ids.flip(0)], dim=1), num_nodes=10)
    cuts: list[tuple[int, Literal["range", "hash"]]] = [(1, "range"), (3, "hash")]
    for partitions, assigner in cuts:
        dataset = DistDataset.from_pyg(data, num_partitions=partitions, assigner=assigner)
        for top_up in (True, False):
            options = PPRSamplerOptions(max_ppr_nodes=4, enable_residual_topup=top_up)
            [listed] = neighbors_of(first(dataset, torch.tensor([0]), options)).values()
            assert [node for (_, node), _, _ in listed] == [0, 1, 3, 7]


def test_a_node_without_neighbours_has_itself_alone() -> None:
    data = HeteroData()
    data["a"].num_nodes = 3
    data["a", "to", "a"].edge_index = torch.empty((2, 0), dtype=torch.int64)
    batch = first(DistDataset.from_pyg(data), ("a", None), PPRSamplerOptions(alpha=0.25))
    store = batch["a", "ppr", "a"]
    assert store.edge_index.tolist() == [[0, 1, 2]] * 2
    assert store.edge_attr.tolist() == [[0.25, 1.0]] * 3
    nothing = Data(x=torch.zeros(2, 1), edge_index=torch.empty((2, 0), dtype=torch.int64))
    assert first(DistDataset.from_pyg(nothing), None, PPRSamplerOptions()).edge_index.tolist() == [[0, 1]] * 2


def test_the_epoch_and_the_other_seeds_change_nothing() -> None:
    """Also where lists are cut."""
    dataset = DistDataset.from_pyg(homogeneous(), num_partitions=3, assigner="hash")
    options = PPRSamplerOptions(num_neighbors_per_hop=2)
    alone = neighbors_of(first(dataset, torch.tensor([7]), options, seed=1))
    given_options = {**OPTIONS, "batch_size": 300, "shuffle": True}
    with DistNeighborLoader(dataset, None, sampler_options=options, **given_options) as loader:
        epochs = [neighbors_of(batch) for _ in range(2) for batch in loader]
    assert [each[7] for each in epochs] == [alone[7]] * 2
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize("stepped", [False, True])
def test_a_batch_beyond_its_bounds_is_refused_by_name(stepped: bool) -> None:
    graph = graph_of(homogeneous())
    options = PPRSamplerOptions(alpha=0.01, eps=1e-7)
    plan = BatchPlan(
        sampler=options.plan(graph.schema, "node", SamplerArguments()), run_seed=5, columns=ColumnPlan()
    )
    request = seed_request(0, 0, np.arange(100))
    with closing(PartitionedStore.whole(graph)) as store:
        bounds = BatchBounds(edges=100_000, nbytes=1 << 30)
        sampler = plan.open(graph, store if stepped else None, bounds=bounds)
        with pytest.raises(TooManyEdges, match="fewer seeds a batch or a larger eps"):
            sampler.sample(request)
        assert sampler.scratch_bytes < 20 << 20
        few = plan.open(graph, store if stepped else None, bounds=BatchBounds(edges=1599, nbytes=1 << 30))
        with pytest.raises(TooManyEdges, match="more than 1,599 edges"):
            few.sample(request)
        few.sample(seed_request(0, 0, np.arange(270, 300)))  # Nodes without edges; the sampler goes on.


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"alpha": 0.0}, ValueError, r"alpha must lie in \(0, 1\), got 0.0"),
        ({"alpha": 1}, ValueError, r"alpha must lie in \(0, 1\), got 1"),
        ({"alpha": float("nan")}, ValueError, "alpha must lie in"),
        ({"alpha": "0.5"}, TypeError, "alpha must be a number, got '0.5'"),
        ({"eps": 0.0}, ValueError, r"eps must lie in \[1e-09, 1\), got 0.0"),
        ({"eps": 1e-10}, ValueError, "eps must lie in"),
        ({"eps": 1.0}, ValueError, "eps must lie in"),
        ({"eps": None}, TypeError, "eps must be a number"),
        ({"max_ppr_nodes": 0}, ValueError, "max_ppr_nodes must be at least 1, got 0"),
        ({"max_ppr_nodes": 2**31}, ValueError, "max_ppr_nodes must lie in"),
        ({"max_ppr_nodes": 1.5}, TypeError, "max_ppr_nodes must be a whole number"),
        ({"num_neighbors_per_hop": 0}, ValueError, "num_neighbors_per_hop must be at least 1"),
        ({"num_neighbors_per_hop": None}, TypeError, "num_neighbors_per_hop must be a whole number"),
        ({"max_fetch_iterations": 0}, ValueError, "max_fetch_iterations must be at least 1"),
        ({"enable_residual_topup": 2}, TypeError, "enable_residual_topup must be True or False, got 2"),
    ],
)
def test_options_that_cannot_be_are_refused(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PPRSamplerOptions(**options)


@pytest.mark.parametrize(
    "more",
    [
        {"disjoint": True},
        {"replace": True},
        {"time_attr": "t"},
        {"subgraph_type": "induced"},
    ],
)
def test_what_has_no_meaning_for_pagerank_is_refused_by_name(more: Any) -> None:
    dataset = DistDataset.from_pyg(weighted(hetero=False), weight_attr="w")
    with pytest.raises(ValueError, match=f"{next(iter(more))} has no meaning for personalised PageRank"):
        first(dataset, None, PPRSamplerOptions(), **more)
    with pytest.raises(ValueError, match="num_neighbors has no meaning for personalised PageRank"):
        DistNeighborLoader(dataset, [2], sampler_options=PPRSamplerOptions(), **OPTIONS)


def test_links_have_no_pagerank() -> None:
    with pytest.raises(ValueError, match="links need KHop"):
        DistLinkNeighborLoader(
            DistDataset.from_pyg(homogeneous()), [2], sampler_options=PPRSamplerOptions(), **OPTIONS
        )


@settings(max_examples=20)
@given(cases(), st.booleans())
def test_anchors_and_labels_have_pagerank_without_the_edges_between_them(
    case: dict[str, Any], excluded: bool
) -> None:
    options, edge_dir, edges = case["options"], case["edge_dir"], case["edges"]
    likes, liked_by = ("a", "y", "b"), ("b", "x", "a")
    anchors = [seed % COUNTS["a"] for seed in case["seeds"]]
    dataset = DistDataset.from_pyg(
        graph_with(edges, case["weights"]),
        weight_attr=None if case["weights"] is None else "w",
        num_partitions=case["partitions"],
        assigner=case["assigner"],
        edge_dir=edge_dir,
    )
    with DistABLPLoader(
        dataset,
        None,
        ("a", torch.tensor(anchors)),
        supervision_edge_type=likes,
        exclude_targets=excluded,
        reverse_edge_types={likes: liked_by},
        sampler_options=options,
        weight_attr=None if case["weights"] is None else "w",
        batch_size=10,
        **OPTIONS,
    ) as loader:
        batch = next(iter(loader))
    pairs = sorted({pair for pair in edges[likes] if pair[0] in anchors}) if excluded else []
    turned = [(there, here) for here, there in pairs]
    inward, outward = (turned, pairs) if edge_dir == "in" else (pairs, turned)
    gone = frozenset(
        [(likes, *pair) for pair in inward] + [(liked_by, *pair) for pair in outward],
    )
    lists = lists_of_edges(edges, edge_dir, case["weights"])
    labels = [
        there
        for here in dict.fromkeys(anchors)
        for _, there in sorted(e for e in edges[likes] if e[0] == here)
    ]
    for kind, seeds in (("a", anchors), ("b", labels)):
        found = neighbors_of(batch, kind)
        distinct = list(dict.fromkeys(seeds))
        assert sorted(found) == sorted(distinct)
        assert batch[kind].n_id[: len(distinct)].tolist() == distinct
        for seed in distinct:
            assert found[seed] == expected_neighbors(lists, (kind, seed), options, gone)
    positive = [batch["b"].n_id[node].item() for node in batch.y_positive[1]]
    assert (positive, batch["a"].batch_size) == (labels, len(set(anchors)))
    for edge_type, removed in ((likes, pairs), (liked_by, turned)) if options.include_sampled_edges else ():
        name = next(each for each in batch.edge_types if names_of(each, edge_type, edge_dir))
        rows = batch[name].edge_index if edge_dir == "in" else batch[name].edge_index.flip(0)
        ends = (batch[edge_type[end]].n_id[row].tolist() for end, row in zip((0, 2), rows, strict=True))
        assert not set(zip(*ends, strict=True)) & set(removed)


def test_weights_are_transition_probabilities() -> None:
    """Scores of an undirected graph with weights are below exact ones, and near them."""
    data = preferential()
    random = torch.Generator().manual_seed(4)
    count = data.edge_index.shape[1] // 2
    data.w = torch.rand(count, generator=random).repeat(2)
    dataset = DistDataset.from_pyg(data, weight_attr="w", num_partitions=2, edge_dir="out")
    options = PPRSamplerOptions(0.25, 1e-7, max_ppr_nodes=1000, enable_residual_topup=False)
    dense = np.zeros((150, 150))
    np.add.at(dense, tuple(data.edge_index.numpy()), data.w.double().numpy())
    exact = exact_pagerank(dense / dense.sum(axis=1)[:, None], 5, 0.25)
    [listed] = neighbors_of(first(dataset, torch.tensor([5]), options, weight_attr="w")).values()
    scores = np.zeros(150)
    for (_, node), score, _ in listed:
        scores[node] = score
    assert (scores <= exact + 1e-12).all()
    assert np.abs(scores - exact).max() < 1e-5


def test_channels_have_columns_of_their_own() -> None:
    """In the order of the mapping; shares that a channel does not fill go to the others."""
    dataset = DistDataset.from_pyg(heterogeneous(), edge_dir="out")
    buys, bought = ("user", "buys", "item"), ("item", "rev_buys", "user")
    ratios: Any = {PPRMetaPath((buys, bought)): 0.75, ("user", "follows", "user"): 0.25}
    options = PPRSamplerOptions(max_ppr_nodes=8, typed_channel_ratios=ratios)
    batch = first(dataset, ("user", torch.arange(10)), options)
    assert batch.edge_types == [("user", "ppr", "user")]
    seeds, attr = batch["user", "ppr", "user"].edge_index[0], batch["user", "ppr", "user"].edge_attr
    assert attr.shape == (len(seeds), 8)
    assert torch.equal(attr[:, 0], torch.maximum(attr[:, 2], attr[:, 5]))
    assert torch.equal(attr[:, 1], torch.maximum(attr[:, 3], attr[:, 6]))
    assert torch.equal(attr[:, [4, 7]], (attr[:, [2, 5]] > 0).float())
    by_path = attr[:, 2] > attr[:, 5]
    assert (torch.bincount(seeds[by_path], minlength=10) >= 6).all()
    assert (torch.bincount(seeds, minlength=10) == 8).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"typed_channel_ratios": {("a", "x", "a"): 0.5}}, "must add up to 1, got 0.5"),
        ({"typed_channel_ratios": {("a", "x", "a"): 0.0, "b": 1.0}}, r"must lie in \(0, 1\], got 0.0"),
        ({"typed_channel_ratios": {"a": 1.0}}, "must be an edge type .* or a tuple of edge types, got 'a'"),
        ({"typed_channel_ratios": {("user", "likes", "item"): 1.0}}, "unknown edge type .*likes"),
        (
            {"typed_channel_ratios": {PPRMetaPath((("item", "has", "tag"),)): 1.0}},
            "step 0 .* would be at 'user'",
        ),
        (
            {"typed_channel_ratios": {PPRMetaPath((("user", "buys", "item"),), repeat_from=0): 1.0}},
            "cannot go on with step 0",
        ),
    ],
)
def test_channels_that_cannot_be_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        first(
            DistDataset.from_pyg(heterogeneous(), edge_dir="out"),
            ("user", None),
            PPRSamplerOptions(**options),
        )


def test_paths_and_edges_that_cannot_be_are_refused() -> None:
    for steps, repeat_from, message in (
        ((), None, "1 to 64 steps"),
        ((EDGE,), 1, "repeat_from must be a step"),
    ):
        with pytest.raises(ValueError, match=message):
            PPRMetaPath(steps, repeat_from)
    with pytest.raises(ValueError, match="include_sampled_edges is for heterogeneous graphs"):
        first(DistDataset.from_pyg(homogeneous()), None, PPRSamplerOptions(include_sampled_edges=True))
