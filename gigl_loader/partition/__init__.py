"""Building graphs: table readers, assigners, and the bounded-memory builder."""

from gigl_loader.partition.build import build_graph
from gigl_loader.partition.pyg import tables_from_pyg
from gigl_loader.partition.table import ArrayTable, GraphTables, NodeTable, Table

__all__ = ["ArrayTable", "GraphTables", "NodeTable", "Table", "build_graph", "tables_from_pyg"]
