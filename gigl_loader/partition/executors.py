"""Executors: they run the tasks of a build in other processes, by default of this machine."""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import Protocol

from gigl_loader.partition.job import available_memory
from gigl_loader.partition.tasks import TaskSetting
from gigl_loader.processes import FreshProcess, describe_status, is_stopped
from gigl_loader.resources import naming_process_limit, usable_cores


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """Number of tasks at once, and the memory of each."""

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
        """Begin the next stage, pickled by ``packed``. Tasks of the previous one are done or cancelled."""

    def submit(self, task: int) -> None:
        """Queue a task. More than ``num_workers`` may wait."""

    def wait(self) -> list[tuple[int, bytes | Lost]]:
        """Return at least one task that ended, with its result. Called while some are not.

        Raises ``BuildError`` when no task can end any more.
        """

    def cancel(self) -> None:
        """Cancel the tasks of this stage. Where possible, none of them writes anything afterwards."""

    def close(self) -> None:
        """End all processes and connections that this executor started."""


_logger = logging.getLogger(__name__)

_PROCESS_BYTES = 112 << 20
"""Memory of a process before it does anything: 60 MiB, and 50 more with Arrow for Parquet and CSV."""
_LEAST_TASK_BYTES = 128 << 20
"""With less memory a process is not worth its start: 48 bytes a row for the smallest stage of 1 M rows."""
_POLL_SECONDS = 15.0
_EXIT_SECONDS = 10.0


class LocalExecutor:
    """Does tasks in processes of this machine. They share the memory limit of the build."""

    is_local: bool = True

    def __init__(self, num_workers: int | None = None) -> None:
        """``num_workers`` processes at most, by default one for each core; fewer where memory is short. With
        one, the process that builds does the tasks itself."""
        if num_workers is not None and num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, got {num_workers}")
        self._wanted = num_workers
        self._num_workers = 1
        self._workers: list[_Worker] = []
        self._waiting: deque[int] = deque()
        self._stage: tempfile._TemporaryFileWrapper[bytes] | None = None

    def plan(self, memory_limit: int | None) -> WorkPlan:
        alone = WorkPlan.alone(memory_limit)
        total = alone.memory_bytes
        wanted = usable_cores() if self._wanted is None else self._wanted
        self._num_workers = min(wanted, total // (_PROCESS_BYTES + _LEAST_TASK_BYTES))
        if self._num_workers < 2:
            return alone
        rest = total - self._num_workers * _PROCESS_BYTES
        return WorkPlan(self._num_workers, rest // self._num_workers, rest)

    def open(self, setting: TaskSetting, stage: bytes) -> None:
        self.cancel()
        self._stage = tempfile.NamedTemporaryFile(prefix="gigl-stage-", dir=setting.temporary)  # noqa: SIM115 - until close
        pickle.dump(setting, self._stage)
        pickle.dump(stage, self._stage)
        self._stage.flush()

    def submit(self, task: int) -> None:
        self._waiting.append(task)
        self._dispatch()

    def wait(self) -> list[tuple[int, bytes | Lost]]:
        found: list[tuple[int, bytes | Lost]] = []
        while not found:
            busy = {worker.link: worker for worker in self._workers if worker.task is not None}
            assert busy, "wait() without a task"
            ended = connection.wait(list(busy), _POLL_SECONDS)
            found += [self._ended(busy[link]) for link in ended]  # type: ignore[index]
            if not found:
                for worker in [each for each in busy.values() if each.is_stuck()]:
                    assert worker.task is not None
                    lost = Lost(f"process {worker.pid} was stopped by a signal, and is given up")
                    found.append((worker.task, lost))
                    self._remove(worker)
        self._dispatch()
        return found

    def cancel(self) -> None:
        self._waiting.clear()
        for worker in [each for each in self._workers if each.task is not None]:
            self._remove(worker)
        if self._stage is not None:
            self._stage.close()
            self._stage = None

    def close(self) -> None:
        self.cancel()
        for worker in self._workers:
            worker.link.close()  # Its process removes its files, and ends.
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def _dispatch(self) -> None:
        assert self._stage is not None
        while self._waiting:
            worker = next((each for each in self._workers if each.task is None), None)
            if worker is None:
                if len(self._workers) == self._num_workers:
                    return
                if (worker := self._started()) is None:
                    return
                self._workers.append(worker)
            worker.start(self._waiting.popleft(), self._stage.name)

    def _started(self) -> _Worker | None:
        """Start a process. ``None``, and fewer from now on, where the system allows no more."""
        try:
            with naming_process_limit(f"num_workers={self._num_workers}"):
                return _Worker()
        except OSError as error:
            if not self._workers:
                raise
            self._num_workers = len(self._workers)
            _logger.warning("%d processes do the tasks: %s", self._num_workers, error)
            return None

    def _ended(self, worker: _Worker) -> tuple[int, bytes | Lost]:
        task = worker.task
        assert task is not None
        try:
            data = worker.link.recv_bytes()
        except (EOFError, OSError):
            self._workers.remove(worker)
            return task, Lost(f"process {worker.pid} {describe_status(worker.end())}")
        worker.task = None
        return task, data

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.end(kill=True)


class _Worker:
    """A process, and the task that it does."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, ours:
            self._process = FreshProcess("gigl_loader.partition.tasks:do_tasks", theirs)
            self.link = connection.Connection(ours.detach())
        self.pid = self._process.pid
        self.task: int | None = None
        self._polls_stopped = 0

    def start(self, task: int, stage: str) -> None:
        """Begin a task. Where the process is gone, its link says so afterwards."""
        self.task = task
        with suppress(BrokenPipeError, ConnectionResetError):
            self.link.send_bytes(json.dumps({"stage": stage, "task": task, "parent": os.getpid()}).encode())

    def is_stuck(self) -> bool:
        """Whether the process was found stopped twice in a row."""
        self._polls_stopped = self._polls_stopped + 1 if is_stopped(self.pid) else 0
        return self._polls_stopped > 1

    def end(self, *, kill: bool = False) -> int | None:
        """Close the link and wait for the process. Return its exit status."""
        self.link.close()
        if kill:
            self._process.send_signal(9)
        status = self._process.wait(_EXIT_SECONDS)
        if status is None:
            self._process.send_signal(9)
            status = self._process.wait(_EXIT_SECONDS)
        return status
