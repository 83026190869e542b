"""Opening of the graph of a storage server, for which partitions are pulled from other servers first."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.errors import StorageUnavailable
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.graph import open_partitions
from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest, check_files, files_of
from gigl_loader.options import check_verify
from gigl_server.partitions.assembly import temporary_name
from gigl_server.partitions.file_sources import FileSourceFinder
from gigl_server.partitions.pull import PullProgress, pull_files, unsound_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.config import ServeOptions
    from gigl_server.partitions.file_sources import FileSource

_LOGGER = logging.getLogger(__name__)


def open_graph(options: ServeOptions, credentials: Credentials) -> Graph:
    """Open the partitions that the options name. Those to adopt are pulled and verified first.

    Raises what ``open_partitions`` raises; ``StorageUnavailable`` where no server holds a partition to adopt,
    and ``OSError`` where there is no room for it.
    """
    if options.adopt:
        _adopt(Path(options.graph_dir), options.adopt, options.peers, credentials)
    return open_partitions(options.graph_dir, options.served, verify=check_verify(options.verify))


def _adopt(path: Path, parts: Sequence[int], peers: Sequence[str], credentials: Credentials) -> None:
    """Make sure that partitions lie in a folder, sound."""
    path.mkdir(parents=True, exist_ok=True)
    caller = credentials.caller()
    holders = FileSourceFinder(
        lambda: caller, cluster_key=credentials.cluster_key, certificate=credentials.trusted
    )
    manifest, data = _manifest(path, holders, peers)
    check_files(manifest)
    if outside := [part for part in parts if part >= manifest.schema.num_partitions]:
        raise ValueError(f"no partition {outside[0]} in a graph of {manifest.schema.num_partitions}")
    for part in parts:
        _pull(path, manifest, part, partial(holders.find, peers, partition=part, digest=manifest.digest))
    if data is not None:  # Last: a folder without it is no graph.
        _write(path / MANIFEST_NAME, data)


def _manifest(path: Path, holders: FileSourceFinder, peers: Sequence[str]) -> tuple[Manifest, bytes | None]:
    """Return the manifest of a folder. Where there is none, that of the other servers, with its bytes."""
    if (path / MANIFEST_NAME).exists():
        return Manifest.read(DiskFolder(path)), None
    if not peers:
        raise ValueError(f"{path} has no {MANIFEST_NAME}, and no --peer is given to pull it from")
    with ExitStack() as stack:
        found = holders.find(peers, partition=None, digest=None)
        for holder in found:
            stack.callback(holder.close)
        if len(graphs := {holder.digest[:12] for holder in found}) > 1:
            raise ValueError(f"the servers have different graphs: digests {', '.join(sorted(graphs))}")
        data = found[0].manifest()
    return Manifest.parse(data, what=f"{MANIFEST_NAME} of {found[0]}"), data


def _pull(path: Path, manifest: Manifest, part: int, find: partial[list[FileSource]]) -> None:
    folder, stop = DiskFolder(path), threading.Event()
    progress = PullProgress(f"partition {part}")
    with progress.shown(), ExitStack() as stack:
        names = unsound_files(folder, manifest, files_of(manifest.schema, [part]), progress, stop)
        if not names:
            _LOGGER.info("partition %d lies here, and is sound", part)
            return
        try:
            holders = find()
        except StorageUnavailable as error:
            raise StorageUnavailable(f"{names[0]} is missing or damaged, and {error}") from None
        for holder in holders:
            stack.callback(holder.close)
        where = ", ".join(map(str, holders))
        _LOGGER.info("partition %d: %d files are pulled from %s", part, len(names), where)
        pull_files(folder, manifest, names, holders, progress=progress, stop=stop)


def _write(path: Path, data: bytes) -> None:
    """Write a file, durable, under a temporary name first."""
    temporary = path.parent / temporary_name(path.name)
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
