"""Outputs of PyG's samplers from the batches of this library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gigl_loader.loaders.collate import reversed_edge_types

if TYPE_CHECKING:
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.pyg.node_index import NodeIndex
    from gigl_loader.sampling.negatives import Negatives

__all__ = ["link_metadata", "sampler_output"]


def sampler_output(
    batch: Any, schema: GraphSchema, nodes: NodeIndex, metadata: tuple[Any, ...], *, disjoint: bool
) -> SamplerOutput | HeteroSamplerOutput:
    """Return the nodes and edges of a batch (``Data`` or ``HeteroData``), as PyG's samplers do.

    Edges have the types and the direction of the graph: ``row`` is the source. ``disjoint`` batches tell the
    tree of each node.
    """
    if schema.homogeneous:
        [node_type] = schema.nodes
        row, col = _ends(batch.edge_index, schema)
        return SamplerOutput(
            node=_index(nodes, node_type, batch.n_id),
            row=row,
            col=col,
            edge=batch.get("e_id"),
            batch=batch.batch if disjoint else None,
            num_sampled_nodes=batch.num_sampled_nodes,
            num_sampled_edges=batch.num_sampled_edges,
            metadata=metadata,
        )
    types = _graph_types(schema)
    stores = {types[message_type]: batch[message_type] for message_type in batch.edge_types}
    ends = {edge_type: _ends(store.edge_index, schema) for edge_type, store in stores.items()}
    return HeteroSamplerOutput(
        node={kind: _index(nodes, kind, batch[kind].n_id) for kind in batch.node_types},
        row={edge_type: row for edge_type, (row, _) in ends.items()},
        col={edge_type: col for edge_type, (_, col) in ends.items()},
        edge={edge_type: store.get("e_id") for edge_type, store in stores.items()},
        batch={kind: batch[kind].batch for kind in batch.node_types} if disjoint else None,
        num_sampled_nodes=dict(batch.num_sampled_nodes),
        num_sampled_edges={types[kind]: counts for kind, counts in batch.num_sampled_edges.items()},
        metadata=metadata,
    )


def link_metadata(
    tensors: FrameTensors, negatives: Negatives | None, input_id: Any, label: torch.Tensor | None
) -> tuple[Any, ...]:
    """Return what PyG's samplers tell of the links of a batch.

    Without negatives, and with binary ones: input, local ends int64 [2, M + J], labels [M + J], no time.
    With triplets: input, local sources [M], destinations [M], negatives [M] or [M, amount], no time.
    """

    def local(name: str) -> torch.Tensor:
        return tensors.tensor(name).to(torch.int64)

    src, dst = local("src"), local("dst")
    if negatives is None:
        return input_id, torch.stack([src, dst]), label, None
    negative_dst = local("neg_dst")
    if negatives.mode == "triplet":
        if negatives.amount > 1:  # Negative a * M + i belongs to link i.
            negative_dst = negative_dst.view(-1, len(src)).t().contiguous()
        return input_id, src, dst, negative_dst, None
    links = torch.stack([torch.cat([src, local("neg_src")]), torch.cat([dst, negative_dst])])
    positive = torch.ones(len(src)) if label is None else label
    labels = torch.cat([positive, positive.new_zeros((len(negative_dst), *positive.shape[1:]))])
    return input_id, links, labels, None


def _index(nodes: NodeIndex, node_type: NodeType, node_ids: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(nodes.of_node_ids(node_type, node_ids.numpy()))


def _ends(edge_index: torch.Tensor, schema: GraphSchema) -> tuple[torch.Tensor, torch.Tensor]:
    """Return local sources and destinations. Row 0 of ``edge_index`` has neighbours, row 1 targets."""
    neighbors, targets = edge_index
    return (neighbors, targets) if schema.edge_dir == "in" else (targets, neighbors)


def _graph_types(schema: GraphSchema) -> dict[EdgeType, EdgeType]:
    """Return the type in the graph of each edge type of a batch."""
    if schema.edge_dir == "in":
        return {edge_type: edge_type for edge_type in schema.edges}
    return {message: edge_type for edge_type, message in reversed_edge_types(schema.edges).items()}
