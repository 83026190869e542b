"""Alternating measurements: every case once a round, so that a slow minute of the machine strikes all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gigl_loader.bench.meter import CpuMeter

__all__ = ["Case", "Figures", "Measured", "Subject", "run_rounds", "workers_in_words"]

Figures = Mapping[str, float]
"""Metric -> value."""

Case = Callable[[], Mapping[str, Figures]]
"""Measures one or more subjects once: subject -> figures."""


@dataclass(slots=True)
class Subject:
    """All that was measured of one subject."""

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
    """For each case and round: its seconds, and the CPU seconds of other processes meanwhile."""

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
    """Run every case ``rounds`` times, alternating, and gather what they return."""
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
