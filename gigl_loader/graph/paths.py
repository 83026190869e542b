"""Names of the files of a graph."""

from __future__ import annotations

from gigl_loader.graph.schema import EdgeType, NodeType, is_hidden_list, type_name

__all__ = [
    "edges_path",
    "ids_path",
    "node_times_path",
    "nodes_path",
    "part_folder",
    "splits_path",
    "text_ids_path",
    "timed_weights_path",
    "times_path",
    "topology_path",
    "weights_path",
]


def ids_path(node_type: NodeType) -> str:
    return f"ids/{type_name(node_type)}.safetensors"


def text_ids_path(node_type: NodeType) -> str:
    """Return the path of the texts that stand for the node ids of a type."""
    return f"ids/text/{type_name(node_type)}.safetensors"


def node_times_path(node_type: NodeType, column: str) -> str:
    """Return the path of the times of all nodes of a type, and their order."""
    return f"ids/times/{type_name(node_type)}/{type_name(column)}.safetensors"


def part_folder(part: int) -> str:
    return f"part-{part:05d}"


def topology_path(part: int, edge_type: EdgeType) -> str:
    """Return the path of the lists of an edge type, a label set, or edges that are held out."""
    if is_hidden_list(edge_type):
        return f"{part_folder(part)}/labels/{type_name(edge_type)}.safetensors"
    return f"{part_folder(part)}/topology/{type_name(edge_type)}.safetensors"


def nodes_path(part: int, node_type: NodeType) -> str:
    return f"{part_folder(part)}/nodes/{type_name(node_type)}.safetensors"


def edges_path(part: int, edge_type: EdgeType) -> str:
    return f"{part_folder(part)}/edges/{type_name(edge_type)}.safetensors"


def weights_path(part: int, edge_type: EdgeType, column: str) -> str:
    """Return the path of the index of a declared weight column."""
    return f"{part_folder(part)}/weights/{type_name(edge_type)}/{type_name(column)}.safetensors"


def times_path(part: int, edge_type: EdgeType, time: str) -> str:
    """Return the path of the lists of an edge type in order of a time of edges or neighbours."""
    return f"{part_folder(part)}/times/{type_name(edge_type)}/{type_name(time)}.safetensors"


def timed_weights_path(part: int, edge_type: EdgeType, time: str, weight: str) -> str:
    """Return the path of the index of a weight column in that order."""
    name = f"{type_name(time)}/{type_name(weight)}"
    return f"{part_folder(part)}/times/{type_name(edge_type)}/{name}.safetensors"


def splits_path(part: int, node_type: NodeType) -> str:
    return f"{part_folder(part)}/splits/{type_name(node_type)}.safetensors"
