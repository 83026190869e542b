"""``gigl-loader partition``: build a graph from tables, within a memory limit."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from gigl_loader.cli.build_options import EdgeDirection, ExecutorName, executor_named, memory_of, report
from gigl_loader.cli.console import build_progress
from gigl_loader.cli.errors import importing, terminated_as_interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.partition.runner import TaskTotals

_Many = list[str]


def partition(
    out: Annotated[
        str, typer.Argument(help="Directory to make, or a URI. It appears complete or not at all.")
    ],
    *,
    edges: Annotated[
        _Many, typer.Option(help="Edge table: [SRC,REL,DST=]FILES. Again for more types or more rows.")
    ] = [],  # noqa: B006 - typer copies it
    nodes: Annotated[
        _Many, typer.Option(help="Node table: [TYPE=]FILES, or their number: [TYPE=]COUNT.")
    ] = [],  # noqa: B006
    split: Annotated[
        _Many, typer.Option(help="Node ids or mask of a split: [TYPE:]NAME=FILE, e.g. train=train.npy.")
    ] = [],  # noqa: B006
    split_nodes: Annotated[
        _Many, typer.Option(help="[TYPE=]TRAIN,VAL,TEST: splits by hash of the ids, e.g. 0.8,0.1,0.1.")
    ] = [],  # noqa: B006
    split_edges: Annotated[
        _Many, typer.Option(help="[TYPE=]TRAIN,VAL,TEST: splits of edges by hash of both ids.")
    ] = [],  # noqa: B006
    message_edges: Annotated[
        str | None,
        typer.Option(help="Splits whose edges are sampled, e.g. train; edges of the others only predicted."),
    ] = None,
    num_partitions: Annotated[int, typer.Option("--num-partitions", "-p", min=1, help="Parts to make.")] = 1,
    edge_dir: Annotated[
        EdgeDirection, typer.Option(help="Keep each node's in-edges (messages flow along) or out-edges.")
    ] = EdgeDirection.inward,
    assigner: Annotated[
        _Many,
        typer.Option(
            help="Which part owns a node: range or hash of its id; ldg or kaminpar, which keep neighbours "
            "together; or [TYPE=]FILES with the columns id and part."
        ),
    ] = ["range"],  # noqa: B006
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Of all processes here, or of each task on Ray, e.g. 2GB (default: half of what is free)."
        ),
    ] = None,
    rename: Annotated[_Many, typer.Option(help="[TYPE:]COLUMN=NEW, e.g. author_id=src.")] = [],  # noqa: B006
    stack: Annotated[
        _Many, typer.Option(help="[TYPE:]NEW=PATTERNS: make one vector of columns, e.g. 'x=f_*,age'.")
    ] = [],  # noqa: B006
    drop: Annotated[_Many, typer.Option(help="[TYPE:]PATTERN: leave columns out.")] = [],  # noqa: B006
    dtype: Annotated[_Many, typer.Option(help="[TYPE:]COLUMN=DTYPE: convert, e.g. x=float16.")] = [],  # noqa: B006
    fill: Annotated[
        _Many,
        typer.Option(help="[TYPE:]COLUMN=VALUE or =mean: fill missing values, e.g. 'age=mean'."),
    ] = [],  # noqa: B006
    undirected: Annotated[
        bool,
        typer.Option("--undirected", help="Add all reversed edges, as rev_REL where the end types differ."),
    ] = False,
    reverse: Annotated[
        _Many, typer.Option(help="SRC,REL,DST[=NAME]: add the reversed edges as type DST,NAME,SRC (rev_REL).")
    ] = [],  # noqa: B006
    csv_delimiter: Annotated[
        str | None, typer.Option(help="Character between values of CSV files, or tab (default: comma).")
    ] = None,
    csv_quote: Annotated[str, typer.Option(help="Character around values of CSV files, or none.")] = '"',
    weight: Annotated[
        _Many, typer.Option(help="[TYPE:]COLUMN: edges can be drawn in proportion to this column.")
    ] = [],  # noqa: B006
    time: Annotated[
        _Many, typer.Option(help="[TYPE:]COLUMN, of nodes or edges: batches can be drawn in time by it.")
    ] = [],  # noqa: B006
    quantize: Annotated[
        _Many,
        typer.Option(
            help="[TYPE:]COLUMN=int8|uint4|uint2|uint1[:per-row|:per-column]: store floats in fewer bits."
        ),
    ] = [],  # noqa: B006
    labels: Annotated[
        _Many,
        typer.Option(
            help="SRC,REL,DST[:negative]=FILES: labels of anchors, src and dst. No batch has them as edges."
        ),
    ] = [],  # noqa: B006
    executor: Annotated[
        ExecutorName, typer.Option(help="What does the work: processes of this machine, or a Ray cluster.")
    ] = ExecutorName.local,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Tasks at once (default: the cores, fewer where memory is short)."),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="HOST:PORT of the Ray cluster (default: the one that runs here).")
    ] = None,
    scratch: Annotated[
        str | None,
        typer.Option(help="Directory or URI where finished tasks are kept until the graph is complete."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the build that the scratch directory holds.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Build a graph from tables.

    FILES are .parquet, .csv or .tsv (or a pattern, or a directory of them),
    .npy files of one column each (a.npy,b.npy or a directory), or for edges
    one .npy of shape [2, E]. Tables, OUT and the scratch may be URIs, such as
    s3://bucket/path (no .npy there).

    Large tables are read and sorted by several tasks at once, in processes of
    this machine or on a Ray cluster. The graph is the same byte for byte.

    Edge tables need the columns src and dst, and may have id. Node tables may
    have id (else the row number is the id) and split (train, val, test). Ids are
    integers or texts. label is stored as y. All other columns are stored under
    their names, dates and timestamps as nanoseconds since 1970 (UTC).
    """
    with importing():
        from gigl_loader.cli.table_options import TableOptions, open_tables, read_assigner
        from gigl_loader.partition import build_graph
        from gigl_loader.partition.locations import shown
        from gigl_loader.partition.sources import CsvFormat

    started = monotonic()
    engine = executor_named(executor, num_workers=workers, ray_address=ray_address)
    totals: list[TaskTotals] = []
    csv = CsvFormat(
        "\t" if csv_delimiter in ("tab", "\\t") else csv_delimiter, "" if csv_quote == "none" else csv_quote
    )
    chosen = read_assigner(assigner, csv)
    tables = open_tables(
        TableOptions(
            edges=edges,
            nodes=nodes,
            splits=split,
            rename=rename,
            stack=stack,
            drop=drop,
            dtypes=dtype,
            fill=fill,
            reverse=reverse,
            undirected=undirected,
            csv=csv,
            weights=weight,
            times=time,
            quantize=quantize,
            labels=labels,
            split_nodes=split_nodes,
            split_edges=split_edges,
            message_edges=message_edges,
        )
    )
    with _telling_of_scratch(scratch), terminated_as_interrupted(), build_progress(quiet=json) as progress:
        schema = build_graph(
            tables,
            out,
            num_partitions=num_partitions,
            edge_dir=edge_dir.value,
            assigner=chosen,
            memory_limit=memory_of(executor, memory_limit),
            overwrite=overwrite,
            progress=progress,
            executor=engine,
            scratch=scratch,
            resume=resume,
            summary=totals.append,
        )
    report(shown(out), schema, monotonic() - started, as_json=json, tasks=totals[0])


@contextmanager
def _telling_of_scratch(scratch: str | None) -> Iterator[None]:
    """Say after an interrupt how the build goes on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if scratch is not None:
            kept = f"finished tasks are kept in {scratch}: the same command with --resume goes on with them"
            print(f"gigl-loader: {kept}", file=sys.stderr)
        raise
