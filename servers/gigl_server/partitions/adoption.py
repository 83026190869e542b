"""Adoption: a server takes over a partition, at its start or later, and pulls what its folder lacks."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.graph.folder import DiskFolder, graph_directory
from gigl_loader.graph.local_partitions import open_partitions
from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest, check_files, files_of, files_of_part
from gigl_loader.options import check_topology, check_verify
from gigl_loader.regular_files import open_regular
from gigl_loader.threads import start_thread
from gigl_server.partitions.assembly import PullStopped, temporary_name
from gigl_server.partitions.file_sources import FileSourceFinder
from gigl_server.partitions.pull import PullProgress, pull_from, unsound_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.config import ServeOptions
    from gigl_server.counters import Counters
    from gigl_server.partitions.assembly import Source
    from gigl_server.partitions.file_sources import FileSource
    from gigl_server.partitions.holdings import Holdings

_LOGGER = logging.getLogger(__name__)


def open_graph(options: ServeOptions, credentials: Credentials) -> Graph:
    """Open the partitions that the options name. Those to adopt are pulled and verified first.

    Raises what ``open_partitions`` raises; ``StorageUnavailable`` where no server holds a partition to adopt,
    and ``OSError`` where there is no room for it.
    """
    topology, verify = check_topology(options.topology), check_verify(options.verify)
    if options.adopt:
        _adopt(options, credentials)
    return open_partitions(options.graph_dir, options.served, topology=topology, verify=verify)


def _adopt(options: ServeOptions, credentials: Credentials) -> None:
    """Pull the partitions to adopt that are missing or damaged, and the topology that the options want."""
    path, peers = graph_directory(options.graph_dir), options.peers
    parts, served = options.adopt or (), options.served or ()
    path.mkdir(parents=True, exist_ok=True)
    caller = credentials.caller()
    holders = FileSourceFinder(
        lambda: caller, cluster_key=credentials.cluster_key, certificate=credentials.trusted
    )
    manifest, data = _manifest(path, holders, peers)
    check_files(manifest)
    if outside := [part for part in parts if part >= manifest.schema.num_partitions]:
        raise ValueError(f"no partition {outside[0]} in a graph of {manifest.schema.num_partitions}")
    folder, stop = DiskFolder(path), threading.Event()
    every = range(manifest.schema.num_partitions) if options.topology == "all" else ()
    for part in (*parts, *(part for part in every if part not in served)):
        names = files_of(manifest.schema, [part], features_of=parts)
        find = partial(holders.find, peers, partition=part, digest=manifest.digest)
        progress = PullProgress(f"partition {part}")
        with progress.shown():
            make_sound(folder, manifest, names, find=find, progress=progress, stop=stop)
    if data is not None:  # Last: a folder without it is no graph.
        write_durable(path / MANIFEST_NAME, data)


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


def write_durable(path: Path, data: bytes) -> None:
    """Write a file, durable, under a temporary name first."""
    temporary = path.parent / temporary_name(path.name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(open_regular(temporary, flags, 0o644), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def make_sound(
    folder: DiskFolder,
    manifest: Manifest,
    names: Sequence[str],
    *,
    find: Callable[[], Sequence[Source]],
    progress: PullProgress,
    stop: threading.Event,
) -> int:
    """Pull the files that are missing or damaged here. Return the bytes that were fetched.

    ``find`` returns sources that have them all, or raises ``StorageUnavailable``.
    """
    unsound = unsound_files(folder, manifest, names, progress, stop)
    if not unsound:
        _LOGGER.info("%s lies here, and is sound", progress.what)
        return 0
    try:
        sources = find()
    except StorageUnavailable as error:
        raise StorageUnavailable(f"{unsound[0]} is missing or damaged, and {error}") from None
    where = ", ".join(map(str, sources))
    _LOGGER.info("%s: %d files are pulled from %s", progress.what, len(unsound), where)
    return pull_from(sources, folder, manifest, unsound, progress=progress, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionState:
    """State of an adoption."""

    step: str
    """``held``, ``failed``, or the step under way: ``waiting``, ``verifying``, ``pulling``, ``opening``."""
    done: int = 0
    total: int = 0
    """Bytes of the step."""
    error: str = ""


class Adopter:
    """Takes over partitions, one after the other, each on a thread of its own. Thread-safe."""

    def __init__(
        self, holdings: Holdings, find: Callable[[int | None], list[FileSource]], counters: Counters
    ) -> None:
        """``find`` is as for ``Repairer``."""
        self._holdings = holdings
        self._find = find
        self._counters = counters
        self._ended = threading.Event()
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._under_way: dict[int, PullProgress] = {}
        self._errors: dict[int, str] = {}
        self._threads: list[threading.Thread] = []

    def adopt(self, partition: int) -> AdoptionState:
        """Begin to take over a partition, unless that is under way. Return its state.

        Does nothing for one that is held already. ``ValueError`` for one that the graph does not have.
        """
        graph = self._holdings.graph
        if not 0 <= partition < graph.schema.num_partitions:
            raise ValueError(f"no partition {partition} in a graph of {graph.schema.num_partitions}")
        with self._lock:
            if partition not in self._under_way:
                self._errors.pop(partition, None)
                progress = PullProgress(f"partition {partition}")
                thread = threading.Thread(
                    target=self._run, args=(partition, progress), name=f"adopt {partition}", daemon=True
                )
                start_thread(thread)  # Then it waits for the lock.
                self._under_way[partition] = progress
                self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        return self.state(partition)

    def state(self, partition: int) -> AdoptionState:
        """Return the state of an adoption; ``failed`` where none was begun."""
        with self._lock:
            progress = self._under_way.get(partition)
            if progress is not None:
                return AdoptionState(step=progress.state, done=progress.done, total=progress.total)
            if self._is_held(partition):
                return AdoptionState(step="held")
            return AdoptionState(step="failed", error=self._errors.get(partition, "it was not begun"))

    def close(self, timeout_s: float) -> None:
        """End adoptions under way: what was pulled stays for later ones. Closing twice is fine."""
        self._ended.set()
        until = time.monotonic() + timeout_s
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def _is_held(self, partition: int) -> bool:
        return partition in self._holdings.graph.parts or partition in self._holdings.withdrawn

    def _run(self, partition: int, progress: PullProgress) -> None:
        error = ""
        try:
            with self._turn:
                self._take_over(partition, progress)
        except PullStopped:
            error = "the server ends"
        except (GiglError, OSError, ValueError) as failure:
            error = " ".join(str(failure).split())
            _LOGGER.error("partition %d was not taken over: %s", partition, error)
        except Exception:
            error = "the server failed; its log says why"
            _LOGGER.exception("partition %d was not taken over", partition)
        with self._lock:
            if error:
                self._errors[partition] = error
            del self._under_way[partition]

    def _take_over(self, partition: int, progress: PullProgress) -> None:
        if self._is_held(partition):
            return
        began = time.monotonic()
        graph = self._holdings.graph
        names = files_of_part(graph.schema, partition)
        if not isinstance(graph.folder, DiskFolder):
            raise ValueError("a server of a graph in memory takes over no partition")
        find = partial(self._find, partition)
        fetched = make_sound(
            graph.folder, graph.manifest, names, find=find, progress=progress, stop=self._ended
        )
        progress.begin("opening", 0)
        self._holdings.gain([partition])
        self._counters.add(adoptions=1, adopted_bytes=fetched)
        _LOGGER.info("partition %d was taken over in %.1f s", partition, time.monotonic() - began)
