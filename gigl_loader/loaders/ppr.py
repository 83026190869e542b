"""Edges of personalised PageRank in a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gigl_loader.sampling.plans.ppr import reached_types
from gigl_loader.sampling.ppr_sampler import ppr_arrays

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.sampling.plans.ppr import PPRPlan

__all__ = ["attach_ppr"]


def attach_ppr(
    batch: Data | HeteroData, tensors: FrameTensors, plan: PPRPlan, schema: GraphSchema
) -> Data | HeteroData:
    """Return ``batch`` with the edges from each seed to its neighbours, their scores and their hops."""
    del batch.num_sampled_edges  # No hop sampled these edges.
    for node_type in reached_types(schema, plan.seed_type):
        seed, node, score, hop = map(tensors.tensor, ppr_arrays(node_type))
        store: Any = batch if schema.homogeneous else batch[plan.seed_type, "ppr", node_type]
        store.edge_index = torch.stack([seed, node]).to(torch.int64)
        store.edge_attr = torch.stack([score, (1 + hop).to(score.dtype).reciprocal()], dim=1)
    return batch
