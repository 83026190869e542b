"""GraphSAGE (Hamilton, Ying, Leskovec 2017) from PyG's parts, for batches of the loader as they come.

A batch holds its nodes and edges hop by hop, seeds first, so each layer computes only what the layers
after it will read: its targets are the nodes of all hops but the outermost that is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from gigl_loader.demo.choices import Recipe
from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType


def sage(schema: GraphSchema, recipe: Recipe, *, target: NodeType, out: int) -> nn.Module:
    """Return an untrained GraphSAGE that fits the graph, one layer per hop: batch to ``[seeds, out]``."""
    dims = {node_type: nodes.columns["x"].shape[0] for node_type, nodes in schema.nodes.items()}
    hops = len(recipe.fanout)
    if schema.homogeneous:
        return HomogeneousSAGE(dim=dims[target], hidden=recipe.hidden, out=out, hops=hops)
    return HeteroSAGE(
        dims=dims, edge_types=schema.edges, target=target, hidden=recipe.hidden, out=out, hops=hops
    )


class HomogeneousSAGE(nn.Module):
    """One convolution per hop. Maps a ``Data`` batch to an output for each seed: ``[seeds, out]``."""

    def __init__(self, *, dim: int, hidden: int, out: int, hops: int) -> None:
        super().__init__()
        widths = [dim, *[hidden] * (hops - 1), out]
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
    """One layer per hop. Maps a ``HeteroData`` batch to an output for each seed: ``[seeds, out]``."""

    def __init__(
        self,
        *,
        dims: Mapping[NodeType, int],
        edge_types: Iterable[EdgeType],
        target: NodeType,
        hidden: int,
        out: int,
        hops: int,
    ) -> None:
        super().__init__()
        self.target = target
        self.edge_types = list(edge_types)
        self.embed = nn.ModuleDict({node_type: nn.Linear(dim, hidden) for node_type, dim in dims.items()})
        self.layers = nn.ModuleList(_HeteroLayer(dims, self.edge_types, hidden) for _ in range(hops))
        self.head = nn.Linear(hidden, out)

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
        out: Tensor = self.head(x[self.target])
        return out


class LinkScorer(nn.Module):
    """Scores of destinations for sources, float [M, A]: a dot product of two views, and a bias.

    The views of a node as source and as destination differ, since edges have a direction. The bias tells how
    often a node is a destination.
    """

    def __init__(self, encoder: nn.Module, width: int) -> None:
        """``encoder`` maps a batch to ``[seeds, width]``."""
        super().__init__()
        self.encoder = encoder
        self.source, self.destination = nn.Linear(width, width), nn.Linear(width, width)
        self.bias = nn.Linear(width, 1)

    def forward(self, batch: Any, source: Tensor, destinations: Tensor) -> Tensor:
        """Score seeds by their place in the batch: ``source`` int64 [M], ``destinations`` int64 [M, A]."""
        seeds = self.encoder(batch)
        asking = self.source(seeds)[source] / math.sqrt(seeds.shape[1])
        matches = torch.einsum("mw,maw->ma", asking, self.destination(seeds)[destinations])
        scores: Tensor = matches + self.bias(seeds)[destinations].squeeze(-1)
        return scores


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
