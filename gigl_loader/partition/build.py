"""Builds a graph from tables. (First form: everything in memory.)"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gigl_loader.graph.directory import Directory
from gigl_loader.graph.document import FileRecord, write_document
from gigl_loader.graph.folder import DiskFolder, Folder
from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest
from gigl_loader.graph.paths import edges_path, ids_path, nodes_path, splits_path, topology_path
from gigl_loader.graph.schema import EdgeSchema, EdgeType, GraphSchema, NodeSchema, NodeType
from gigl_loader.partition.assigners import Assigner, assigner_named
from gigl_loader.partition.table import EDGE_ROLES, NODE_ROLES, GraphTables, Table

__all__ = ["build_graph"]

Array = npt.NDArray[Any]


def build_graph(
    tables: GraphTables,
    out: str | os.PathLike[str] | Folder,
    *,
    num_partitions: int = 1,
    edge_dir: Literal["in", "out"] = "in",
    assigner: str | Assigner = "range",
    memory_limit: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> GraphSchema:
    """Build a graph from ``tables`` into a directory or a folder in memory; return its schema."""
    chosen = assigner_named(assigner)
    if not isinstance(out, (str, os.PathLike)):
        return _build(tables, out, num_partitions, edge_dir, chosen)
    target = Path(out)
    if target.exists():
        raise ValueError(f"{target} exists")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        schema = _build(tables, DiskFolder(temporary), num_partitions, edge_dir, chosen)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return schema


def _build(
    tables: GraphTables,
    folder: Folder,
    num_partitions: int,
    edge_dir: Literal["in", "out"],
    assigner: Assigner,
) -> GraphSchema:
    files: dict[str, FileRecord] = {}
    directories: dict[NodeType, Directory] = {}
    nodes = {}
    for node_type in tables.node_types:
        nodes[node_type], directories[node_type] = _nodes(
            tables, node_type, folder, num_partitions, assigner, files
        )
    edges = {
        edge_type: _edges(table, edge_type, nodes, directories, folder, edge_dir, files)
        for edge_type, table in tables.edges.items()
    }
    schema = GraphSchema(
        edge_dir=edge_dir,
        homogeneous=tables.homogeneous,
        nodes=nodes,
        edges=edges,
        num_partitions=num_partitions,
    )
    data = Manifest(schema, {"assigner": assigner.name}, files).to_bytes()
    sink = folder.create(MANIFEST_NAME, len(data))
    sink.write(0, data)
    sink.close()
    return schema


def _all(table: Table, names: Any) -> dict[str, Array]:
    chunks = list(table.read(list(names), max(table.num_rows, 1)))
    return chunks[0] if chunks else {name: np.empty((0, *table.columns[name].shape)) for name in names}


def _nodes(
    tables: GraphTables,
    node_type: NodeType,
    folder: Folder,
    num_partitions: int,
    assigner: Assigner,
    files: dict[str, FileRecord],
) -> tuple[NodeSchema, Directory]:
    entry = tables.nodes.get(node_type)
    rows = None if entry is None else entry.rows
    if rows is not None and "id" in rows.columns:
        table_ids = _all(rows, ["id"])["id"].astype(np.int64)
    elif rows is not None:
        table_ids = np.arange(rows.num_rows)
    elif entry is not None and entry.count is not None:
        table_ids = np.arange(entry.count)
    else:
        mentioned = [
            _all(table, [column])[column]
            for edge_type, table in tables.edges.items()
            for end, column in ((edge_type[0], "src"), (edge_type[2], "dst"))
            if end == node_type
        ]
        table_ids = np.unique(np.concatenate(mentioned)).astype(np.int64)
    count = len(table_ids)
    by_id = np.argsort(table_ids)
    ids = table_ids[by_id]
    part = assigner.assign(node_type, ids, num_partitions)
    order = np.argsort(part, kind="stable")
    bounds = (0, *np.cumsum(np.bincount(part, minlength=num_partitions)).tolist())
    places = np.empty(count, dtype=np.int64)
    places[order] = np.arange(count)
    dense = count == 0 or (ids[0] == 0 and ids[-1] == count - 1)
    ascending = bool(np.array_equal(order, np.arange(count)))
    if dense and ascending:
        directory = Directory(count)
    elif dense:
        directory = Directory(count, ids[order], None, places)
    else:
        directory = Directory(count, ids[order], None if ascending else ids, None if ascending else places)
    if directory.arrays():
        files[ids_path(node_type)] = write_document(folder, ids_path(node_type), directory.arrays())
    columns = {} if rows is None else {n: c for n, c in rows.columns.items() if n not in NODE_ROLES}
    data = {} if rows is None else _all(rows, columns)
    row_at = by_id[order]
    splits = {}
    for name, table in ({} if entry is None else entry.splits).items():
        splits[name] = np.sort(directory.find(_all(table, ["id"])["id"].astype(np.int64)))
    for p in range(num_partitions):
        mine = row_at[bounds[p] : bounds[p + 1]]
        if columns:
            files[nodes_path(p, node_type)] = write_document(
                folder,
                nodes_path(p, node_type),
                {n: data[n][mine] for n in columns},
                {n: c.spec(len(mine)) for n, c in columns.items()},
            )
        if splits:
            files[splits_path(p, node_type)] = write_document(
                folder,
                splits_path(p, node_type),
                {n: s[(s >= bounds[p]) & (s < bounds[p + 1])] for n, s in splits.items()},
            )
    schema = NodeSchema(
        count=count,
        bounds=bounds,
        ids=directory.kind,
        columns=columns,
        splits={n: len(s) for n, s in splits.items()},
    )
    return schema, directory


def _edges(
    table: Table,
    edge_type: EdgeType,
    nodes: dict[NodeType, NodeSchema],
    directories: dict[NodeType, Directory],
    folder: Folder,
    edge_dir: str,
    files: dict[str, FileRecord],
) -> EdgeSchema:
    data = _all(table, table.columns)
    ends = {
        name: directories[end].find(data[name].astype(np.int64))
        for name, end in (("src", edge_type[0]), ("dst", edge_type[2]))
    }
    if min((int(array.min(initial=0)) for array in ends.values()), default=0) < 0:
        raise ValueError(f"{table.name}: unknown node ids")
    target, neighbor = ("dst", "src") if edge_dir == "in" else ("src", "dst")
    target_type, neighbor_type = (
        (edge_type[2], edge_type[0]) if edge_dir == "in" else (edge_type[0], edge_type[2])
    )
    ids = data["id"].astype(np.int64) if "id" in data else np.arange(table.num_rows)
    order = np.lexsort((ids, data[neighbor], ends[target]))
    columns = {n: c for n, c in table.columns.items() if n not in EDGE_ROLES}
    narrow = np.int32 if int(np.abs(ids).max(initial=0)) < 2**31 else np.int64
    bounds = nodes[target_type].bounds
    for p in range(len(bounds) - 1):
        degrees = np.bincount(ends[target][order], minlength=bounds[-1])[bounds[p] : bounds[p + 1]]
        mine = order[(ends[target][order] >= bounds[p]) & (ends[target][order] < bounds[p + 1])]
        arrays: dict[str, Array] = {
            "indptr": np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
            "indices": ends[neighbor][mine].astype(np.int32),
            "edge_ids": ids[mine].astype(narrow),
        }
        if "weight" in data:
            arrays["weight"] = data["weight"][mine].astype(np.float32)
        if "time" in data:
            arrays["time"] = data["time"][mine].astype(np.int64)
        name = topology_path(p, edge_type)
        files[name] = write_document(folder, name, arrays)
        if columns:
            name = edges_path(p, edge_type)
            files[name] = write_document(
                folder,
                name,
                {n: data[n][mine] for n in columns},
                {n: c.spec(len(mine)) for n, c in columns.items()},
            )
    return EdgeSchema(
        count=table.num_rows,
        wide_indices=nodes[neighbor_type].count >= 2**31,
        columns=columns,
        weight="weight" in data,
        time="time" in data,
    )
