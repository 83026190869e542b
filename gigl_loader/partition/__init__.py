"""Building graphs: table readers, assigners, and the bounded-memory builder."""

from gigl_loader.partition.assigners import Assigner, HashAssigner, RangeAssigner
from gigl_loader.partition.build import build_graph
from gigl_loader.partition.glt.build import import_glt
from gigl_loader.partition.pyg import tables_from_pyg
from gigl_loader.partition.reverse import with_reverse_edges
from gigl_loader.partition.sources import ColumnOptions, open_table
from gigl_loader.partition.table import ArrayTable, GraphTables, NodeTable, Table

__all__ = [
    "ArrayTable",
    "Assigner",
    "ColumnOptions",
    "GraphTables",
    "HashAssigner",
    "NodeTable",
    "RangeAssigner",
    "Table",
    "build_graph",
    "import_glt",
    "open_table",
    "tables_from_pyg",
    "with_reverse_edges",
]
