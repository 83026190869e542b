"""Seeds around which nothing is drawn are counted, and named in one warning."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    BaseDistLoader,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubgraphLoader,
    PPRSamplerOptions,
)

BUYS = ("user", "buys", "item")
OPTIONS: dict[str, Any] = {"num_workers": 0, "seed": 1, "device": "cpu"}


def _bipartite(edge_dir: Any = "in") -> DistDataset:
    """Users buy items: no edge leads to a user."""
    data = HeteroData()
    data["user"].num_nodes = data["item"].num_nodes = 20
    data[BUYS].edge_index = torch.stack([torch.arange(20), torch.arange(20).flip(0)])
    return DistDataset.from_pyg(data, edge_dir=edge_dir)


def _chain() -> DistDataset:
    """Nodes 0 to 11, of which those from 6 on have an edge that leads to them."""
    return DistDataset.from_pyg(
        Data(num_nodes=12, edge_index=torch.stack([torch.arange(6), torch.arange(6, 12)]))
    )


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return [each for each in found if "no edge leads" in each]


def _counted(loader: BaseDistLoader) -> int:
    return int(loader.stats()["seeds_without_neighbours"])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_seeds_that_no_edge_leads_to_warn_once_and_are_counted(
    num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**OPTIONS, "num_workers": num_workers, "batch_size": 8}
    with _bipartite() as dataset, DistNeighborLoader(dataset, [2, 2], ("user", None), **options) as loader:
        assert _counted(loader) == 0
        batches = iter(loader)
        next(batches)
        [warning] = _warnings(caplog)
        assert "no edge leads to a seed, of 8 so far by the edge types" in warning
        assert "('user', 'buys', 'item')" in warning
        list(batches)
        list(loader)
        assert _counted(loader) == 40
    assert _warnings(caplog) == [warning]


def test_seeds_of_out_edges_are_told_of_their_direction(caplog: pytest.LogCaptureFixture) -> None:
    with _bipartite("out") as dataset, DistNeighborLoader(dataset, [2], ("item", None), **OPTIONS) as loader:
        list(loader)
        assert _counted(loader) == 20
    [warning] = _warnings(caplog)
    assert "no edge leads from a seed, of 4 so far" in warning


@pytest.mark.parametrize(
    ("seeds", "batch_size", "counted", "warned"),
    [
        ([6, *range(6), *range(7, 12)], 4, 0, 0),
        ([6, 7, *range(6), 8, 9], 2, 6, 0),
        (range(6), 4, 6, 1),
        ([0, 1, 2], 1, 3, 1),  # Few, and all there are.
        ([0, 1, 2, 6], 1, 3, 0),
        ([6, 0, 1, 2, 3, 4, 5], 1, 6, 0),
        (range(6, 12), 1, 0, 0),
    ],
)
def test_isolated_nodes_among_others_are_no_mistake(
    seeds: Any, batch_size: int, counted: int, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**OPTIONS, "batch_size": batch_size}
    with _chain() as dataset, DistNeighborLoader(dataset, [2], seeds, **options) as loader:
        list(loader)
        assert _counted(loader) == counted
    assert len(_warnings(caplog)) == warned


def test_links_and_anchors(caplog: pytest.LogCaptureFixture) -> None:
    """Their targets are excluded: no other edge leads to an end."""
    options = {**OPTIONS, "batch_size": 5}
    with _bipartite() as dataset:
        with DistLinkNeighborLoader(dataset, [2], BUYS, **options) as links:
            list(links)
            assert _counted(links) == 0
        assert _warnings(caplog) == []
        with DistLinkNeighborLoader(dataset, [2], BUYS, exclude_targets=True, **options) as links:
            list(links)
            assert _counted(links) == 20
        with DistABLPLoader(dataset, [2], supervision_edge_type=BUYS, **options) as anchors:
            list(anchors)
            assert _counted(anchors) == 20
    assert ["besides excluded targets" in each for each in _warnings(caplog)] == [True, True]


def test_batches_that_ask_for_no_neighbours_have_none_to_miss(caplog: pytest.LogCaptureFixture) -> None:
    kinds: list[BaseDistLoader] = [
        DistNeighborLoader(_chain(), [0], range(6), **OPTIONS),
        DistNeighborLoader(_chain(), None, range(6), sampler_options=PPRSamplerOptions(), **OPTIONS),
        DistSubgraphLoader(_chain(), None, range(6), batch_size=6, **OPTIONS),
    ]
    for loader in kinds:
        with loader:
            list(loader)
            assert _counted(loader) == 0
    assert _warnings(caplog) == []
    with DistSubgraphLoader(_chain(), [2], range(6), batch_size=6, **OPTIONS) as loader:
        list(loader)
        assert _counted(loader) == 6
    assert len(_warnings(caplog)) == 1
