"""Selection of the measurements of ``gigl-loader bench``, run in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import Progress

from gigl_loader.bench.loading import loader_case, memory_case
from gigl_loader.bench.rounds import Case, Measured, run_rounds, workers_in_words
from gigl_loader.bench.sampling import gather_case, sampler_case
from gigl_loader.bench.store import (
    SETUPS,
    SMALL,
    SMALL_RING,
    cached_setups,
    small_case,
    small_name,
    store_case,
)
from gigl_loader.bench.trainer import KINDS, trainer_case
from gigl_loader.bench.workload import Workload, prepare, training_seeds
from gigl_loader.graph.graph import Graph

GROUPS = ("sampling", "loading", "trainer", "store", "memory")
"""Groups of measurements, in order."""

QUICK_GROUPS = ("sampling", "loading", "trainer", "memory")
"""Groups that take seconds on a small graph. The store does not: it starts many processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Selection of measurements, and the workload."""

    workload: Workload
    folder: Path
    """Directory of the workload's files, made where missing."""
    rounds: int = 3
    workers: tuple[int, ...] = (0, 1, 2)
    groups: tuple[str, ...] = GROUPS
    start_method: str = "spawn"
    """Of sampling processes."""
    caches: tuple[int, ...] = (20,)
    """Memory for features at the trainer of a store, in percent of the features."""
    windows: tuple[int | None, ...] = (None,)
    """Of that trainer. ``None``: as the loader decides."""

    def __post_init__(self) -> None:
        unknown = [group for group in self.groups if group not in GROUPS]
        if unknown or not self.groups:
            raise ValueError(f"--measure takes some of {','.join(GROUPS)}, got {','.join(self.groups)!r}")

    def run(self, console: Console) -> Measured:
        """Run every measurement. Timed cases alternate."""
        with console.status("preparing the workload") if console.is_terminal else nullcontext():
            cases = self.timed()
        with one_thread(), _progress_bar(console) as progress:
            measured = run_rounds(cases, rounds=self.rounds, progress=progress)
            for case in self.weighed():
                measured.add(case())
        return measured

    def timed(self) -> dict[str, Case]:
        """Return the cases that take turns, by name."""
        makers = {
            "sampling": self._sampling,
            "loading": self._loading,
            "trainer": self._trainer,
            "store": self._store,
        }
        return {name: case for group, make in makers.items() if group in self.groups for name, case in make()}

    def weighed(self) -> list[Case]:
        """Return the cases of memory. Watching slows a process, so they run after those of time."""
        if "memory" not in self.groups:
            return []
        return [
            memory_case(
                self._graph(), self.folder, self.workload, num_workers=count, start_method=self.start_method
            )
            for count in self.workers
        ]

    def _graph(self, partitions: int = 1) -> Path:
        return prepare(self.workload, self.folder, partitions=partitions)

    def _seeds(self) -> npt.NDArray[np.int64]:
        """Return the seeds of an epoch. A graph was made before."""
        return training_seeds(self.workload, self.folder)

    def _sampling(self) -> Iterator[tuple[str, Case]]:
        graph, seeds = Graph.open(self._graph()), self._seeds()
        yield "sampler", sampler_case(graph, self.workload, seeds)
        yield "gather", gather_case(graph, self.workload, seeds)

    def _loading(self) -> Iterator[tuple[str, Case]]:
        for count in self.workers:
            yield self._loader(count)

    def _loader(self, num_workers: int) -> tuple[str, Case]:
        case = loader_case(
            self._graph(),
            self.workload,
            self._seeds(),
            num_workers=num_workers,
            start_method=self.start_method,
        )
        return f"loader, {workers_in_words(num_workers)}", case

    def _trainer(self) -> Iterator[tuple[str, Case]]:
        graph, seeds = self._graph(), self._seeds()
        for kind in KINDS:
            yield f"trainer, {kind}", trainer_case(graph, self.workload, seeds, kind)

    def _store(self) -> Iterator[tuple[str, Case]]:
        """Yield the loader that samples where it trains, one server with as many workers, several servers."""
        yield self._loader(2)
        seeds = self._seeds()
        for setup in (*SETUPS, *cached_setups(self.caches, self.windows)):
            yield str(setup), store_case(self._graph(setup.servers), seeds, self.workload, setup)
        for setup in (SMALL, SMALL_RING):
            yield small_name(setup), small_case(self._graph(setup.servers), seeds, self.workload, setup)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: every figure is of one thread unless it says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _progress_bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on a terminal, nothing elsewhere."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring")
        yield lambda name, done, whole: progress.update(task, description=name, completed=done, total=whole)
