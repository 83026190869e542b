"""Draws are pinned: a change of any of them, or of a canonical order, must raise the draw specification.

Builds of one specification serve one run together, and resume each other's states. If this test fails,
batches differ from those of the builds before: raise ``DRAW_SPECIFICATION``, describe the change in
docs/internals/randomness.md, and add the digests of the new number below.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    CustomSamplerOptions,
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
from gigl_loader.sampling.request import BatchRequest
from gigl_loader.splits import split_edges, split_nodes
from tests.support import oracle
from tests.support.plans import key_without_places

GOLDEN: Mapping[int, Mapping[str, str]] = {
    1: {
        "uniform": "a9b81a74091d44a1",
        "whole lists": "59a78062a595db68",
        "with replacement": "231fa270a9183006",
        "shuffled input": "8598143d3a768c84",
        "input by weights": "400c68228d7bd629",
        "by weight": "22f79939e65a4aa2",
        "by weight, with replacement": "d80198af45b81f35",
        "in time": "ed54bfc1fc46d6be",
        "the last in time": "53f7600e6265e102",
        "monotone, in a window of time": "22be409ee191951b",
        "disjoint": "785f4f8ae951d916",
        "LABOR": "4affc25417ae32ad",
        "induced": "2aabea0f3b707b4a",
        "walks": "c328d15f6d46becc",
        "walks, node2vec": "2611fc2e950aa6c3",
        "PPR": "8d20f9ba4af5871d",
        "custom": "11ce7dd6d620525f",
        "links": "4fbd2dbffcce192e",
        "links, binary negatives": "600bf0562e7ce350",
        "links, triplets": "bfbf1fa6714761ba",
        "labels": "ccde8fc58d036cbb",
        "splits": "edce074c99a5eb2d",
    },
    2: {
        "uniform": "917bf8f9a7103734",
        "whole lists": "59a78062a595db68",
        "with replacement": "45e44c542462806c",
        "shuffled input": "c409a3260c5facd5",
        "input by weights": "2df3f3bbf9dc7c28",
        "by weight": "631aa8fcfa8b08db",
        "by weight, with replacement": "bdfc4ab35303b365",
        "in time": "4fcb7da4401501a5",
        "the last in time": "53f7600e6265e102",
        "monotone, in a window of time": "8fe59262b07980c2",
        "strictly earlier, monotone": "e2c6362ef60863e9",
        "disjoint": "29110c359b86d717",
        "LABOR": "a34fe6a7fb06d149",
        "LABOR, dependent batches": "1c7a9fc78432f62b",
        "induced": "fc8db35cb01da1fa",
        "walks": "6b4fcfe3c7cf1c1f",
        "walks, node2vec": "ac3e92a45cf457a5",
        "PPR": "8d20f9ba4af5871d",
        "custom": "6d44cf58b2c11a60",
        "links": "c09e7ca776ff19a5",
        "links, binary negatives": "237fd93f83997781",
        "links, triplets": "b0f66d90079dd8c9",
        "labels": "cb5bbd35a7010b74",
        "seeds of several types": "673a3c89033801cd",
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
    ends = np.stack(
        [edge * factor % SPREAD * 48_271 % SPREAD % NODES for factor in (742_938_285, 950_706_376)]
    )
    return Data(
        num_nodes=NODES,
        edge_index=torch.from_numpy(ends),
        weight=torch.from_numpy(edge * 16_807 % SPREAD % 9 / 8.0),
        when=torch.from_numpy(edge * 39_373 % SPREAD % 1_000),
    )


DATASET = DistDataset.from_pyg(_graph(), num_partitions=2, weight_attr="weight", time_attr={EDGE: "when"})
TIMES = torch.arange(NODES) * 5
HALVED = CustomSamplerOptions("tests.support.user_samplers:Halved", fanout=4)


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


def _types() -> str:
    """Draws around seeds of two node types."""
    data, plain = HeteroData(), _graph()
    data["a"].num_nodes = data["b"].num_nodes = NODES
    data["a", "to", "b"].edge_index = plain.edge_index
    data["b", "to", "a"].edge_index = plain.edge_index.flip(1)
    seeds = {"a": torch.arange(0, 40), "b": torch.arange(20, 90, 3)}
    options = {**OPTIONS, "shuffle": True, "disjoint": True}
    with DistNeighborLoader(DistDataset.from_pyg(data, num_partitions=2), [3, 2], seeds, **options) as loader:
        found = [
            batch[kind][name]
            for _ in range(2)
            for batch in loader
            for kind in seeds
            for name in ("n_id", "batch", "input_id")
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
    "monotone, in a window of time": _nodes(
        (4, 3, 3), time_attr="when", input_time=TIMES, temporal_strategy="monotone", time_window=400
    ),
    "strictly earlier, monotone": _nodes(
        (4, 3, 3),
        time_attr="when",
        input_time=TIMES,
        temporal_strategy="monotone",
        temporal_comparison="<",
        weight_attr="weight",
    ),
    "disjoint": _nodes(disjoint=True),
    "LABOR": _nodes(sampler_options=LaborSamplerOptions()),
    "LABOR, dependent batches": _nodes(sampler_options=LaborSamplerOptions(batch_dependency=3)),
    "induced": _nodes((3,), subgraph_type="induced"),
    "walks": _walks(),
    "walks, node2vec": _walks(p=0.5, q=2.0),
    "PPR": _nodes(None, sampler_options=PPRSamplerOptions(), with_edge=False),
    "custom": _nodes(None, sampler_options=HALVED),
    "links": _links(),
    "links, binary negatives": _links(neg_sampling=NegativeSampling("binary", 2)),
    "links, triplets": _links(neg_sampling=NegativeSampling("triplet", 2)),
    "labels": _labels,
    "seeds of several types": _types,
    "splits": _splits,
}


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_those_of_their_specification(kind: str) -> None:
    assert KINDS[kind]() == GOLDEN[draws.DRAW_SPECIFICATION][kind], (
        f"draws ({kind}) differ from those of draw specification {draws.DRAW_SPECIFICATION}: raise it"
    )


@pytest.mark.parametrize("kind", GOLDEN[1])
def test_without_places_draws_are_those_of_specification_1(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the key of a batch distinguishes the two."""
    monkeypatch.setattr(BatchRequest, "key", key_without_places)
    assert KINDS[kind]() == GOLDEN[1][kind]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32), st.integers(1, 2), st.data())
def test_the_key_of_a_batch_is_that_of_the_written_rules(
    run_seed: int, epoch: int, columns: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, 8))
    numbers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count)
    places, *ids = (data.draw(numbers) for _ in range(1 + columns))
    request = BatchRequest(epoch, 3, np.array(places, np.int64), {})
    key = request.key(run_seed, *(np.array(each, np.int64) for each in ids))
    assert key == oracle.request_key(run_seed, epoch, places, *ids)


COPIES = 10


def _copies(loader: Any, fanout: Any, entries: torch.Tensor, **options: Any) -> Callable[[], Any]:
    """Return a function that makes a loader: each of its batches has the same entries."""
    repeated = torch.cat([entries] * COPIES, dim=-1)
    given = {**OPTIONS, "batch_size": entries.shape[-1], **options}
    return lambda: loader(DATASET, fanout, repeated, **given)


FEW, LINK = torch.arange(8), torch.tensor([[3], [5]])
REPEATED: Mapping[str, Callable[[], Any]] = {
    "uniform": _copies(DistNeighborLoader, [3], FEW),
    "one seed": _copies(DistNeighborLoader, [3], FEW[:1]),
    "with replacement": _copies(DistNeighborLoader, [3], FEW, replace=True),
    "by weight": _copies(DistNeighborLoader, [3], FEW, weight_attr="weight"),
    "in time": _copies(
        DistNeighborLoader, [3], FEW, time_attr="when", input_time=torch.full((8 * COPIES,), 900)
    ),
    "disjoint": _copies(DistNeighborLoader, [3], FEW, disjoint=True),
    "LABOR": _copies(DistNeighborLoader, [3], FEW, sampler_options=LaborSamplerOptions()),
    "walks": _copies(DistNeighborLoader, None, FEW, sampler_options=RandomWalkSamplerOptions(3)),
    "custom": _copies(DistNeighborLoader, None, FEW, sampler_options=HALVED),
    "links": _copies(DistLinkNeighborLoader, [3], LINK),
    "negatives": _copies(DistLinkNeighborLoader, [0], LINK, neg_sampling=NegativeSampling("triplet", 4)),
    "labels": _copies(DistABLPLoader, [0], FEW, supervision_edge_type=EDGE, max_labels_per_anchor=2),
    "random negatives": _copies(DistABLPLoader, [0], FEW, supervision_edge_type=EDGE, num_random_negatives=4),
}


@pytest.mark.parametrize("kind", REPEATED)
def test_equal_entries_draw_independently_in_each_batch_of_an_epoch(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcomes() -> set[str]:
        names = ("n_id", "edge_index", "walks")
        with REPEATED[kind]() as loader:
            return {_digest(*(batch[name].flatten() for name in names if name in batch)) for batch in loader}

    assert len(outcomes()) == COPIES
    monkeypatch.setattr(BatchRequest, "key", key_without_places)
    assert len(outcomes()) == 1


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
        ValueError, match=r"state is of draw specification 2, and this version .* has 99"
    ) as told:
        loader.load_state_dict(state)
    assert "\n" not in str(told.value)
    monkeypatch.undo()
    del state["draws"]  # Written before states told it.
    with pytest.raises(ValueError, match=r"state is of draw specification 1, and this version .* has 2"):
        check_same_run(state, state["made_with"])
