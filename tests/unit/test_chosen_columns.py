"""Columns that a loader was told to carry."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gigl_loader import DistABLPLoader, DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from tests.support.pyg_graphs import heterogeneous, homogeneous, weighted

OPTIONS: dict[str, Any] = {"batch_size": 50, "num_workers": 0, "device": "cpu", "seed": 2}
BUYS = ("user", "buys", "item")


def first(dataset: DistDataset, **options: Any) -> Any:
    nodes = None if dataset.schema.homogeneous else ("item", None)
    with DistNeighborLoader(dataset, [3, 2], nodes, **{**OPTIONS, **options}) as loader:
        return next(iter(loader))


def test_a_list_is_for_every_type_that_has_the_column() -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    whole, some = first(dataset), first(dataset, node_columns=["x"], edge_columns=[])
    for node_type, nodes in dataset.schema.nodes.items():
        assert ("x" in some[node_type]) == ("x" in nodes.columns)
        assert "y" not in some[node_type]
        assert torch.equal(some[node_type].n_id, whole[node_type].n_id)
        if "x" in nodes.columns:
            assert torch.equal(some[node_type].x, whole[node_type].x)
    assert any(edges.columns for edges in dataset.schema.edges.values())
    for edge_type in some.edge_types:
        assert "edge_attr" not in some[edge_type]
        assert torch.equal(some[edge_type].edge_index, whole[edge_type].edge_index)


def test_types_that_a_mapping_leaves_out_keep_all() -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    whole, some = first(dataset), first(dataset, node_columns={"user": []})
    assert "x" in whole["user"]
    assert "x" not in some["user"]
    assert list(some["item"].keys()) == list(whole["item"].keys())


def test_links_and_anchors_have_them_too() -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    options = {**OPTIONS, "node_columns": [], "edge_columns": []}
    with DistLinkNeighborLoader(dataset, [2], **options) as links:
        batch = next(iter(links))
        assert "x" not in batch
        assert batch.edge_label_index.shape == (2, 50)
    edge_type = dataset.edge_types[0]
    with DistABLPLoader(dataset, [2], supervision_edge_type=edge_type, **options) as anchors:
        assert "x" not in next(iter(anchors))


def test_weights_need_no_column_in_the_batch() -> None:
    dataset = DistDataset.from_pyg(weighted(hetero=False), weight_attr="w")
    whole = first(dataset, weight_attr="w")
    some = first(dataset, weight_attr="w", edge_columns=[])
    assert "w" in whole
    assert "w" not in some
    assert torch.equal(some.edge_index, whole.edge_index)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"node_columns": ["z"]}, ValueError, "node_columns: no column 'z'; known: 'x', 'y'"),
        ({"node_columns": "x"}, TypeError, "node_columns must be a list of names, or a mapping"),
        ({"node_columns": [1]}, TypeError, "node_columns must be names, got 1"),
        (
            {"node_columns": {"cat": ["x"]}},
            ValueError,
            "node_columns: unknown type 'cat'; known: 'item', 'tag', 'user'",
        ),
        ({"node_columns": {"user": ["z"]}}, ValueError, "node_columns of 'user': no column 'z'"),
        ({"edge_columns": {BUYS: "w"}}, TypeError, "edge_columns of .* must be a list of names"),
        ({"edge_columns": {("item", "buys", "user"): []}}, ValueError, "edge_columns: unknown edge type"),
    ],
)
def test_what_the_graph_lacks_is_named(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        first(DistDataset.from_pyg(heterogeneous()), **options)
