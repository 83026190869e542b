"""CPU time that the trainer's thread spends on a batch, by kind of batch: no worker can take it over."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gigl_loader import native
from gigl_loader.bench.rounds import Case, Figures
from gigl_loader.bench.workload import Workload
from gigl_loader.dataset import DistDataset
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.link import DistLinkNeighborLoader
from gigl_loader.loaders.neighbor import DistNeighborLoader

KINDS = ("all columns", "no columns", "links", "16 seeds")
"""Of batches."""
_SMALL = 16


def trainer_case(graph: Path, workload: Workload, seeds: npt.NDArray[np.int64], kind: str) -> Case:
    """Take an epoch of two workers, then measure another by the clock of this thread."""

    def case() -> dict[str, Figures]:
        with _loader(DistDataset.open(graph), workload, seeds, kind) as loader:
            for _ in loader:
                pass
            spent, expanding = [], []
            batches, ended = iter(loader), object()
            while True:
                began = time.thread_time()
                batch = next(batches, ended)
                if batch is ended:
                    break
                spent.append(time.thread_time() - began)
                expanding.append(_expansion_s(batch))
        whole_s, expansion_s = np.mean(spent), np.mean(expanding)
        return {
            f"trainer, {kind}": {
                "trainer_ms": float(whole_s - expansion_s) * 1e3,
                "expansion_ms": float(expansion_s) * 1e3,
            }
        }

    return case


def _loader(
    dataset: DistDataset, workload: Workload, seeds: npt.NDArray[np.int64], kind: str
) -> BaseDistLoader:
    options: dict[str, Any] = {"num_workers": 2, "device": "cpu", "seed": 1, "drop_last": True}
    if kind == "links":
        links = torch.from_numpy(np.stack([seeds, seeds[::-1]]))
        options |= {"neg_sampling": "binary", "batch_size": workload.batch_size // 4}
        return DistLinkNeighborLoader(dataset, list(workload.fanout), links, **options)
    if kind == "no columns":
        options |= {"node_columns": []}
    small = kind == KINDS[-1]
    chosen = torch.from_numpy(seeds[: _SMALL * workload.batches] if small else seeds)
    options |= {"batch_size": _SMALL if small else workload.batch_size}
    return DistNeighborLoader(dataset, list(workload.fanout), chosen, **options)


def _expansion_s(batch: Any) -> float:
    """Return what the expansion of a batch's ``edge_index`` takes, into memory that was used before."""
    rows, targets = (each.numpy() for each in batch.edge_index)
    colptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=1))])
    rows, out = rows.astype(np.int32), np.zeros((2, len(rows)), np.int64)
    began = time.thread_time()
    native.expand_edges(rows, colptr, out)
    return time.thread_time() - began
