"""Adoption: a running server takes over a partition, which is pulled where it does not lie here."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.manifest import files_of_part
from gigl_server.partitions.assembly import PullStopped
from gigl_server.partitions.pull import PullProgress, pull_files, unsound_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_server.counters import Counters
    from gigl_server.partitions.file_sources import FileSource
    from gigl_server.partitions.holdings import Holdings

_LOGGER = logging.getLogger(__name__)


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
                progress = self._under_way[partition] = PullProgress(f"partition {partition}")
                thread = threading.Thread(
                    target=self._run, args=(partition, progress), name=f"adopt {partition}", daemon=True
                )
                self._threads = [each for each in self._threads if each.is_alive()] + [thread]
                thread.start()
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
        unsound = unsound_files(graph.folder, graph.manifest, names, progress, self._ended)
        fetched = self._pull(graph, partition, unsound, progress) if unsound else 0
        progress.begin("opening", 0)
        self._holdings.gain([partition])
        self._counters.add(adoptions=1, adopted_bytes=fetched)
        _LOGGER.info("partition %d was taken over in %.1f s", partition, time.monotonic() - began)

    def _pull(self, graph: Graph, partition: int, names: Sequence[str], progress: PullProgress) -> int:
        assert isinstance(graph.folder, DiskFolder)
        with ExitStack() as stack:
            holders = self._find(partition)
            for holder in holders:
                stack.callback(holder.close)
            where = ", ".join(map(str, holders))
            _LOGGER.info("partition %d: %d files are pulled from %s", partition, len(names), where)
            return pull_files(
                graph.folder, graph.manifest, names, holders, progress=progress, stop=self._ended
            )
