"""Indexes of weights and times, added to a graph that is built already."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.graph.checksums import BlockRecord, BlockSums
from gigl_loader.graph.document import Document
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest, version_for
from gigl_loader.graph.paths import edges_path, nodes_path, topology_path
from gigl_loader.native import crc32c
from gigl_loader.partition.executor import WorkPlan
from gigl_loader.partition.job import Job
from gigl_loader.partition.limits import Budget, available_memory
from gigl_loader.partition.runner import Runner
from gigl_loader.partition.times import index_node_times, index_timed_weights, index_times
from gigl_loader.partition.weights import check_weight_column, index_weights, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gigl_loader.graph.checksums import FileRecord
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
    from gigl_loader.partition.job import Progress

__all__ = ["add_indexes"]

_STEP_BYTES = 8 << 20


def add_indexes(
    path: str | os.PathLike[str],
    *,
    weights: Mapping[EdgeType, Sequence[str]] | None = None,
    times: Mapping[NodeType | EdgeType, Sequence[str]] | None = None,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> GraphSchema:
    """Declare columns of the graph at ``path`` as weights or times, in place; return the new schema.

    Those that are declared already are left as they are. All partitions lie at ``path``. The graph is whole
    at every moment: new files are written beside it, then ``graph.json`` is replaced. ``ValueError`` for a
    column that cannot be a weight or time, or while another process adds an index; ``FormatError`` naming
    file and row for a value that is no weight.
    """
    folder = DiskFolder(path)
    with _new_manifest(folder.path) as write_manifest:
        graph = Graph.open(folder, verify="none")
        schema = graph.schema
        for kind, names in (weights or {}).items():
            for name in names:
                if name in schema.edges[kind].columns:
                    check_weight_column(schema.edges[kind].columns[name], f"column {name!r} of {kind}")
        changed = _declared(schema, weights or {}, times or {})
        if changed == schema:
            return schema
        _remove_leftovers(folder)
        try:
            files = _indexed(folder, graph, changed, memory_limit=memory_limit, progress=progress)
            write_manifest(Manifest(changed, graph.manifest.build, files, version_for(changed)).to_bytes())
        finally:
            _remove_leftovers(folder)
    return changed


def _declared(
    schema: GraphSchema,
    weights: Mapping[EdgeType, Sequence[str]],
    times: Mapping[NodeType | EdgeType, Sequence[str]],
) -> GraphSchema:
    """Return the schema with more weights and times. ``ValueError`` for a column that is not there."""
    nodes = {
        kind: replace(each, times=tuple(sorted({*each.times, *times.get(kind, ())})))
        for kind, each in schema.nodes.items()
    }
    edges = {
        kind: replace(
            each,
            weights=tuple(sorted({*each.weights, *weights.get(kind, ())})),
            times=tuple(sorted({*each.times, *times.get(kind, ())})),
        )
        for kind, each in schema.edges.items()
    }
    return replace(schema, nodes=nodes, edges=edges)


def _indexed(
    folder: DiskFolder,
    graph: Graph,
    schema: GraphSchema,
    *,
    memory_limit: int | None,
    progress: Progress | None,
) -> dict[str, BlockRecord]:
    """Write the files that ``schema`` has and the graph has not. Return the records of all."""
    old = graph.schema
    budget = Budget(available_memory() // 2 if memory_limit is None else memory_limit)
    with Job(
        folder,
        temporary=None,
        budget=budget,
        num_partitions=schema.num_partitions,
        edge_dir=schema.edge_dir,
        runner=Runner(WorkPlan.alone(budget.total)),
        progress=progress,
    ) as job:
        job.files.update(graph.manifest.files)
        for kind, edges in schema.edges.items():
            for name in _added(edges.weights, old.edges[kind].weights):
                index_weights(job, kind, name, edges, check=True)
        for node_type, nodes in schema.nodes.items():
            for name in _added(nodes.times, old.nodes[node_type].times):
                _verify(job, [nodes_path(part, node_type) for part in range(schema.num_partitions)])
                index_node_times(job, schema, node_type, name, graph.directory(node_type))
        for kind, edges in schema.edges.items():
            known = old.list_times(kind)
            new_weights = _added(edges.weights, old.edges[kind].weights)
            for time in schema.list_times(kind):
                if time not in known:
                    parts = range(schema.num_partitions)
                    files = [edges_path(part, kind) for part in parts] if time in edges.times else []
                    _verify(job, [*files, *(topology_path(part, kind) for part in parts)])
                    index_times(job, schema, kind, time)
                for name in new_weights if time in known else edges.weights:
                    index_timed_weights(job, schema, kind, time, name)
        return {name: _block_record(folder, name, record) for name, record in job.files.items()}


def _added(names: Sequence[str], known: Sequence[str]) -> list[str]:
    return [name for name in names if name not in known]


def _verify(job: Job, names: Sequence[str]) -> None:
    """Compare the bytes of files that are read with their checksums."""
    for name in names:
        opened(job, name).verify(lambda _: None)


def _remove_leftovers(folder: DiskFolder) -> None:
    """Remove index files that do not belong to the graph: their writer failed, or was killed."""
    files = Graph.open(folder, verify="none").manifest.files
    for name in folder.names():
        if any(each in name for each in ("/weights/", "/times/")) and name not in files:
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


@contextmanager
def _new_manifest(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Lend what replaces ``graph.json``, to one process at a time: the file for its content is locked."""
    temporary = path / f".{MANIFEST_NAME}.new"
    if not (path / MANIFEST_NAME).exists():
        raise FileNotFoundError(2, "no such file", str(path / MANIFEST_NAME))
    with open(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(os.fstat(file.fileno()), os.stat(temporary))
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise ValueError(f"{path}: another process adds an index: wait until it is done")

        def write(manifest: bytes) -> None:
            file.truncate(0)
            file.write(manifest)
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path / MANIFEST_NAME)
            _sync_directory(path)

        try:
            yield write
        finally:
            if temporary.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(temporary)):
                temporary.unlink()  # It was not written.


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
