"""GraphSAGE (Hamilton, Ying, Leskovec 2017) from PyG's parts, for batches of the loader as they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gigl_loader.graph.schema import EdgeType, NodeType

__all__ = ["HeteroSAGE", "HomogeneousSAGE"]


class HomogeneousSAGE(nn.Module):
    """One convolution per hop. Maps a ``Data`` batch to the logits of its seeds: ``[seeds, classes]``."""

    def __init__(self, *, dim: int, hidden: int, classes: int, hops: int) -> None:
        super().__init__()
        widths = [dim, *[hidden] * (hops - 1), classes]
        self.convs = nn.ModuleList(SAGEConv(*pair) for pair in pairwise(widths))

    def forward(self, batch: Any) -> Tensor:
        x, edges = batch.x, batch.edge_index
        for hop, conv in enumerate(self.convs):
            # Nodes and edges of the outer hops are of no use to the later layers.
            x, edges, _ = trim_to_layer(hop, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges)
            x = conv(x.relu() if hop else x, edges)
        logits: Tensor = x[: batch.batch_size]
        return logits


class HeteroSAGE(nn.Module):
    """One convolution per hop and edge type. Maps a ``HeteroData`` batch to the logits of its seeds."""

    def __init__(
        self,
        *,
        dims: Mapping[NodeType, int],
        edge_types: Iterable[EdgeType],
        target: NodeType,
        hidden: int,
        classes: int,
        hops: int,
    ) -> None:
        super().__init__()
        self.target = target
        self.embed = nn.ModuleDict({node_type: nn.Linear(dim, hidden) for node_type, dim in dims.items()})
        self.convs = nn.ModuleList(
            HeteroConv({edge_type: SAGEConv(hidden, hidden) for edge_type in edge_types}) for _ in range(hops)
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, batch: Any) -> Tensor:
        x = {node_type: layer(batch[node_type].x) for node_type, layer in self.embed.items()}
        edges = batch.edge_index_dict
        nodes_per_hop = batch.collect("num_sampled_nodes")
        edges_per_hop = batch.collect("num_sampled_edges")
        for hop, conv in enumerate(self.convs):
            x, edges, _ = trim_to_layer(hop, nodes_per_hop, edges_per_hop, x, edges)
            x = {node_type: rows.relu() for node_type, rows in x.items()}
            # A residual: a node type that no edge type leads to keeps what it has.
            x = x | {node_type: x[node_type] + rows for node_type, rows in conv(x, edges).items()}
        logits: Tensor = self.head(x[self.target].relu())[: batch[self.target].batch_size]
        return logits
