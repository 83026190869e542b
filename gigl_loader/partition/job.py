"""State that the steps of one build share: output folder, memory limit, progress."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from gigl_loader.graph.checksums import FileRecord
from gigl_loader.graph.document import DocumentWriter
from gigl_loader.graph.folder import Folder
from gigl_loader.partition.assigners import Assigner
from gigl_loader.partition.limits import Budget
from gigl_loader.partition.spill import DiskSpill, Kinds, MemorySpill, Spill, row_bytes
from gigl_loader.tensors import ArraySpec

__all__ = ["Job", "PartFiles", "Progress", "tracked"]

Progress = Callable[[str, int, int], None]
"""Called with the name of a step, the rows done and the rows in all."""


def tracked(progress: Progress | None, step: str, total: int) -> Callable[[int], None]:
    """Announce a step; return what to call with the number of rows just done."""
    done = 0

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(step, done, total)

    advance(0)
    return advance


class Job:
    """One build. Leaving it closes what is open and removes the temporary files."""

    def __init__(
        self,
        folder: Folder,
        *,
        scratch: Path | None,
        budget: Budget,
        num_partitions: int,
        edge_dir: Literal["in", "out"],
        assigner: Assigner,
        progress: Progress | None,
    ) -> None:
        """``scratch`` is where temporary files go; ``None`` uses the system's place when needed."""
        self.folder = folder
        self.budget = budget
        self.num_partitions = num_partitions
        self.edge_dir = edge_dir
        self.assigner = assigner
        self.files: dict[str, FileRecord] = {}
        self._scratch = scratch
        self._progress = progress
        self._writers: set[DocumentWriter] = set()
        self._spills = 0

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.abort()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def hold(self, nbytes: int, what: str) -> None:
        """Set memory aside until the build ends. ``ValueError`` if too little is left."""
        if nbytes:
            self.budget.require(nbytes, what)
            self.budget = Budget(self.budget.total - nbytes)

    def track(self, step: str, total: int) -> Callable[[int], None]:
        """Announce a step; return what to call with the number of rows just done."""
        return tracked(self._progress, step, total)

    def spill(self, kinds: Kinds, rows: int) -> Spill:
        """Return a place for ``rows`` rows of these arrays to wait: in memory where they fit."""
        if self.budget.fits(rows * sum(map(row_bytes, kinds.values()))):
            return MemorySpill(kinds)
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="gigl-build-"))
        self._spills += 1
        return DiskSpill(self._scratch / str(self._spills), kinds)

    def create(self, name: str, specs: Mapping[str, ArraySpec]) -> DocumentWriter:
        """Start a file of the graph."""
        writer = DocumentWriter(self.folder, name, specs)
        self._writers.add(writer)
        return writer

    def finish(self, writer: DocumentWriter) -> None:
        """Close a complete file and remember its checksums."""
        self.files[writer.name] = writer.close()
        self._writers.discard(writer)


class PartFiles:
    """One file per partition, written one after the other, so that few are open at a time."""

    def __init__(
        self, job: Job, path: Callable[[int], str], specs: Callable[[int], Mapping[str, ArraySpec]]
    ) -> None:
        """``path`` and ``specs`` give name and arrays of the file of each partition."""
        self._job = job
        self._path = path
        self._specs = specs
        self._part = -1
        self._writer: DocumentWriter | None = None

    def of(self, part: int) -> DocumentWriter:
        """Return the file of a partition. Partitions before it are closed."""
        while self._part < part:
            self._close()
            self._part += 1
            self._writer = self._job.create(self._path(self._part), self._specs(self._part))
        assert self._writer is not None
        assert self._part == part
        return self._writer

    def close(self) -> None:
        """Complete the files of all partitions."""
        self.of(self._job.num_partitions - 1)
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._job.finish(self._writer)
            self._writer = None
