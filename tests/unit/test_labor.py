"""LABOR-0: chances, fewer nodes for the same fanout, and what does not go with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import (
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    LaborSamplerOptions,
)
from tests.support.pyg_graphs import homogeneous, weighted

PLAIN: dict[str, Any] = {"num_workers": 0, "device": "cpu", "seed": 5}
OPTIONS: dict[str, Any] = {**PLAIN, "sampler_options": LaborSamplerOptions()}


def star(leaves: int, centers: int) -> Data:
    """Return a graph in which every centre has every leaf as an in-neighbour."""
    source, target = torch.arange(leaves).repeat(centers), torch.arange(centers).repeat_interleave(leaves)
    return Data(edge_index=torch.stack([source + centers, target]), num_nodes=leaves + centers)


def test_nodes_of_a_hop_take_the_same_neighbours_and_get_their_fanout_on_average() -> None:
    leaves, centers, epochs = 100, 8, 200
    dataset = DistDataset.from_pyg(star(leaves, centers))
    taken = torch.zeros(leaves)
    with DistNeighborLoader(dataset, [10], torch.arange(centers), batch_size=centers, **OPTIONS) as loader:
        for _ in range(epochs):
            [batch] = loader
            found = batch.n_id[batch.edge_index[0]].reshape(centers, -1)
            assert (found == found[0]).all(), "each centre has the same leaves"
            taken[found[0] - centers] += 1
    assert abs(taken.sum() / epochs - 10) < 5 * (10 / epochs) ** 0.5
    chances = taken / epochs
    assert (chances - 0.1).abs().max() < 5 * (0.1 * 0.9 / epochs) ** 0.5


@pytest.mark.parametrize("dependency", [2, 5, 64])
def test_batches_that_depend_on_each_other_share_neighbours_and_each_has_its_chances(dependency: int) -> None:
    leaves, batches, epochs, chance = 100, 12, 150, 0.1
    dataset = DistDataset.from_pyg(star(leaves, batches))
    options = {**PLAIN, "sampler_options": LaborSamplerOptions(batch_dependency=dependency)}
    taken = torch.zeros(epochs, batches, leaves)
    with DistNeighborLoader(dataset, [10], torch.arange(batches), **options) as loader:
        for epoch in range(epochs):
            for number, batch in enumerate(loader):
                taken[epoch, number, batch.n_id[1:] - batches] = 1
    deviation = (chance * (1 - chance) / epochs) ** 0.5
    assert (taken.mean(0) - chance).abs().max() < 5 * deviation, "in a batch of any number"
    sizes = taken.sum(-1)
    assert abs(sizes.var(0).mean() / (leaves * chance * (1 - chance)) - 1) < 0.2, "leaves are independent"
    for apart in (1, 3, 7):
        both = (taken[:, apart:] * taken[:, :-apart]).sum() / taken[:, apart:].sum()
        kept = max(0, 1 - apart / dependency)
        assert abs(both - (kept + (1 - kept) * chance)) < 0.03


def test_epochs_depend_on_no_other_and_numbers_are_checked() -> None:
    dataset = DistDataset.from_pyg(star(1000, 1))
    options = {**PLAIN, "sampler_options": LaborSamplerOptions(batch_dependency=1 << 30)}
    with DistNeighborLoader(dataset, [100], torch.zeros(3, dtype=torch.int64), **options) as loader:
        first, second = ([batch.n_id.tolist() for batch in loader] for _ in range(2))
    assert first == [first[0]] * 3
    assert len(set(first[0]) & set(second[0])) < 40
    with pytest.raises(ValueError, match="batch_dependency must be at least 1, got 0"):
        LaborSamplerOptions(batch_dependency=0)
    with pytest.raises(TypeError, match="batch_dependency must be a whole number"):
        LaborSamplerOptions(batch_dependency=1.5)  # type: ignore[arg-type]
    too_large = {**PLAIN, "sampler_options": LaborSamplerOptions(batch_dependency=1 << 31)}
    with pytest.raises(ValueError, match=r"batch_dependency must lie in \[1, 2\*\*31\), got 2147483648"):
        DistNeighborLoader(dataset, [3], **too_large)


def test_batches_have_fewer_nodes() -> None:
    random = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 400, (2, 20_000), generator=random)
    dataset = DistDataset.from_pyg(Data(edge_index=edge_index, num_nodes=400))
    counts = []
    for options in (OPTIONS, PLAIN):
        with DistNeighborLoader(dataset, [3], torch.arange(60), batch_size=60, **options) as loader:
            counts.append(sum(batch.num_nodes for _ in range(10) for batch in loader))
    assert counts[0] < 0.9 * counts[1]


def test_short_lists_are_taken_whole() -> None:
    data = homogeneous()
    dataset = DistDataset.from_pyg(data)
    edges = []
    for options in (OPTIONS, PLAIN):
        with DistNeighborLoader(dataset, [10_000, -1], batch_size=300, with_edge=True, **options) as loader:
            edges.append(next(iter(loader)).e_id.tolist())
    assert edges[0] == edges[1]


@pytest.mark.parametrize(
    ("options", "name"),
    [({"replace": True}, "replace"), ({"disjoint": True}, "disjoint"), ({"weight_attr": "w"}, "weight_attr")],
)
def test_what_does_not_go_with_it_is_refused_by_name(options: Any, name: str) -> None:
    dataset = DistDataset.from_pyg(weighted(hetero=False), weight_attr="w")
    for loader in (DistNeighborLoader, DistLinkNeighborLoader):
        with pytest.raises(ValueError, match=f"LABOR .* leave {name} out"):
            loader(dataset, [3], **options, **OPTIONS)


def test_links_and_anchors_take_it_and_no_other_sampler() -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    with DistLinkNeighborLoader(dataset, [3], batch_size=9, **OPTIONS) as links:
        assert next(iter(links)).edge_label_index.shape == (2, 9)
    custom = {**OPTIONS, "sampler_options": CustomSamplerOptions("tests.support.user_samplers:Halved")}
    edge_type = dataset.edge_types[0]
    with pytest.raises(ValueError, match=r"labels of anchors need KHop.*LaborSamplerOptions"):
        DistABLPLoader(dataset, [3], supervision_edge_type=edge_type, **custom)
