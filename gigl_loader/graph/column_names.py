"""Names that columns of a graph cannot have, because batches have attributes of these names."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gigl_loader.options import EdgeType, NodeType

_OF_NODES = frozenset(
    {
        *("n_id", "node", "num_nodes", "num_sampled_nodes", "num_sampled_edges"),
        *("batch", "batch_size", "input_id", "seed_index"),
    }
)
_OF_EDGES = frozenset({"edge_index", "e_id", "edge", "num_sampled_edges"})


def check_column_names(
    nodes: Mapping[NodeType, Collection[str]],
    edges: Mapping[EdgeType, Collection[str]],
    *,
    homogeneous: bool,
) -> None:
    """Raise ``ValueError`` for the columns of a type that would hide an attribute of the batch.

    In a homogeneous batch, the attributes of nodes and edges lie side by side.
    """
    of_nodes = _OF_NODES | _OF_EDGES if homogeneous else _OF_NODES
    of_edges = _OF_NODES | _OF_EDGES if homogeneous else _OF_EDGES
    for kind, columns in nodes.items():
        _check_names(kind, of_nodes.intersection(columns))
    for edge_type, columns in edges.items():
        _check_names(edge_type, of_edges.intersection(columns))
    if homogeneous:
        _check_side_by_side({*chain(*nodes.values())}, {*chain(*edges.values())})


def _check_names(kind: NodeType | EdgeType, taken: Collection[str]) -> None:
    if taken:
        column = min(taken)
        raise ValueError(
            f"column {column!r} of {kind!r} has the name of an attribute of every batch: rename it "
            f"(gigl-loader partition --rename {column}=NEW)"
        )


def _check_side_by_side(of_nodes: set[str], of_edges: set[str]) -> None:
    """Raise for columns of nodes and edges that would have one name, the prefix notwithstanding."""
    for column in sorted(of_nodes & of_edges):
        if f"edge_{column}" in of_nodes | of_edges | _OF_EDGES:
            raise ValueError(
                f"nodes and edges both have a column {column!r}, and 'edge_{column}' is taken: rename one "
                "(gigl-loader partition --rename)"
            )
