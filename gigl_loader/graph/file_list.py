"""Names of all files of a graph: those of each partition, and those that partitions share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gigl_loader.errors import FormatError
from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest
from gigl_loader.graph.paths import (
    edges_path,
    ids_path,
    node_times_path,
    nodes_path,
    splits_path,
    text_ids_path,
    timed_weights_path,
    times_path,
    topology_path,
    weights_path,
)
from gigl_loader.graph.schema import GraphSchema

__all__ = ["check_files", "files_of", "files_of_part", "part_of", "shared_files"]

_PART = re.compile(r"part-([0-9]{5,})/.")


def files_of(schema: GraphSchema, parts: Sequence[int]) -> list[str]:
    """Return the files that are needed to open ``parts``."""
    return shared_files(schema) + [name for part in parts for name in files_of_part(schema, part)]


def shared_files(schema: GraphSchema) -> list[str]:
    """Return the files that every partition needs: node ids, and times of all nodes."""
    names = [ids_path(node_type) for node_type, nodes in schema.nodes.items() if nodes.ids != "identity"]
    names += [text_ids_path(node_type) for node_type, nodes in schema.nodes.items() if nodes.text_ids]
    return names + [
        node_times_path(node_type, time)
        for node_type in schema.nodes
        for time in schema.nodes[node_type].times
    ]


def files_of_part(schema: GraphSchema, part: int) -> list[str]:
    """Return the files of one partition."""
    return [
        *(topology_path(part, edge_type) for edge_type in schema.lists),
        *(edges_path(part, edge_type) for edge_type, edges in schema.edges.items() if edges.columns),
        *(
            weights_path(part, edge_type, name)
            for edge_type, edges in schema.edges.items()
            for name in edges.weights
        ),
        *(
            path
            for edge_type, edges in schema.edges.items()
            for time in schema.list_times(edge_type)
            for path in (
                times_path(part, edge_type, time),
                *(timed_weights_path(part, edge_type, time, name) for name in edges.weights),
            )
        ),
        *(nodes_path(part, node_type) for node_type, nodes in schema.nodes.items() if nodes.columns),
        *(splits_path(part, node_type) for node_type, nodes in schema.nodes.items() if nodes.splits),
    ]


def part_of(name: str) -> int | None:
    """Return the partition of a file by its name. ``None``: partitions share it."""
    found = _PART.match(name)
    return int(found[1]) if found else None


def check_files(manifest: Manifest) -> None:
    """Raise ``FormatError`` unless ``graph.json`` lists exactly the files of its schema.

    No other name is ever opened, so that a hostile ``graph.json`` cannot name a file elsewhere.
    """
    expected = set(files_of(manifest.schema, range(manifest.schema.num_partitions)))
    for name in sorted(manifest.files.keys() ^ expected):
        what = "is no file of this schema" if name in manifest.files else f"missing from {MANIFEST_NAME}"
        raise FormatError(f"{name}: {what}")
