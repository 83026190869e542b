"""PyG models on batches as they come. With all neighbours, seeds get exactly what the full graph gives."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.sampling.khop import reversed_edge_types
from tests.support.pyg_graphs import heterogeneous, homogeneous

DATA = homogeneous()
HETERO = heterogeneous()
LAYERS = 2


class _Sage(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(6, 8), SAGEConv(8, 4)]).double()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, sampled: Any = None) -> torch.Tensor:
        for layer, conv in enumerate(self.convs):
            if sampled is not None:
                x, edge_index, _ = trim_to_layer(layer, *sampled, x, edge_index)
            x = conv(x, edge_index).tanh()
        return x


class _HeteroSage(torch.nn.Module):
    def __init__(self, edge_types: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            HeteroConv({edge_type: SAGEConv((-1, -1), 5) for edge_type in edge_types}) for _ in range(LAYERS)
        )

    def forward(self, x: Any, edge_index: Any, sampled: Any = None) -> Any:
        for layer, conv in enumerate(self.convs):
            if sampled is not None:
                x, edge_index, _ = trim_to_layer(layer, *sampled, x, edge_index)
            x = {kind: value.tanh() for kind, value in conv(x, edge_index).items()}
        return x


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_sage_with_all_neighbours_equals_the_full_graph(
    trim: bool, edge_dir: Literal["in", "out"], num_workers: int
) -> None:
    torch.manual_seed(0)
    model = _Sage()
    x = DATA.x.double()
    edge_index = DATA.edge_index if edge_dir == "in" else DATA.edge_index.flip(0)
    expected = model(x, edge_index)
    dataset = DistDataset.from_pyg(DATA, edge_dir=edge_dir, num_partitions=2)
    seen = 0
    with DistNeighborLoader(
        dataset, [-1] * LAYERS, "train", batch_size=64, num_workers=num_workers
    ) as loader:
        for batch in loader:
            sampled = (batch.num_sampled_nodes, batch.num_sampled_edges) if trim else None
            out = model(batch.x.double(), batch.edge_index, sampled)[: batch.batch_size]
            torch.testing.assert_close(out, expected[batch.batch])
            seen += batch.batch_size
    assert seen == int(DATA.train_mask.sum())


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_hetero_model_with_all_neighbours_equals_the_full_graph(
    trim: bool, edge_dir: Literal["in", "out"]
) -> None:
    full = _with_messages(HETERO, edge_dir)
    torch.manual_seed(0)
    model = _HeteroSage(full.edge_types)
    expected = model(full.x_dict, full.edge_index_dict)
    dataset = DistDataset.from_pyg(_with_features(HETERO), edge_dir=edge_dir)
    # Without bias and self terms a seed could differ and still agree; SAGEConv has both.
    for batch in DistNeighborLoader(dataset, [-1] * LAYERS, ("item", None), batch_size=25, num_workers=0):
        assert set(batch.edge_types) == set(full.edge_types)
        sampled = (batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict) if trim else None
        out = model(batch.x_dict, batch.edge_index_dict, sampled)["item"][: batch["item"].batch_size]
        torch.testing.assert_close(out, expected["item"][batch["item"].batch])


def _with_features(data: HeteroData) -> HeteroData:
    result = data.clone()
    result["tag"].x = torch.arange(7.0).unsqueeze(1)
    return result


def _with_messages(data: HeteroData, edge_dir: str) -> HeteroData:
    """Return the whole graph as batches show it: for out-edges, messages flow to the sources."""
    result = HeteroData()
    names = reversed_edge_types(data.edge_types)
    for node_type, store in _with_features(data).node_items():
        result[node_type].x = store.x
    for edge_type, store in data.edge_items():
        if edge_dir == "in":
            result[edge_type].edge_index = store.edge_index
        else:
            result[names[edge_type]].edge_index = store.edge_index.flip(0)
    return result


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_model_learns_from_batches(num_workers: int) -> None:
    torch.manual_seed(0)
    data = homogeneous()
    data.x = torch.nn.functional.one_hot(data.y, 6).float() + 0.3 * data.x
    model = _Sage().float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    dataset = DistDataset.from_pyg(data)
    with DistNeighborLoader(
        dataset, [5, 5], "train", batch_size=32, shuffle=True, seed=1, num_workers=num_workers
    ) as loader:
        for _ in range(12):
            for batch in loader:
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = torch.nn.functional.cross_entropy(3 * out, batch.y[: batch.batch_size])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4])
