"""PyG's explainers, metrics, transforms and utilities on batches as they come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Batch, Data
from torch_geometric.explain import Explainer, GNNExplainer, fidelity
from torch_geometric.metrics import LinkPredPrecision
from torch_geometric.nn import GraphSAGE, SAGEConv, to_hetero
from torch_geometric.utils import degree, k_hop_subgraph, subgraph, to_networkx, trim_to_layer

from gigl_loader import DistDataset, DistNeighborLoader
from tests.support.pyg_graphs import heterogeneous, homogeneous

DATA = homogeneous()
HETERO = heterogeneous()
HETERO["tag"].x = torch.arange(7.0).unsqueeze(1)
del HETERO["tag", "near", "tag"]  # PyG's explainer takes no type without edges.
MODEL_CONFIG = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}


def _batch(**options: Any) -> Data:
    with DistNeighborLoader(
        DistDataset.from_pyg(DATA), [3, 2], "train", batch_size=20, seed=1, num_workers=0, **options
    ) as loader:
        return next(loader)


def _hetero_batch(**options: Any) -> Any:
    with DistNeighborLoader(
        DistDataset.from_pyg(HETERO), [3, 2], ("item", None), batch_size=20, seed=1, num_workers=0, **options
    ) as loader:
        return next(loader)


def _sage() -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(6, 8, num_layers=2, out_channels=4).eval()


class _Hetero(torch.nn.Module):
    """Output for the items alone, as the explainer wants one tensor."""

    def __init__(self, metadata: Any) -> None:
        super().__init__()
        self.inner = to_hetero(_Convs(), metadata)

    def forward(self, x: Any, edge_index: Any) -> torch.Tensor:
        return self.inner(x, edge_index)["item"]  # type: ignore[no-any-return]


class _Convs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)  # type: ignore[no-any-return]


def _explainer(model: torch.nn.Module) -> Explainer:
    return Explainer(
        model,
        GNNExplainer(epochs=3),
        explanation_type="model",
        node_mask_type="attributes",
        edge_mask_type="object",
        model_config=MODEL_CONFIG,
    )


def test_a_batch_is_explained() -> None:
    batch = _batch()
    explainer = _explainer(_sage())
    explanation = explainer(batch.x, batch.edge_index, index=batch.seed_index[:2])
    assert explanation.node_mask.shape == batch.x.shape
    assert explanation.edge_mask.shape == (batch.num_edges,)
    # Only what lies within two hops of the seeds can matter.
    near = k_hop_subgraph(batch.seed_index[:2], 2, batch.edge_index, num_nodes=batch.num_nodes)[0]
    matters = explanation.node_mask.sum(dim=1).nonzero().view(-1)
    assert len(matters) > 0
    assert set(matters.tolist()) <= set(near.tolist())
    assert all(0 <= value <= 1 for value in fidelity(explainer, explanation))


def test_a_batch_of_several_types_is_explained() -> None:
    batch = _hetero_batch()
    model = _Hetero(batch.metadata())
    model(batch.x_dict, batch.edge_index_dict)  # Makes the lazy weights.
    explanation = _explainer(model.eval())(
        batch.x_dict, batch.edge_index_dict, index=batch["item"].seed_index[:2]
    )
    for node_type in batch.node_types:
        assert explanation[node_type].node_mask.shape == batch[node_type].x.shape


def test_link_metrics_take_seeds() -> None:
    batch = _batch()
    seeds = len(batch.seed_index)
    metric = LinkPredPrecision(k=3)
    top = torch.arange(seeds).unsqueeze(1) + torch.arange(3)
    metric.update(pred_index_mat=top, edge_label_index=torch.arange(seeds).repeat(2, 1))  # Itself alone.
    torch.testing.assert_close(metric.compute(), torch.tensor(1 / 3))


@pytest.mark.parametrize(
    "transform",
    [
        T.ToUndirected(),
        T.NormalizeFeatures(),
        T.AddSelfLoops(),
        T.LocalDegreeProfile(),
        T.AddRandomWalkPE(2),
        T.RemoveDuplicatedEdges(),
        T.Compose([T.NormalizeFeatures(), T.ToUndirected()]),
    ],
    ids=repr,
)
def test_a_transform_of_a_loader_is_that_of_its_batches(transform: Any) -> None:
    transformed, plain = _batch(transform=transform), transform(_batch())
    assert transformed.validate()
    assert transformed.keys() == plain.keys()
    torch.testing.assert_close(transformed.x, plain.x)
    assert torch.equal(transformed.edge_index, plain.edge_index)
    assert torch.equal(transformed.n_id[transformed.seed_index], transformed.batch)


def test_transforms_of_several_types() -> None:
    batch = _hetero_batch(transform=T.Compose([T.NormalizeFeatures(), T.ToUndirected()]))
    assert batch.validate()
    assert ("tag", "rev_has", "item") in batch.edge_types


def test_utilities_take_a_batch() -> None:
    batch = _batch()
    assert batch.validate()
    assert int(degree(batch.edge_index[1], batch.num_nodes).sum()) == batch.num_edges
    among_seeds = subgraph(batch.seed_index, batch.edge_index, num_nodes=batch.num_nodes)[0]
    assert torch.equal(batch.subgraph(batch.seed_index).edge_index, among_seeds)
    assert to_networkx(batch).number_of_nodes() == batch.num_nodes
    assert (batch.num_node_features, batch.num_edge_features) == (6, 3)
    pair = Batch.from_data_list([batch, batch])
    assert torch.equal(pair.n_id[pair.seed_index], batch.batch.repeat(2))


def test_a_model_trims_by_what_was_sampled() -> None:
    batch = _batch()
    model = _sage()
    sampled = {
        "num_sampled_nodes_per_hop": batch.num_sampled_nodes,
        "num_sampled_edges_per_hop": batch.num_sampled_edges,
    }
    trimmed = model(batch.x, batch.edge_index, **sampled)[: batch.batch_size]
    torch.testing.assert_close(trimmed, model(batch.x, batch.edge_index)[: batch.batch_size])
    x, edge_index, _ = trim_to_layer(
        1, batch.num_sampled_nodes, batch.num_sampled_edges, batch.x, batch.edge_index
    )
    assert (len(x), edge_index.shape[1]) == (
        sum(batch.num_sampled_nodes[:-1]),
        batch.num_sampled_edges[0],
    )
