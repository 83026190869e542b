"""Peak memory of a loader and what each of its workers adds, in processes of their own.

Sampling /proc slows what it watches by some per cent, so this is no part of the timed rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from gigl_loader.bench.meter import Memory, memory_of, process_tree
from gigl_loader.bench.rounds import Case, Figures, workers_in_words
from gigl_loader.bench.workload import Workload

__all__ = ["memory_case"]

_LIMIT_S = 600.0
_EVERY_S = 0.05
_BARE = "import numpy, time; time.sleep(60)"


def memory_case(graph: Path, seeds: Path, workload: Workload, *, num_workers: int) -> Case:
    """Run one epoch in a process of its own and watch the memory of its tree."""

    def case() -> dict[str, Figures]:
        arguments = [str(graph), str(seeds), json.dumps(asdict(workload)), str(num_workers)]
        peak, workers = _watch([sys.executable, "-m", "gigl_loader.bench.memory", *arguments])
        bare = _bare_interpreter()
        figures = {
            "peak_pss_gb": peak.proportional / 1e9,
            "peak_anonymous_gb": peak.anonymous / 1e9,
            "bare_interpreter_mb": bare.anonymous / 1e6,
        }
        if workers:
            figures["worker_private_mb"] = max(workers.values()) / 1e6
            figures["worker_adds_mb"] = (max(workers.values()) - bare.anonymous) / 1e6
        return {f"memory, {workers_in_words(num_workers)}": figures}

    return case


def _watch(command: Sequence[str]) -> tuple[Memory, dict[int, int]]:
    """Run a command to its end. Return the peaks of its tree, and of each worker's own memory by pid."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak, workers = Memory(), dict[int, int]()
    deadline = time.monotonic() + _LIMIT_S
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the memory run did not end within {_LIMIT_S:g} s")
            now = {pid: memory_of(pid) for pid in process_tree(process.pid)}
            whole = sum(now.values(), Memory())
            peak = peak.or_more(whole)
            for pid, memory in now.items():
                if pid != process.pid:
                    workers[pid] = max(workers.get(pid, 0), memory.anonymous)
            time.sleep(_EVERY_S)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"the memory run ended with exit code {process.returncode}")
    return peak, workers


def _bare_interpreter() -> Memory:
    """Return the memory of an interpreter that has imported NumPy, as every worker must."""
    process = subprocess.Popen([sys.executable, "-c", _BARE])
    try:
        return max((_later(process.pid) for _ in range(20)), key=lambda memory: memory.anonymous)
    finally:
        process.kill()
        process.wait()


def _later(pid: int) -> Memory:
    time.sleep(_EVERY_S)
    return memory_of(pid)


def main(graph: str, seeds: str, workload: str, num_workers: str) -> None:
    """Take one epoch of batches, as the process that is watched."""
    from gigl_loader.bench.loading import Pass, open_loader
    from gigl_loader.dataset import DistDataset

    sizes = json.loads(workload)
    sizes["fanout"] = tuple(sizes["fanout"])
    size = Workload(**sizes)
    taken = np.load(seeds)[: size.num_seeds]
    with open_loader(DistDataset.open(graph), size, taken, int(num_workers)) as loader:
        Pass.over(loader)


if __name__ == "__main__":
    main(*sys.argv[1:])
