"""Alternating measurements: every case runs once a round, so that a slow minute affects all cases.

Also the meters: CPU seconds and memory of a process tree, read from /proc.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def process_tree(root: int) -> list[int]:
    """Return ``root`` and the processes that descend from it, parents first."""
    children: dict[int, list[int]] = {}
    for pid in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()):
        fields = _stat(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if the process has exited."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _tree_cpu(root: int) -> float:
    """Return the CPU seconds of a tree so far, including its children that have ended."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in process_tree(root)) / _TICKS


def _machine_cpu() -> float:
    """Return the CPU seconds that the whole machine has been busy (all but idle and waiting for disks)."""
    fields = (_PROC / "stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _iowait, *rest = map(int, fields)
    return (user + nice + system + sum(rest)) / _TICKS


class CpuMeter:
    """CPU seconds of this process tree and of all other processes, counted from construction."""

    def __init__(self) -> None:
        self._root = os.getpid()
        self._machine, self._tree = _machine_cpu(), _tree_cpu(self._root)

    def read(self) -> tuple[float, float]:
        """Return the CPU seconds of this process tree, and of all other processes."""
        ours = _tree_cpu(self._root) - self._tree
        return ours, max(_machine_cpu() - self._machine - ours, 0.0)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process or of several, in bytes."""

    proportional: int = 0
    """Resident memory with shared pages divided by their users (PSS). Includes mapped files."""
    anonymous: int = 0
    """Private memory that no file backs: what a process adds."""
    shared: int = 0
    """Resident shared memory that no file on a disk backs, divided by its users."""

    def __add__(self, other: Memory) -> Memory:
        return Memory(
            self.proportional + other.proportional,
            self.anonymous + other.anonymous,
            self.shared + other.shared,
        )

    def or_more(self, other: Memory) -> Memory:
        """Return the larger of each."""
        return Memory(
            max(self.proportional, other.proportional),
            max(self.anonymous, other.anonymous),
            max(self.shared, other.shared),
        )


def memory_of(pid: int) -> Memory:
    """Return the memory of a process; zeros if it has exited."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return Memory()
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return Memory(
        kilobytes["Pss"] * 1024, kilobytes["Anonymous"] * 1024, kilobytes.get("Pss_Shmem", 0) * 1024
    )


Figures = Mapping[str, float]
"""Metric -> value."""

Case = Callable[[], Mapping[str, Figures]]
"""Measures one or more subjects once: subject -> figures."""


@dataclass(slots=True)
class Subject:
    """All samples of one subject."""

    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, figures: Figures) -> None:
        for metric, value in figures.items():
            self.samples.setdefault(metric, []).append(float(value))

    def median(self, metric: str) -> float | None:
        """Return the median over the rounds, ``None`` where the metric was not measured."""
        values = self.samples.get(metric)
        return statistics.median(values) if values else None


@dataclass(slots=True)
class Measured:
    """The outcome of a run."""

    subjects: dict[str, Subject] = field(default_factory=dict)
    loads: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """For each case, a pair per round: elapsed seconds, and CPU seconds of all other processes."""

    def add(self, results: Mapping[str, Figures]) -> None:
        for subject, figures in results.items():
            self.subjects.setdefault(subject, Subject()).add(figures)

    def median(self, subject: str, metric: str) -> float | None:
        found = self.subjects.get(subject)
        return None if found is None else found.median(metric)

    def others_busy(self, *cases: str) -> float:
        """Return how many cores other processes used while these cases ran (all cases, if none is named)."""
        loads = [load for case in cases or self.loads for load in self.loads[case]]
        return sum(cpu for _, cpu in loads) / max(sum(seconds for seconds, _ in loads), 1e-9)


def run_rounds(
    cases: Mapping[str, Case], *, rounds: int, progress: Callable[[str, int, int], None] | None = None
) -> Measured:
    """Run every case ``rounds`` times, alternating, and collect the figures."""
    measured = Measured()
    for turn in range(rounds * len(cases)):
        name = list(cases)[turn % len(cases)]
        if progress is not None:
            progress(name, turn, rounds * len(cases))
        cpu, start = CpuMeter(), time.perf_counter()
        measured.add(cases[name]())
        seconds = time.perf_counter() - start
        measured.loads.setdefault(name, []).append((seconds, cpu.read()[1]))
    if progress is not None:
        progress("done", rounds * len(cases), rounds * len(cases))
    return measured


def workers_in_words(count: int) -> str:
    """Return ``inline``, ``1 worker``, ``2 workers``, ...: how subjects are named."""
    return {0: "inline", 1: "1 worker"}.get(count, f"{count} workers")
