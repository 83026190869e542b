"""Graphs on disk and in memory: schema, format, and memory-mapped access. NumPy only."""

from gigl_loader.graph.folder import DiskFolder, Folder, MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import (
    HOMOGENEOUS_EDGE,
    HOMOGENEOUS_NODE,
    Column,
    EdgeSchema,
    EdgeType,
    GraphSchema,
    NodeSchema,
    NodeType,
    edge_type_address,
    type_name,
)
from gigl_loader.options import Verify

__all__ = [
    "HOMOGENEOUS_EDGE",
    "HOMOGENEOUS_NODE",
    "Column",
    "DiskFolder",
    "EdgeSchema",
    "EdgeType",
    "Folder",
    "Graph",
    "GraphSchema",
    "MemoryFolder",
    "NodeSchema",
    "NodeType",
    "Verify",
    "edge_type_address",
    "type_name",
]
