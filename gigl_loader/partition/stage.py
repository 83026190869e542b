"""A stage of a build: tasks that any executor may do in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gigl_loader.partition.job import Job

__all__ = ["Stage", "StageInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInfo:
    """What is told of a stage."""

    name: str
    """In the scratch, unique in the build."""
    step: str
    """For people."""
    num_rows: int
    """Rows that all its tasks work on."""
    num_tasks: int


class Stage(Protocol):
    """Tasks that need nothing of each other. Each writes files, whose bytes depend on the stage alone."""

    @property
    def info(self) -> StageInfo: ...

    def run(self, job: Job, task: int) -> dict[str, Any]:
        """Do a task. Return what the build must know of it, JSON-able, with ``rows``, the rows done."""
