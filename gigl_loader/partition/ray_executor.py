"""Executor of Ray Core tasks on a cluster."""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gigl_loader.errors import BuildError
from gigl_loader.partition.executors import Lost, WorkPlan
from gigl_loader.partition.job import available_memory
from gigl_loader.partition.tasks import OpenedStage, TaskSetting, packed_error

_FETCH_SECONDS = 600.0


def do_task(setting: TaskSetting, stage: list[Any], task: int) -> bytes:
    """Do a task of the stage that ``stage`` refers to. Return its result, or its error in place of one."""
    try:
        return _opened(setting, stage[0]).do(task)
    except Exception as error:
        return packed_error(error)


@lru_cache(maxsize=1)
def _opened(setting: TaskSetting, stage: Any) -> OpenedStage:
    """Open a stage once for all of its tasks that this process does."""
    import ray

    return OpenedStage(setting, ray.get(stage, timeout=_FETCH_SECONDS))


_PROCESS_BYTES = 192 << 20
"""Memory of a process of Ray before it does anything. Ray's scheduler counts it, too."""
_CONNECT_SECONDS = 15.0
_POLL_SECONDS = 5.0
_CANCEL_SECONDS = 15.0
"""A task that was cancelled may write until its process has ended."""
_LEAST_TASK_BYTES = 64 << 20
_GONE_SECONDS = 120.0
"""A cluster on which no machine could run a task for so long is gone."""


class RayExecutor:
    """Does tasks on a Ray cluster, one CPU each. Ray places them by their memory, too.

    This package must be installed on all machines, in the same version, and they must share the output and
    the scratch: a file system, or an object store. Tasks of a machine that dies are done on another one.
    """

    is_local: bool = False

    def __init__(self, address: str | None = None, *, num_workers: int | None = None) -> None:
        """``address``: ``HOST:PORT`` of a cluster that this machine is part of, by default the one that runs
        here. ``num_workers``: tasks at once, by default the CPUs of the cluster."""
        if num_workers is not None and num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, got {num_workers}")
        self.address = address or "auto"
        self._wanted = num_workers
        self._ours = False
        self._memory_bytes = 0
        self._running: dict[Any, int] = {}
        self._last_seen = 0.0
        self._stage: tuple[TaskSetting, Any] | None = None

    def plan(self, memory_limit: int | None) -> WorkPlan:
        self._connect()
        machines = self._machines()
        if not machines:
            raise BuildError(f"the Ray cluster at {self.address} has no machine with a CPU for tasks")
        found = min(int(each["memory"] / each["CPU"]) for each in machines) - _PROCESS_BYTES
        if memory_limit is None:
            memory_limit = max(min(found, available_memory() // 2), _LEAST_TASK_BYTES)
        limit = memory_limit
        self._memory_bytes = limit + _PROCESS_BYTES
        if not any(self._fits(each) for each in machines):
            largest = max(each["memory"] for each in machines) - _PROCESS_BYTES
            raise ValueError(
                f"a task of {limit / 1e6:,.0f} MB fits on no machine of the Ray cluster at {self.address}: "
                f"the largest has {largest / 1e6:,.0f} MB for one"
            )
        cpus = int(sum(each["CPU"] for each in machines))
        return WorkPlan(cpus if self._wanted is None else self._wanted, limit, limit)

    def open(self, setting: TaskSetting, stage: bytes) -> None:
        import ray

        self.cancel()
        self._last_seen = time.monotonic()
        # Files of one task lie in the temporary directory of its machine.
        self._stage = replace(setting, temporary=None), ray.put(stage)

    def submit(self, task: int) -> None:
        import ray

        assert self._stage is not None
        setting, stage = self._stage
        # Losses are counted by the build, so that the message can name the task.
        remote = ray.remote(do_task).options(
            num_cpus=1, memory=self._memory_bytes, max_retries=0, name=f"gigl task {task}"
        )
        self._running[remote.remote(setting, [stage], task)] = task

    def wait(self) -> list[tuple[int, bytes | Lost]]:
        import ray

        while True:
            ready, _ = ray.wait(list(self._running), num_returns=1, timeout=_POLL_SECONDS)
            if ready:
                self._last_seen = time.monotonic()
                return [self._ended(ref) for ref in ready]
            self._check_cluster()

    def cancel(self) -> None:
        if not self._running:
            return
        import ray

        running = list(self._running)
        self._running.clear()
        for ref in running:
            ray.cancel(ref, force=True)
        ray.wait(running, num_returns=len(running), timeout=_CANCEL_SECONDS)

    def close(self) -> None:
        self.cancel()
        self._stage = None
        if self._ours:
            import ray

            ray.shutdown()
            self._ours = False

    def _connect(self) -> None:
        try:
            import ray
        except ImportError:
            raise ImportError("Ray is not installed: pip install 'gigl-loader[ray]'") from None
        if ray.is_initialized():
            return
        self._probe()
        try:
            ray.init(self.address, log_to_driver=False, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            if self.address == "auto" and isinstance(error, ConnectionError):
                raise BuildError(
                    "no Ray cluster runs on this machine: start one (ray start --head), or give the "
                    "HOST:PORT of one that this machine is part of (--ray-address)"
                ) from None
            text = " ".join(str(error).split())
            raise BuildError(f"no Ray cluster at {self.address}: {text:.300}") from None
        self._ours = True

    def _probe(self) -> None:
        """Raise ``BuildError`` where nothing listens: Ray would try for minutes."""
        if self.address == "auto":
            return
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or "/" in host:
            raise ValueError(f"no address of a Ray cluster: {self.address!r}; write HOST:PORT")
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            raise BuildError(f"no Ray cluster at {self.address}: {error.strerror or error}") from None

    def _machines(self) -> list[dict[str, float]]:
        import ray

        found = (node["Resources"] for node in ray.nodes() if node["Alive"])  # type: ignore[no-untyped-call]
        return [each for each in found if each.get("CPU", 0) >= 1 and each.get("memory", 0) > 0]

    def _fits(self, machine: dict[str, float]) -> bool:
        return machine["memory"] >= self._memory_bytes

    def _ended(self, ref: Any) -> tuple[int, bytes | Lost]:
        import ray
        from ray.exceptions import RayError, RayTaskError

        task = self._running.pop(ref)
        try:
            return task, ray.get(ref)
        except RayTaskError as error:  # Not of the task itself, whose errors are results.
            text = str(error.cause if error.cause is not None else error).strip().splitlines()[-1]
            raise BuildError(f"a task cannot begin on a machine of the Ray cluster: {text:.300}") from error
        except RayError as error:
            text = " ".join(str(error).split())
            return task, Lost(f"lost on the Ray cluster: {type(error).__name__}: {text:.300}")

    def _check_cluster(self) -> None:
        """Raise ``BuildError`` when no machine could run a task for a long time."""
        now = time.monotonic()
        if any(self._fits(each) for each in self._machines()):
            self._last_seen = now
        elif now - self._last_seen > _GONE_SECONDS:
            raise BuildError(
                f"the Ray cluster at {self.address} has had no machine for tasks for {_GONE_SECONDS:g} s"
            )
