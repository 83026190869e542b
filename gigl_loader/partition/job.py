"""State that the steps of one build share (output folder, memory limit, progress), and stages of tasks."""

from __future__ import annotations

import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from gigl_loader.arrays import Array
from gigl_loader.graph.checksums import FileRecord
from gigl_loader.graph.folder import Folder
from gigl_loader.graph.manifest import Document, DocumentWriter
from gigl_loader.graph.schema import EdgeType, NodeType
from gigl_loader.partition.exchange import DiskSpill, Exchange, Kinds, MemorySpill, Spill, row_bytes
from gigl_loader.partition.output import DiskScratch, Scratch
from gigl_loader.partition.readers import Table
from gigl_loader.resources import free_memory
from gigl_loader.tensors import ArraySpec, spec_of

_MAX_CHUNK_ROWS = 4 << 20
_UNITS = {"": 1, "b": 1} | {
    name: base**power
    for power, letter in enumerate("kmgt", start=1)
    for base, names in ((1000, (letter, f"{letter}b")), (1024, (f"{letter}ib",)))
    for name in names
}
_EDGE_BYTES = 96
"""A leaf of the edge sort holds per edge: 12 to 24 bytes of spilled arrays, three int64 keys, the
order, and the 24 bytes of the native sort."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of working memory, on top of what the process holds already."""

    total: int

    def __post_init__(self) -> None:
        if self.total < 1:
            raise ValueError(f"the memory limit must be positive, got {self.total} bytes")

    def chunk_rows(self, row_bytes: int) -> int:
        """Rows to have in flight between a table and the buckets: an eighth of the memory.

        64 bytes a row go to positions, bucket numbers and their sort; each column is held twice.
        """
        return min(max(self.total // 8 // (64 + 2 * row_bytes), 1), _MAX_CHUNK_ROWS)

    def edge_bucket_rows(self, widest_row_bytes: int) -> int:
        """Edges to sort at once: half of the memory. Columns are placed one after another."""
        return max(self.total // 2 // max(_EDGE_BYTES, 24 + widest_row_bytes), 1)

    def node_bucket_rows(self, widest_row_bytes: int) -> int:
        """Nodes to place at once: half of the memory."""
        return max(self.total // 2 // (24 + widest_row_bytes), 1)

    def copy_rows(self, row_bytes: int) -> int:
        """Rows to copy at once on their way into a file: a sixteenth of the memory, 8 MiB at most."""
        return max(min(self.total // 16, 8 << 20) // max(row_bytes, 1), 1)

    def fits(self, nbytes: int) -> bool:
        """Whether that much may wait in memory, rather than on disk, to be sorted."""
        return nbytes <= self.total // 4

    def require(self, nbytes: int, what: str) -> None:
        """Raise ``ValueError`` unless half of the memory holds what cannot be streamed."""
        if nbytes > self.total // 2:
            raise ValueError(
                f"{what} needs {nbytes / 1e6:.1f} MB at once, more than half of the working memory of "
                f"{self.total / 1e6:.1f} MB: raise the memory limit"
            )


def available_memory() -> int:
    """Return the bytes that this process may still use: of the machine, and of its container."""
    return free_memory().nbytes or 4 << 30


def parse_bytes(text: str) -> int:
    """Return the number of bytes in ``"2GB"``, ``"512 MiB"`` or ``"1000000"``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is no size; write for example 2GB, 512MiB or 1000000")
    return int(float(match[1]) * unit)


def held_bytes() -> int:
    """Return the bytes of memory that this process holds, without pages of files.

    Pages of files, such as the 76 MiB of pyarrow's libraries, are shared, and the kernel drops them when
    memory is short.
    """
    try:
        resident, of_files = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10
    return (resident - of_files) * resource.getpagesize()


def peak_bytes() -> int:
    """Return the largest number of bytes of memory that this process has held."""
    # Not ``getrusage``: that begins with the memory of the process that forked this one.
    found = _field("/proc/self/status", "VmHWM")
    return held_bytes() if found is None else found


def _field(path: str, name: str) -> int | None:
    """Return the bytes that a line ``NAME: N kB`` of a file says."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), None)


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
        runner: StageRunner | None = None,
        progress: Progress | None = None,
    ) -> None:
        """``temporary`` is where files of this process go; ``None`` uses the system's place when needed.

        Tasks of several processes exchange rows through ``scratch``. ``runner`` runs the stages of a build; a
        process that does single tasks has none.
        """
        self.folder = folder
        self.budget = budget
        self.num_partitions = num_partitions
        self.edge_dir: Literal["in", "out"] = edge_dir
        self.files: dict[str, FileRecord] = {}
        self.advance: Callable[[int], None] = lambda _: None
        """Called by tasks of this process with the number of rows just done."""
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
        """Files that tasks of several processes exchange."""
        assert self._scratch is not None
        return self._scratch

    @property
    def runner(self) -> StageRunner:
        """Runner of the tasks of the build."""
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

    def shared_directory(self, name: str) -> Path | None:
        """Make a directory that all tasks see until the build ends. ``None``: they share no disk."""
        if self._scratch is not None and not isinstance(self._scratch, DiskScratch):
            return None
        shared = self._scratch is not None
        path = Path(self.scratch.location) / "rows" / name if shared else self.temporary_path()
        path.mkdir(parents=True, exist_ok=True)
        return path

    def create(self, name: str, specs: Mapping[str, ArraySpec]) -> DocumentWriter:
        """Start a file of the graph."""
        writer = DocumentWriter(self.folder, name, specs)
        self._writers.add(writer)
        return writer

    def opened(self, name: str) -> Document:
        """Open a file that was written."""
        return Document(self.folder, name, self.files[name])

    def write(self, name: str, arrays: Mapping[str, Array]) -> None:
        """Write a whole file of the graph."""
        writer = self.create(name, {key: spec_of(array) for key, array in arrays.items()})
        for key, array in arrays.items():
            writer.append(key, array)
        self.finish(writer)

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


Results = dict[str, Any]
"""What the build must know of a task, JSON-able, with ``rows``, the rows done."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Independent tasks. Each writes files, whose bytes depend on the stage alone."""

    name: str
    """Directory in the scratch, unique in the build."""
    step: str
    """Text for progress and messages."""
    num_rows: int
    """Rows that all its tasks work on."""
    num_tasks: int
    run: Callable[[Job, int], Results]
    """Does a task. It can be pickled: a function of a module, a ``partial`` of one, or a bound method."""


def nodes_or_edges(kind: NodeType | EdgeType) -> str:
    """Return a type for the text of a step."""
    return f"nodes {kind}" if isinstance(kind, str) else f"edges {','.join(kind)}"


def run_on_shards(
    job: Job, table: Table, name: str, step: str, work: Callable[[Job, Table], Results]
) -> list[Mapping[str, Any]]:
    """Run a stage with a task for each shard of a table. Return the results, in the order of the shards."""
    shards = job.runner.shards(table)
    run = partial(_on_shard, work, shards)
    return job.runner.run(job, Stage(name, step, table.num_rows, len(shards), run))


def _on_shard(work: Callable[[Job, Table], Results], shards: Sequence[Table], job: Job, task: int) -> Results:
    return work(job, shards[task])


@dataclass(slots=True)
class TaskTotals:
    """Tasks of a build, for its summary."""

    num_workers: int = 1
    task_bytes: int = 0
    """Working memory that each task may take."""
    peak_bytes: int = 0
    """Largest resident memory of a process that did a task. 0 where none was sent out."""
    done: int = 0
    resumed: int = 0
    """Tasks that an earlier build had done."""
    lost: int = 0
    """Tasks that were done again, because their process was gone."""
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows that were left out, by type and reason: unknown ids, self-loops, duplicates."""


class StageRunner(Protocol):
    """What runs the stages of a build."""

    totals: TaskTotals

    def share(self, value: object, name: str) -> None:
        """Let tasks open the file ``name`` of the graph, which has the arrays of ``value``, in its place."""

    def count_left_out(self, what: str, reason: str, rows: int) -> None:
        """Add rows of a type to those that are left out."""

    def task_budget(self, job: Job, rows: int) -> Budget:
        """Return the memory to cut the work on so many rows for."""

    def shards(self, table: Table) -> list[Table]:
        """Return the pieces of a table that tasks read."""

    def exchange(self, job: Job, name: str, kinds: Kinds, *, rows: int, num_writers: int) -> Exchange:
        """Return an exchange of rows between the tasks of one stage and of the next."""

    def run(self, job: Job, stage: Stage) -> list[Mapping[str, Any]]:
        """Run all tasks of a stage. Return their results, in the order of their numbers.

        Raises what the first of the tasks that fail raised, whichever of them failed first.
        """
