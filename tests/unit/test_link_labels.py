"""Labels of links, against PyG, and beside columns of edges of the same names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.loader import LinkLoader
from torch_geometric.sampler import SamplerOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample

from gigl_loader import DistDataset, DistLinkNeighborLoader
from tests.support.pyg_graphs import heterogeneous, homogeneous

DATA = homogeneous()
DATASET = DistDataset.from_pyg(DATA)
BUYS = ("user", "buys", "item")


def _first(dataset: DistDataset, **options: Any) -> Any:
    with DistLinkNeighborLoader(dataset, [2], batch_size=64, num_workers=0, seed=4, **options) as loader:
        return next(loader)


class _SeedsAlone:
    """PyG's sampling of links, but for the neighbours, which need libraries of its own."""

    edge_permutation = None

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        return edge_sample(index, self._sample, int(DATA.num_nodes or 0), False, None, neg_sampling)

    def _sample(self, seed: torch.Tensor, _: Any) -> SamplerOutput:
        none = torch.empty(0, dtype=torch.int64)
        return SamplerOutput(node=seed, row=none, col=none, edge=none)


@pytest.mark.parametrize("amount", [1, 1.5])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64])
def test_labels_beside_negatives_are_those_of_pyg(dtype: torch.dtype, amount: float) -> None:
    label = (torch.arange(2400) % 2).to(dtype)
    negatives = {"mode": "binary", "amount": amount}
    batch = _first(DATASET, edge_label=label, neg_sampling=negatives)
    theirs = LinkLoader(
        DATA, _SeedsAlone(), edge_label_index=DATA.edge_index, edge_label=label, neg_sampling=negatives
    )
    expected = theirs(batch.input_id).edge_label
    assert batch.edge_label.dtype == expected.dtype
    assert torch.equal(batch.edge_label, expected)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16])
def test_labels_to_which_nothing_can_be_added_are_refused(dtype: torch.dtype) -> None:
    label = torch.ones(2400).to(dtype)
    with pytest.raises(TypeError, match=rf"must be signed integers, uint8, floats or booleans, got {dtype}"):
        _first(DATASET, edge_label=label, neg_sampling="binary")
    assert _first(DATASET, edge_label=label).edge_label.dtype == dtype


@pytest.mark.parametrize("mode", [None, "binary", "triplet"])
@pytest.mark.parametrize("hetero", [False, True])
def test_columns_of_edges_do_not_pass_for_attributes_of_links(mode: str | None, *, hetero: bool) -> None:
    """Objects of ``RandomLinkSplit`` have such columns. PyG's loaders remove the same ones."""
    data = heterogeneous() if hetero else homogeneous()
    store = data[BUYS] if hetero else data
    count = store.edge_index.shape[1]
    store.edge_label, store.edge_label_time = torch.arange(count), torch.arange(count)
    links = BUYS if hetero else None
    batch = _first(DistDataset.from_pyg(data), edge_label_index=links, neg_sampling=mode)
    found = batch[BUYS] if hetero else batch
    assert "edge_label_time" not in found
    if mode is None:
        assert "edge_label" not in found
    elif mode == "binary":
        assert len(found.edge_label) == 2 * len(found.input_id)
    else:  # Triplets have no labels: a column of edges.
        assert torch.equal(found.edge_label, store.edge_label[found.e_id])
