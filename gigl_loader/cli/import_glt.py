"""``gigl-loader import-glt``: build a graph from a directory that graphlearn-torch has partitioned."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from gigl_loader.cli.build_options import EdgeDirection, report, working_memory
from gigl_loader.cli.console import build_progress
from gigl_loader.cli.errors import importing, terminated_as_interrupted


def import_glt(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="What GLT's partitioners wrote: META, node_pb, part0, ...")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Directory to make. It appears complete or not at all.")
    ],
    *,
    edge_dir: Annotated[
        EdgeDirection, typer.Option(help="Keep each node's in-edges (messages flow along) or out-edges.")
    ] = EdgeDirection.inward,
    label: Annotated[list[str], typer.Option(help="[TYPE=]FILE.pt: a row for each node, stored as y.")] = [],  # noqa: B006 - typer copies it
    split: Annotated[
        list[str],
        typer.Option(help="[TYPE:]NAME=FILE.pt: node ids or mask of a split. Again for more types or ids."),
    ] = [],  # noqa: B006
    memory_limit: Annotated[
        str | None, typer.Option(help="Of the whole process, e.g. 2GB (default: half of what is free).")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is a graph.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Build a graph from a directory that graphlearn-torch (GLT) has partitioned.

    GLT is not needed, and nothing in the files is run. Nodes stay in their
    partitions; node and edge ids stay what they are. Features are stored as x and
    edge_attr, edge weights as weight, by which edges can be drawn.
    """
    with importing():
        import torch  # noqa: F401 - it reads the tensors; the memory limit must find it loaded

        from gigl_loader.graph import HOMOGENEOUS_NODE
        from gigl_loader.partition import import_glt as build

    labels: dict[str, Path] = {}
    for given in label:
        node_type, equals, path = given.partition("=")
        key, path = (node_type, path) if equals else (HOMOGENEOUS_NODE, node_type)
        if not path or key in labels:
            raise ValueError(f"--label {given}: write --label [TYPE=]FILE.pt, once for a type")
        labels[key] = Path(path)
    splits: dict[str, dict[str, list[Path]]] = {}
    for given in split:
        left, _, path = given.partition("=")
        node_type, colon, name = left.rpartition(":")
        if not path or not name:
            raise ValueError(f"--split {given}: write --split [TYPE:]NAME=FILE.pt")
        named = splits.setdefault(node_type if colon else HOMOGENEOUS_NODE, {})
        named.setdefault(name, []).append(Path(path))
    started = time.monotonic()
    with terminated_as_interrupted(), build_progress(quiet=json) as progress:
        schema = build(
            directory,
            out,
            edge_dir=edge_dir.value,
            labels=labels,
            splits=splits,
            memory_limit=None if memory_limit is None else working_memory(memory_limit),
            overwrite=overwrite,
            progress=progress,
        )
    report(out, schema, time.monotonic() - started, as_json=json)
