"""Columns that the batches of a loader carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.graph.column_names import check_column_names
from gigl_loader.sampling.plan import ColumnPlan

if TYPE_CHECKING:
    from gigl_loader.graph.schema import GraphSchema

__all__ = ["all_columns"]


def all_columns(schema: GraphSchema) -> ColumnPlan:
    """Return all columns of a graph. ``ValueError`` names one that an attribute of batches would hide."""
    columns = ColumnPlan(
        nodes={kind: tuple(nodes.columns) for kind, nodes in schema.nodes.items()},
        edges={kind: tuple(edges.columns) for kind, edges in schema.edges.items()},
    )
    check_column_names(columns.nodes, columns.edges, homogeneous=schema.homogeneous)
    return columns
