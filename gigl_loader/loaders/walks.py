"""What a batch tells of random walks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gigl_loader.sampling.plans.walks import step_types
from gigl_loader.sampling.walk_sampler import VISITS, WALKS

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.sampling.plans.walks import WalkPlan

__all__ = ["attach_walks"]


def attach_walks(
    batch: Data | HeteroData, tensors: FrameTensors, plan: WalkPlan, schema: GraphSchema
) -> Data | HeteroData:
    """Return ``batch`` with its walks, or with the edges to the nodes that they visit most."""
    if plan.top_k is None:
        batch.walks = tensors.tensor(WALKS).to(torch.int64).reshape(-1, len(plan.path) + 1)
        return batch
    seed, node, share = map(tensors.tensor, VISITS)
    edge_index = torch.stack([node, seed]).to(torch.int64)
    store: Any = batch
    if not schema.homogeneous:
        node_type = step_types(schema, plan.seed_type, plan.path)[plan.period]
        store = batch[node_type, "walk", plan.seed_type]
    store.edge_index, store.edge_attr = edge_index, share
    return batch
