"""Executors of a build, by the names and options of the command line."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from gigl_loader.cli.built import working_memory

if TYPE_CHECKING:
    from gigl_loader.partition import Executor

__all__ = ["ExecutorName", "executor_named", "memory_of"]


class ExecutorName(str, Enum):
    """What does the tasks of a build."""

    local = "local"
    ray = "ray"


def memory_of(name: ExecutorName, limit: str | None) -> int | None:
    """Return the working memory that a limit leaves: of all processes here, or of each task on Ray."""
    if limit is None:
        return None
    if name is ExecutorName.local:
        return working_memory(limit)
    from gigl_loader.partition.limits import parse_bytes

    return parse_bytes(limit)


def executor_named(name: ExecutorName, *, num_workers: int | None, ray_address: str | None) -> Executor:
    """Return the executor. ``ValueError`` for an option that another one has."""
    if name is ExecutorName.ray:
        from gigl_loader.partition.ray_executor import RayExecutor

        return RayExecutor(ray_address, num_workers=num_workers)
    if ray_address is not None:
        raise ValueError("--ray-address is for --executor ray")
    from gigl_loader.partition.local_executor import LocalExecutor

    return LocalExecutor(num_workers)
