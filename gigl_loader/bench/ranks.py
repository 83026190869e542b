"""Several ranks on one host: whether they get in each other's way, and what they add to its memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gigl_loader.bench.crowd import Crowd, Job
from gigl_loader.bench.hosts import throughput
from gigl_loader.bench.meter import Memory, memory_of, process_tree
from gigl_loader.bench.rounds import Case, Figures, workers_in_words
from gigl_loader.bench.workload import Workload

__all__ = ["ranks_case", "start_memory_case"]

_LIMIT_S = 600.0
_EVERY_S = 0.05


def ranks_case(
    graph: Path, seeds: Path, workload: Workload, *, ranks: int, num_workers: int, epochs: int = 2
) -> Case:
    """Measure the throughput of all ranks together. They share the seeds."""
    job = Job(graph=str(graph), seeds=str(seeds), workload=workload, num_workers=num_workers, epochs=epochs)

    def case() -> dict[str, Figures]:
        with Crowd("measure", job, ranks=ranks) as crowd, crowd.within(_LIMIT_S):
            return {_in_words(ranks, num_workers): throughput(crowd.hear())}

    return case


def start_memory_case(graph: Path, seeds: Path, workload: Workload, *, ranks: int, num_workers: int) -> Case:
    """Weigh the ranks before they build their loaders, until all workers are up, and with batches in flight.

    Counted is memory that no file of the graph backs: processes' own, and what they have touched of
    shared memory.
    """
    job = Job(graph=str(graph), seeds=str(seeds), workload=workload, num_workers=num_workers)

    def case() -> dict[str, Figures]:
        with Crowd("start", job, ranks=ranks) as crowd, crowd.within(_LIMIT_S):
            crowd.hear()
            before = _weight(crowd)
            with _peak(crowd) as starting:
                crowd.tell()
                crowd.hear()
            with _peak(crowd) as first:
                crowd.tell()
                crowd.hear()
            crowd.tell()
        return {
            f"start-up, {_in_words(ranks, num_workers)}": {
                "before_mb": before / 1e6,
                "start_adds_mb": (starting.nbytes - before) / 1e6,
                "in_flight_adds_mb": (first.nbytes - before) / 1e6,
            }
        }

    return case


@dataclass(slots=True)
class _Peak:
    nbytes: int = 0


@contextmanager
def _peak(crowd: Crowd) -> Iterator[_Peak]:
    """Weigh a crowd again and again, until the block ends."""
    peak, done = _Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY_S):
            peak.nbytes = max(peak.nbytes, _weight(crowd))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
        peak.nbytes = max(peak.nbytes, _weight(crowd))


def _weight(crowd: Crowd) -> int:
    """Return the bytes of all processes of a crowd that no file of the graph backs."""
    pids = [pid for root in crowd.pids for pid in process_tree(root)]
    whole = sum(map(memory_of, pids), Memory())
    return whole.anonymous + whole.shared


def _in_words(ranks: int, num_workers: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}, {workers_in_words(num_workers)}" + (
        " each" if ranks > 1 else ""
    )
