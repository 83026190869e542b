"""Runner of the stages of a build, in this process or by an executor. Skips what an earlier build did."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gigl_loader.errors import BuildError, FormatError
from gigl_loader.partition.exchange import Exchange, FileExchange, Kinds, SharedExchange
from gigl_loader.partition.executors import Executor, Lost, WorkPlan
from gigl_loader.partition.job import Budget, Job, Stage, TaskTotals
from gigl_loader.partition.readers import Table, shards_of
from gigl_loader.partition.tasks import (
    TaskResult,
    TaskSetting,
    keep_result,
    kept_result,
    packed,
    read_result,
    run_task,
)

_logger = logging.getLogger(__name__)

_FEW_ROWS = 1 << 20
"""Stages of fewer rows are done by the process that builds: to send them out takes longer."""
_TASKS_PER_WORKER = 4
_MAX_LOSSES = 3
"""A task that was lost more often takes the build with it: it may be what kills its process."""


class Runner:
    """Runs the tasks of each stage, and collects their results."""

    def __init__(
        self,
        plan: WorkPlan,
        *,
        cuts: WorkPlan | None = None,
        executor: Executor | None = None,
        setting: TaskSetting | None = None,
        kept: frozenset[str] = frozenset(),
    ) -> None:
        """``cuts`` is the plan by which an earlier build has cut the work into tasks. ``setting`` is required
        with an executor, and where results are kept. ``kept`` names the results that the scratch has."""
        self._plan = plan
        self._cuts = cuts or plan
        self._executor = executor
        self._setting = setting
        self._kept = kept
        self._shared: dict[int, tuple[object, str]] = {}
        self.totals = TaskTotals(num_workers=max(plan.num_workers, 1), task_bytes=self._cuts.task_bytes)

    def share(self, value: object, name: str) -> None:
        self._shared[id(value)] = (value, name)

    def count_left_out(self, what: str, reason: str, rows: int) -> None:
        if rows:
            counts = self.totals.left_out.setdefault(what, {})
            counts[reason] = counts.get(reason, 0) + rows

    def task_budget(self, job: Job, rows: int) -> Budget:
        if not self._uses_files(rows):
            return job.budget
        held = self._plan.memory_bytes - job.budget.total
        return Budget(max(self._cuts.task_bytes - held * self._cuts.task_bytes // self._cuts.memory_bytes, 1))

    def shards(self, table: Table) -> list[Table]:
        if not self._uses_files(table.num_rows):
            return [table]
        tasks = max(self._cuts.num_workers, 1) * _TASKS_PER_WORKER
        return shards_of(table, max(-(-table.num_rows // tasks), _FEW_ROWS))

    def exchange(self, job: Job, name: str, kinds: Kinds, *, rows: int, num_writers: int) -> Exchange:
        if self._uses_files(rows):
            return FileExchange(f"rows/{name}", kinds, num_writers)
        return SharedExchange(job.spill(kinds, rows))

    def run(self, job: Job, stage: Stage) -> list[Mapping[str, Any]]:
        """Run all tasks of a stage. Return their results, in the order of their numbers.

        Raises what the first of the tasks that fail raised, whichever of them failed first.
        """
        title = stage.step
        if self._is_sent_out(stage):
            memory_bytes = self.task_budget(job, stage.num_rows).total
            title += f" ({stage.num_tasks} tasks, {memory_bytes / 1e6:,.0f} MB each)"
        advance = job.track(title, stage.num_rows)
        results: dict[int, TaskResult] = {}
        for task in range(stage.num_tasks):
            result = self._find(job, stage, task)
            if result is not None:
                results[task] = result
                self.totals.resumed += 1
                advance(result.value["rows"])
        left = [task for task in range(stage.num_tasks) if task not in results]
        results.update(self._done(job, stage, left, advance))
        for result in results.values():
            job.files.update(result.files)
        return [results[task].value for task in range(stage.num_tasks)]

    def _uses_files(self, rows: int) -> bool:
        keeps = self._setting is not None and self._setting.keeps_results
        return keeps or (self._executor is not None and rows >= _FEW_ROWS)

    def _is_sent_out(self, stage: Stage) -> bool:
        return self._executor is not None and stage.num_rows >= _FEW_ROWS

    def _find(self, job: Job, stage: Stage, task: int) -> TaskResult | None:
        """Return the result of a task that an earlier build has done, if its files are there."""
        if f"done/{stage.name}/{task:06d}" not in self._kept:
            return None
        try:
            result = kept_result(job.scratch, stage.name, task)
        except FormatError:  # Cut off by a crash of the machine: the task is done again.
            return None
        there = all(_is_there(job, name, record.nbytes) for name, record in result.files.items())
        return result if there else None

    def _done(
        self, job: Job, stage: Stage, tasks: list[int], advance: Callable[[int], None]
    ) -> Iterator[tuple[int, TaskResult]]:
        if not tasks:
            return
        if self._executor is None or not self._is_sent_out(stage):
            yield from self._done_here(job, stage, tasks, advance)
            return
        for task, result in self._done_elsewhere(self._executor, job, stage, tasks):
            for name, record in result.files.items():
                if not _is_there(job, name, record.nbytes):
                    raise BuildError(
                        f"{name} of the graph is not here, where a task of {stage.step} wrote it: give "
                        "an output and a --scratch that all machines share"
                    )
            self.totals.done += 1
            self.totals.peak_bytes = max(self.totals.peak_bytes, result.peak_bytes)
            advance(result.value["rows"])
            yield task, result

    def _done_here(
        self, job: Job, stage: Stage, tasks: list[int], advance: Callable[[int], None]
    ) -> Iterator[tuple[int, TaskResult]]:
        job.advance = advance
        for task in tasks:
            result = run_task(job, stage, task)
            if self._setting is not None and self._setting.keeps_results:
                keep_result(job.scratch, stage.name, task, result.to_json())
            self.totals.done += 1
            yield task, result

    def _done_elsewhere(
        self, executor: Executor, job: Job, stage: Stage, tasks: list[int]
    ) -> Iterator[tuple[int, TaskResult]]:
        assert self._setting is not None
        names = {key: name for key, (_, name) in self._shared.items()}
        memory_bytes = self.task_budget(job, stage.num_rows).total
        executor.open(replace(self._setting, memory_bytes=memory_bytes), packed(stage, job.files, names))
        # Two for each worker, so that none waits for the next; fewer where tasks were cut for more memory.
        fitting = min(self._plan.task_bytes / self._cuts.task_bytes, 1.0)
        at_once = max(int(2 * self._plan.num_workers * fitting), 1)
        waiting, running, losses = deque(tasks), set[int](), Counter[int]()
        failure: tuple[int, Exception] | None = None
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running.add(waiting[0])
                    executor.submit(waiting.popleft())
                for task, data in executor.wait():
                    if task not in running:
                        continue
                    running.discard(task)
                    what = f"{stage.step}, task {task + 1} of {stage.num_tasks}"
                    if isinstance(data, Lost):
                        self._count_loss(losses, task, f"{what}: {data.reason}")
                        waiting.appendleft(task)
                        continue
                    try:
                        result = read_result(data, what=what)
                    except Exception as error:
                        failure = (task, error)
                        # Tasks before it go on: one of them may fail at an earlier row.
                        waiting = deque(each for each in waiting if each < task)
                        running = {each for each in running if each < task}
                    else:
                        yield task, result
        finally:
            executor.cancel()
        if failure is not None:
            raise failure[1]

    def _count_loss(self, losses: Counter[int], task: int, what: str) -> None:
        losses[task] += 1
        self.totals.lost += 1
        _logger.warning("%s", what)
        if losses[task] > _MAX_LOSSES:
            raise BuildError(f"{what}; it was lost {losses[task]} times")


def _is_there(job: Job, name: str, nbytes: int) -> bool:
    status = job.folder.status(name)
    return status is not None and status.nbytes == nbytes
