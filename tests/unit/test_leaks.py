"""Targets of a batch the other way round: reverses by declaration and by name, and warnings of all others."""

from __future__ import annotations

import logging
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

from gigl_loader import DistABLPLoader, DistDataset, DistLinkNeighborLoader
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.reverses import reverses_of
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, EdgeSplits, held_out_list
from gigl_loader.options import EdgeType
from gigl_loader.partition import ArrayTable, GraphTables, build_graph
from gigl_loader.sampling.khop import reverse_types

BUYS, REV_BUYS, SOLD_TO = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("item", "sold_to", "user")
FOLLOWS = ("user", "follows", "user")
NUM_USERS, NUM_ITEMS = 60, 40
_RANDOM = torch.Generator().manual_seed(0)
LINKS = torch.stack(
    [
        torch.randint(0, NUM_USERS, (300,), generator=_RANDOM),
        torch.randint(0, NUM_ITEMS, (300,), generator=_RANDOM),
    ]
)


def shop(reverse: EdgeType | None) -> HeteroData:
    """Users who buy items, the same edges the other way round, and users who follow others."""
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = NUM_USERS, NUM_ITEMS
    data[BUYS].edge_index = LINKS
    if reverse is not None:
        data[reverse].edge_index = LINKS.flip(0)
    users = torch.arange(NUM_USERS)
    data[FOLLOWS].edge_index = torch.stack([users, (users + 1) % NUM_USERS])
    return data


def visible(batch: Any, types: list[EdgeType], links: torch.Tensor, *, edge_dir: str = "in") -> int:
    """Return how many of ``links``, user to item, are among the edges of these types, either way."""
    users, items = batch["user"].n_id, batch["item"].n_id
    seen: set[tuple[int, int]] = set()
    for kind in types:
        of_graph = kind if edge_dir == "in" else {BUYS: REV_BUYS, REV_BUYS: BUYS}[kind]
        rows = batch[of_graph].edge_index
        source, target = (rows[0], rows[1]) if of_graph[0] == "user" else (rows[1], rows[0])
        seen |= set(zip(users[source].tolist(), items[target].tolist(), strict=True))
    return len(seen & set(zip(*links.tolist(), strict=True)))


def link_batch(dataset: DistDataset, links: Any = None, **options: Any) -> Any:
    given = (BUYS, LINKS[:, :100]) if links is None else links
    with DistLinkNeighborLoader(
        dataset, [-1, -1], given, batch_size=100, num_workers=0, seed=1, **options
    ) as loader:
        return next(iter(loader))


# One rule


def test_reverses_are_the_declared_one_and_those_by_name() -> None:
    edges = [BUYS, REV_BUYS, SOLD_TO, FOLLOWS]
    assert reverses_of(BUYS, edges, {}) == (REV_BUYS,)
    assert reverses_of(REV_BUYS, edges, {}) == (BUYS,)
    assert reverses_of(BUYS, edges, {BUYS: SOLD_TO}) == (SOLD_TO, REV_BUYS)
    assert reverses_of(BUYS, [BUYS, FOLLOWS], {}) == ()
    assert reverses_of(FOLLOWS, edges, {FOLLOWS: FOLLOWS}) == (FOLLOWS,)
    wants = ("user", "wants", "item")  # Of links and label sets, the type need not be one of the graph.
    assert reverses_of(wants, [("item", "rev_wants", "user")], {}) == (("item", "rev_wants", "user"),)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_partitions", [1, 3])
@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
def test_links_are_not_visible_through_a_type_named_rev(
    edge_dir: Literal["in", "out"], num_partitions: int, negatives: str | None
) -> None:
    data = ToUndirected()(shop(None))
    dataset = DistDataset.from_pyg(data, edge_dir=edge_dir, num_partitions=num_partitions)
    options = {"neg_sampling": negatives}
    plain = link_batch(dataset, **options)
    assert visible(plain, [REV_BUYS], LINKS[:, :100], edge_dir=edge_dir) > 90
    batch = link_batch(dataset, exclude_targets=True, **options)
    assert visible(batch, [BUYS, REV_BUYS], LINKS[:, :100], edge_dir=edge_dir) == 0
    assert torch.equal(batch["user"].n_id, plain["user"].n_id)
    turned = link_batch(dataset, (REV_BUYS, LINKS[:, :100].flip(0)), exclude_targets=True, **options)
    assert visible(turned, [BUYS, REV_BUYS], LINKS[:, :100], edge_dir=edge_dir) == 0
    kept = link_batch(dataset, exclude_targets=True, reverse_edge_types={}, **options)
    assert visible(kept, [BUYS], LINKS[:, :100], edge_dir=edge_dir) == 0
    assert visible(kept, [REV_BUYS], LINKS[:, :100], edge_dir=edge_dir) > 90


def test_a_mapping_that_leaves_the_type_of_the_links_out_says_nothing_of_it() -> None:
    dataset = DistDataset.from_pyg(shop(REV_BUYS))
    batch = link_batch(dataset, exclude_targets=True, reverse_edge_types={FOLLOWS: FOLLOWS})
    assert visible(batch, [BUYS, REV_BUYS], LINKS[:, :100]) == 0


def test_declared_reverses_of_pyg_objects_are_in_the_schema_and_excluded() -> None:
    reverses: Any = {("user", "item"): SOLD_TO}
    dataset = DistDataset.from_pyg(shop(SOLD_TO), reverses=reverses)
    assert dataset.schema.reverses == {BUYS: SOLD_TO, SOLD_TO: BUYS}
    batch = link_batch(dataset, exclude_targets=True)
    assert visible(batch, [BUYS, SOLD_TO], LINKS[:, :100]) == 0
    assert reverse_types(dataset.schema) == {BUYS: SOLD_TO, SOLD_TO: BUYS, FOLLOWS: FOLLOWS}
    with DistABLPLoader(
        dataset, [-1], ("user", None), supervision_edge_type=BUYS, batch_size=NUM_USERS, num_workers=0
    ) as loader:
        assert visible(next(iter(loader)), [BUYS, SOLD_TO], LINKS) == 0


def test_a_homogeneous_graph_may_be_its_own_reverse() -> None:
    both = torch.cat([LINKS, LINKS.flip(0)], dim=1)
    data = Data(edge_index=both, num_nodes=NUM_USERS)
    dataset = DistDataset.from_pyg(data, reverses={HOMOGENEOUS_EDGE: HOMOGENEOUS_EDGE})
    assert dataset.schema.edges[HOMOGENEOUS_EDGE].count == both.shape[1]
    batch = link_batch(dataset, LINKS[:, :20], exclude_targets=True)
    seen = set(zip(*batch.n_id[batch.edge_index].tolist(), strict=True))
    assert seen
    assert seen.isdisjoint(zip(*both[:, :20].tolist(), strict=True))
    assert seen.isdisjoint(zip(*LINKS[:, :20].flip(0).tolist(), strict=True))


@pytest.mark.parametrize(
    ("reverses", "error", "message"),
    [
        ({("user", "likes", "item"): SOLD_TO}, ValueError, "reverses: unknown edge type .*likes"),
        ({BUYS: REV_BUYS}, ValueError, "reverses: unknown edge type .*rev_buys"),
        ({BUYS: FOLLOWS}, ValueError, "it must lead from 'item' to 'user'"),
        ({BUYS: SOLD_TO, ("user", "also", "item"): SOLD_TO}, ValueError, "name one of them"),
        ([(BUYS, SOLD_TO)], TypeError, "reverses must map an edge type to the one"),
    ],
)
def test_reverses_that_cannot_be_are_refused(reverses: Any, error: type[Exception], message: str) -> None:
    data = shop(SOLD_TO)
    data["user", "also", "item"].edge_index = LINKS[:, :3]
    with pytest.raises(error, match=message):
        DistDataset.from_pyg(data, reverses=reverses)


def test_anchors_take_an_empty_mapping_for_a_graph_without_reverses() -> None:
    dataset = DistDataset.from_pyg(shop(REV_BUYS))
    options: dict[str, Any] = {"supervision_edge_type": BUYS, "batch_size": NUM_USERS, "num_workers": 0}
    for reverses, seen in ((None, False), ({FOLLOWS: FOLLOWS}, False), ({}, True)):
        with DistABLPLoader(dataset, [-1], ("user", None), reverse_edge_types=reverses, **options) as loader:
            batch = next(iter(loader))
        assert visible(batch, [BUYS], LINKS) == 0
        assert bool(visible(batch, [REV_BUYS], LINKS)) == seen


def test_a_plan_of_anchors_without_reverses_is_written_only_where_it_says_so() -> None:
    dataset = DistDataset.from_pyg(shop(REV_BUYS))
    for reverses, there in ((None, False), ({}, True)):
        with DistABLPLoader(
            dataset,
            [1],
            ("user", None),
            supervision_edge_type=BUYS,
            reverse_edge_types=reverses,
            num_workers=0,
        ) as loader:
            assert ("without_reverses" in loader.plan.sampler.to_json()) == there


# Warnings


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "gigl_loader.loaders.leaks"]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("fanout", [-1, 3])
def test_links_that_stay_the_other_way_round_are_warned_about_once(
    edge_dir: Literal["in", "out"], fanout: int, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = DistDataset.from_pyg(shop(SOLD_TO), edge_dir=edge_dir)
    options: dict[str, Any] = {"batch_size": 50, "num_workers": 0, "seed": 1, "name": "mine"}
    with (
        caplog.at_level(logging.WARNING),
        DistLinkNeighborLoader(dataset, [fanout], (BUYS, LINKS), exclude_targets=True, **options) as loader,
    ):
        for _ in loader:
            pass
        list(loader)
    [message] = warnings_of(caplog)
    assert message.startswith("mine: of 50 targets that were looked at, ")
    assert f"reverse_edge_types={{{BUYS}: {SOLD_TO}}}" in message
    assert (": of 50 targets that were looked at, 50 are" in message) == (fanout == -1)


def test_anchors_warn_as_links_do(caplog: pytest.LogCaptureFixture) -> None:
    dataset = DistDataset.from_pyg(shop(SOLD_TO))
    options: dict[str, Any] = {"supervision_edge_type": BUYS, "batch_size": 20, "num_workers": 0}
    with DistABLPLoader(dataset, [-1], ("user", None), **options) as loader:
        list(loader)
    [message] = warnings_of(caplog)
    assert f"reverse_edge_types={{{BUYS}: {SOLD_TO}}}" in message


def test_links_of_an_undirected_homogeneous_graph_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    data = Data(edge_index=torch.cat([LINKS, LINKS.flip(0)], dim=1), num_nodes=NUM_USERS)
    link_batch(DistDataset.from_pyg(data), LINKS[:, :20], exclude_targets=True)
    [message] = warnings_of(caplog)
    assert f"reverse_edge_types={{{HOMOGENEOUS_EDGE}: {HOMOGENEOUS_EDGE}}}" in message


@pytest.mark.parametrize(
    "options",
    [
        {"exclude_targets": False},
        {"exclude_targets": True, "reverse_edge_types": {}},
        {"exclude_targets": True, "reverse_edge_types": {BUYS: SOLD_TO}},
    ],
)
def test_nothing_is_warned_about_where_the_user_decided(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    link_batch(DistDataset.from_pyg(shop(SOLD_TO)), **options)
    assert not warnings_of(caplog)


def test_a_few_edges_in_both_directions_are_no_reverse(caplog: pytest.LogCaptureFixture) -> None:
    """Papers cite papers, and few pairs cite each other."""
    random = np.random.default_rng(0)
    cites = random.permutation(400 * 399)[:2000]
    source, target = np.divmod(cites, 399)
    target += target >= source
    edges = torch.from_numpy(np.stack([source, target]))
    edges = torch.cat([edges, edges[:, :40].flip(0)], dim=1)
    dataset = DistDataset.from_pyg(Data(edge_index=edges, num_nodes=400))
    link_batch(dataset, edges[:, 36:136], exclude_targets=True)
    assert not warnings_of(caplog)


def test_a_hub_costs_little_and_is_no_evidence(caplog: pytest.LogCaptureFixture) -> None:
    """All links lead to one node, whose list is far longer than what is looked at."""
    count = 3000
    here = torch.arange(1, count)
    edges = torch.stack([torch.cat([here, here * 0]), torch.cat([here * 0, here])])
    dataset = DistDataset.from_pyg(Data(edge_index=edges, num_nodes=count))
    with DistLinkNeighborLoader(
        dataset, [-1], edges[:, : count - 1].flip(0), batch_size=1000, num_workers=0, exclude_targets=True
    ) as loader:
        list(loader)
    [message] = warnings_of(caplog)  # 87 of the 1,000 targets take the 2^18 edges that are looked at.
    assert "of 87 targets that were looked at, 87 are" in message


# Splits


def test_held_out_edges_are_not_among_the_messages_of_the_reverse_type() -> None:
    tables = GraphTables(
        edges={
            BUYS: ArrayTable("buys", {"src": LINKS[0].numpy(), "dst": LINKS[1].numpy()}),
            REV_BUYS: ArrayTable("bought", {"src": LINKS[1].numpy(), "dst": LINKS[0].numpy()}),
        },
        splits={BUYS: EdgeSplits(fractions={"train": 0.6, "val": 0.4})},
        message_edges=("train",),
    )
    dataset = DistDataset(_built(tables))
    schema = dataset.schema
    assert schema.edges[BUYS].count == schema.edges[REV_BUYS].count < LINKS.shape[1]
    held = {held_out_list(kind) for kind in (BUYS, REV_BUYS)}
    assert held == schema.labels.keys()
    batch = link_batch(dataset, (BUYS, "val"))
    links = batch[BUYS].edge_label_index
    pairs = torch.stack([batch["user"].n_id[links[0]], batch["item"].n_id[links[1]]])
    assert visible(batch, [BUYS, REV_BUYS], pairs) == 0


def test_splits_of_a_type_and_its_reverse_that_differ_are_refused() -> None:
    table = {"src": np.array([0]), "dst": np.array([0])}
    splits = {
        BUYS: EdgeSplits(fractions={"train": 0.6, "val": 0.4}),
        REV_BUYS: EdgeSplits(fractions={"train": 0.5, "val": 0.5}),
    }
    tables = GraphTables(edges={kind: ArrayTable("t", table) for kind in splits}, splits=splits)
    with pytest.raises((ValueError, FormatError), match="both have the same splits, these differ"):
        _built(tables)


def _built(tables: GraphTables) -> Graph:
    folder = MemoryFolder()
    build_graph(tables, folder)
    return Graph.open(folder)
