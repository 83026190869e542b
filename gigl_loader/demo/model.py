"""GraphSAGE (Hamilton, Ying, Leskovec 2017) from PyG's parts, for batches of the loader as they come.

A batch holds its nodes and edges hop by hop, seeds first, so each layer computes only what the layers
after it will read: its targets are the nodes of all hops but the outermost that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from gigl_loader.graph.schema import EdgeType, NodeType

__all__ = ["HeteroSAGE", "HomogeneousSAGE"]


class HomogeneousSAGE(nn.Module):
    """One convolution per hop. Maps a ``Data`` batch to the logits of its seeds: ``[seeds, classes]``."""

    def __init__(self, *, dim: int, hidden: int, classes: int, hops: int) -> None:
        super().__init__()
        widths = [dim, *[hidden] * (hops - 1), classes]
        self.convs = nn.ModuleList(SAGEConv(*pair) for pair in pairwise(widths))

    def forward(self, batch: Any) -> Tensor:
        x: Tensor = batch.x
        for layer, conv in enumerate(self.convs):
            hops = len(self.convs) - layer
            targets, edges = sum(batch.num_sampled_nodes[:hops]), sum(batch.num_sampled_edges[:hops])
            if layer:
                x = x.relu()
            x = conv((x, x[:targets]), batch.edge_index[:, :edges])
        return x


class HeteroSAGE(nn.Module):
    """One layer per hop. Maps a ``HeteroData`` batch to the logits of its seeds: ``[seeds, classes]``."""

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
        self.edge_types = list(edge_types)
        self.embed = nn.ModuleDict({node_type: nn.Linear(dim, hidden) for node_type, dim in dims.items()})
        self.layers = nn.ModuleList(_HeteroLayer(dims, self.edge_types, hidden) for _ in range(hops))
        self.head = nn.Linear(hidden, classes)

    def forward(self, batch: Any) -> Tensor:
        x = {node_type: embed(batch[node_type].x).relu() for node_type, embed in self.embed.items()}
        for number, layer in enumerate(self.layers):
            hops = len(self.layers) - number
            targets = {node_type: sum(batch[node_type].num_sampled_nodes[:hops]) for node_type in x}
            edges = [
                batch[kind].edge_index[:, : sum(batch[kind].num_sampled_edges[:hops])]
                for kind in self.edge_types
            ]
            x = layer(x, edges, targets)
        logits: Tensor = self.head(x[self.target])
        return logits


class _HeteroLayer(nn.Module):
    """Adds up what a node says itself and the mean of its neighbours over each edge type."""

    def __init__(self, node_types: Iterable[NodeType], edge_types: list[EdgeType], width: int) -> None:
        super().__init__()
        self.edge_types = edge_types
        self.own = nn.ModuleDict({node_type: nn.Linear(width, width) for node_type in node_types})
        self.convs = nn.ModuleList(SAGEConv(width, width, root_weight=False) for _ in edge_types)

    def forward(
        self, x: Mapping[NodeType, Tensor], edges: list[Tensor], targets: Mapping[NodeType, int]
    ) -> dict[NodeType, Tensor]:
        known = {node_type: rows[: targets[node_type]] for node_type, rows in x.items()}
        out = {node_type: self.own[node_type](rows) for node_type, rows in known.items()}
        for (source, _, destination), conv, edge_index in zip(
            self.edge_types, self.convs, edges, strict=True
        ):
            out[destination] = out[destination] + conv((x[source], known[destination]), edge_index)
        return {node_type: rows.relu() for node_type, rows in out.items()}
