"""GraphSAGE (Hamilton, Ying, Leskovec 2017) from PyG's parts, for batches of the loader as they come.

A batch holds its nodes and edges hop by hop, seeds first, so each layer computes only what later layers
read: its targets are the nodes of all hops but the outermost of its input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import HeteroConv, SAGEConv

if TYPE_CHECKING:
    from gigl_loader.demo.choices import Recipe
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType


def sage(schema: GraphSchema, recipe: Recipe, *, target: NodeType, out: int) -> nn.Module:
    """Return an untrained GraphSAGE that fits the graph, one layer per hop: batch to ``[seeds, out]``."""
    dims = {node_type: nodes.columns["x"].shape[0] for node_type, nodes in schema.nodes.items()}
    sizes = {"hidden": recipe.hidden, "out": out, "hops": len(recipe.fanout)}
    if schema.homogeneous:
        return HomogeneousSAGE(dim=dims[target], **sizes)
    return HeteroSAGE(dims=dims, edge_types=schema.edges, target=target, **sizes)


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
    """One layer per hop, with weights for each edge type. Maps a ``HeteroData`` batch to ``[seeds, out]``.

    Every node type must have an edge type that leads to it: it has no output of its own.
    """

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
        self.embed = nn.ModuleDict({node_type: nn.Linear(dim, hidden) for node_type, dim in dims.items()})
        self.edge_types = list(edge_types)
        self.layers = nn.ModuleList(
            HeteroConv({kind: SAGEConv(hidden, hidden) for kind in self.edge_types}) for _ in range(hops)
        )
        self.head = nn.Linear(hidden, out)

    def forward(self, batch: Any) -> Tensor:
        x = {node_type: embed(batch[node_type].x).relu() for node_type, embed in self.embed.items()}
        for number, layer in enumerate(self.layers):
            hops = len(self.layers) - number
            targets = {kind: rows[: sum(batch[kind].num_sampled_nodes[:hops])] for kind, rows in x.items()}
            ends = {kind: (x[kind[0]], targets[kind[2]]) for kind in self.edge_types}
            edges = {
                kind: batch[kind].edge_index[:, : sum(batch[kind].num_sampled_edges[:hops])] for kind in ends
            }
            x = {node_type: rows.relu() for node_type, rows in layer(ends, edges).items()}
        out: Tensor = self.head(x[self.target])
        return out


class LinkScorer(nn.Module):
    """Scores of destinations for sources, float [M, A]: a dot product of two views, and a bias.

    The views of a node as source and as destination differ, since edges have a direction. The bias learns how
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
        sources = self.source(seeds)[source] / math.sqrt(seeds.shape[1])
        matches = torch.einsum("mw,maw->ma", sources, self.destination(seeds)[destinations])
        scores: Tensor = matches + self.bias(seeds)[destinations].squeeze(-1)
        return scores
