"""One case of a comparison with another library: a loader and its work, measured in a process of its own.

Shared by ``pyg_peer.py``, ``glt_links.py`` and ``graphbolt_peer.py``. The process runs in the environment of
its side and imports nothing of the other. As a script, this file measures gigl_loader's side: the only
argument is a :class:`Case` as JSON, the result is one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigl_loader.bench.rounds import CpuMeter  # Needs the standard library only.

LINK_SEED = 11
NUM_WORKERS_IN_WORDS = {0: "inline", 1: "1 worker"}
OURS = "gigl_loader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A loader and its work."""

    side: str
    """``gigl_loader``, ``PyG``, ``GLT`` or ``GraphBolt``."""
    task: str
    """``node`` or ``link``: batches around nodes, or around links and as many random pairs."""
    data: str
    """Directory of the workload's arrays."""
    graph: str
    """Directory of the graph, for gigl_loader."""
    fanout: tuple[int, ...]
    batch_size: int
    batches: int
    """Batches per epoch."""
    seconds: float
    """Epochs are measured until so much time has passed: at least one, after one that is not measured."""
    num_workers: int = 0
    neg_sampling: str | dict[str, Any] = "binary"
    """gigl_loader and PyG: negatives of links."""
    filter_per_worker: bool | None = None
    """PyG: whether workers gather the rows, or the trainer does."""
    threads: int | None = None
    """The peers: torch's threads in the trainer, by default its own choice. PyG's workers have one."""
    backend: str = "auto"
    """PyG: ``auto`` takes pyg-lib where it is installed, else torch-sparse."""
    sampler_only: bool = False
    """PyG, GraphBolt: draw neighbourhoods in this process, gather no rows."""
    random_seed: int | None = 1
    """GLT: without a seed it draws entropy from the system once per row, which is far slower."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        fields = json.loads(text)
        return cls(**{**fields, "fanout": tuple(fields["fanout"])})

    def __str__(self) -> str:
        place = {None: "", True: ", rows by workers", False: ", rows by trainer"}[self.filter_per_worker]
        threads = "" if self.threads is None else f", {self.threads} thread"
        workers = NUM_WORKERS_IN_WORDS.get(self.num_workers, f"{self.num_workers} workers")
        workers = "sampler alone" if self.sampler_only else workers
        unseeded = ", unseeded" if self.random_seed is None else ""
        return f"{self.side}, {workers}{place}{threads}{unseeded}"


@dataclass(frozen=True, slots=True)
class Counted:
    """What :class:`Pass` counts of a batch that is no ``Data``."""

    batch_size: int
    edge_index: torch.Tensor
    num_nodes: int


@dataclass(slots=True)
class Pass:
    """Totals of one epoch."""

    inputs: int = 0
    """Seeds, or positive links."""
    pairs: int = 0
    """Links and negatives."""
    nodes: int = 0
    edges: int = 0
    batches: int = 0
    first_batch_s: float = 0.0

    @classmethod
    def over(cls, batches: Iterable[Any], task: str) -> Pass:
        seen, start = cls(), time.perf_counter()
        for batch in batches:
            if not seen.batches:
                seen.first_batch_s = time.perf_counter() - start
            if task == "node":
                seen.inputs += batch.batch_size
            else:
                seen.inputs += int((batch.edge_label > 0).sum())
                seen.pairs += len(batch.edge_label)
            seen.edges += batch.edge_index.shape[1]
            seen.nodes += batch.num_nodes
            seen.batches += 1
        return seen


def measure(case: Case, make: Callable[[], AbstractContextManager[Iterable[Any]]]) -> dict[str, float]:
    """Build a loader, take one epoch to warm it, then measure epochs for ``case.seconds``."""
    start = time.perf_counter()
    with make() as loader:
        built = time.perf_counter() - start
        first = Pass.over(loader, case.task).first_batch_s
        cpu, start = CpuMeter(), time.perf_counter()
        passes = [Pass.over(loader, case.task)]
        while time.perf_counter() - start < case.seconds:
            passes.append(Pass.over(loader, case.task))
        seconds = time.perf_counter() - start
        ours, others = cpu.read()
    inputs, batches = sum(each.inputs for each in passes), sum(each.batches for each in passes)
    edges = sum(each.edges for each in passes)
    if (inputs, batches) != (len(passes) * case.batches * case.batch_size, len(passes) * case.batches):
        raise RuntimeError(f"{case}: {batches} batches of {inputs} inputs in {len(passes)} epochs")
    pairs = sum(each.pairs for each in passes)
    if pairs != (2 * inputs if case.task == "link" else 0):
        raise RuntimeError(f"{case}: {pairs - inputs} negatives of {inputs} links")
    unit = "seed" if case.task == "node" else "link"
    return {
        f"{unit}s_per_s": inputs / seconds,
        "edges_per_s": edges / seconds,
        f"cpu_s_per_k{unit}": ours / inputs * 1e3,
        "nodes_per_batch": sum(each.nodes for each in passes) / batches,
        "edges_per_batch": edges / batches,
        f"edges_per_{unit}": edges / inputs,
        "first_batch_s": built + first,
        "later_first_batch_s": max(each.first_batch_s for each in passes),
        "others_busy_cores": others / seconds,
    }


def input_nodes(case: Case) -> torch.Tensor:
    """Return the seeds, int64 [batches * batch_size]."""
    return torch.from_numpy(np.load(Path(case.data) / "train.npy")[: case.batches * case.batch_size])


def input_links(case: Case) -> torch.Tensor:
    """Return links of the graph, drawn at random: int64 [2, batches * batch_size]."""
    ends = [np.load(Path(case.data) / f"{name}.npy", mmap_mode="r") for name in ("src", "dst")]
    chosen = np.random.default_rng(LINK_SEED).integers(0, len(ends[0]), case.batches * case.batch_size)
    return torch.from_numpy(np.stack([end[chosen] for end in ends]))


def measure_ours(case: Case) -> dict[str, Any]:
    import gigl_loader

    torch.set_num_threads(1)  # As in all benchmarks of gigl_loader. Its batches are made outside torch.
    dataset = gigl_loader.DistDataset.open(case.graph)
    options: dict[str, Any] = {
        "batch_size": case.batch_size,
        "shuffle": False,
        "drop_last": True,
        "with_edge": True,
        "seed": 1,
        "num_workers": case.num_workers,
    }

    def make() -> AbstractContextManager[Iterable[Any]]:
        if case.task == "node":
            return gigl_loader.DistNeighborLoader(dataset, list(case.fanout), input_nodes(case), **options)
        links: dict[str, Any] = {"edge_label_index": input_links(case), "neg_sampling": case.neg_sampling}
        return gigl_loader.DistLinkNeighborLoader(dataset, list(case.fanout), **links, **options)

    return {"figures": measure(case, make), "versions": {"gigl_loader": gigl_loader.__version__}}


def answer(measure_case: Callable[[Case], dict[str, Any]]) -> None:
    """Measure the case that is the only argument of this process, and print what was found."""
    result = measure_case(Case.from_json(sys.argv[1]))
    print(json.dumps({**result, "load_average": os.getloadavg()}), flush=True)


if __name__ == "__main__":
    answer(measure_ours)
