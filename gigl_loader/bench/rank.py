"""One trainer of a crowd: the process that ``ranks.py`` starts. It prints lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from gigl_loader.bench.loading import Pass, open_loader
from gigl_loader.bench.ranks import Job
from gigl_loader.bench.rounds import CpuMeter
from gigl_loader.dataset import DistDataset
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.loaders.neighbor import DistNeighborLoader

_INT32_BYTES = 4


@dataclass(slots=True)
class RemoteShare:
    """Rows and lists of the batches of one rank whose nodes other hosts hold."""

    batches: int = 0
    rows: int = 0
    """Nodes whose columns come from elsewhere."""
    neighbors: int = 0
    """Edges that were drawn elsewhere."""
    row_bytes: int = 0

    @property
    def bytes_per_batch(self) -> float:
        """Columns of each row; a position and an edge id, 4 bytes each, for each neighbour.

        Requests, counts and headers are not in it.
        """
        nbytes = self.rows * self.row_bytes + self.neighbors * 2 * _INT32_BYTES
        return nbytes / max(self.batches, 1)

    @classmethod
    def over(cls, loader: Iterable[Any], job: Job) -> RemoteShare:
        """Count an epoch of batches."""
        assert job.partitions is not None
        graph = Graph.open(job.graph)
        bounds = graph.bounds(HOMOGENEOUS_NODE)
        here = np.zeros(len(bounds) - 1, np.bool_)
        here[list(job.partitions[int(os.environ["GROUP_RANK"])])] = True
        columns = graph.schema.nodes[HOMOGENEOUS_NODE].columns.values()
        share = cls(row_bytes=sum(column.row_bytes for column in columns))
        assert graph.schema.edges[HOMOGENEOUS_EDGE].count < 2**31
        for batch in loader:
            positions = graph.positions(HOMOGENEOUS_NODE, batch.n_id.numpy())
            elsewhere = ~here[np.searchsorted(bounds, positions, side="right") - 1]
            share.batches += 1
            share.rows += int(elsewhere.sum())
            share.neighbors += int(elsewhere[batch.edge_index[1].numpy()].sum())
        return share


_COSTS = ("cpu_seconds", "cpu_sampling", "cpu_gathering", "wire_bytes_in", "wire_bytes_out", "peer_calls")


def main(task: str, text: str) -> None:
    """Run ``measure`` or ``start`` as one of several ranks."""
    torch.set_num_threads(1)
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    {"measure": _measure, "start": _start}[task](Job.from_json(text))
    if dist.is_initialized():
        dist.destroy_process_group()


def _measure(job: Job) -> None:
    """Take an epoch to warm everything, one to see what lies on other hosts, then those that count."""
    with _dataset(job) as dataset, _loader(job, dataset) as loader:
        Pass.over(loader)
        share = RemoteShare.over(loader, job) if job.partitions is not None else RemoteShare()
        _meet()
        before, cpu, began = _costs(job, dataset, loader), CpuMeter(), time.perf_counter()
        passes = [Pass.over(loader) for _ in range(job.epochs)]
        seconds = time.perf_counter() - began
        _meet()  # Until all are done, this host serves the others.
        (tree_cpu, _), after = cpu.read(), _costs(job, dataset, loader)
        _say(
            seconds=seconds,
            seeds=sum(each.seeds for each in passes),
            nodes=sum(each.nodes for each in passes),
            edges=sum(each.edges for each in passes),
            batches=sum(each.batches for each in passes),
            tree_cpu=tree_cpu,
            remote_bytes_per_batch=share.bytes_per_batch,
            **{name: after[name] - before[name] for name in after},
        )
        _meet()


def _start(job: Job) -> None:
    """Stop to be weighed: before a loader is built, when its workers are up, with batches in flight."""
    with _dataset(job) as dataset:
        _meet()
        _stop("before")
        with _loader(job, dataset) as loader:
            loader._frames.source.wait_until_up(300)
            _stop("up")
            next(iter(loader))
            _stop("first batch")
            _meet()


@contextmanager
def _dataset(job: Job) -> Iterator[DistDataset]:
    if job.partitions is None:
        yield DistDataset.open(job.graph)
        return
    host = int(os.environ["GROUP_RANK"])
    held = list(job.partitions[host])
    with DistDataset.open(job.graph, partitions=held, cache_size=job.cache_bytes) as dataset:
        yield dataset


def _loader(job: Job, dataset: DistDataset) -> DistNeighborLoader:
    if job.own_seeds:
        return open_loader(dataset, job.workload, _own_seeds(job, dataset), job.num_workers, sharding="none")
    seeds = np.load(Path(job.seeds))[: job.workload.num_seeds]
    return open_loader(dataset, job.workload, seeds, job.num_workers)


def _own_seeds(job: Job, dataset: DistDataset) -> npt.NDArray[np.int64]:
    """Return as many of the seeds that this host holds as it would have of all."""
    assert job.partitions is not None
    seeds = np.load(Path(job.seeds))
    owners = dataset.partition_of(torch.from_numpy(seeds)).numpy()
    held = seeds[np.isin(owners, job.partitions[int(os.environ["GROUP_RANK"])])]
    return np.asarray(held[: job.workload.num_seeds // len(job.partitions)])


def _costs(job: Job, dataset: DistDataset, loader: DistNeighborLoader) -> dict[str, float]:
    """Return what workers and this host's peer service cost so far."""
    stats = loader.stats()
    costs = {f"workers_{name}": float(stats.get(name, 0)) for name in _COSTS}
    own = _own_service(job, dataset)
    return costs | {f"service_{name}": own.get(name, 0.0) for name in ("cpu_s", "sampling_s", "gathering_s")}


def _own_service(job: Job, dataset: DistDataset) -> dict[str, float]:
    """Return the totals of the service that this rank started, which is none where there are no hosts."""
    if job.partitions is None or os.environ["LOCAL_RANK"] != "0":
        return {}
    totals: dict[str, float] = dataset.peer_stats()[int(os.environ["GROUP_RANK"])]
    return totals


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def _stop(where: str) -> None:
    _say(at=where)
    sys.stdin.readline()


def _say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
