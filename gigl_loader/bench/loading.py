"""The loader end to end: batches with features, dropped as they arrive.

Peak memory is measured in separate processes: reading /proc slows the watched process by some per cent, so
it is no part of the timed rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from gigl_loader.bench.rounds import (
    Case,
    CpuMeter,
    Figures,
    Memory,
    memory_of,
    process_tree,
    workers_in_words,
)
from gigl_loader.bench.workload import Workload, training_seeds
from gigl_loader.dataset import DistDataset
from gigl_loader.loaders.dataset import Dataset
from gigl_loader.loaders.neighbor import DistNeighborLoader


@dataclass(slots=True)
class Pass:
    """Totals of one epoch, or of several."""

    seeds: int = 0
    nodes: int = 0
    edges: int = 0
    targets: int = 0
    """Nodes whose neighbours were drawn."""
    batches: int = 0
    first_batch_s: float = 0.0
    """Longest time until the first batch of an epoch."""

    @classmethod
    def over(cls, loader: Iterable[Any], *, epochs: int = 1) -> Pass:
        """Take all batches of the loader, ``epochs`` times."""
        seen = cls()
        for _ in range(epochs):
            start, is_first = time.perf_counter(), True
            for batch in loader:
                if is_first:
                    seen.first_batch_s = max(seen.first_batch_s, time.perf_counter() - start)
                    is_first = False
                seen.seeds += batch.batch_size
                seen.nodes += batch.x.shape[0]
                seen.edges += batch.edge_index.shape[1]
                seen.targets += sum(batch.num_sampled_nodes[:-1])
                seen.batches += 1
        return seen

    def figures(self, *, seconds: float, cpu_s: float, first_batch_s: float) -> dict[str, float]:
        """Return the metrics of a loader. ``first_batch_s`` counts from before its construction."""
        return {
            "seeds_per_s": self.seeds / seconds,
            "edges_per_s": self.edges / seconds,
            "cpu_s_per_kseed": cpu_s / self.seeds * 1e3,
            "nodes_per_batch": self.nodes / self.batches,
            "edges_per_batch": self.edges / self.batches,
            "first_batch_s": first_batch_s,
            "later_first_batch_s": self.first_batch_s,
        }


def open_loader(
    dataset: Dataset,
    workload: Workload,
    seeds: npt.NDArray[np.int64],
    num_workers: int | Literal["auto"],
    *,
    device: str = "cpu",
    **options: Any,
) -> DistNeighborLoader:
    """Return a loader over these seeds, in their order, with edge ids. ``options`` are further ones."""
    return DistNeighborLoader(
        dataset,
        list(workload.fanout),
        torch.from_numpy(seeds),
        batch_size=workload.batch_size,
        shuffle=False,
        drop_last=True,
        with_edge=True,
        seed=1,
        num_workers=num_workers,
        device=device,
        **options,
    )


def loader_case(
    graph: Path,
    workload: Workload,
    seeds: npt.NDArray[np.int64],
    *,
    num_workers: int,
    start_method: str = "spawn",
    epochs: int = 2,
) -> Case:
    """Build a loader, take one epoch to warm it and time the first batch, then measure ``epochs`` more."""

    def case() -> dict[str, Figures]:
        start, options = time.perf_counter(), {"multiprocessing_context": start_method}
        with open_loader(DistDataset.open(graph), workload, seeds, num_workers, **options) as loader:
            built = time.perf_counter() - start
            first = built + Pass.over(loader).first_batch_s
            cpu, start = CpuMeter(), time.perf_counter()
            total = Pass.over(loader, epochs=epochs)
            seconds = time.perf_counter() - start
            cpu_s, _ = cpu.read()
        figures = total.figures(seconds=seconds, cpu_s=cpu_s, first_batch_s=first)
        return {f"loader, {workers_in_words(num_workers)}": figures}

    return case


_LIMIT_S = 600.0
_EVERY_S = 0.05
_BARE = "import numpy, time; time.sleep(60)"


def memory_case(
    graph: Path, folder: Path, workload: Workload, *, num_workers: int, start_method: str = "spawn"
) -> Case:
    """Run one epoch in a process of its own and watch the memory of its tree."""

    def case() -> dict[str, Figures]:
        arguments = [str(graph), str(folder), json.dumps(asdict(workload)), str(num_workers), start_method]
        peak, workers = _watch([sys.executable, "-m", "gigl_loader.bench.loading", *arguments])
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
    """Run a command to its end. Return the peaks of its tree, and each worker's private peak by pid."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak, workers = Memory(), dict[int, int]()
    deadline = time.monotonic() + _LIMIT_S
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the memory run did not end within {_LIMIT_S:g} s")
            now = {pid: memory_of(pid) for pid in process_tree(process.pid)}
            peak = peak.or_more(sum(now.values(), Memory()))
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
    """Return the peak memory of an interpreter that imports NumPy, as every worker must."""
    process = subprocess.Popen([sys.executable, "-c", _BARE])
    peak = Memory()
    try:
        for _ in range(20):
            time.sleep(_EVERY_S)
            peak = peak.or_more(memory_of(process.pid))
    finally:
        process.kill()
        process.wait()
    return peak


def main(graph: str, folder: str, workload: str, num_workers: str, start_method: str) -> None:
    """Take one epoch of batches. Entry point of the watched process."""
    sizes = json.loads(workload)
    size = Workload(**{**sizes, "fanout": tuple(sizes["fanout"])})
    seeds = training_seeds(size, Path(folder))
    options = {"multiprocessing_context": start_method}
    with open_loader(DistDataset.open(graph), size, seeds, int(num_workers), **options) as loader:
        Pass.over(loader)


if __name__ == "__main__":
    main(*sys.argv[1:])
