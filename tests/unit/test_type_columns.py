"""Weights and times by type, in every loader and sampler, and what a plan says of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from gigl_loader import (
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubgraphLoader,
    LaborSamplerOptions,
    PPRSamplerOptions,
)
from gigl_loader.graph.type_columns import from_json, read_times, read_weights, to_json
from gigl_loader.pyg import GiglSampler
from gigl_loader.sampling.plans import read_plan
from tests.support.pyg_graphs import same_batch

BUYS, FOLLOWS, SOLD = ("user", "buys", "item"), ("user", "follows", "user"), ("item", "sold_to", "user")
WEIGHTS = {BUYS: "amount", FOLLOWS: "days"}
TIMES = {BUYS: "at", FOLLOWS: "since"}
_USERS, _ITEMS, _EDGES = 30, 20, 300


def shop(*, equal: bool = False) -> HeteroData:
    """Two edge types with weights and times of other names, or of ``equal`` ones; a third has neither."""
    random = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = _USERS, _ITEMS
    data["user"].born = torch.randint(0, 100, (_USERS,), generator=random)
    data["item"].made = torch.randint(0, 100, (_ITEMS,), generator=random)
    for kind, counts in ((BUYS, (_USERS, _ITEMS)), (FOLLOWS, (_USERS, _USERS)), (SOLD, (_ITEMS, _USERS))):
        ends = [torch.randint(0, count, (_EDGES,), generator=random) for count in counts]
        data[kind].edge_index = torch.stack(ends)
    for kind in (BUYS, FOLLOWS):
        weight, time = ("amount", "at") if equal else (WEIGHTS[kind], TIMES[kind])
        data[kind][weight] = torch.rand(_EDGES, generator=random) * (torch.arange(_EDGES) % 2)
        data[kind][time] = torch.randint(0, 100, (_EDGES,), generator=random)
    return data


DATASET = DistDataset.from_pyg(shop(), weight_attr=WEIGHTS, time_attr=TIMES)
EQUAL = DistDataset.from_pyg(shop(equal=True), weight_attr="amount", time_attr="at")
OPTIONS: dict[str, Any] = {"num_workers": 0, "seed": 3, "batch_size": 10}
_PLACES = torch.arange(_USERS)
_LINKS = torch.stack([torch.arange(10), torch.arange(10)])

LOADERS: dict[str, Any] = {
    "nodes": lambda dataset, **how: DistNeighborLoader(dataset, [3, 3], ("user", _PLACES), **how),
    "links": lambda dataset, **how: DistLinkNeighborLoader(
        dataset, [3, 3], (BUYS, _LINKS), neg_sampling="binary", **how
    ),
    "anchors": lambda dataset, **how: DistABLPLoader(
        dataset, [3, 3], ("user", _PLACES), supervision_edge_type=BUYS, **how
    ),
}


def batches(loader: Any) -> list[Any]:
    with loader:
        return list(loader)


@pytest.mark.parametrize("kind", LOADERS)
def test_columns_by_type_draw_as_one_name_draws_where_columns_have_it(kind: str) -> None:
    """The two graphs differ in the names of their columns alone."""
    times = {"links": {"edge_label_time": torch.arange(10) * 9}}.get(kind, {"input_time": _PLACES * 3})
    for here, there in (
        ({"weight_attr": WEIGHTS}, {"weight_attr": "amount"}),
        ({"time_attr": TIMES, **times}, {"time_attr": "at", **times}),
        (
            {"weight_attr": WEIGHTS, "time_attr": TIMES, **times},
            {"weight_attr": "amount", "time_attr": "at", **times},
        ),
    ):
        ours = batches(LOADERS[kind](DATASET, **here, **OPTIONS))
        theirs = batches(LOADERS[kind](EQUAL, **there, **OPTIONS))
        plain = batches(LOADERS[kind](DATASET, disjoint="time_attr" in here, **OPTIONS))
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one[BUYS].edge_index, other[BUYS].edge_index)
            assert torch.equal(one[FOLLOWS].edge_index, other[FOLLOWS].edge_index)
            assert torch.equal(one["user"].n_id, other["user"].n_id)
        assert not all(
            torch.equal(one[kind].edge_index, other[kind].edge_index)
            for one, other in zip(ours, plain, strict=True)
            for kind in (BUYS, FOLLOWS)
        )


def test_a_type_that_a_mapping_leaves_out_draws_uniformly_and_is_not_bound() -> None:
    seeds: Any = ("user", torch.arange(5))
    weighted = batches(DistNeighborLoader(DATASET, [-1], seeds, weight_attr={FOLLOWS: "days"}, **OPTIONS))
    timed = batches(
        DistNeighborLoader(
            DATASET,
            {FOLLOWS: [-1], SOLD: [-1]},
            seeds,
            time_attr={FOLLOWS: "since"},
            input_time=torch.full((5,), 40),
            **OPTIONS,
        )
    )
    [batch] = weighted
    assert (batch[FOLLOWS].days > 0).all()
    [batch] = timed
    assert (batch[FOLLOWS].since <= 40).all()
    whole = batches(DistNeighborLoader(DATASET, {SOLD: [-1]}, seeds, disjoint=True, **OPTIONS))[0]
    assert batch[SOLD].num_edges == whole[SOLD].num_edges > 0


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_times_of_some_edges_and_of_some_nodes_go_together(edge_dir: Any) -> None:
    data = shop()
    named: Any = {FOLLOWS: "since", "item": "made"}
    dataset = DistDataset.from_pyg(data, time_attr=named, edge_dir=edge_dir)
    types = [FOLLOWS, SOLD] if edge_dir == "in" else [FOLLOWS, BUYS]
    with DistNeighborLoader(
        dataset,
        {kind: [-1] for kind in types},
        ("user", _PLACES),
        time_attr=named,
        input_time=torch.full((_USERS,), 50),
        **OPTIONS,
    ) as loader:
        for batch in loader:
            found = [each for each in batch.edge_types if each[1].endswith("follows")]
            assert (batch[found[0]].since <= 50).all()
            assert (batch["item"].made <= 50).all()
            assert len(batch["item"].n_id)


def test_seeds_have_the_time_that_a_mapping_names_of_their_type() -> None:
    named: Any = {"user": "born", "item": "made"}
    dataset = DistDataset.from_pyg(shop(), time_attr=named)
    with DistNeighborLoader(
        dataset, {SOLD: [-1], BUYS: [-1]}, ("user", None), time_attr=named, **OPTIONS
    ) as loader:
        batch = next(iter(loader))
    assert torch.equal(batch["user"].seed_time, batch["user"].born[batch["user"].seed_index])
    assert (batch["item"].made <= batch["user"].seed_time[batch["item"].batch]).all()
    with DistLinkNeighborLoader(
        dataset,
        [2],
        (BUYS, _LINKS),
        edge_label_time=torch.full((10,), 60),
        neg_sampling={"mode": "binary", "amount": 4},
        time_attr=named,
        **OPTIONS,
    ) as links:
        store = next(iter(links))
        src, dst = store[BUYS].edge_label_index[:, 10:]
        assert links.stats()["negatives_too_late"] == 0
    assert (store["user"].born[src] <= 60).all()
    assert (store["item"].made[dst] <= 60).all()


def test_other_samplers_take_columns_by_type() -> None:
    seeds: Any = ("user", torch.arange(5))

    def pages(dataset: DistDataset, names: Any) -> Any:
        options: Any = {"weight_attr": names, "sampler_options": PPRSamplerOptions(), **OPTIONS}
        [batch] = batches(DistNeighborLoader(dataset, None, seeds, **options))
        return batch["user", "ppr", "user"]

    def induced(dataset: DistDataset, names: Any) -> Any:
        [batch] = batches(DistSubgraphLoader(dataset, [4], seeds, weight_attr=names, **OPTIONS))
        return batch[FOLLOWS]

    for sampled in (pages, induced):
        found = [
            sampled(*each).edge_index for each in ((DATASET, WEIGHTS), (EQUAL, "amount"), (DATASET, None))
        ]
        assert torch.equal(found[0], found[1])
        assert not torch.equal(found[0], found[2])
    with pytest.raises(ValueError, match=r"LABOR draws neighbours .*: leave weight_attr out"):
        DistNeighborLoader(
            DATASET, [2], seeds, weight_attr=WEIGHTS, sampler_options=LaborSamplerOptions(), **OPTIONS
        )


def test_samplers_of_calls_and_of_pyg_take_columns_by_type() -> None:
    ids = torch.arange(6)
    time = torch.full((6,), 50)
    options: Any = {"weight_attr": WEIGHTS, "time_attr": TIMES, "seed": 3}
    with DATASET.sampler([3, 3], "user", input_time=True, **options) as sampler:
        ours = sampler.sample(ids, time=time)
    with DistNeighborLoader(
        DATASET, [3, 3], ("user", ids), input_time=time, batch_size=6, num_workers=0, **options
    ) as loader:
        assert same_batch(ours, next(iter(loader)))
    with GiglSampler(DATASET, [3, 3], **options) as of_pyg:
        out = of_pyg.sample_from_nodes(NodeSamplerInput(None, ids, time, "user"))
        assert torch.equal(out.node["user"], ours["user"].n_id)
        links = of_pyg.sample_from_edges(EdgeSamplerInput(None, ids, ids, None, time, BUYS))
    assert links.row[BUYS].numel()


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weight_attr": {BUYS: "days"}},
            "weight_attr 'days' of .*buys.* is not declared as a weight; known: amount. Declare it: "
            "gigl-loader index GRAPH --weight user,buys,item:days",
        ),
        ({"weight_attr": {SOLD: "amount"}}, r"known: none\. .* --weight item,sold_to,user:amount"),
        ({"weight_attr": {("user", "likes", "item"): "amount"}}, "weight_attr: unknown edge type .*likes"),
        ({"weight_attr": {"user": "amount"}}, "weight_attr: unknown type 'user'; known: .*buys"),
        ({"weight_attr": {BUYS: 3}}, "weight_attr '3' of .* is not declared"),
        ({"weight_attr": {BUYS: "amount", ("user", "item"): "amount"}}, "weight_attr names a type twice"),
        ({"time_attr": {"user": "born"}}, "'born' of user is not declared as a time; .* --time user:born"),
        ({"time_attr": {"owner": "born"}}, "time_attr: unknown type 'owner'; known: item, user, .*buys"),
        ({"weight_attr": ["amount"]}, "is not declared as a weight"),
    ],
)
def test_columns_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        DistNeighborLoader(DATASET, [1], ("user", None), input_time=None, **options, **OPTIONS)


def test_a_list_is_bound_by_times_of_its_edges_or_of_its_neighbours() -> None:
    named: Any = {FOLLOWS: "since", "user": "born"}
    dataset = DistDataset.from_pyg(shop(), time_attr=named)
    with pytest.raises(ValueError, match=r"names 'since' of edges .* and 'born' of their neighbours"):
        DistNeighborLoader(dataset, [1], ("user", _PLACES), time_attr=named, input_time=_PLACES, **OPTIONS)


def test_an_empty_mapping_names_nothing() -> None:
    with DistNeighborLoader(DATASET, [2], ("user", None), weight_attr={}, time_attr={}, **OPTIONS) as loader:
        plan = loader.plan.sampler.to_json()
    assert plan.keys().isdisjoint(("weight_attr", "time_attr", "disjoint"))
    with DistABLPLoader(
        DATASET, [2], ("user", None), supervision_edge_type=BUYS, time_attr={}, **OPTIONS
    ) as anchors:
        assert "disjoint" not in anchors.plan.sampler.to_json()


# Plans


def test_a_plan_has_a_plain_name_where_that_says_the_same() -> None:
    """Servers and states of version 0.2.0 know names alone."""
    schema = EQUAL.schema
    assert read_weights(schema, {BUYS: "amount", ("user", "user"): "amount"}) == "amount"
    assert read_times(schema, {BUYS: "at", FOLLOWS: "at"}) == "at"
    assert read_weights(schema, {BUYS: "amount"}) == {BUYS: "amount"}
    assert read_weights(schema, "amount") == "amount"
    assert to_json("amount") == "amount"


@pytest.mark.parametrize("kind", LOADERS)
def test_a_plan_with_columns_by_type_comes_back_from_json(kind: str) -> None:
    times = {"links": {"edge_label_time": torch.arange(10)}}.get(kind, {"input_time": _PLACES})
    turned = dict(reversed(WEIGHTS.items()))
    with LOADERS[kind](DATASET, weight_attr=turned, time_attr=TIMES, **times, **OPTIONS) as loader:
        text = loader.plan.to_json()
    document = json.loads(text)
    assert document["weight_attr"] == [[list(BUYS), "amount"], [list(FOLLOWS), "days"]]
    again = read_plan(text, DATASET.schema)
    assert again.to_json() == text
    assert again.sampler == loader.plan.sampler


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([["user", "x", "y"]], "are a list of pairs of a type and a name"),
        ([[["user", "item"], "amount"]], "are a list of pairs of a type and a name"),
        ([[[1, 2, 3], "amount"]], "are a list of pairs of a type and a name"),
        ([[list(BUYS), "amount"], [list(BUYS), "amount"]], "name a type twice"),
        ([[list(BUYS), ["amount"]]], "is not declared as a weight"),
        ([["item", "amount"]], "unknown type 'item'"),
        ({"a": "b"}, "unknown type 'a'"),
        (7, "'7' is not declared as a weight"),
    ],
)
def test_columns_of_a_plan_from_outside_are_distrusted(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_weights(DATASET.schema, from_json(value))


def test_dates_need_a_unit_that_all_named_times_have() -> None:
    data = shop()
    for kind, name in TIMES.items():
        days = np.asarray(data[kind][name]).astype("datetime64[D]")
        data[kind][name] = days if kind == BUYS else data[kind][name]
    named: Any = TIMES
    dataset = DistDataset.from_pyg(data, time_attr=named)
    day = np.datetime64("1970-02-01")
    dates = np.full(_USERS, day)
    common: Any = {"input_time": dates, **OPTIONS}
    with DistNeighborLoader(dataset, [2], ("user", _PLACES), time_attr={BUYS: "at"}, **common) as loader:
        assert next(iter(loader))["user"].seed_time[0] == day.astype("datetime64[ns]").astype(int)
    with pytest.raises(ValueError, match="input_time is dates, and the column of times has no unit"):
        DistNeighborLoader(dataset, [2], ("user", _PLACES), time_attr=TIMES, **common)
