"""Builds a graph from tables, streaming, in bounded memory."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import Folder
from gigl_loader.graph.ids import Directory, TextIds
from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest, version_for
from gigl_loader.graph.schema import EdgeSchema, EdgeType, GraphSchema, NodeSchema, NodeType, held_out_list
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.assigners import AnyAssigner, Assigner, GraphAssigner, assigner_named
from gigl_loader.partition.checks import check_tables
from gigl_loader.partition.executors import Executor
from gigl_loader.partition.job import Budget, Job, Progress, TaskTotals
from gigl_loader.partition.missing_values import MissingValues
from gigl_loader.partition.output import OutputFolder
from gigl_loader.partition.readers import Table, stamp_of
from gigl_loader.partition.site import build_site
from gigl_loader.partition.steps.edges import EdgeDrops, build_edges
from gigl_loader.partition.steps.ids import UnknownIds, warn_of_repeated_edge_ids
from gigl_loader.partition.steps.index import index_node_times, index_timed_weights, index_times
from gigl_loader.partition.steps.nodes import build_nodes
from gigl_loader.partition.steps.quantized_table import quantize_columns
from gigl_loader.partition.steps.splits import hold_out_edges
from gigl_loader.partition.steps.text_ids import number_text_ids
from gigl_loader.partition.steps.unknown_ids import (
    add_unknown_nodes,
    directories_of,
    unknown_ids,
    unknown_refused,
)
from gigl_loader.partition.steps.vocabularies import (
    Vocabularies,
    encode_columns,
    read_relations,
    reverses_of,
    schema_entries,
)
from gigl_loader.partition.table import GraphTables, of_relation, option_for
from gigl_loader.partition.views import reader_of, readers_of

logger = logging.getLogger(__name__)

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
    allow_empty: bool = False,
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
    and row, and ``ValueError`` for arguments that make no sense. ``overwrite`` replaces a graph
    at ``out``, and nothing else. Without ``allow_empty``, tables of edges that give no edge are refused,
    but for arrays without a row.

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
    check_tables(tables)
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
                with converted(job, tables):
                    schema = _build(job, tables, chosen, allow_empty=allow_empty)
            except MissingValues as error:
                raise _missing_anywhere(tables, error) from None
        if isinstance(site.folder, OutputFolder):
            site.folder.keep_only({*job.files, MANIFEST_NAME})
        if summary is not None:
            summary(job.runner.totals)
    return schema


def _build(
    job: Job, given: GraphTables, assigner: Assigner | GraphAssigner, *, allow_empty: bool
) -> GraphSchema:
    encoded, vocabularies = encode_columns(job, given)
    numbered, texts = number_text_ids(job, encoded)
    try:
        tables = numbered
        if numbered.unknown_ids == "add":
            known = directories_of(job, numbered)
            tables = add_unknown_nodes(job, numbered, known)
            if any(each.added for each in tables.nodes.values()):
                for each in unknown_ids(given, texts, known):
                    logger.warning("added as nodes: %s", each.line)
        schema, directories = _write_graph(job, tables, assigner, texts, vocabularies)
        _tell_left_out(job, given, texts, directories)
    except UnknownIds as error:
        if found := unknown_ids(given, texts, directories_of(job, numbered)):
            raise unknown_refused(given, found) from error
        raise
    if given.edges and not allow_empty:
        _require_edges(job, given, {**schema.labels, **schema.edges})
    data = Manifest(schema, {"assigner": assigner.name}, job.files, version_for(schema)).to_bytes()
    sink = job.folder.create(MANIFEST_NAME, len(data))
    sink.write(0, data)
    sink.close()
    return schema


def _write_graph(
    job: Job,
    numbered: GraphTables,
    assigner: Assigner | GraphAssigner,
    texts: Mapping[NodeType, TextIds],
    vocabularies: Vocabularies,
) -> tuple[GraphSchema, dict[NodeType, Directory]]:
    """Write all files but the manifest. Return the schema, and where the nodes lie."""
    relations = read_relations(job, numbered)
    tables = quantize_columns(job, hold_out_edges(job, numbered))
    owners = assigner.plan(job, tables) if isinstance(assigner, GraphAssigner) else assigner
    nodes: dict[NodeType, NodeSchema] = {}
    directories: dict[NodeType, Directory] = {}
    for node_type in tables.node_types:
        built, directories[node_type] = build_nodes(job, tables, node_type, owners)
        times = tables.times.get(node_type, ())
        words = schema_entries(vocabularies.get(node_type, {}))
        nodes[node_type] = replace(built, text_ids=node_type in texts, times=times, **words)
    edges, labels = _write_lists(job, tables, relations, nodes, directories)
    for kind, words in vocabularies.items():
        if not isinstance(kind, str):
            for made in _types_of(kind, relations):
                edges[made] = replace(edges[made], **schema_entries(words))
    for kind, reverse in reverses_of(tables.reverses, relations).items():
        edges[kind] = replace(edges[kind], reverse=reverse)
    schema = GraphSchema(
        edge_dir=job.edge_dir,
        homogeneous=tables.homogeneous,
        nodes=nodes,
        edges=edges,
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
    return schema, directories


def _write_lists(
    job: Job,
    tables: GraphTables,
    relations: Mapping[EdgeType, Sequence[str]],
    nodes: Mapping[NodeType, NodeSchema],
    directories: Mapping[NodeType, Directory],
) -> tuple[dict[EdgeType, EdgeSchema], dict[EdgeType, EdgeSchema]]:
    """Write edges and hidden lists; return the schemas of both, by type."""
    held = {held_out_list(kind): kind for kind in tables.splits}
    edges: dict[EdgeType, EdgeSchema] = {}
    labels: dict[EdgeType, EdgeSchema] = {}
    counts: dict[EdgeType, Counter[str]] = {}
    for name, table in sorted(tables.lists.items()):
        kind = held.get(name, name)
        are_edges = kind in tables.edges
        rule = tables.splits.get(kind)
        if are_edges and kind not in relations:  # A table of both directions has each id twice.
            warn_of_repeated_edge_ids(job, kind, table, times=2 if tables.reverses.get(kind) == kind else 1)
        found = build_edges(
            job,
            name,
            table,
            nodes,
            directories,
            weights=tables.weights.get(name, ()),
            splits=rule,
            relations=relations.get(kind),
            drops=EdgeDrops(
                unknown=tables.unknown_ids == "drop",
                self_loops=are_edges and kind[0] == kind[2] and tables.self_loops == "drop",
                duplicates=are_edges and tables.duplicates == "drop",
            ),
            outward=name in tables.labels,
        )
        for each, (listed, built) in zip(_types_of(kind, relations), found.items(), strict=True):
            if built.split_counts is not None:
                counts.setdefault(each, Counter()).update(built.split_counts)
            if name in tables.labels:
                labels[listed] = built.schema
            else:
                edges[each] = replace(built.schema, times=tables.times.get(kind, ()), splits=rule)
    for each, of_splits in counts.items():
        rule = edges[each].splits
        assert rule is not None
        edges[each] = replace(edges[each], splits=replace(rule, counts=dict(of_splits)))
    return edges, labels


def _types_of(kind: EdgeType, relations: Mapping[EdgeType, Sequence[str]]) -> list[EdgeType]:
    """Return the edge types that a table makes."""
    return [of_relation(kind, text) for text in relations[kind]] if kind in relations else [kind]


def _require_edges(job: Job, given: GraphTables, lists: Mapping[EdgeType, EdgeSchema]) -> None:
    """Raise ``FormatError`` unless there is an edge, in batches or held out. Arrays may have no rows."""
    meant = all(
        isinstance(reader_of(table), ArrayTable) and not table.num_rows for table in given.edges.values()
    )
    if meant or any(each.count for kind, each in lists.items() if kind not in given.labels):
        return
    rows = sum(table.num_rows for table in given.edges.values())
    names = ", ".join(table.name for table in given.edges.values())
    why = [f"{n:,} {reason}" for each in job.runner.totals.left_out.values() for reason, n in each.items()]
    left_out = f" (left out: {', '.join(why)})" if why else ""
    raise FormatError(
        f"no edge comes of the {rows:,} rows of {names}{left_out}; --allow-empty builds a graph without edges"
    )


def _tell_left_out(
    job: Job,
    given: GraphTables,
    texts: Mapping[NodeType, TextIds],
    directories: Mapping[NodeType, Directory],
) -> None:
    """Log how many rows are left out, of which types, and which unknown ids they had."""
    left_out = job.runner.totals.left_out
    for what, reasons in left_out.items():
        logger.warning("%s: left out %s", what, ", ".join(f"{n:,} {why}" for why, n in reasons.items()))
    if any("unknown ids" in reasons for reasons in left_out.values()):
        for each in unknown_ids(given, texts, directories):
            logger.warning("left out: %s", each.line)


def _missing_anywhere(tables: GraphTables, first: MissingValues) -> MissingValues:
    """Return the report of ``first`` together with those of all tables, which are read to their ends."""
    places = dict.fromkeys(first.places)
    options: dict[str, str] = {}
    curable = True
    for kind, table in tables.all_tables():
        found = _missing_in(table)
        places.update(dict.fromkeys(found.places if found else ()))
        for cure, value in found.cures.values() if found else ():
            options[option_for(tables, kind, value, typed=cure == "drop")] = f"--{cure}"
        curable &= found is None or len(found.cures) == len(found.places)
    if not curable:
        options = {}
    return MissingValues(
        list(places), options=[each for value, name in options.items() for each in (name, value)]
    )


def _missing_in(table: Table) -> MissingValues | None:
    try:
        for _ in table.read(list(table.columns), 1 << 16):
            pass
    except MissingValues as error:
        return error
    except FormatError:
        pass  # Another defect, which the user meets once no value is missing.
    return None


_THREAD_BYTES = 96 << 20
"""Memory that a thread of DuckDB is worth."""
_POLL_SECONDS = 0.5
_END_POLL_SECONDS = 0.05


@contextmanager
def converted(job: Job, tables: GraphTables) -> Iterator[None]:
    """Convert the tables that DuckDB reads, several at once. They are read from their sources afterwards.

    Raises what the first of them that fails raised.
    """
    readers = {id(reader): reader for _, table in tables.all_tables() for reader in readers_of(table)}
    found: list[Any] = [reader for reader in readers.values() if hasattr(reader, "convert")]
    directory = job.shared_directory("tables") if found else None
    if directory is None:  # Each task reads the sources.
        yield
        return
    try:
        _convert(job, found, directory)
        yield
    finally:
        for table in found:
            table.forget()


def _convert(job: Job, tables: list[Any], directory: Path) -> None:
    workers = max(job.runner.totals.num_workers, 1)
    memory = max(job.budget.total * 3 // 4, 1)
    threads = max(min(workers, memory // _THREAD_BYTES), 1)
    at_once = min(len(tables), threads)
    sizes = [max(table.num_bytes, 1) for table in tables]
    advance = job.track("reading text files", sum(sizes))
    told = 0
    with ThreadPoolExecutor(at_once) as pool:
        futures: list[Future[None]] = [
            pool.submit(
                table.convert,
                directory / f"{place}.parquet",
                memory_bytes=memory // at_once,
                threads=max(threads // at_once, 1),
            )
            for place, table in enumerate(tables)
        ]
        try:
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, _POLL_SECONDS, FIRST_EXCEPTION)
                read = sum(
                    int(size * (1.0 if future.done() else table.progress()))
                    for size, future, table in zip(sizes, futures, tables, strict=True)
                )
                advance(max(read - told, 0))
                told = max(read, told)
                if failed := [
                    at for at, future in enumerate(futures) if future in done and future.exception()
                ]:
                    waiting -= {*futures[failed[0] :]}  # Tables before it go on: one of them may fail, too.
        finally:
            for future in futures:
                future.cancel()
            while wait(futures, _END_POLL_SECONDS).not_done:  # One may just be about to begin.
                for table in tables:
                    table.interrupt()
    for future in futures:
        if not future.cancelled():
            future.result()
