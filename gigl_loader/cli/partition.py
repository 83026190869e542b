"""``gigl-loader partition``: build a graph from tables, within a memory limit."""

from __future__ import annotations

import json as json_module
import sys
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from gigl_loader.cli.build_options import EdgeDirection, EngineOptions, TableOptions, report
from gigl_loader.cli.console import build_progress, say
from gigl_loader.cli.errors import importing, terminated_as_interrupted
from gigl_loader.cli.options import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.partition.job import TaskTotals


@grouped
def partition(
    out: Annotated[
        str, typer.Argument(help="Directory to make, or a URI. It appears complete or not at all.")
    ],
    *,
    options: TableOptions,
    num_partitions: Annotated[int, typer.Option("--num-partitions", "-p", min=1, help="Parts to make.")] = 1,
    edge_dir: Annotated[
        EdgeDirection, typer.Option(help="Keep each node's in-edges (messages flow along) or out-edges.")
    ] = EdgeDirection.inward,
    assigner: Annotated[
        list[str],
        typer.Option(
            help="Which part owns a node: range or hash of its id; ldg or kaminpar, which keep neighbours "
            "together; or [TYPE=]FILES with the columns id and part."
        ),
    ] = ["range"],  # noqa: B006
    engine: EngineOptions,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is a graph.")] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Accept tables of edges of which no edge comes.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print how each table is read, and build nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Build a graph from tables.

    gigl-loader partition graph --edges edges.csv --nodes nodes.parquet -p 2

    FILES are text (CSV), .parquet, .arrow or .orc (or a pattern, or a directory
    of them), .npy files of one column each (a.npy,b.npy or a directory), or for
    edges one .npy of shape [2, E]. Tables, OUT and the scratch may be URIs, such as
    s3://bucket/path (no .npy there).

    Large tables are read and sorted by several tasks at once, in processes of
    this machine or on a Ray cluster. The graph is the same byte for byte.

    Edge tables need the columns src and dst, and may have id. Node tables may
    have id (else the row number is the id) and split (train, val, test). Ids are
    integers or texts. label is stored as y. All other columns are stored under
    their names, dates and timestamps as nanoseconds since 1970 (UTC).
    """
    with importing():
        from gigl_loader.cli.printed_command import printing_a_command
        from gigl_loader.cli.table_options import open_tables, read_assigner
        from gigl_loader.cli.table_plan import document, plan_of, print_plan, tell_plan
        from gigl_loader.graph.folder import shown
        from gigl_loader.partition import build_graph

    started = monotonic()
    executor = engine.executor_of_choice()
    totals: list[TaskTotals] = []
    chosen = read_assigner(assigner, options)
    with printing_a_command(options):
        tables = open_tables(options)
    if plan:
        found = plan_of(tables)
        print(json_module.dumps(document(found))) if json else print_plan(found)
        return
    if not json:
        tell_plan(plan_of(tables, values=False))
    with (
        _telling_of_scratch(engine.scratch),
        terminated_as_interrupted(),
        build_progress(quiet=json) as progress,
        printing_a_command(options),
    ):
        schema = build_graph(
            tables,
            out,
            num_partitions=num_partitions,
            edge_dir=edge_dir.value,
            assigner=chosen,
            memory_limit=engine.working_memory(),
            overwrite=overwrite,
            allow_empty=allow_empty,
            progress=progress,
            executor=executor,
            scratch=engine.scratch,
            resume=engine.resume,
            summary=totals.append,
        )
    report(shown(out), schema, monotonic() - started, as_json=json, tasks=totals[0])


@contextmanager
def _telling_of_scratch(scratch: str | None) -> Iterator[None]:
    """Print after an interrupt how to resume the build."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if scratch is not None:
            kept = f"finished tasks are kept in {scratch}: the same command with --resume goes on with them"
            say(f"gigl-loader: {kept}", file=sys.stderr)
        raise
