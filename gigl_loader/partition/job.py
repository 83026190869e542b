"""State that the steps of one build share: output folder, memory limit, progress."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gigl_loader.graph.checksums import FileRecord
from gigl_loader.graph.document import DocumentWriter
from gigl_loader.graph.folder import Folder
from gigl_loader.partition.limits import Budget
from gigl_loader.partition.scratch import Scratch
from gigl_loader.partition.spill import DiskSpill, Kinds, MemorySpill, Spill, row_bytes
from gigl_loader.tensors import ArraySpec

if TYPE_CHECKING:
    from gigl_loader.partition.runner import Runner

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
    """One build, or one process that does tasks of it. Leaving it removes the temporary files."""

    def __init__(
        self,
        folder: Folder,
        *,
        temporary: Path | None,
        budget: Budget,
        num_partitions: int,
        edge_dir: Literal["in", "out"],
        scratch: Scratch | None = None,
        runner: Runner | None = None,
        progress: Progress | None = None,
    ) -> None:
        """``temporary`` is where files of this process go; ``None`` uses the system's place when needed.

        ``scratch`` is where tasks of several processes leave rows for each other, ``runner`` what does the
        tasks of a build; a process that does tasks has none.
        """
        self.folder = folder
        self.budget = budget
        self.num_partitions = num_partitions
        self.edge_dir: Literal["in", "out"] = edge_dir
        self.files: dict[str, FileRecord] = {}
        self.advance: Callable[[int], None] = lambda _: None
        """Told by tasks of this process how many rows they have done."""
        self._scratch = scratch
        self._runner = runner
        self._temporary = temporary
        self._progress = progress
        self._writers: set[DocumentWriter] = set()
        self._spills = 0

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort_writers()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def abort_writers(self) -> None:
        """Forget files that are not complete."""
        for writer in self._writers:
            writer.abort()
        self._writers.clear()

    @property
    def scratch(self) -> Scratch:
        """Where tasks leave rows for each other."""
        assert self._scratch is not None
        return self._scratch

    @property
    def runner(self) -> Runner:
        """What does the tasks of the build."""
        assert self._runner is not None
        return self._runner

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
        return DiskSpill(self.temporary_path(), kinds)

    def temporary_path(self) -> Path:
        """Return a path where nothing is yet. What is there when the build ends is removed."""
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="gigl-build-"))
        self._spills += 1
        return self._temporary / str(self._spills)

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
    """One file for each of some partitions, written one after the other, so that few are open at a time."""

    def __init__(
        self,
        job: Job,
        parts: range,
        path: Callable[[int], str],
        specs: Callable[[int], Mapping[str, ArraySpec]],
    ) -> None:
        """``path`` and ``specs`` give name and arrays of the file of each partition."""
        self._job = job
        self._parts = parts
        self._path = path
        self._specs = specs
        self._part = parts.start - 1
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
        self.of(self._parts[-1])
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._job.finish(self._writer)
            self._writer = None
