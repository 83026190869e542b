"""Induced and bidirectional batches: against the oracle, against PyG, and what is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import HeteroSamplerOutput, SubgraphType
from torch_geometric.sampler.utils import to_bidirectional
from torch_geometric.utils import is_undirected, subgraph

from gigl_loader import (
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubgraphLoader,
    LaborSamplerOptions,
    PPRSamplerOptions,
    RandomWalkSamplerOptions,
)
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import EdgeSplits
from gigl_loader.loaders.collate import Collator
from gigl_loader.loaders.transfer import HostTensors, PackedTensors, ReusedMemory
from gigl_loader.native import Adjacency, build_adjacency, induced_edges
from gigl_loader.partition import build_graph, tables_from_pyg, with_reverse_edges
from gigl_loader.sampling.costs import BatchBounds, TooManyEdges
from gigl_loader.sampling.khop import KHop
from tests.support import oracle
from tests.support.plans import neighbor_plan, seed_request
from tests.support.pyg_graphs import graph_of, heterogeneous, homogeneous, same_batch, weighted

if TYPE_CHECKING:
    from tests.support.oracle import EdgeType

OPTIONS: dict[str, Any] = {"num_workers": 0, "device": "cpu", "seed": 9, "with_edge": True}
NODE = ("node", "to", "node")
LIKES, LIKED, KNOWS, KNOWN = (
    ("user", "likes", "item"),
    ("item", "rev_likes", "user"),
    ("user", "knows", "user"),
    ("user", "rev_knows", "user"),
)
REVERSES = {LIKES: LIKED, LIKED: LIKES, KNOWS: KNOWN, KNOWN: KNOWS, NODE: NODE}
KINDS = ("induced", "bidirectional")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[EdgeType, list[oracle.Edge]], dict[str, int]]:
    """Multi-edges, loops, hubs; edges whose reverse has their number; edges and types without a reverse."""
    hetero = draw(st.booleans())
    counts = {"item": 7, "user": 9} if hetero else {"node": 12}
    edges: dict[EdgeType, list[oracle.Edge]] = {}
    for source, relation, destination in (KNOWS, LIKES) if hetero else (NODE,):
        ends = st.tuples(st.integers(0, counts[source] - 1), st.integers(0, counts[destination] - 1))
        pairs = draw(st.lists(ends, max_size=40))
        edges[source, relation, destination] = [(src, dst, i) for i, (src, dst) in enumerate(pairs)]
        if hetero and (source != destination or draw(st.booleans())):
            turned = [(dst, src) for src, dst in pairs[: draw(st.integers(0, 40))]]
            backward = st.tuples(st.integers(0, counts[destination] - 1), st.integers(0, counts[source] - 1))
            turned += draw(st.lists(backward, max_size=9))
            edges[destination, f"rev_{relation}", source] = [(s, d, i) for i, (s, d) in enumerate(turned)]
    return edges, counts


def _data(edges: dict[EdgeType, list[oracle.Edge]], counts: dict[str, int]) -> Any:
    """Return the graph with a column of each edge type: the number of the edge, and the type's."""
    if NODE in edges:
        data: Any = Data(num_nodes=counts["node"])
        stores = {NODE: data}
    else:
        data = HeteroData()
        for node_type, count in counts.items():
            data[node_type].num_nodes = count
        stores = {each: data[each] for each in edges}
    for edge_type, store in stores.items():
        listed = edges[edge_type]
        pairs = [(src, dst) for src, dst, _ in listed]
        store.edge_index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()
        store.edge_w = torch.tensor([(number % 3) / 2 for _, _, number in listed], dtype=torch.float32)
        store.edge_c = torch.arange(len(listed), dtype=torch.int32).to(torch.uint16)
    return data


def _expected(batch: oracle.OracleBatch, edge_type: EdgeType, kind: str) -> list[tuple[int, int, int]]:
    """Return target, neighbour and edge id of each edge."""
    if kind == "bidirectional":
        reverse = REVERSES[edge_type]
        return oracle.both_directions(batch, edge_type, reverse if reverse in batch.rows else edge_type)
    lists = (batch.targets[edge_type], batch.rows[edge_type], batch.edge_ids[edge_type])
    return list(zip(*lists, strict=True))


@settings(max_examples=40)
@given(graphs(), st.sampled_from(KINDS), st.data())
def test_batches_are_those_of_the_oracle(graph: Any, kind: str, data: st.DataObject) -> None:
    edges, counts = graph
    edge_dir: Any = data.draw(st.sampled_from(["in", "out"]))
    hops = data.draw(st.integers(0 if kind == "induced" else 1, 2))
    fanout = st.lists(st.sampled_from([-1, 0, 1, 3]), min_size=hops, max_size=hops)
    fanouts = {each: data.draw(fanout) for each in edges}
    how = data.draw(
        st.sampled_from(["plain", "replace", "labor", "weight", "disjoint"] if hops else ["plain"])
    )
    disjoint = how == "disjoint" and kind == "bidirectional"
    seed_type = data.draw(st.sampled_from(sorted(counts)))
    seeds = data.draw(st.lists(st.integers(0, counts[seed_type] - 1), min_size=1, max_size=5))
    dataset = DistDataset.from_pyg(
        _data(edges, counts),
        num_partitions=data.draw(st.integers(1, 2)),
        assigner="hash",
        edge_dir=edge_dir,
        weight_attr="edge_w",
    )
    homogeneous_graph = NODE in edges
    options = {**OPTIONS, **({"sampler_options": LaborSamplerOptions()} if how == "labor" else {})}
    given = {"subgraph_type": kind, "disjoint": disjoint} if kind == "bidirectional" else {}
    loader_class: Any = DistSubgraphLoader if kind == "induced" else DistNeighborLoader
    with loader_class(
        dataset,
        fanouts if hops else None,
        torch.tensor(seeds) if homogeneous_graph else (seed_type, torch.tensor(seeds)),
        batch_size=len(seeds),
        replace=how == "replace",
        weight_attr="edge_w" if how == "weight" else None,
        **given,
        **options,
    ) as loader:
        [batch] = loader
    weights = {each: {number: (number % 3) / 2 for _, _, number in edges[each]} for each in edges}
    given_weights = weights if how == "weight" else None
    expected = oracle.sample(
        edges,
        sorted(counts),
        fanouts=fanouts,
        key=oracle.request_key(9, 0, range(len(seeds)), seeds),
        seed_type=seed_type,
        seeds=seeds,
        trees=[range(len(seeds))] if disjoint else None,
        edge_dir=edge_dir,
        replace=how == "replace",
        labor=how == "labor",
        weights=given_weights,
    )
    if kind == "induced":
        oracle.induce(expected, edges, fanouts=fanouts, edge_dir=edge_dir, weights=given_weights)
        store = batch if homogeneous_graph else batch[seed_type]
        assert store.n_id[store.mapping].tolist() == seeds
    for node_type, nodes in expected.nodes.items():
        assert (batch if homogeneous_graph else batch[node_type]).n_id.tolist() == nodes
    for edge_type in edges:
        # With out-edges, messages flow the other way: a type takes the name of its reverse.
        message_type = edge_type if edge_dir == "in" else REVERSES[edge_type]
        store = batch if homogeneous_graph else batch[message_type]
        triples = _expected(expected, edge_type, kind)
        assert store.edge_index.tolist() == [[row for _, row, _ in triples], [t for t, _, _ in triples]]
        assert store.e_id.tolist() == [number for _, _, number in triples]
        assert store.edge_c.dtype == torch.uint16
        assert store.edge_c.tolist() == store.e_id.tolist()
        assert "num_sampled_edges" not in store
    assert "num_sampled_edges" not in batch
    assert "num_sampled_nodes" in batch


def test_pyg_has_the_same_pairs() -> None:
    data = homogeneous()
    dataset = DistDataset.from_pyg(data)
    options: Any = {**OPTIONS, "batch_size": 40}
    batches = {}
    for kind in ("directional", *SubgraphType):
        with DistNeighborLoader(dataset, [4, 3], torch.arange(40), subgraph_type=kind, **options) as loader:
            batches[kind] = next(iter(loader))
    plain = batches["directional"]
    assert torch.equal(plain.edge_index, batches[SubgraphType.directional].edge_index)
    row, col, _ = to_bidirectional(*plain.edge_index, *plain.edge_index)
    theirs = {*zip(row.tolist(), col.tolist(), strict=True)}
    ours = batches[SubgraphType.bidirectional]
    assert sorted(zip(*ours.edge_index.tolist(), strict=True)) == sorted(theirs), "each pair once"
    assert is_undirected(ours.edge_index)
    induced = batches[SubgraphType.induced]
    assert torch.equal(induced.n_id, plain.n_id)
    of_pyg, kept = subgraph(induced.n_id, data.edge_index, torch.arange(data.num_edges), relabel_nodes=False)
    assert sorted(induced.e_id.tolist()) == sorted(kept.tolist())
    found = induced.n_id[induced.edge_index]
    assert torch.equal(found[:, induced.e_id.argsort()], of_pyg[:, kept.argsort()])
    for batch in (ours, induced):
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


def test_pyg_has_the_same_pairs_of_each_type() -> None:
    types = (
        ("user", "buys", "item"),
        ("item", "rev_buys", "user"),
        ("user", "follows", "user"),
    )
    dataset = DistDataset.from_pyg(heterogeneous())
    fanouts = {each: [4, 3] if each in types else [0, 0] for each in dataset.edge_types}
    batches = []
    for kind in ("directional", "bidirectional"):
        with DistNeighborLoader(dataset, fanouts, ("user", None), subgraph_type=kind, **OPTIONS) as loader:
            batches.append(loader.sample(torch.arange(60), epoch=0))
    plain, ours = batches
    ends = {each: plain[each].edge_index for each in types}
    theirs = HeteroSamplerOutput(
        node=plain.n_id_dict,
        row={each: index[0] for each, index in ends.items()},
        col={each: index[1] for each, index in ends.items()},
        edge=None,
    ).to_bidirectional()
    assert theirs.row is not None
    for each in ends:
        pairs = sorted(zip(theirs.row[each].tolist(), theirs.col[each].tolist(), strict=True))
        assert sorted(zip(*ours[each].edge_index.tolist(), strict=True)) == pairs


@pytest.mark.parametrize("kind", ["directional", *KINDS])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_excluded_links_are_in_no_batch_in_the_direction_that_is_asked(kind: str, edge_dir: Any) -> None:
    source, target = torch.randint(0, 30, (2, 200), generator=torch.Generator().manual_seed(0))
    both = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    dataset = DistDataset.from_pyg(Data(edge_index=both, num_nodes=30), edge_dir=edge_dir)
    links = both[:, :9]
    pairs = {*zip(*links.tolist(), strict=True)}
    for reverse in (None, {NODE: NODE}):
        with DistLinkNeighborLoader(
            dataset,
            [-1, 4],
            links,
            batch_size=9,
            subgraph_type=kind,
            exclude_targets=True,
            reverse_edge_types=reverse,
            **OPTIONS,
        ) as loader:
            batch = next(iter(loader))
        ends = batch.n_id[batch.edge_index if edge_dir == "in" else batch.edge_index.flip(0)]
        found = {*zip(*ends.tolist(), strict=True)}
        assert not found & pairs
        turned = {(dst, src) for src, dst in found if src != dst}
        assert bool(turned & pairs) == (reverse is None)


def _num_edges(sampled: Any) -> int:
    counts: list[int] = sampled.batch.edges_per_hop(0)
    return sum(counts)


def test_edges_that_are_held_out_are_in_no_induced_batch() -> None:
    data = homogeneous()
    splits = EdgeSplits(fractions={"train": 0.6, "val": 0.4})
    tables = replace(tables_from_pyg(data), splits={NODE: splits}, message_edges=("train",))
    folder = MemoryFolder()
    build_graph(tables, folder, num_partitions=2)
    graph = Graph.open(folder)
    plan = neighbor_plan(
        seed_type="node", num_neighbors={NODE: (3,)}, with_edge=True, subgraph_type="induced"
    )
    count = _num_edges(plan.open(graph).sample(seed_request(0, 0, np.arange(300, dtype=np.int64))))
    assert count == sum(len(graph.topology(NODE, part)["indices"]) for part in range(2))
    assert 0 < count < 0.7 * data.num_edges


def test_anchors_and_their_labels_are_not_joined_either_way() -> None:
    data = homogeneous()
    dataset = DistDataset.from_pyg(data)
    for kind in KINDS:
        with DistABLPLoader(
            dataset,
            [-1],
            torch.arange(20),
            supervision_edge_type=NODE,
            subgraph_type=kind,
            batch_size=20,
            **OPTIONS,
        ) as loader:
            batch = next(iter(loader))
        joined = {*zip(*batch.edge_index.tolist(), strict=True)}
        labels = {*zip(*batch.y_positive.tolist(), strict=True)}
        assert len(joined) > 100
        assert not joined & labels
        assert not {(b, a) for a, b in joined} & labels


def test_types_without_a_reverse_are_refused_unless_they_are_skipped() -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    options: Any = {**OPTIONS, "subgraph_type": "bidirectional"}
    with pytest.raises(ValueError, match=r"need the edge type \('tag', 'rev_has', 'item'\), the reverse of"):
        DistNeighborLoader(dataset, [2], ("item", None), **options)
    buys, bought = ("user", "buys", "item"), ("item", "rev_buys", "user")
    fanouts = {each: [2] if each in (buys, bought) else [0] for each in dataset.edge_types}
    for message_type in (buys, bought):
        with DistNeighborLoader(dataset, fanouts, (message_type[2], None), **options) as loader:
            batch = next(iter(loader))
        assert torch.equal(
            batch[buys].edge_index.unique(dim=1), batch[bought].edge_index.flip(0).unique(dim=1)
        )
        assert batch["user", "follows", "user"].edge_index.shape == (2, 0)


def test_a_declared_reverse_needs_no_name_of_pyg() -> None:
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 9, 7
    data[LIKES].edge_index = torch.stack([torch.arange(60) % 9, torch.arange(60) % 7])
    folder = MemoryFolder()
    liked = ("item", "liked_by", "user")
    build_graph(with_reverse_edges(tables_from_pyg(data), {LIKES: liked}), folder)
    dataset = DistDataset(Graph.open(folder))
    options: Any = {**OPTIONS, "batch_size": 3, "subgraph_type": "bidirectional"}
    with DistNeighborLoader(dataset, [2, 2], ("item", None), **options) as loader:
        batch = next(iter(loader))
    pairs = batch[LIKES].edge_index
    assert pairs.shape[1] > 4
    assert torch.equal(pairs.flip(0).unique(dim=1), batch[liked].edge_index.unique(dim=1))


def test_columns_that_the_reverse_type_lacks_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    buys = ("user", "buys", "item")
    dataset = DistDataset.from_pyg(heterogeneous())
    fanouts = {each: [2] if each == buys else [0] for each in dataset.edge_types}
    options: Any = {**OPTIONS, "subgraph_type": "bidirectional"}
    with (
        caplog.at_level(logging.WARNING),
        DistNeighborLoader(dataset, fanouts, ("item", None), **options) as loader,
    ):
        batch = next(iter(loader))
    assert "edge_attr" not in batch[buys]
    assert f"lack the columns edge_attr of {buys}" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"subgraph_type": "both"},
            "subgraph_type must be one of directional, bidirectional, induced, got 'both'",
        ),
        ({"subgraph_type": None}, "subgraph_type must be one of"),
        ({"subgraph_type": "induced", "disjoint": True}, "leave disjoint out"),
        ({"num_neighbors": None}, "num_neighbors is needed"),
        ({"subgraph_type": "induced", "num_neighbors": None, "weight_attr": "w"}, "adds no neighbours"),
        (
            {
                "subgraph_type": "induced",
                "sampler_options": RandomWalkSamplerOptions(3),
                "num_neighbors": None,
            },
            "subgraph_type has no meaning for random walks",
        ),
        (
            {"subgraph_type": "induced", "sampler_options": PPRSamplerOptions(), "num_neighbors": None},
            "subgraph_type has no meaning for personalised PageRank",
        ),
        (
            {
                "subgraph_type": "bidirectional",
                "sampler_options": CustomSamplerOptions("tests.support.user_samplers:Halved"),
                "num_neighbors": None,
            },
            "subgraph_type has no meaning for a custom sampler",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(options: Any, message: str) -> None:
    dataset = DistDataset.from_pyg(weighted(), weight_attr="w")
    given: Any = {**OPTIONS, "num_neighbors": [3], **options}
    with pytest.raises(ValueError, match=message):
        DistNeighborLoader(dataset, **given)


def test_batches_beyond_their_bound_are_refused() -> None:
    """The added edges count: those that are drawn would fit."""
    graph = graph_of(homogeneous())
    seeds = np.arange(40, dtype=np.int64)
    for kind, added in (("induced", 1), ("bidirectional", 0)):
        plan = neighbor_plan(seed_type="node", num_neighbors={NODE: (-1,)}, subgraph_type=kind)
        edges = _num_edges(plan.open(graph).sample(seed_request(0, 0, seeds)))
        bounds = BatchBounds(edges=edges - added, nbytes=1 << 30)
        with pytest.raises(TooManyEdges, match="more than"):
            plan.open(graph, bounds=bounds).sample(seed_request(0, 0, seeds))


@pytest.mark.parametrize("parallel", [1, 3])
def test_long_lists_are_searched_and_give_what_a_scan_gives(parallel: int) -> None:
    """One hub with a list that is far longer than the set of nodes, ids in another order than positions."""
    count = 50_000
    ids = np.random.default_rng(0).permutation(count).astype(np.int64) * 7
    neighbors = np.repeat(np.arange(count, dtype=np.int64), parallel)
    edge_ids = np.arange(len(neighbors), dtype=np.int64)
    indptr, order = np.zeros(2, np.int64), np.empty(len(neighbors), np.int64)
    build_adjacency(np.zeros(len(neighbors), np.int64), ids[neighbors], edge_ids, indptr, order)
    adjacency = Adjacency(
        np.array([0, 1], np.int64), [indptr], [neighbors[order].astype(np.int32)], [edge_ids[order]]
    )
    target = np.zeros(1, np.int64)
    for size in (0, 1, 60, 5_000):
        nodes = np.sort(np.random.default_rng(size).permutation(count)[:size]).astype(np.int64)
        counts, positions, found, slots = induced_edges(
            adjacency, ids, count, target, nodes, weighted=False, with_edge_ids=True, with_slots=True
        )
        expected = np.flatnonzero(np.isin(neighbors[order], nodes))
        assert slots is not None
        assert found is not None
        assert slots.tolist() == expected.tolist()
        assert positions.tolist() == neighbors[order][expected].tolist()
        assert found.tolist() == edge_ids[order][expected].tolist()
        assert counts.tolist() == [size * parallel]


def test_a_frame_that_names_edges_which_are_not_there_is_refused() -> None:
    graph = graph_of(homogeneous())
    plan = neighbor_plan(seed_type="node", num_neighbors={NODE: (3,)}, subgraph_type="bidirectional")
    sampled = plan.open(graph).sample(seed_request(0, 0, np.arange(9, dtype=np.int64)))
    buffer = np.empty(sampled.layout.nbytes, np.uint8)
    sampled.write(buffer)
    schema = plan.frame(graph.schema)
    merged = schema.parse(buffer).array("merged/node+to+node")
    assert merged.dtype == np.int32
    for wrong in (-1, 2 * _num_edges(sampled)):
        merged[-1] = wrong
        with pytest.raises(FormatError, match=r"'merged/.*' leaves the .* sampled edges"):
            schema.parse(buffer)


@pytest.mark.parametrize("hetero", [False, True])
def test_both_directions_are_put_together_alike_on_any_device(*, hetero: bool) -> None:
    """The tensors of a packed frame stand for those of a device: no size depends on what they hold."""
    graph = graph_of(heterogeneous() if hetero else homogeneous())
    types = [("user", "buys", "item"), ("item", "rev_buys", "user")] if hetero else [NODE]
    plan = neighbor_plan(
        seed_type="item" if hetero else "node",
        num_neighbors=dict.fromkeys(types, (3, 2)),
        with_edge=True,
        edge_columns={} if hetero else {NODE: ("edge_attr",)},
        subgraph_type="bidirectional",
    )
    sampled = plan.open(graph).sample(seed_request(0, 0, np.arange(20, dtype=np.int64)))
    buffer = np.empty(sampled.layout.nbytes, np.uint8)
    sampled.write(buffer)
    schema = plan.frame(graph.schema)
    frame = schema.parse(buffer)
    collate = Collator(graph.schema, schema)
    packed = PackedTensors(frame, torch.from_numpy(buffer.copy()))
    assert same_batch(collate(packed), collate(HostTensors(frame, ReusedMemory())))


def test_induced_batches_have_no_times() -> None:
    with pytest.raises(ValueError, match="leave time_attr out"):
        KHop(num_neighbors={NODE: (2,)}, time_attr="t", disjoint=True, subgraph_type="induced")
