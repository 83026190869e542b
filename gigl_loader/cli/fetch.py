"""``gigl-loader fetch``: copy a graph, or some of its partitions, from a URI to a directory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gigl_loader.cli.console import build_progress, say
from gigl_loader.cli.errors import importing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.manifest import Manifest


def fetch(
    source: Annotated[str, typer.Argument(help="URI of a graph, such as s3://bucket/graph, or its path.")],
    directory: Annotated[Path, typer.Argument(help="Directory to copy to. It may have some of the graph.")],
    *,
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partition", "-p", help="Partitions to copy: 0, or 0,3. Default: all."),
    ] = None,
    topology: Annotated[
        str, typer.Option(help="all: also all files but the features of the other partitions.")
    ] = "own",
) -> None:
    """Copy a graph, or some of its partitions, to a directory of this machine.

    Every byte is compared with its checksum. After an interruption, the same
    command goes on. Files that are in the directory are verified and kept.
    """
    with importing():
        from gigl_loader.graph.folder import DiskFolder
        from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest, check_files, files_of
        from gigl_loader.options import MAX_MANIFEST_BYTES, check_topology
        from gigl_loader.partition.remote_files import RemotePlace, RemoteSource
        from gigl_server.partitions.adoption import make_sound, write_durable
        from gigl_server.partitions.pull import PullProgress, size_text

    check_topology(topology)
    place = RemotePlace(source if "://" in source else Path(source).absolute().as_uri())
    data = place.read(MANIFEST_NAME, most=MAX_MANIFEST_BYTES)
    manifest = Manifest.parse(data, what=str(place))
    check_files(manifest)
    parts = _chosen(partitions, manifest, str(place))
    every = range(manifest.schema.num_partitions)
    names = files_of(manifest.schema, every if topology == "all" else parts, features_of=parts)
    _check_directory(directory, manifest)
    directory.mkdir(parents=True, exist_ok=True)
    progress = PullProgress(str(place))
    with build_progress(quiet=False) as show, progress.shown(show):
        nbytes = make_sound(
            DiskFolder(directory),
            manifest,
            names,
            find=lambda: [RemoteSource(place)],
            progress=progress,
            stop=threading.Event(),
        )
    if not (directory / MANIFEST_NAME).exists():  # Last: a directory without it is no graph.
        write_durable(directory / MANIFEST_NAME, data)
    total = sum(manifest.files[name].nbytes for name in names)
    listed = "all partitions" if len(parts) == manifest.schema.num_partitions else f"partitions {parts}"
    listed += " and the topology of all" if topology == "all" and len(parts) < len(every) else ""
    say(f"{directory}: {listed} of {place}, {size_text(total)}, of which {size_text(nbytes)} were copied")


def _chosen(partitions: Sequence[str] | None, manifest: Manifest, what: str) -> list[int]:
    from gigl_server.option import PARTITIONS

    count = manifest.schema.num_partitions
    chosen = PARTITIONS.read("--partition", partitions) if partitions else range(count)
    for part in chosen:
        if part >= count:
            raise ValueError(f"{what} has no partition {part}: it has 0 to {count - 1}")
    return sorted(set(chosen))


def _check_directory(directory: Path, manifest: Manifest) -> None:
    """Raise ``ValueError`` for a directory that holds something else than files of this graph, or a link."""
    from gigl_loader.graph.folder import DiskFolder
    from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest
    from gigl_loader.regular_files import check_no_links
    from gigl_server.partitions.assembly import temporary_name

    check_no_links(directory)
    if (directory / MANIFEST_NAME).exists():
        found = Manifest.read(DiskFolder(directory)).digest
        if found != manifest.digest:
            raise ValueError(
                f"{directory} holds another graph: digest {found[:12]}, not {manifest.digest[:12]}"
            )
        return
    known = {*manifest.files, MANIFEST_NAME}
    known |= {temporary_name(name) for name in known}
    for name in DiskFolder(directory).names():
        if name not in known:
            raise ValueError(
                f"{directory} is not empty, and {name} is no file of the graph: give another one"
            )
