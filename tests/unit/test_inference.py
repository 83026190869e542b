"""Inference over all nodes gives what the model gives on the whole graph, by every kind of dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, inference
from gigl_loader.graph import HOMOGENEOUS_EDGE
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import heterogeneous, homogeneous

OPTIONS: dict[str, Any] = {"batch_size": 37, "num_workers": 0}
MODELS: dict[str, Any] = {
    "sage": lambda: GraphSAGE(6, 8, 3, out_channels=4, norm="batch", dropout=0.5),
    "one layer": lambda: GraphSAGE(6, 8, 1),
    "gat": lambda: GAT(6, 8, 2, out_channels=4, v2=True),
    "gin, activation first": lambda: GIN(6, 8, 2, act_first=True, norm="batch"),
    "gcn, by degrees": lambda: GCN(6, 8, 2, out_channels=4),
    "gcn, one layer": lambda: GCN(6, 8, 1),
    "jk": lambda: GraphSAGE(6, 8, 2, out_channels=4, jk="last"),
}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]().eval()


@pytest.mark.parametrize("name", MODELS)
def test_it_gives_what_the_model_gives_on_the_whole_graph(name: str) -> None:
    data = homogeneous()
    model = model_of(name)
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
    found = inference(model, DistDataset.from_pyg(data), **OPTIONS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not found.requires_grad


def test_every_dataset_gives_the_same(tmp_path: Path) -> None:
    data = homogeneous()
    build_graph(tables_from_pyg(data), tmp_path / "graph", num_partitions=2, assigner="hash")
    model = model_of("sage")
    expected = inference(model, DistDataset.from_pyg(data), **OPTIONS)
    found = inference(model, DistDataset.open(tmp_path / "graph"), batch_size=37, num_workers=1)
    assert torch.equal(found, expected)
    with (
        servers_of(tmp_path / "graph", 2) as servers,
        RemoteDistDataset.connect(addresses_of(servers), timeout=20) as there,
    ):
        assert torch.equal(inference(model, there, **OPTIONS), expected)


def test_rows_come_by_ascending_node_id_whatever_the_ids(tmp_path: Path) -> None:
    data = homogeneous()
    ids = np.random.default_rng(0).permutation(10_000)[: data.num_nodes]
    ends = ids[data.edge_index.numpy()]
    nodes = NodeTable(ArrayTable("nodes", {"id": ids, "x": data.x.numpy()}))
    edges = {HOMOGENEOUS_EDGE: ArrayTable("edges", {"src": ends[0], "dst": ends[1]})}
    build_graph(GraphTables(edges=edges, nodes={"node": nodes}), tmp_path / "g", num_partitions=2)
    model = model_of("sage")
    with torch.no_grad():
        expected = model(data.x, data.edge_index)[np.argsort(ids)]
    found = inference(model, DistDataset.open(tmp_path / "g"), **OPTIONS)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_progress_bar_comes_when_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    inference(model_of("sage"), dataset, **OPTIONS)
    assert capfd.readouterr().err == ""
    inference(model_of("sage"), dataset, progress_bar=True, **OPTIONS)
    assert "27/27" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (torch.nn.Linear(6, 4), homogeneous(), r"a model of torch_geometric.nn.models, not a Linear"),
        (GraphSAGE(6, 8, 2), homogeneous(), r"call model\.eval\(\) first"),
        (GCN(6, 8, 2, jk="cat").eval(), homogeneous(), "cannot compute jk='cat'"),
        (GCN(6, 8, 2, cached=True).eval(), homogeneous(), "with cached=True"),
        (GraphSAGE(6, 8, 2).eval(), heterogeneous(), "needs a homogeneous graph"),
    ],
)
def test_what_it_cannot_compute_is_refused(model: Any, data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inference(model, DistDataset.from_pyg(data), **OPTIONS)


def test_nodes_need_features() -> None:
    data = homogeneous()
    del data.x
    with pytest.raises(ValueError, match="needs nodes with a column 'x'"):
        inference(model_of("sage"), DistDataset.from_pyg(data), **OPTIONS)


@pytest.mark.parametrize("option", ["shuffle", "drop_last", "sharding", "in_order", "transform"])
def test_options_on_which_rows_depend_are_refused(option: str) -> None:
    options: dict[str, Any] = {option: True}
    with pytest.raises(TypeError, match=f"inference\\(\\) has no argument '{option}'"):
        inference(model_of("sage"), DistDataset.from_pyg(homogeneous()), **options)
