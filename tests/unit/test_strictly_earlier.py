"""Strictly earlier: with ``temporal_comparison="<"``, nothing in a tree is as late as its seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader

BUYS, REVERSE = ("user", "buys", "item"), ("item", "rev_buys", "user")
EDGE = ("node", "to", "node")
OPTIONS: dict[str, Any] = {"num_workers": 0, "device": "cpu", "seed": 9}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_event_at_the_time_of_its_label_is_in_no_tree(num_workers: int) -> None:
    """The shape of RelBench's tasks: rows of a table are events, and labels are made of some of them."""
    random = torch.Generator().manual_seed(3)
    index = torch.stack([torch.randint(0, 20, (400,), generator=random) for _ in range(2)])
    when = torch.randint(0, 12, (400,), generator=random)  # Days: many events share one.
    data = HeteroData()
    data["user"].num_nodes = data["item"].num_nodes = 20
    data[BUYS].edge_index, data[BUYS].t = index, when
    data[REVERSE].edge_index, data[REVERSE].t = index.flip(0), when
    dataset = DistDataset.from_pyg(data, time_attr="t", num_partitions=2)
    options = {**OPTIONS, "num_workers": num_workers, "time_attr": "t", "batch_size": 100}
    seen = {}
    for comparison in ("<=", "<"):
        with DistLinkNeighborLoader(
            dataset,
            [-1, -1],
            (BUYS, index),
            edge_label_time=when,
            temporal_comparison=comparison,
            neg_sampling="binary",
            **options,
        ) as loader:
            seen[comparison] = 0
            for batch in loader:
                of_trees = batch[BUYS].seed_time
                assert of_trees.tolist() == when[batch[BUYS].input_id].tolist(), "the time that was given"
                for kind in (BUYS, REVERSE):
                    bounds = of_trees[batch[kind[2]].batch[batch[kind].edge_index[1]]]
                    seen[comparison] += int((batch[kind].t >= bounds).sum())
                    assert (batch[kind].t <= bounds).all()
    assert seen["<="] > 400, "the label itself, for each of them"
    assert not seen["<"]


def test_a_seed_is_in_its_own_tree_whatever_the_comparison() -> None:
    # Paper 2 cites 0, 1 and itself, and 1 is as old as it is.
    data = Data(edge_index=torch.tensor([[0, 1, 2], [2, 2, 2]]), born=torch.tensor([3, 5, 5]), num_nodes=3)
    dataset = DistDataset.from_pyg(data, time_attr="born")
    found = {}
    for comparison in ("<=", "<"):
        with DistNeighborLoader(
            dataset, [-1], torch.tensor([2]), time_attr="born", temporal_comparison=comparison, **OPTIONS
        ) as loader:
            [batch] = loader
            assert batch.seed_time.tolist() == [5]
            found[comparison] = batch.n_id.tolist()
            with dataset.sampler([-1], time_attr="born", temporal_comparison=comparison, seed=9) as sampler:
                assert sampler.sample(torch.tensor([2])).n_id.tolist() == found[comparison]
    assert found == {"<=": [2, 0, 1], "<": [2, 0]}


def test_strictly_earlier_times_fall_along_a_monotone_path() -> None:
    # 0 <- 1 at 5; 1 <- 2 at 5 and 1 <- 3 at 4, of which only the latter is earlier than the first step.
    data = Data(edge_index=torch.tensor([[1, 2, 3], [0, 1, 1]]), t=torch.tensor([5, 5, 4]), num_nodes=4)
    dataset = DistDataset.from_pyg(data, time_attr={EDGE: "t"}, num_partitions=2)
    options: dict[str, Any] = {**OPTIONS, "time_attr": "t", "temporal_strategy": "monotone"}
    found = {}
    for comparison, time in (("<=", 5), ("<", 5), ("<", 6)):
        with DistNeighborLoader(
            dataset,
            [-1, -1],
            torch.tensor([0]),
            input_time=torch.tensor([time]),
            **{**options, "temporal_comparison": comparison},
        ) as loader:
            found[comparison, time] = next(iter(loader)).e_id.tolist()
    assert found == {("<=", 5): [0, 2, 1], ("<", 5): [], ("<", 6): [0, 2]}


def test_the_start_of_a_window_belongs_to_it_and_its_end_does_not() -> None:
    when = torch.arange(20)
    data = Data(edge_index=torch.stack([when, torch.zeros_like(when)]), t=when, num_nodes=20)
    dataset = DistDataset.from_pyg(data, time_attr={EDGE: "t"})
    options = {**OPTIONS, "time_attr": "t", "with_edge": True, "temporal_comparison": "<"}
    for window, expected in (
        ({"time_window": 3, "input_time": torch.tensor([10])}, [7, 8, 9]),
        ({"time_window": (4, 8), "input_time": torch.tensor([10])}, [4, 5, 6, 7]),
        ({"time_window": (4, 8), "input_time": torch.tensor([6])}, [4, 5]),
        ({"time_window": (4, 8)}, [4, 5, 6, 7]),
        ({"input_time_start": torch.tensor([8]), "input_time": torch.tensor([10])}, [8, 9]),
        ({"input_time_start": torch.tensor([8]), "input_time": torch.tensor([8])}, []),
    ):
        with DistNeighborLoader(dataset, [-1], torch.tensor([0]), **window, **options) as loader:
            assert sorted(next(iter(loader)).e_id.tolist()) == expected


def test_given_negatives_at_the_time_of_their_link_are_counted_as_too_late() -> None:
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 2, 40
    data["item"].born = torch.arange(40)
    data[BUYS].edge_index = torch.tensor([[0, 1], [0, 1]])
    dataset = DistDataset.from_pyg(data, time_attr="born")
    options: dict[str, Any] = {**OPTIONS, "time_attr": "born", "batch_size": 2}
    for comparison, late in (("<=", 1), ("<", 3)):
        with DistLinkNeighborLoader(
            dataset,
            [0],
            BUYS,
            edge_label_time=torch.tensor([10, 20]),
            neg_sampling=torch.tensor([[10, 9], [20, 21]]),
            **{**options, "temporal_comparison": comparison},
        ) as loader:
            list(loader)
            assert loader.stats()["negatives_too_late"] == late
