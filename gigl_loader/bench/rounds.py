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
    others_busy: dict[str, list[float]] = field(default_factory=dict)
    """For each case and round, how many cores other processes of the machine used meanwhile."""

    def add(self, results: Mapping[str, Figures]) -> None:
        for subject, figures in results.items():
            self.subjects.setdefault(subject, Subject()).add(figures)

    def median(self, subject: str, metric: str) -> float | None:
        found = self.subjects.get(subject)
        return None if found is None else found.median(metric)


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
        measured.others_busy.setdefault(name, []).append(cpu.read()[1] / seconds)
    if progress is not None:
        progress("done", rounds * len(cases), rounds * len(cases))
    return measured


def workers_in_words(count: int) -> str:
    """Return ``inline``, ``1 worker``, ``2 workers``, ...: how subjects are named."""
    return {0: "inline", 1: "1 worker"}.get(count, f"{count} workers")
