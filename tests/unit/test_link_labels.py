"""Labels of links, against PyG, and beside columns of edges of the same names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.loader import LinkLoader
from torch_geometric.sampler import SamplerOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample

from gigl_loader import DistDataset, DistLinkNeighborLoader
from gigl_loader.topology import Topology
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


def _of_pyg(label: torch.Tensor, places: torch.Tensor, negatives: dict[str, Any]) -> torch.Tensor:
    """Return the labels that PyG's loader has for these links and their negatives."""
    loader = LinkLoader(
        DATA, _SeedsAlone(), edge_label_index=DATA.edge_index, edge_label=label, neg_sampling=negatives
    )
    labels: torch.Tensor = loader(places).edge_label
    return labels


_PLACES = torch.arange(2400)
LABELS = {
    "0, 1": _PLACES % 2,
    "1": torch.ones(2400, dtype=torch.int64),
    "1 to 5": _PLACES % 5 + 1,
    "-1, 0, 1": _PLACES % 3 - 1,
    "0 of the last link alone": (_PLACES < 2399).long(),
    "a matrix with a 0": (_PLACES > 0).long()[:, None].expand(2400, 3) * torch.tensor([1, 2, 3]),
    "a matrix without": _PLACES[:, None] + torch.tensor([1, 2]),
    "floats from 0": _PLACES / 2400,
    "floats above 0": 0.5 + _PLACES / 2400,
    "NaN": torch.full((2400,), torch.nan),
    "all True": torch.ones(2400, dtype=torch.bool),
    "all False": torch.zeros(2400, dtype=torch.bool),
}


@pytest.mark.parametrize("name", LABELS)
def test_one_is_added_to_labels_beside_negatives_where_pyg_adds_it(name: str) -> None:
    label, negatives = LABELS[name], {"mode": "binary"}
    batch = _first(DATASET, edge_label=label, neg_sampling=negatives)
    expected = _of_pyg(label, batch.input_id, negatives)
    assert batch.edge_label.dtype == expected.dtype
    assert torch.equal(batch.edge_label.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(_first(DATASET, edge_label=label).edge_label.nan_to_num(7), label[:64].nan_to_num(7))


@pytest.mark.parametrize("amount", [1, 1.5])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64])
def test_labels_beside_negatives_are_those_of_pyg(dtype: torch.dtype, amount: float) -> None:
    label = (torch.arange(2400) % 2).to(dtype)
    negatives = {"mode": "binary", "amount": amount}
    batch = _first(DATASET, edge_label=label, neg_sampling=negatives)
    expected = _of_pyg(label, batch.input_id, negatives)
    assert batch.edge_label.dtype == expected.dtype
    assert torch.equal(batch.edge_label, expected)


def test_the_smallest_label_is_that_of_the_whole_input_on_every_rank() -> None:
    """Link 0 alone has the label 0. It is in the share of rank 0."""
    label = (torch.arange(2400) > 0).long()
    options: dict[str, Any] = {"edge_label": label, "neg_sampling": "binary", "num_workers": 0, "seed": 4}
    with DistLinkNeighborLoader(DATASET, [1], batch_size=600, **options) as loader:
        loader.reshard(Topology(rank=1, world_size=2))
        batches = [*loader, loader.collate_fn([5, 6])]
        alone = loader.sample(DATA.edge_index[:, :3])
    assert [len(batch.input_id) for batch in batches] == [600, 600, 2]
    for batch in batches:
        assert batch.edge_label.tolist() == [2] * len(batch.input_id) + [0] * len(batch.input_id)
    assert alone.edge_label.tolist() == [1] * 3 + [0] * 3


def test_labels_that_1_would_turn_into_that_of_negatives_are_refused() -> None:
    label = torch.arange(2400).to(torch.uint8)
    with pytest.raises(ValueError, match=r"255 is the largest of torch\.uint8: pass a wider dtype"):
        _first(DATASET, edge_label=label, neg_sampling="binary")
    assert _first(DATASET, edge_label=label.clamp(1), neg_sampling="binary").edge_label.max() == 63


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
