"""Indexes of weights and times, made by builds, or added to a graph that is built already.

For each list of edges: the running sums of its weights as whole numbers, so that a draw is a binary search
and equal on every machine, and how many weights are above 0. By time: its entries, ascending, and the
running sums in that order. For the nodes of a type: their times by position, and the nodes by ascending time.
``docs/internals/graph-format.md`` has the arrays, ``docs/internals/randomness.md`` what is drawn with them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gigl_loader.arrays import Array, Int64Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.checksums import BlockRecord, BlockSums, FileRecord
from gigl_loader.graph.folder import DiskFolder, graph_directory, sync_directory
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.ids import Directory
from gigl_loader.graph.manifest import (
    MANIFEST_NAME,
    Document,
    Manifest,
    edges_path,
    node_times_path,
    nodes_path,
    timed_weights_path,
    times_path,
    topology_path,
    version_for,
    weights_path,
)
from gigl_loader.graph.schema import Column, EdgeSchema, EdgeType, GraphSchema, NodeType, type_name
from gigl_loader.graph.weights import running_sums
from gigl_loader.native import build_adjacency, crc32c
from gigl_loader.partition.declared import check_weight_column
from gigl_loader.partition.executors import WorkPlan
from gigl_loader.partition.job import Budget, Job, Progress, Results, Stage, available_memory
from gigl_loader.partition.runner import Runner
from gigl_loader.regular_files import open_regular
from gigl_loader.tensors import ArraySpec, as_float64

_WEIGHT_BYTES = 100
"""Working memory while a piece is indexed. Measured: 35 with 8 edges a list, 84 with one; and the weights."""


def check_weights(
    values: Array, column: Column, name: str, first_row: int, where: Callable[[str, int], str]
) -> None:
    """Raise ``FormatError`` naming the place of the first value that is no weight, by column and row."""
    weights = as_float64(values, column.dtype)
    if (row := first_true(~(np.isfinite(weights) & (weights >= 0)))) is not None:
        place = where(name, first_row + row)
        raise FormatError(f"{place}: a weight is finite and not negative, got {weights[row]:g}")


def index_weights(
    job: Job, edge_type: EdgeType, name: str, edges: EdgeSchema, *, check: bool = False
) -> None:
    """Write the index of a weight column whose edges lie in the job's folder already, for all partitions.

    With ``check``, ``FormatError`` names the file and row of the first value that is no weight.
    """
    path = f"weights/{type_name(edge_type)}/{type_name(name)}"
    step = f"edges {','.join(edge_type)}: indexing {name}"
    run = partial(_sum_part, edge_type=edge_type, name=name, edges=edges, check=check)
    job.runner.run(job, Stage(path, step, edges.count, job.num_partitions, run))


def _sum_part(
    job: Job,
    part: int,
    *,
    edge_type: EdgeType,
    name: str,
    edges: EdgeSchema,
    time: str | None = None,
    check: bool = False,
) -> Results:
    """Write the running sums of a weight column in one partition, in order of a time if there is one."""
    column, bounds = edges.columns.get(name, Column("F32")), topology_path(part, edge_type)
    file = edges_path(part, edge_type) if name in edges.columns else bounds
    if check:
        for each in {bounds, file}:
            job.opened(each).verify(lambda _: None)
    num_lists, num_edges = len(job.opened(bounds).array("indptr")) - 1, len(job.opened(file).array(name))
    specs, path = {"sums": ArraySpec("I64", (num_edges,))}, weights_path(part, edge_type, name)
    if time is None:
        specs["counts"] = ArraySpec("I64", (num_lists,))
    else:
        path = timed_weights_path(part, edge_type, time, name)
    writer = job.create(path, specs)
    for indptr in pieces(job, edge_type, part, _WEIGHT_BYTES if time is None else _BYTES_PER_EDGE):
        begin, end = int(indptr[0]), int(indptr[-1])
        values = job.opened(file).array(name)[begin:end]
        if check:
            check_weights(
                values, column, name, begin, lambda name, row: f"{file}, column {name!r}, row {row}"
            )
        if time is not None:
            slots = job.opened(times_path(part, edge_type, time)).array("slots")[begin:end]
            values = values[slots.astype(np.int64) - begin]
        sums, counts = running_sums(as_float64(values, column.dtype), indptr - begin)
        writer.append("sums", sums)
        if time is None:
            writer.append("counts", counts)
        job.advance(end - begin)
    job.finish(writer)
    return {"rows": num_edges}


def pieces(job: Job, edge_type: EdgeType, part: int, bytes_per_edge: int) -> Iterator[Int64Array]:
    """Yield the bounds of the lists of a partition, in pieces of as many edges as fit the memory.

    Callers open files anew for each piece, too: a map that stays open would grow by every page that is read.
    """
    rows = job.budget.chunk_rows(bytes_per_edge)
    bounds, first = topology_path(part, edge_type), 0
    while first < len(indptr := job.opened(bounds).array("indptr")) - 1:
        end = int(np.searchsorted(indptr, indptr[first] + rows, side="right")) - 1
        end = min(max(end, first + 1), first + rows)  # Of one list at least.
        yield indptr[first : end + 1]
        first = end


_BYTES_PER_EDGE = 120
"""Working memory while a piece is put in order of time."""

_BYTES_PER_NODE = 40
"""Working memory while the nodes of a type are put in order of time, all at once."""


def index_node_times(
    job: Job, schema: GraphSchema, node_type: NodeType, name: str, directory: Directory
) -> None:
    """Write the times of all nodes of a type and their order. ``ValueError`` for too low a memory limit."""
    count = schema.nodes[node_type].count
    job.budget.require(count * _BYTES_PER_NODE, f"the order by time of {count:,} nodes of type {node_type!r}")
    advance = job.track(f"nodes {node_type}: ordering by {name}", count)
    files = [nodes_path(part, node_type) for part in range(job.num_partitions)]
    times = np.concatenate([_as_int64(job.opened(file).array(name), f"{file}, {name}") for file in files])
    by_id = directory.in_id_order()
    order = by_id[np.argsort(times[by_id], kind="stable")]
    width = np.dtype(np.int32 if count < 2**31 else np.int64)
    job.write(node_times_path(node_type, name), {"times": times, "order": order.astype(width)})
    advance(count)


def index_times(job: Job, schema: GraphSchema, edge_type: EdgeType, name: str) -> None:
    """Write the lists of an edge type in order of a time, for all partitions."""
    run = partial(_order_part, schema, edge_type, name)
    job.runner.run(job, _stage(schema, edge_type, [name], f"ordering by {name}", run))


def index_timed_weights(job: Job, schema: GraphSchema, edge_type: EdgeType, time: str, name: str) -> None:
    """Write the running sums of a weight column in order of a time, whose index is there."""
    edges = schema.edges[edge_type]
    run = partial(_sum_part, edge_type=edge_type, name=name, edges=edges, time=time)
    job.runner.run(job, _stage(schema, edge_type, [time, name], f"indexing {name} by {time}", run))


def _stage(
    schema: GraphSchema,
    edge_type: EdgeType,
    columns: Sequence[str],
    step: str,
    run: Callable[[Job, int], Results],
) -> Stage:
    name = "/".join(["times", type_name(edge_type), *map(type_name, columns)])
    step = f"edges {','.join(edge_type)}: {step}"
    return Stage(name, step, schema.edges[edge_type].count, schema.num_partitions, run)


def _order_part(schema: GraphSchema, edge_type: EdgeType, time: str, job: Job, part: int) -> Results:
    """Write the lists of a partition in order of a time."""
    times_of = _times_of(job, schema, edge_type, time)
    num_edges = len(job.opened(topology_path(part, edge_type)).array("indices"))
    width = np.dtype(np.int32 if num_edges < 2**31 else np.int64)
    slots = ArraySpec(f"I{8 * width.itemsize}", (num_edges,))
    specs = {"times": ArraySpec("I64", (num_edges,)), "slots": slots}
    writer = job.create(times_path(part, edge_type, time), specs)
    for indptr in pieces(job, edge_type, part, _BYTES_PER_EDGE):
        begin, end = int(indptr[0]), int(indptr[-1])
        times = times_of(part, begin, end)
        order = _in_order(times, indptr - begin)
        writer.append("times", times[order])
        writer.append("slots", (order + begin).astype(width))
        job.advance(end - begin)
    job.finish(writer)
    return {"rows": num_edges}


def _times_of(
    job: Job, schema: GraphSchema, edge_type: EdgeType, name: str
) -> Callable[[int, int, int], Int64Array]:
    """Return what reads the times of the edges ``[begin, end)`` of a partition."""

    # Files are opened anew for each piece: a map that stays open would grow by every page that is read.
    def of_edges(part: int, begin: int, end: int) -> Int64Array:
        file = edges_path(part, edge_type)
        return _as_int64(job.opened(file).array(name)[begin:end], f"{file}, {name}")

    def of_neighbors(part: int, begin: int, end: int) -> Int64Array:
        neighbors = job.opened(topology_path(part, edge_type)).array("indices")[begin:end]
        path = node_times_path(schema.neighbor_type(edge_type), name)
        return np.asarray(job.opened(path).array("times")[neighbors])

    return of_edges if name in schema.edges[edge_type].times else of_neighbors


def _as_int64(times: Array, what: str) -> Int64Array:
    """Return times of any integer type, [N] or [N, 1], as int64 [N]. ``FormatError`` for larger ones."""
    if len(times) and times.max() > np.iinfo(np.int64).max:
        raise FormatError(f"{what}: the time {times.max()} does not fit 64 signed bits")
    return times.reshape(-1).astype(np.int64)


def _in_order(times: Int64Array, indptr: Int64Array) -> Int64Array:
    """Return the places of the entries of lists by ascending time, those of equal times as they are."""
    numbers = np.arange(len(times), dtype=np.int64)
    lists = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.empty(len(times), np.int64)
    build_adjacency(lists, times, numbers, np.empty(len(indptr), np.int64), order)
    return order


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
    folder = DiskFolder(graph_directory(path))
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
        job.opened(name).verify(lambda _: None)


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
    """Yield a function that replaces ``graph.json``. A lock on its new content keeps other processes out."""
    temporary = path / f".{MANIFEST_NAME}.new"
    if not (path / MANIFEST_NAME).exists():
        raise FileNotFoundError(2, "no such file", str(path / MANIFEST_NAME))
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(open_regular(temporary, flags, 0o644), "r+b") as file:
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
            sync_directory(path)

        try:
            yield write
        finally:
            if temporary.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(temporary)):
                temporary.unlink()  # It was not written.
