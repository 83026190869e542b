"""PyG's loaders over ``GiglSampler`` in time, with types of subgraphs, and with columns of edges."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.pyg import GiglSampler
from tests.support.pyg_graphs import weighted

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")


@cache
def dataset_of(*, hetero: bool) -> DistDataset:
    """Return a graph with times of edges and of nodes, whose edge ids have gaps and do not ascend."""
    data = weighted(hetero=hetero)
    times: Any = (
        {"user": "born", "item": "born", BUYS: "t"} if hetero else {"node": "born", HOMOGENEOUS_EDGE: "t"}
    )
    tables = tables_from_pyg(data, weight_attr="w", time_attr=times)
    edges = {}
    for number, kind in enumerate(tables.edges):
        store = data[kind] if hetero else data
        src, dst = store.edge_index.numpy()
        ids = 5 + 3 * np.random.default_rng(number).permutation(len(src))
        columns = {name: store[name].numpy() for name in ("edge_attr", "w", "t") if name in store}
        edges[kind] = ArrayTable(str(kind), {"src": src, "dst": dst, "id": ids, **columns})
    folder = MemoryFolder()
    build_graph(replace(tables, edges=edges), folder, num_partitions=2)
    return DistDataset(Graph.open(folder))


def check_same(batch: Any, expected: Any, names: tuple[str, ...]) -> None:
    """Fail unless a batch of PyG's loaders has all of these attributes that ``expected`` has."""
    hetero = hasattr(expected, "edge_types")
    for kind in [*expected.node_types, *expected.edge_types] if hetero else [None]:
        found, wanted = (batch, expected) if kind is None else (batch[kind], expected[kind])
        for name in names:
            if name in wanted:
                assert torch.equal(found[name], wanted[name]), (kind, name)


NODES = ("n_id", "edge_index", "input_id", "seed_time")
EDGES = ("e_id", "edge_attr", "w", "t")
DRAWS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "times of edges": {"time_attr": "t", "weight_attr": "w"},
    "the last": {"time_attr": "t", "temporal_strategy": "last"},
    "times of nodes": {"time_attr": "born"},
    "strictly earlier": {"time_attr": "born", "temporal_comparison": "<"},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": SubgraphType.bidirectional},
}


@pytest.mark.parametrize("hetero", [False, True])
@pytest.mark.parametrize("draw", DRAWS)
def test_node_loader_has_the_batches_of_the_own_loader(draw: str, hetero: bool) -> None:
    dataset, seeds = dataset_of(hetero=hetero), torch.arange(60).flip(0)
    times = 40 + seeds if DRAWS[draw].get("time_attr") == "t" else None
    fanouts = {kind: [4, 3] if kind in (BUYS, BOUGHT) else [0, 0] for kind in dataset.edge_types}
    hops: Any = fanouts if hetero else [4, 3]
    options: dict[str, Any] = {"seed": 3, "with_edge": True, **DRAWS[draw]}
    given: Any = ("user", seeds) if hetero else seeds
    features, graph = dataset.as_pyg()
    has_ids = not (hetero and draw == "bidirectional")
    pygs = NodeLoader(
        (features, graph),
        GiglSampler(dataset, hops, **options),
        given,
        input_time=times,
        transform=features.edge_columns if has_ids else None,
        batch_size=25,
    )
    with DistNeighborLoader(
        dataset, hops, given, input_time=times, batch_size=25, num_workers=0, **options
    ) as loader:
        for batch, expected in zip(pygs, loader, strict=True):
            check_same(batch, expected, NODES + EDGES if has_ids else NODES)
            assert not has_ids or {*EDGES} <= set((expected[BUYS] if hetero else expected).keys())
            store = batch["user"] if hetero else batch
            assert ("seed_time" in store and store.seed_time is not None) == ("time_attr" in DRAWS[draw])
            if "subgraph_type" not in DRAWS[draw]:
                edges = (batch[BUYS], expected[BUYS]) if hetero else (batch, expected)
                assert edges[0].num_sampled_edges == edges[1].num_sampled_edges
    if not has_ids:
        with pytest.raises(ValueError, match=r"have no e_id: leave with_edge=False of GiglSampler out"):
            features.edge_columns(batch)


@pytest.mark.parametrize("mode", [None, "binary", "triplet"])
@pytest.mark.parametrize("time_attr", ["t", "born"])
def test_link_loader_has_the_batches_of_the_own_loader(time_attr: str, mode: Any) -> None:
    dataset = dataset_of(hetero=False)
    links, times = torch.stack([torch.arange(40), torch.arange(60, 100)]), 30 + torch.arange(40)
    negatives = None if mode is None else NegativeSampling(mode, 2)
    options: dict[str, Any] = {"seed": 3, "with_edge": True, "time_attr": time_attr}
    given: dict[str, Any] = {"edge_label_time": times, "neg_sampling": negatives, "batch_size": 15}
    features, graph = dataset.as_pyg()
    pygs = LinkLoader(
        (features, graph),
        GiglSampler(dataset, [3, 2], **options),
        (None, links),
        transform=features.edge_columns,
        **given,
    )
    time = "seed_time" if mode == "triplet" else "edge_label_time"
    names = ("edge_label_index", "src_index", "dst_pos_index", "dst_neg_index", "batch", time)
    with DistLinkNeighborLoader(dataset, [3, 2], links, num_workers=0, **given, **options) as loader:
        for batch, expected in zip(pygs, loader, strict=True):
            assert time in expected
            check_same(batch, expected, (*NODES[:3], *EDGES, *names))


def test_times_that_lack_or_have_no_meaning_are_refused() -> None:
    dataset, nodes = dataset_of(hetero=False), torch.arange(3)
    with pytest.raises(ValueError, match="no meaning without time_attr of GiglSampler"):
        GiglSampler(dataset, [2]).sample_from_nodes(NodeSamplerInput(None, nodes, time=nodes))
    in_time = GiglSampler(dataset, [2], time_attr="t")
    with pytest.raises(ValueError, match="pass input_time, the time of each seed"):
        in_time.sample_from_nodes(NodeSamplerInput(None, nodes))
    with pytest.raises(ValueError, match="time_attr needs edge_label_time"):
        in_time.sample_from_edges(EdgeSamplerInput(None, nodes, nodes))
    with pytest.raises(ValueError, match=r"no time 'no'|'no'"):
        GiglSampler(dataset, [2], time_attr="no")
    with pytest.raises(ValueError, match="leave time_attr out"):
        GiglSampler(dataset, [2], time_attr="t", subgraph_type="induced")
