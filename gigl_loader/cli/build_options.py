"""Options and output that the commands share which build a graph."""

from __future__ import annotations

import json as json_module
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gigl_loader.cli.console import say

if TYPE_CHECKING:
    from gigl_loader.graph import GraphSchema
    from gigl_loader.partition import Executor
    from gigl_loader.partition.job import TaskTotals


class ExecutorName(str, Enum):
    """Executor of the tasks of a build."""

    local = "local"
    ray = "ray"


class Form(str, Enum):
    """System whose manifest, or layout of a directory, names the tables."""

    dgl = "dgl"
    distdgl = "distdgl"
    graphbolt = "graphbolt"
    graphstorm = "graphstorm"
    movielens = "movielens"
    neo4j = "neo4j"
    neptune = "neptune"
    ogb = "ogb"
    relbench = "relbench"
    snap = "snap"


class EdgeDirection(str, Enum):
    """Which edges of a node its list holds."""

    inward = "in"
    outward = "out"


class UnknownIdHandling(str, Enum):
    """What becomes of ids that a node table does not have."""

    error = "error"
    drop = "drop"
    add = "add"


class Kept(str, Enum):
    """What becomes of some edges."""

    keep = "keep"
    drop = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Tables of a graph, as options. Most values may begin with the type they are meant for."""

    manifest: Annotated[
        tuple[Form, Path] | None,
        typer.Option(
            "--from",
            metavar="FORM PATH",
            help=f"Tables of another system ({', '.join(form.value for form in Form)}): "
            "its manifest, or its directory.",
        ),
    ] = None
    schema: Annotated[
        Path | None,
        typer.Option(help="YAML file of relational tables: rows become nodes, foreign keys become edges."),
    ] = None
    edges: Annotated[
        list[str], typer.Option(help="Edge table: [SRC,REL,DST=]FILES. Again for more types or more rows.")
    ] = field(default_factory=list)
    nodes: Annotated[
        list[str], typer.Option(help="Node table: [TYPE=]FILES, or their number: [TYPE=]COUNT.")
    ] = field(default_factory=list)
    joins: Annotated[
        list[str],
        typer.Option(
            "--join",
            help="[TYPE=]FILES: columns beside those of a table: of the same rows or, with an id, by id.",
        ),
    ] = field(default_factory=list)
    splits: Annotated[
        list[str],
        typer.Option("--split", help="Node ids or mask of a split: [TYPE:]NAME=FILE, e.g. train=train.npy."),
    ] = field(default_factory=list)
    split_nodes: Annotated[
        list[str], typer.Option(help="[TYPE=]TRAIN,VAL,TEST: splits by hash of the ids, e.g. 0.8,0.1,0.1.")
    ] = field(default_factory=list)
    split_edges: Annotated[
        list[str],
        typer.Option(help="[TYPE=]TRAIN,VAL,TEST: splits of edges (of all types) by hash of both ids."),
    ] = field(default_factory=list)
    message_edges: Annotated[
        str | None,
        typer.Option(help="Splits whose edges are sampled, e.g. train; edges of the others only predicted."),
    ] = None
    row_ids: Annotated[
        list[str],
        typer.Option(help="Node type whose ids are the row numbers, though a column looks like ids."),
    ] = field(default_factory=list)
    rename: Annotated[
        list[str],
        typer.Option(
            help="[TYPE:]COLUMN=NEW, e.g. author_id=src. A COLUMN with = or , has double quotes: "
            "'\"a=b\"=src'. So in all options for columns."
        ),
    ] = field(default_factory=list)
    stack: Annotated[
        list[str], typer.Option(help="[TYPE:]NEW=PATTERNS: make one vector of columns, e.g. 'x=f_*,age'.")
    ] = field(default_factory=list)
    drop: Annotated[list[str], typer.Option(help="[TYPE:]PATTERN,...: leave columns out.")] = field(
        default_factory=list
    )
    dtypes: Annotated[
        list[str], typer.Option("--dtype", help="[TYPE:]COLUMN=DTYPE: convert, e.g. x=float16.")
    ] = field(default_factory=list)
    vector: Annotated[
        list[str],
        typer.Option(
            help="[TYPE:]COLUMN[=LENGTH]: vectors of lists of numbers (0.1;0.2), padded or cut to a length."
        ),
    ] = field(default_factory=list)
    fill: Annotated[
        list[str],
        typer.Option(help="[TYPE:]COLUMN=VALUE or =mean: fill missing values, e.g. 'age=mean'."),
    ] = field(default_factory=list)
    undirected: Annotated[
        bool,
        typer.Option("--undirected", help="Add all reversed edges, as rev_REL where the end types differ."),
    ] = False
    reverse: Annotated[
        list[str],
        typer.Option(help="SRC,REL,DST[=NAME]: add the reversed edges as type DST,NAME,SRC (rev_REL)."),
    ] = field(default_factory=list)
    csv_delimiter: Annotated[
        str | None,
        typer.Option(help="Between values of text files: characters, tab or space (default: what fits)."),
    ] = None
    csv_columns: Annotated[
        list[str],
        typer.Option(help="[TYPE:]NAME,...: columns of CSV files without a header line, e.g. src,dst."),
    ] = field(default_factory=list)
    csv_quote: Annotated[str, typer.Option(help="Character around values of text files, or none.")] = '"'
    csv_encoding: Annotated[str, typer.Option(help="Encoding of text files, e.g. latin-1.")] = "utf-8"
    weights: Annotated[
        list[str],
        typer.Option("--weight", help="[TYPE:]COLUMN: edges can be drawn in proportion to this column."),
    ] = field(default_factory=list)
    times: Annotated[
        list[str],
        typer.Option("--time", help="[TYPE:]COLUMN, of nodes or edges: batches can be drawn in time by it."),
    ] = field(default_factory=list)
    encode: Annotated[
        list[str],
        typer.Option(
            help="[TYPE:]COLUMN[=other]: store texts as integers (labels unasked), unknown ones as other."
        ),
    ] = field(default_factory=list)
    one_hot: Annotated[list[str], typer.Option(help="[TYPE:]COLUMN: store texts as one-hot vectors.")] = (
        field(default_factory=list)
    )
    multi_hot: Annotated[
        list[str],
        typer.Option(help="[TYPE:]COLUMN[=DELIMITER]: store several texts (Action|Comedy) as one vector."),
    ] = field(default_factory=list)
    vocabulary: Annotated[
        Path | None, typer.Option(help="Graph whose vocabularies --encode uses for columns that it has.")
    ] = None
    quantize: Annotated[
        list[str],
        typer.Option(
            help="[TYPE:]COLUMN=int8|uint4|uint2|uint1[:per-row|:per-column]: store floats in fewer bits."
        ),
    ] = field(default_factory=list)
    labels: Annotated[
        list[str],
        typer.Option(
            help="SRC,REL,DST[:negative]=FILES: labels of anchors, src and dst. No batch has them as edges."
        ),
    ] = field(default_factory=list)

    unknown_ids: Annotated[
        UnknownIdHandling,
        typer.Option(help="Ids that no node table has: refuse them, leave their rows out, or add nodes."),
    ] = UnknownIdHandling.error
    duplicates: Annotated[
        Kept, typer.Option(help="Parallel edges of a type: keep all, or the one with the smallest id.")
    ] = Kept.keep
    self_loops: Annotated[Kept, typer.Option(help="Edges from a node to itself.")] = Kept.keep


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Executor of a build, its memory, and where it keeps finished tasks."""

    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Of all processes here, or of each task on Ray, e.g. 2GB (default: half of what is free)."
        ),
    ] = None
    executor: Annotated[
        ExecutorName, typer.Option(help="What does the work: processes of this machine, or a Ray cluster.")
    ] = ExecutorName.local
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Tasks at once (default: the cores, fewer where memory is short)."),
    ] = None
    ray_address: Annotated[
        str | None, typer.Option(help="HOST:PORT of the Ray cluster (default: the one that runs here).")
    ] = None
    scratch: Annotated[
        str | None,
        typer.Option(help="Directory or URI where finished tasks are kept until the graph is complete."),
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the build that the scratch directory holds.")
    ] = False

    def working_memory(self) -> int | None:
        """Return the memory that the limit leaves: of all processes here, or of each task on Ray."""
        if self.memory_limit is None:
            return None
        if self.executor is ExecutorName.local:
            return working_memory(self.memory_limit)
        from gigl_loader.partition.job import parse_bytes

        return parse_bytes(self.memory_limit)

    def executor_of_choice(self) -> Executor:
        """Return the executor. ``ValueError`` for an option of another executor."""
        if self.executor is ExecutorName.ray:
            from gigl_loader.partition.ray_executor import RayExecutor

            return RayExecutor(self.ray_address, num_workers=self.workers)
        if self.ray_address is not None:
            raise ValueError("--ray-address is for --executor ray")
        from gigl_loader.partition.executors import LocalExecutor

        return LocalExecutor(self.workers)


_LEAST_BYTES = 32 << 20


def working_memory(text: str) -> int:
    """Return what a limit for the whole process leaves to work with.

    An eighth is kept back: readers decode, and allocators keep some of what is freed.
    """
    from gigl_loader.partition.job import held_bytes, parse_bytes

    limit, taken = parse_bytes(text), held_bytes()
    if limit - taken < _LEAST_BYTES:
        raise ValueError(
            f"a memory limit of {text} is too small: the program itself takes {taken >> 20} MiB; "
            f"give at least {(taken + _LEAST_BYTES) >> 20}MiB"
        )
    return (limit - taken) * 7 // 8


def report(
    out: object, schema: GraphSchema, seconds: float, *, as_json: bool, tasks: TaskTotals | None = None
) -> None:
    """Print the size of the graph, the tasks and their memory, in one line or as JSON."""
    nodes = sum(entry.count for entry in schema.nodes.values())
    edges = sum(entry.count for entry in schema.edges.values())
    if as_json:
        document = {"path": str(out), "seconds": round(seconds, 3), "schema": schema.to_json()}
        print(json_module.dumps(document | ({} if tasks is None else {"tasks": asdict(tasks)})))
        return
    parts = f"{schema.num_partitions} part{'s' if schema.num_partitions > 1 else ''}"
    told = "" if tasks is None else _told(tasks)
    say(f"{out}: {nodes:,} nodes, {edges:,} edges in {parts}, {seconds:.1f} s{told}")


def _told(tasks: TaskTotals) -> str:
    """Return the part of the line about the tasks: resumed, lost, and their memory."""
    told = (
        f"; {tasks.resumed} of {tasks.done + tasks.resumed} tasks were done before" if tasks.resumed else ""
    )
    told += f"; {tasks.lost} tasks done again" if tasks.lost else ""
    reasons = sum((Counter(each) for each in tasks.left_out.values()), Counter[str]())
    told += "; left out: " + ", ".join(f"{n:,} {why}" for why, n in reasons.items()) if reasons else ""
    if tasks.peak_bytes:
        told += (
            f"; {tasks.num_workers} tasks at once with {tasks.task_bytes / 1e6:,.0f} MB to work with, "
            f"the largest process took {tasks.peak_bytes / 1e6:,.0f} MB"
        )
    return told
