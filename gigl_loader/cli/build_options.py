"""Options and output that the commands share which build a graph."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.graph import GraphSchema
    from gigl_loader.partition import Executor
    from gigl_loader.partition.runner import TaskTotals


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
    from gigl_loader.partition.job import parse_bytes

    return parse_bytes(limit)


def executor_named(name: ExecutorName, *, num_workers: int | None, ray_address: str | None) -> Executor:
    """Return the executor. ``ValueError`` for an option that another one has."""
    if name is ExecutorName.ray:
        from gigl_loader.partition.ray_executor import RayExecutor

        return RayExecutor(ray_address, num_workers=num_workers)
    if ray_address is not None:
        raise ValueError("--ray-address is for --executor ray")
    from gigl_loader.partition.executors import LocalExecutor

    return LocalExecutor(num_workers)


_LEAST_BYTES = 32 << 20


class EdgeDirection(str, Enum):
    """Which edges of a node its list holds."""

    inward = "in"
    outward = "out"


def working_memory(text: str) -> int:
    """Return what a limit for the whole process leaves to work with.

    An eighth is kept back: readers decode, and allocators keep some of what is freed.
    """
    from gigl_loader.partition.job import parse_bytes, resident_bytes

    limit, taken = parse_bytes(text), resident_bytes()
    if limit - taken < _LEAST_BYTES:
        raise ValueError(
            f"a memory limit of {text} is too small: the program itself takes {taken >> 20} MiB; "
            f"give at least {(taken + _LEAST_BYTES) >> 20}MiB"
        )
    return (limit - taken) * 7 // 8


def report(
    out: object, schema: GraphSchema, seconds: float, *, as_json: bool, tasks: TaskTotals | None = None
) -> None:
    """Say what was built, and by how many tasks in how much memory, in one line or as JSON."""
    nodes = sum(entry.count for entry in schema.nodes.values())
    edges = sum(entry.count for entry in schema.edges.values())
    if as_json:
        document = {"path": str(out), "seconds": round(seconds, 3), "schema": schema.to_json()}
        print(json_module.dumps(document | ({} if tasks is None else {"tasks": asdict(tasks)})))
        return
    parts = f"{schema.num_partitions} part{'s' if schema.num_partitions > 1 else ''}"
    told = "" if tasks is None else _told(tasks)
    print(f"{out}: {nodes:,} nodes, {edges:,} edges in {parts}, {seconds:.1f} s{told}")


def _told(tasks: TaskTotals) -> str:
    """Say what other processes and earlier builds did."""
    told = (
        f"; {tasks.resumed} of {tasks.done + tasks.resumed} tasks were done before" if tasks.resumed else ""
    )
    told += f"; {tasks.lost} tasks done again" if tasks.lost else ""
    if tasks.peak_bytes:
        told += (
            f"; {tasks.num_workers} tasks at once with {tasks.task_bytes / 1e6:,.0f} MB to work with, "
            f"the largest process took {tasks.peak_bytes / 1e6:,.0f} MB"
        )
    return told
