"""``gigl-loader index``: adds to a built graph what a kind of draw needs."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from gigl_loader.cli.console import build_progress, say
from gigl_loader.cli.errors import importing, terminated_as_interrupted


def index(
    graph: Annotated[Path, typer.Argument(help="A directory made by gigl-loader partition.")],
    *,
    weight: Annotated[
        list[str], typer.Option(help="[TYPE:]COLUMN: edges can be drawn in proportion to this column.")
    ] = [],  # noqa: B006
    time: Annotated[
        list[str], typer.Option(help="[TYPE:]COLUMN: batches can be drawn in time by this column.")
    ] = [],  # noqa: B006
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Add an index to a graph, in place.

    The graph stays whole while this runs. Processes that have it open go on with
    what they opened; start servers and trainers again to use the index.
    """
    with importing():
        from gigl_loader.cli.table_options import time_columns, weight_columns
        from gigl_loader.graph import Graph
        from gigl_loader.partition.steps.index import add_indexes

    if not weight and not time:
        raise ValueError("nothing to add: give --weight [TYPE:]COLUMN or --time [TYPE:]COLUMN")
    schema = Graph.open(graph, verify="none").schema
    columns = {
        kind: [*each.columns, *(["weight"] if each.weight else [])] for kind, each in schema.edges.items()
    }
    nodes = {kind: [*each.columns] for kind, each in schema.nodes.items()}
    weights, times = weight_columns(columns, weight), time_columns(nodes, columns, time)
    with terminated_as_interrupted(), build_progress(quiet=json) as progress:
        schema = add_indexes(graph, weights=weights, times=times, progress=progress)
    by_weight = {",".join(kind): list(each.weights) for kind, each in schema.edges.items() if each.weights}
    by_time = {
        **{kind: list(each.times) for kind, each in schema.nodes.items() if each.times},
        **{",".join(kind): list(each.times) for kind, each in schema.edges.items() if each.times},
    }
    if json:
        print(json_module.dumps({"path": str(graph), "weights": by_weight, "times": by_time}))
    else:
        for name, names in by_weight.items():
            say(f"{graph}: edges {name} can be drawn by {', '.join(names)}")
        for name, names in by_time.items():
            say(f"{graph}: batches can be drawn in time by {', '.join(names)} of {name}")
