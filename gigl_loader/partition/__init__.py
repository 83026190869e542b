"""Building graphs: table readers, assigners, executors, and the bounded-memory builder."""

from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.assigners import Assigner, GraphAssigner, HashAssigner, Owners, RangeAssigner
from gigl_loader.partition.build import build_graph
from gigl_loader.partition.executors import Executor, LocalExecutor
from gigl_loader.partition.glt.build import import_glt
from gigl_loader.partition.owner_tables import TableAssigner, owners_from_files
from gigl_loader.partition.pyg import tables_from_pyg
from gigl_loader.partition.ray_executor import RayExecutor
from gigl_loader.partition.readers import Table
from gigl_loader.partition.reversed_edges import with_reverse_edges
from gigl_loader.partition.side_by_side import side_by_side
from gigl_loader.partition.sources import ColumnOptions, open_table
from gigl_loader.partition.table import Encoding, GraphTables, NodeTable

__all__ = [
    "ArrayTable",
    "Assigner",
    "ColumnOptions",
    "Encoding",
    "Executor",
    "GraphAssigner",
    "GraphTables",
    "HashAssigner",
    "LocalExecutor",
    "NodeTable",
    "Owners",
    "RangeAssigner",
    "RayExecutor",
    "Table",
    "TableAssigner",
    "build_graph",
    "import_glt",
    "open_table",
    "owners_from_files",
    "side_by_side",
    "tables_from_pyg",
    "with_reverse_edges",
]
