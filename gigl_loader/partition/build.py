"""Builds a graph from tables, streaming, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gigl_loader.graph.column_names import check_column_names
from gigl_loader.graph.folder import DiskFolder, Folder
from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest, version_for
from gigl_loader.graph.node_ids import Directory
from gigl_loader.graph.schema import GraphSchema, NodeSchema, NodeType
from gigl_loader.partition.assigners import Assigner, assigner_named
from gigl_loader.partition.edge_splits import hold_out_edges
from gigl_loader.partition.edges import build_edges
from gigl_loader.partition.job import Job, Progress
from gigl_loader.partition.limits import Budget, available_memory
from gigl_loader.partition.missing import MissingValues, missing_anywhere
from gigl_loader.partition.nodes import build_nodes
from gigl_loader.partition.quantized_table import quantize_columns
from gigl_loader.partition.staging import staged_directory
from gigl_loader.partition.table import EDGE_ROLES, NODE_ROLES, GraphTables, Table, data_columns
from gigl_loader.partition.text_ids import number_text_ids
from gigl_loader.partition.times import index_node_times, index_timed_weights, index_times

__all__ = ["build_graph"]

_MAX_PARTITIONS = 1 << 16


def build_graph(
    tables: GraphTables,
    out: str | os.PathLike[str] | Folder,
    *,
    num_partitions: int = 1,
    edge_dir: Literal["in", "out"] = "in",
    assigner: str | Assigner = "range",
    memory_limit: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> GraphSchema:
    """Build a graph from ``tables`` and return its schema.

    ``out`` is a directory, which appears complete or not at all, or an empty folder. ``assigner`` is
    ``"range"``, ``"hash"`` or an ``Assigner``. ``memory_limit`` bounds the working memory in bytes,
    on top of what the process and the tables hold already (default: half of what is available); it
    changes the time taken, never the result. ``progress`` is called with a step's name, its rows done
    and its rows in all. Raises ``FormatError`` for tables that break a rule, naming file, column and
    row, and ``ValueError`` for arguments that make no sense.
    """
    if not 1 <= num_partitions <= _MAX_PARTITIONS:
        raise ValueError(f"num_partitions must lie in 1..{_MAX_PARTITIONS}, got {num_partitions}")
    if edge_dir not in ("in", "out"):
        raise ValueError(f'edge_dir must be "in" or "out", got {edge_dir!r}')
    _check_column_names(tables)
    chosen = assigner_named(assigner)
    budget = Budget(available_memory() // 2 if memory_limit is None else memory_limit)

    def build(folder: Folder, scratch: Path | None) -> GraphSchema:
        with Job(
            folder,
            scratch=scratch,
            budget=budget,
            num_partitions=num_partitions,
            edge_dir=edge_dir,
            assigner=chosen,
            progress=progress,
        ) as job:
            try:
                return _build(job, tables)
            except MissingValues as error:
                raise missing_anywhere(_all_tables(tables), error) from None

    if not isinstance(out, (str, os.PathLike)):
        if out.names():
            raise ValueError("the folder to build into is not empty")
        return build(out, None)
    with staged_directory(Path(os.path.abspath(out)), overwrite=overwrite) as temporary:
        return build(DiskFolder(temporary), temporary / "scratch")


def _check_column_names(tables: GraphTables) -> None:
    nodes = {
        node_type: data_columns(each.rows, NODE_ROLES)
        for node_type, each in tables.nodes.items()
        if each.rows is not None
    }
    edges = {edge_type: data_columns(each, EDGE_ROLES) for edge_type, each in tables.edges.items()}
    check_column_names(nodes, edges, homogeneous=tables.homogeneous)


def _all_tables(tables: GraphTables) -> Iterator[Table]:
    for nodes in tables.nodes.values():
        yield from (*filter(None, [nodes.rows]), *nodes.splits.values())
    yield from tables.lists.values()


def _build(job: Job, given: GraphTables) -> GraphSchema:
    numbered, text_types = number_text_ids(job, given)
    tables = quantize_columns(job, hold_out_edges(job, numbered))
    nodes: dict[NodeType, NodeSchema] = {}
    directories: dict[NodeType, Directory] = {}
    for node_type in tables.node_types:
        built, directories[node_type] = build_nodes(job, tables, node_type)
        nodes[node_type] = replace(built, text_ids=node_type in text_types)
    edges = {
        edge_type: build_edges(
            job,
            edge_type,
            tables.edges[edge_type],
            nodes,
            directories,
            weights=tables.weights.get(edge_type, ()),
            splits=tables.splits.get(edge_type),
        )
        for edge_type in sorted(tables.edges)
    }
    labels = {
        name: build_edges(job, name, tables.labels[name], nodes, directories, outward=True)
        for name in sorted(tables.labels)
    }
    schema = GraphSchema(
        edge_dir=job.edge_dir,
        homogeneous=tables.homogeneous,
        nodes={kind: replace(each, times=tables.times.get(kind, ())) for kind, each in nodes.items()},
        edges={kind: replace(each, times=tables.times.get(kind, ())) for kind, each in edges.items()},
        num_partitions=job.num_partitions,
        labels=labels,
    )
    for node_type, each in schema.nodes.items():
        for time in each.times:
            index_node_times(job, schema, node_type, time, directories[node_type])
    for edge_type in schema.edges:
        for time in schema.list_times(edge_type):
            index_times(job, schema, edge_type, time)
            for weight in schema.edges[edge_type].weights:
                index_timed_weights(job, schema, edge_type, time, weight)
    manifest = Manifest(schema, {"assigner": job.assigner.name}, job.files, version_for(schema))
    data = manifest.to_bytes()
    sink = job.folder.create(MANIFEST_NAME, len(data))
    sink.write(0, data)
    sink.close()
    return schema
