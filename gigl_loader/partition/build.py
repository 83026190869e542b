"""Builds a graph from tables, streaming, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from gigl_loader.graph.column_names import check_column_names
from gigl_loader.graph.folder import Folder
from gigl_loader.graph.ids import Directory
from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest, version_for
from gigl_loader.graph.schema import GraphSchema, NodeSchema, NodeType
from gigl_loader.partition.assigners import AnyAssigner, Assigner, GraphAssigner, assigner_named
from gigl_loader.partition.job import Budget, Job, Progress
from gigl_loader.partition.output import OutputFolder
from gigl_loader.partition.readers import Table
from gigl_loader.partition.site import build_site
from gigl_loader.partition.stage import stamp_of
from gigl_loader.partition.steps.edges import build_edges
from gigl_loader.partition.steps.index import index_node_times, index_timed_weights, index_times
from gigl_loader.partition.steps.nodes import build_nodes
from gigl_loader.partition.steps.quantized_table import quantize_columns
from gigl_loader.partition.steps.splits import hold_out_edges
from gigl_loader.partition.steps.text_ids import number_text_ids
from gigl_loader.partition.table import EDGE_ROLES, NODE_ROLES, GraphTables, data_columns
from gigl_loader.partition.views import MissingValues, missing_anywhere

if TYPE_CHECKING:
    from gigl_loader.partition.executors import Executor
    from gigl_loader.partition.runner import TaskTotals

_MAX_PARTITIONS = 1 << 16


def build_graph(
    tables: GraphTables,
    out: str | os.PathLike[str] | Folder,
    *,
    num_partitions: int = 1,
    edge_dir: Literal["in", "out"] = "in",
    assigner: AnyAssigner = "range",
    memory_limit: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    executor: Executor | None = None,
    scratch: str | os.PathLike[str] | None = None,
    resume: bool = False,
    summary: Callable[[TaskTotals], None] | None = None,
) -> GraphSchema:
    """Build a graph from ``tables`` and return its schema.

    ``out`` is a directory, which appears complete or not at all, or an empty folder. ``assigner`` says which
    partition owns a node: ``"range"``, ``"hash"``, ``"ldg"``, ``"kaminpar"``, a table of owners (see
    ``owners_from_files``), an ``Assigner`` or a ``GraphAssigner``. ``memory_limit`` bounds the working
    memory in bytes, on top of what the process and the tables hold already (default: half of what is
    available); it changes the time taken, never the result. ``progress`` is called with a step's name, its
    rows done and its rows in all. Raises ``FormatError`` for tables that break a rule, naming file, column
    and row, and ``ValueError`` for arguments that make no sense.

    ``executor`` does the tasks of the build in other processes: ``LocalExecutor`` or ``RayExecutor``. Without
    one, this process does them. It never changes the result. ``scratch`` is a directory where finished tasks
    are kept until the graph is complete; with ``resume``, a build that was cut off goes on with those that it
    holds. ``BuildError`` where processes or machines of the executor are gone for good. ``summary`` is called
    at the end.
    """
    if not 1 <= num_partitions <= _MAX_PARTITIONS:
        raise ValueError(f"num_partitions must lie in 1..{_MAX_PARTITIONS}, got {num_partitions}")
    if edge_dir not in ("in", "out"):
        raise ValueError(f'edge_dir must be "in" or "out", got {edge_dir!r}')
    _check_column_names(tables)
    chosen = assigner_named(assigner)

    def describe() -> Mapping[str, Any]:
        return {
            "partitions": num_partitions,
            "edge direction": edge_dir,
            "assigner": [chosen.name, stamp_of(chosen)],
            "tables": tables.stamp(),
        }

    with build_site(
        out,
        executor=executor,
        scratch=scratch,
        resume=resume,
        overwrite=overwrite,
        memory_limit=memory_limit,
        describe=describe,
    ) as site:
        with Job(
            site.folder,
            temporary=site.temporary,
            budget=Budget(site.plan.memory_bytes),
            num_partitions=num_partitions,
            edge_dir=edge_dir,
            scratch=site.scratch,
            runner=site.runner(num_partitions, edge_dir),
            progress=progress,
        ) as job:
            try:
                schema = _build(job, tables, chosen)
            except MissingValues as error:
                raise missing_anywhere(_all_tables(tables), error) from None
        if isinstance(site.folder, OutputFolder):
            site.folder.keep_only({*job.files, MANIFEST_NAME})
        if summary is not None:
            summary(job.runner.totals)
    return schema


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


def _build(job: Job, given: GraphTables, assigner: Assigner | GraphAssigner) -> GraphSchema:
    numbered, text_types = number_text_ids(job, given)
    tables = quantize_columns(job, hold_out_edges(job, numbered))
    owners = assigner.plan(job, tables) if isinstance(assigner, GraphAssigner) else assigner
    nodes: dict[NodeType, NodeSchema] = {}
    directories: dict[NodeType, Directory] = {}
    for node_type in tables.node_types:
        built, directories[node_type] = build_nodes(job, tables, node_type, owners)
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
    manifest = Manifest(schema, {"assigner": assigner.name}, job.files, version_for(schema))
    data = manifest.to_bytes()
    sink = job.folder.create(MANIFEST_NAME, len(data))
    sink.write(0, data)
    sink.close()
    return schema
