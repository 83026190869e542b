"""Negatives of links that the user gives: which batches they make, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import CustomSamplerOptions, DistDataset, DistLinkNeighborLoader, NegativeSampling
from tests.support import user_samplers
from tests.support.pyg_graphs import homogeneous, same_batch

OPTIONS: dict[str, Any] = {"num_workers": 0, "seed": 4, "batch_size": 64}
DATASET = DistDataset.from_pyg(homogeneous())


def _batches(**options: Any) -> list[Any]:
    with DistLinkNeighborLoader(DATASET, [2], **{**OPTIONS, **options}) as loader:
        return list(loader)


def test_drawn_negatives_that_are_given_make_the_same_batches() -> None:
    options = {"exclude_targets": True, "disjoint": True}
    drawn = _batches(neg_sampling=NegativeSampling("triplet", 3), **options)
    rows = torch.cat([batch.n_id[batch.dst_neg_index] for batch in drawn])
    for form in (rows, rows.int(), rows.numpy(), rows.tolist()):
        assert all(map(same_batch, _batches(neg_sampling=form, **options), drawn))


def test_given_negatives_follow_their_links_and_are_none_of_other_links() -> None:
    rows = torch.randint(-1, 300, (2400, 2), generator=torch.Generator().manual_seed(1))
    with DistLinkNeighborLoader(DATASET, [2], neg_sampling=rows, shuffle=True, **OPTIONS) as loader:
        for batch in loader:
            local = batch.dst_neg_index
            assert torch.equal(torch.where(local < 0, -1, batch.n_id[local]), rows[batch.input_id])
        assert loader.sample([[1, 2], [3, 4]]).dst_neg_index.tolist() == [[-1, -1]] * 2
        batch = loader([30, 7])
        local = batch.dst_neg_index
        assert torch.equal(torch.where(local < 0, -1, batch.n_id[local]), rows[[30, 7]])
        own = loader.sample([[1, 2], [3, 4]], negatives=[[-1, 7], [8, 7]])
        assert own.n_id[own.dst_neg_index[:, 1]].tolist() == [7, 7]
        with pytest.raises(ValueError, match=r"must be \[2, 2\], .* got \[2, 3\]"):
            loader.sample([[1, 2], [3, 4]], negatives=torch.zeros(2, 3, dtype=torch.int64))
    with (
        DistLinkNeighborLoader(DATASET, [2], neg_sampling="triplet", **OPTIONS) as loader,
        pytest.raises(ValueError, match="negatives have no meaning here"),
    ):
        loader.sample([[1], [2]], negatives=[[3]])


def test_given_negatives_have_the_time_of_their_link_and_late_ones_are_counted() -> None:
    data = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4], [5, 5, 5, 4, 3]]), num_nodes=6)
    data.born = torch.tensor([0, 1, 2, 3, 4, 5])
    dataset = DistDataset.from_pyg(data, time_attr="born")
    options = {"time_attr": "born", "edge_label_time": torch.tensor([1, 2]), **OPTIONS}
    links, rows = torch.tensor([[0, 1], [1, 2]]), torch.tensor([[5, -1, 0], [5, 2, 4]])
    with DistLinkNeighborLoader(dataset, [-1], links, neg_sampling=rows, **options) as loader:
        [batch] = loader
        assert loader.stats()["negatives_too_late"] == 3
    there = batch.dst_neg_index >= 0
    assert batch.batch[batch.dst_neg_index[there]].tolist() == [0, 0, 1, 1, 1]
    assert batch.n_id[batch.edge_index].t().tolist() == [[0, 5], [1, 5], [0, 5], [1, 5], [2, 5]]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (torch.ones(2400, 1), TypeError, "integer node ids, got float32"),
        (torch.zeros(2400, dtype=torch.int64), ValueError, r"must be \[2400, K\], .* got \[2400\]"),
        (torch.zeros(2, 3, dtype=torch.int64), ValueError, r"must be \[2400, K\], .* got \[2, 3\]"),
        (torch.arange(300, 2700)[:, None], ValueError, r"given negatives: 2400 unknown .*300, 301, .*309"),
        (lambda graph, batch: None, ValueError, "must be package.module:Class, got '.*<lambda>'"),
        (CustomSamplerOptions("tests.nowhere:find"), ValueError, "tests.nowhere:find cannot be imported"),
        (user_samplers.Hard, ValueError, "user_samplers:Hard does not take these arguments: missing .*'k'"),
    ],
)
def test_negatives_that_do_not_fit_are_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _batches(neg_sampling=given)


def test_labels_have_no_place_beside_given_negatives() -> None:
    for given in (torch.zeros(2400, 1, dtype=torch.int64), user_samplers.hard):
        with pytest.raises(ValueError, match="edge_label has no meaning with triplets"):
            _batches(neg_sampling=given, edge_label=torch.ones(2400))
