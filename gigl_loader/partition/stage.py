"""Stages of a build, whose tasks any executor runs in any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gigl_loader.graph.schema import EdgeType, NodeType
from gigl_loader.partition.exchange import Exchange, Kinds
from gigl_loader.partition.readers import Table

if TYPE_CHECKING:
    from gigl_loader.partition.job import Budget, Job


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
