"""``gigl-loader index``: adds to a built graph what a kind of draw needs."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from gigl_loader.cli.console import build_progress
from gigl_loader.cli.errors import importing, terminated_as_interrupted

__all__ = ["index"]


def index(
    graph: Annotated[Path, typer.Argument(help="A directory made by gigl-loader partition.")],
    *,
    weight: Annotated[
        list[str], typer.Option(help="[TYPE:]COLUMN: edges can be drawn in proportion to this column.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Add an index to a graph, in place.

    The graph stays whole while this runs. Processes that have it open go on with
    what they opened; start servers and trainers again to use the index.
    """
    with importing():
        from gigl_loader.cli.table_options import weight_columns
        from gigl_loader.graph import Graph
        from gigl_loader.partition.index import add_weights

    edges = Graph.open(graph, verify="none").schema.edges
    columns = {kind: [*each.columns, *(["weight"] if each.weight else [])] for kind, each in edges.items()}
    with terminated_as_interrupted(), build_progress(quiet=json) as progress:
        schema = add_weights(graph, weight_columns(columns, weight), progress=progress)
    declared = {",".join(kind): list(each.weights) for kind, each in schema.edges.items() if each.weights}
    if json:
        print(json_module.dumps({"path": str(graph), "weights": declared}))
    else:
        for kind, names in declared.items():
            print(f"{graph}: edges {kind} can be drawn by {', '.join(names)}")
