"""One case of ``pyg_peer.py``: a loader of PyG or of gigl_loader, measured in a process of its own.

The only argument is a :class:`Case` as JSON; the result is one line of JSON. The process runs in the
environment of its side, and imports nothing of the other.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigl_loader.bench.meter import CpuMeter  # Needs the standard library only.

LINK_SEED = 11
NUM_WORKERS_IN_WORDS = {0: "inline", 1: "1 worker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A loader and its work."""

    side: str
    """``gigl_loader`` or ``PyG``."""
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
    filter_per_worker: bool | None = None
    """PyG: whether workers gather the rows, or the trainer does."""
    threads: int | None = None
    """PyG: torch's threads in the trainer, by default its own choice. Workers have one."""
    backend: str = "auto"
    """PyG: ``auto`` takes pyg-lib where it is installed, else torch-sparse."""
    sampler_only: bool = False
    """PyG: draw neighbourhoods in this process, gather no rows."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        fields = json.loads(text)
        return cls(**{**fields, "fanout": tuple(fields["fanout"])})

    def __str__(self) -> str:
        if self.sampler_only:
            return f"{self.side}, sampler alone"
        place = {None: "", True: ", rows by workers", False: ", rows by trainer"}[self.filter_per_worker]
        threads = "" if self.threads is None else f", {self.threads} thread"
        workers = NUM_WORKERS_IN_WORDS.get(self.num_workers, f"{self.num_workers} workers")
        return f"{self.side}, {workers}{place}{threads}"


@dataclass(slots=True)
class Pass:
    """Totals of one epoch."""

    inputs: int = 0
    """Seeds, or positive links."""
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
            seen.inputs += batch.batch_size if task == "node" else int((batch.edge_label > 0).sum())
            seen.edges += batch.edge_index.shape[1]
            seen.nodes += batch.num_nodes
            seen.batches += 1
        return seen


@dataclass(frozen=True, slots=True)
class Drawn:
    """A neighbourhood without rows, counted as a batch is."""

    batch_size: int
    edge_index: torch.Tensor
    num_nodes: int


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


# --- gigl_loader ---------------------------------------------------------------------------------------


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
        links: dict[str, Any] = {"edge_label_index": input_links(case), "neg_sampling": "binary"}
        return gigl_loader.DistLinkNeighborLoader(dataset, list(case.fanout), **links, **options)

    return {"figures": measure(case, make), "versions": {"gigl_loader": gigl_loader.__version__}}


# --- PyG -----------------------------------------------------------------------------------------------


def measure_pyg(case: Case) -> dict[str, Any]:
    if case.backend == "torch-sparse":
        sys.modules["pyg_lib"] = None  # type: ignore[assignment]  # PyG then finds no pyg-lib.
    warnings.filterwarnings("ignore", message=".*'pyg-lib' installation is deprecated.*")
    import torch_geometric
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler

    if case.threads is not None:
        torch.set_num_threads(case.threads)
    with_pyg_lib = torch_geometric.typing.WITH_PYG_LIB
    if case.backend == "pyg-lib" and not with_pyg_lib:
        raise SystemExit("--backend pyg-lib: PyG's environment has no pyg-lib; see pyg_peer.sh")
    arrays = {name: np.load(Path(case.data) / f"{name}.npy") for name in ("src", "dst", "feat", "label")}
    data = Data(
        x=torch.from_numpy(arrays["feat"]),
        y=torch.from_numpy(arrays["label"]),
        edge_index=torch.from_numpy(np.stack([arrays.pop("src"), arrays.pop("dst")])),
    )
    sampler = NeighborSampler(data, list(case.fanout), share_memory=case.num_workers > 0)

    def make() -> AbstractContextManager[Iterable[Any]]:
        return nullcontext(
            Neighbourhoods(case, sampler) if case.sampler_only else pyg_loader(case, data, sampler)
        )

    versions = {
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "backend": backend_version(with_pyg_lib),
    }
    return {"figures": measure(case, make), "versions": versions}


def pyg_loader(case: Case, data: Any, sampler: Any) -> Iterable[Any]:
    from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

    options: dict[str, Any] = {
        "neighbor_sampler": sampler,
        "filter_per_worker": case.filter_per_worker,
        "batch_size": case.batch_size,
        "shuffle": False,
        "drop_last": True,
        "num_workers": case.num_workers,
        "persistent_workers": case.num_workers > 0,
    }
    if case.task == "node":
        return NeighborLoader(data, list(case.fanout), input_nodes(case), **options)  # type: ignore[no-any-return]
    links = {"edge_label_index": input_links(case), "neg_sampling": "binary"}
    return LinkNeighborLoader(data, list(case.fanout), **links, **options)  # type: ignore[no-any-return]


class Neighbourhoods:
    """Neighbourhoods of an epoch's batches, without rows."""

    def __init__(self, case: Case, sampler: Any) -> None:
        self._sampler = sampler
        self._batches = torch.split(input_nodes(case), case.batch_size)

    def __iter__(self) -> Iterator[Drawn]:
        from torch_geometric.sampler import NodeSamplerInput

        for seeds in self._batches:
            out = self._sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds))
            yield Drawn(len(seeds), out.row[None], len(out.node))


def backend_version(with_pyg_lib: bool) -> str:
    name = "pyg-lib" if with_pyg_lib else "torch-sparse"
    return f"{name} {version(name.replace('-', '_'))}"


def main() -> None:
    case = Case.from_json(sys.argv[1])
    result = (measure_pyg if case.side == "PyG" else measure_ours)(case)
    print(json.dumps({**result, "load_average": os.getloadavg()}), flush=True)


if __name__ == "__main__":
    main()
