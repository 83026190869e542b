"""Indexes added to a graph that is built already."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.graph.checksums import BlockRecord, BlockSums
from gigl_loader.graph.document import Document
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.manifest import FORMAT_VERSION, MANIFEST_NAME, Manifest
from gigl_loader.native import crc32c
from gigl_loader.partition.assigners import RangeAssigner
from gigl_loader.partition.job import Job
from gigl_loader.partition.limits import Budget, available_memory
from gigl_loader.partition.weights import check_weight_column, index_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gigl_loader.graph.checksums import FileRecord
    from gigl_loader.graph.schema import EdgeType, GraphSchema
    from gigl_loader.partition.job import Progress

__all__ = ["add_weights"]

_STEP_BYTES = 8 << 20


def add_weights(
    path: str | os.PathLike[str],
    weights: Mapping[EdgeType, Sequence[str]],
    *,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> GraphSchema:
    """Declare columns of the graph at ``path`` as weights, in place; return the new schema.

    Those that are declared already are left as they are. All partitions lie at ``path``. The graph is whole
    at every moment: new files are written beside it, then ``graph.json`` is replaced. ``ValueError`` for a
    column that cannot be weights, ``FormatError`` naming file and row for a value that is none.
    """
    folder = DiskFolder(path)
    graph = Graph.open(folder, verify="none")
    schema = graph.schema
    new = {
        kind: [name for name in names if name not in schema.edges[kind].weights]
        for kind, names in weights.items()
    }
    for kind, names in new.items():
        for name in names:
            if name in schema.edges[kind].columns:
                check_weight_column(schema.edges[kind].columns[name], f"column {name!r} of {kind}")
    if not any(new.values()):
        return schema
    declared = {
        kind: replace(edges, weights=tuple(sorted({*edges.weights, *new.get(kind, ())})))
        for kind, edges in schema.edges.items()
    }
    changed = replace(schema, edges=declared)  # Refuses a column that is not there.
    _remove_leftovers(folder, graph.manifest)
    with Job(
        folder,
        scratch=None,
        budget=Budget(available_memory() // 2 if memory_limit is None else memory_limit),
        num_partitions=schema.num_partitions,
        edge_dir=schema.edge_dir,
        assigner=RangeAssigner(),
        progress=progress,
    ) as job:
        job.files.update(graph.manifest.files)
        for kind, names in new.items():
            for name in names:
                index_weights(job, kind, name, declared[kind], check=True)
        files = {name: _block_record(folder, name, record) for name, record in job.files.items()}
    _replace_manifest(folder.path, Manifest(changed, graph.manifest.build, files, FORMAT_VERSION))
    return changed


def _remove_leftovers(folder: DiskFolder, manifest: Manifest) -> None:
    """Remove index files that a process left which was ended before it was done."""
    for name in folder.names():
        if "/weights/" in name and name not in manifest.files:
            (folder.path / name).unlink()


def _block_record(folder: DiskFolder, name: str, record: FileRecord) -> BlockRecord:
    """Return the record that version 2 of the format has of a file."""
    if isinstance(record, BlockRecord):
        return record
    Document(folder, name, record).verify(lambda _: None)
    buffer = folder.open(name)
    sums = BlockSums(len(buffer))
    for begin in range(0, len(buffer), _STEP_BYTES):
        sums.add(begin, np.asarray(buffer[begin : begin + _STEP_BYTES]))
    header_bytes = 8 + int.from_bytes(buffer[:8].tobytes(), "little")
    return sums.finish(crc32c(np.ascontiguousarray(buffer[:header_bytes])))


def _replace_manifest(path: Path, manifest: Manifest) -> None:
    temporary = path / f".{MANIFEST_NAME}.new"
    with open(temporary, "wb") as file:
        file.write(manifest.to_bytes())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path / MANIFEST_NAME)
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
