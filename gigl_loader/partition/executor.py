"""Executors: where the tasks of a build are done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gigl_loader.partition.limits import available_memory

if TYPE_CHECKING:
    from gigl_loader.partition.tasks import TaskSetting

__all__ = ["Executor", "Lost", "WorkPlan"]


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """How many tasks there are at once, and their memory."""

    num_workers: int
    """Tasks at once. 0: the process that builds does them itself."""
    task_bytes: int
    """Working memory of a task."""
    memory_bytes: int
    """Working memory of the process that builds, while no task runs."""

    @classmethod
    def alone(cls, memory_limit: int | None) -> WorkPlan:
        """Return the plan of a build without other processes."""
        total = available_memory() // 2 if memory_limit is None else memory_limit
        return cls(0, total, total)


@dataclass(frozen=True, slots=True)
class Lost:
    """A task whose process is gone. It is done again."""

    reason: str


class Executor(Protocol):
    """Does tasks in other processes, in any order, several at once. A closed one takes another build."""

    is_local: bool
    """Whether its processes run on this machine, and see its files."""

    def plan(self, memory_limit: int | None) -> WorkPlan:
        """Divide a memory limit, or what there is. ``ValueError`` for one that is too small."""

    def open(self, setting: TaskSetting, stage: bytes) -> None:
        """Take up the next stage: ``packed`` tasks. Those of the stage before are done or given up."""

    def submit(self, task: int) -> None:
        """Take up a task. More than ``num_workers`` may wait."""

    def wait(self) -> list[tuple[int, bytes | Lost]]:
        """Return at least one task that ended, with its result. Called while some are not.

        Raises ``BuildError`` when no task can end any more.
        """

    def cancel(self) -> None:
        """Give up the tasks of this stage: none writes anything afterwards, where that can be had."""

    def close(self) -> None:
        """End what was started."""
