"""Draws are pinned: a change of any of them, or of a canonical order, must raise the draw specification.

Builds of one specification serve one run together, and resume each other's states. If this test fails,
batches differ from those of the builds before: raise ``DRAW_SPECIFICATION``, describe the change in
docs/randomness.md, and add the digests of the new number below.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import (
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    LaborSamplerOptions,
    NegativeSampling,
    PPRSamplerOptions,
    RandomWalkSamplerOptions,
)
from gigl_loader.loaders.state import check_same_run
from gigl_loader.native import draws
from gigl_loader.splits import split_edges, split_nodes

GOLDEN: Mapping[int, Mapping[str, str]] = {
    1: {
        "uniform": "75bf3ab4806d2900",
        "whole lists": "249d3ee19b93aed5",
        "with replacement": "6f317f0dda57ca5c",
        "shuffled input": "f891323eb9fd5d47",
        "input by weights": "16c32afa59f641a9",
        "by weight": "9f47e70aac866c16",
        "by weight, with replacement": "081b66b2f9287a53",
        "in time": "3b9ccff88e028c2d",
        "the last in time": "d7ddfaf73c96fc85",
        "disjoint": "0ff29331dea2f539",
        "LABOR": "348927e7e9de9e63",
        "induced": "8e39d424a81e6851",
        "walks": "87687359425d45f7",
        "walks, node2vec": "87687359425d45f7",
        "PPR": "9e34dd20c4c5ee8b",
        "links": "35f220581f2b86ea",
        "links, binary negatives": "e26cd7b82cb8b016",
        "links, triplets": "c347839ac6eb8ec8",
        "labels": "15b3ddb8e25322b4",
        "splits": "edce074c99a5eb2d",
    },
}
"""First digits of a SHA-256 over ids, by draw specification and kind of draw."""

NODES, EDGES, SPREAD = 200, 3_000, 2**31 - 1
OPTIONS: dict[str, Any] = {"num_workers": 0, "device": "cpu", "seed": 7, "batch_size": 16}
EDGE = ("node", "to", "node")


def _graph() -> Data:
    """Return a graph made by plain arithmetic: generators of libraries change with their versions."""
    edge = np.arange(1, EDGES + 1)
    ends = np.stack([edge * 48_271 % SPREAD % NODES, edge * 69_621 % SPREAD % NODES])
    return Data(
        num_nodes=NODES,
        edge_index=torch.from_numpy(ends),
        weight=torch.from_numpy(edge * 16_807 % SPREAD % 9 / 8.0),
        when=torch.from_numpy(edge * 39_373 % SPREAD % 1_000),
    )


DATASET = DistDataset.from_pyg(_graph(), num_partitions=2, weight_attr="weight", time_attr={EDGE: "when"})
TIMES = torch.arange(NODES) * 5


def _digest(*tensors: Any) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(np.ascontiguousarray(np.asarray(tensor, np.int64)).tobytes())
    return digest.hexdigest()[:16]


def _batches(loader: Any) -> str:
    names = ("n_id", "e_id", "edge_index", "input_id", "edge_label_index", "edge_label", "src_index", "walks")
    with loader:
        found = [batch[name] for _ in range(2) for batch in loader for name in names if name in batch]
    return _digest(*(each.flatten() for each in found))


def _nodes(fanout: Any = (4, 3), **options: Any) -> Callable[[], str]:
    fanout = None if fanout is None else list(fanout)
    return lambda: _batches(DistNeighborLoader(DATASET, fanout, **{"with_edge": True, **OPTIONS, **options}))


def _links(**options: Any) -> Callable[[], str]:
    ends = torch.stack([torch.arange(0, 60), torch.arange(60, 120)])
    return lambda: _batches(DistLinkNeighborLoader(DATASET, [3], ends, **{**OPTIONS, **options}))


def _labels() -> str:
    options = {**OPTIONS, "supervision_edge_type": EDGE, "max_labels_per_anchor": 2}
    with DistABLPLoader(DATASET, [2], torch.arange(60), num_random_negatives=3, **options) as loader:
        found = [
            part.flatten()
            for batch in loader
            for part in (batch.n_id, batch.y_positive, batch.random_negative_index)
        ]
    return _digest(*found)


def _walks(**options: Any) -> Callable[[], str]:
    return _nodes(None, sampler_options=RandomWalkSamplerOptions(3, **options), with_edge=False)


def _splits() -> str:
    shares = {"train": 0.6, "val": 0.2, "test": 0.2}
    ids = torch.arange(NODES)
    nodes = split_nodes(ids, shares, seed=3)
    edges = split_edges(torch.stack([ids, ids.flip(0)]), shares, seed=3)
    return _digest(*nodes.values(), *edges.values())


KINDS: Mapping[str, Callable[[], str]] = {
    "uniform": _nodes(),
    "whole lists": _nodes((-1,)),
    "with replacement": _nodes(replace=True),
    "shuffled input": _nodes(shuffle=True),
    "input by weights": _nodes((2,), seed_weights=torch.arange(1.0, NODES + 1)),
    "by weight": _nodes(weight_attr="weight"),
    "by weight, with replacement": _nodes(weight_attr="weight", replace=True),
    "in time": _nodes(time_attr="when", input_time=TIMES),
    "the last in time": _nodes(time_attr="when", input_time=TIMES, temporal_strategy="last"),
    "disjoint": _nodes(disjoint=True),
    "LABOR": _nodes(sampler_options=LaborSamplerOptions()),
    "induced": _nodes((3,), subgraph_type="induced"),
    "walks": _walks(),
    "walks, node2vec": _walks(p=0.5, q=2.0),
    "PPR": _nodes(None, sampler_options=PPRSamplerOptions(), with_edge=False),
    "links": _links(),
    "links, binary negatives": _links(neg_sampling=NegativeSampling("binary", 2)),
    "links, triplets": _links(neg_sampling=NegativeSampling("triplet", 2)),
    "labels": _labels,
    "splits": _splits,
}


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_those_of_their_specification(kind: str) -> None:
    assert KINDS[kind]() == GOLDEN[draws.DRAW_SPECIFICATION][kind], (
        f"draws ({kind}) differ from those of draw specification {draws.DRAW_SPECIFICATION}: raise it"
    )


def test_each_number_has_draws_of_its_own() -> None:
    assert sorted(GOLDEN) == list(range(1, draws.DRAW_SPECIFICATION + 1))
    tables = [tuple(sorted(table.items())) for table in GOLDEN.values()]
    assert len(set(tables)) == len(tables)


def test_a_state_of_other_draws_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DistNeighborLoader(DATASET, [2], **OPTIONS)
    state = loader.state_dict()
    assert state["draws"] == draws.DRAW_SPECIFICATION
    loader.load_state_dict(state)
    monkeypatch.setattr(draws, "DRAW_SPECIFICATION", 99)
    with pytest.raises(
        ValueError, match=r"state is of draw specification 1, and this version .* has 99"
    ) as told:
        loader.load_state_dict(state)
    assert "\n" not in str(told.value)
    monkeypatch.undo()
    del state["draws"]  # Written before states told it.
    check_same_run(state, state["made_with"])
