"""Puts the measurements together and runs them in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from gigl_loader.bench.loading import loader_case
from gigl_loader.bench.memory import memory_case
from gigl_loader.bench.peer import peer_case, peer_memory_case, set_up_peer
from gigl_loader.bench.rounds import Case, Measured, run_rounds, workers_in_words
from gigl_loader.bench.sampling import gather_case, sampler_case
from gigl_loader.bench.workload import Workload, prepare
from gigl_loader.graph.graph import Graph

__all__ = ["Suite", "run_suite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What to measure."""

    workload: Workload
    folder: Path
    """Holds the workload's files, or will."""
    rounds: int = 3
    workers: tuple[int, ...] = (0, 1, 2)
    memory: bool = True
    peer_script: Path | None = None

    def __post_init__(self) -> None:
        script = self.peer_script
        if script is not None and not os.access(script, os.X_OK):
            raise ValueError(f"--peer-script {script} is not an executable file")


def run_suite(suite: Suite, console: Console) -> Measured:
    """Run every measurement of the suite, those of time alternating."""
    with console.status("preparing the workload") if console.is_terminal else _quiet():
        graph = prepare(suite.workload, suite.folder)
        if suite.peer_script is not None:
            set_up_peer(suite.peer_script.absolute())
    with _one_thread(), _bar(console) as progress:
        measured = run_rounds(_timed(suite, graph), rounds=suite.rounds, progress=progress)
        for case in _weighed(suite, graph):
            measured.add(case())
    return measured


def _timed(suite: Suite, graph: Path) -> dict[str, Case]:
    seeds = np.load(suite.folder / "train.npy")[: suite.workload.num_seeds]
    opened = Graph.open(graph)
    cases = {
        "sampler": sampler_case(opened, suite.workload, seeds),
        "gather": gather_case(opened, suite.workload, seeds),
    }
    for count in suite.workers:
        cases[f"loader, {workers_in_words(count)}"] = loader_case(
            graph, suite.workload, seeds, num_workers=count
        )
    if suite.peer_script is not None:
        script = suite.peer_script.absolute()
        for mode in ("sampler", "colocated"):
            cases[f"peer, {mode}"] = peer_case(script, suite.folder, suite.workload, mode, num_workers=2)
    return cases


def _weighed(suite: Suite, graph: Path) -> list[Case]:
    if not suite.memory:
        return []
    seeds = suite.folder / "train.npy"
    cases = [memory_case(graph, seeds, suite.workload, num_workers=count) for count in suite.workers]
    if suite.peer_script is not None:
        script = suite.peer_script.absolute()
        cases.append(peer_memory_case(script, suite.folder, suite.workload, num_workers=2))
    return cases


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: every figure is of one thread unless it says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring")
        yield lambda name, done, whole: progress.update(task, description=name, completed=done, total=whole)


@contextmanager
def _quiet() -> Iterator[None]:
    yield
