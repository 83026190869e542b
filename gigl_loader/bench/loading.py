"""The loader end to end: features included, batches thrown away as they come."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gigl_loader.bench.meter import CpuMeter
from gigl_loader.bench.rounds import Case, Figures, workers_in_words
from gigl_loader.bench.workload import Workload
from gigl_loader.dataset import DistDataset
from gigl_loader.loaders.dataset import Dataset
from gigl_loader.loaders.neighbor import DistNeighborLoader

__all__ = ["loader_case", "open_loader"]


@dataclass(slots=True)
class Pass:
    """What one epoch delivered, and when its first batch came."""

    seeds: int = 0
    nodes: int = 0
    edges: int = 0
    targets: int = 0
    """Nodes whose neighbours were drawn."""
    batches: int = 0
    first_batch_s: float = 0.0

    @classmethod
    def over(cls, loader: Iterable[Any]) -> Pass:
        seen, start = cls(), time.perf_counter()
        for batch in loader:
            if not seen.batches:
                seen.first_batch_s = time.perf_counter() - start
            seen.seeds += batch.batch_size
            seen.nodes += batch.x.shape[0]
            seen.edges += batch.edge_index.shape[1]
            seen.targets += sum(batch.num_sampled_nodes[:-1])
            seen.batches += 1
        return seen


def open_loader(
    dataset: Dataset,
    workload: Workload,
    seeds: npt.NDArray[np.int64],
    num_workers: int,
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
    graph: Path, workload: Workload, seeds: npt.NDArray[np.int64], *, num_workers: int, epochs: int = 2
) -> Case:
    """Build a loader, take one epoch to warm it and time the first batch, then measure some more."""

    def case() -> dict[str, Figures]:
        start = time.perf_counter()
        with open_loader(DistDataset.open(graph), workload, seeds, num_workers) as loader:
            built = time.perf_counter() - start
            first = built + Pass.over(loader).first_batch_s
            cpu, start = CpuMeter(), time.perf_counter()
            passes = [Pass.over(loader) for _ in range(epochs)]
            seconds = time.perf_counter() - start
            ours, _ = cpu.read()
        taken = sum(each.seeds for each in passes)
        batches = sum(each.batches for each in passes)
        return {
            f"loader, {workers_in_words(num_workers)}": {
                "seeds_per_s": taken / seconds,
                "edges_per_s": sum(each.edges for each in passes) / seconds,
                "cpu_s_per_kseed": ours / taken * 1e3,
                "nodes_per_batch": sum(each.nodes for each in passes) / batches,
                "edges_per_batch": sum(each.edges for each in passes) / batches,
                "first_batch_s": first,
                "later_first_batch_s": max(each.first_batch_s for each in passes),
            }
        }

    return case
