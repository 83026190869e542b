"""Trainers of one job, each a process, on one host or on several simulated ones.

A rank runs this file as a program and prints lines of JSON. Hosts are told apart by their boot id, which the
environment may override, so two hosts on one machine reach each other over the loopback.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from gigl_loader.bench.loading import Pass, open_loader
from gigl_loader.bench.rounds import CpuMeter
from gigl_loader.bench.workload import Workload
from gigl_loader.dataset import DistDataset
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.loaders.neighbor import DistNeighborLoader

_LEAVE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work of every rank of a crowd."""

    graph: str
    """Directory of the graph."""
    seeds: str
    """``.npy`` file; the first of them that the workload takes."""
    workload: Workload
    num_workers: int
    epochs: int = 2
    partitions: tuple[tuple[int, ...], ...] | None = None
    """By host: which partitions it holds. ``None``: one host, which holds all."""
    cache_bytes: int = 0
    """Memory of each host for rows that other hosts hold."""
    own_seeds: bool = False
    """Each host takes seeds that it holds, instead of its share of all seeds."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields = json.loads(text)
        sizes = fields.pop("workload")
        partitions = fields.pop("partitions")
        return cls(
            **fields,
            workload=Workload(**{**sizes, "fanout": tuple(sizes["fanout"])}),
            partitions=None if partitions is None else tuple(map(tuple, partitions)),
        )


class Crowd:
    """Running ranks."""

    def __init__(self, task: str, job: Job, *, ranks: int, hosts: int = 1) -> None:
        """Start ``ranks`` ranks, numbered host by host. ``task``: ``measure`` or ``start``."""
        self._processes: list[subprocess.Popen[str]] = []
        port, per_host = _free_port(), ranks // hosts
        try:
            for rank in range(ranks):
                host, local_rank = divmod(rank, per_host)
                variables = {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    "RANK": rank,
                    "WORLD_SIZE": ranks,
                    "LOCAL_RANK": local_rank,
                    "LOCAL_WORLD_SIZE": per_host,
                    "GROUP_RANK": host,
                    "GROUP_WORLD_SIZE": hosts,
                    "GIGL_BOOT_ID": f"bench-host-{host}",
                    "OMP_NUM_THREADS": 1,
                }
                self._processes.append(_spawn(task, job, variables))
        except BaseException:
            self.end()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def read(self) -> list[dict[str, Any]]:
        """Return the next line of each rank, in order of the ranks. Waits for all."""
        return [self._read(rank, process) for rank, process in enumerate(self._processes)]

    def resume(self) -> None:
        """Let all ranks go on after a line that they stopped at."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Kill all ranks if the block takes longer. Its next read then raises ``RuntimeError``."""
        timer = threading.Timer(seconds, self._kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> None:
        """Wait for the ranks to exit, and kill those that do not."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        try:
            for process in self._processes:
                process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill()
            for process in self._processes:
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._kill()
        self.end()

    def _read(self, rank: int, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                record: dict[str, Any] = json.loads(line)
                return record
        raise RuntimeError(
            f"rank {rank} of the benchmark ended without a result; its standard error says why"
        )

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def _spawn(task: str, job: Job, variables: dict[str, Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, task, job.to_json()],
        env=os.environ | {name: str(value) for name, value in variables.items()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_INT32_BYTES = 4


@dataclass(slots=True)
class RemoteShare:
    """Rows and neighbour lists in the batches of one rank whose nodes other hosts hold."""

    batches: int = 0
    rows: int = 0
    """Nodes whose columns come from another host."""
    neighbors: int = 0
    """Edges that another host drew."""
    row_bytes: int = 0

    @property
    def bytes_per_batch(self) -> float:
        """Columns of each row, and 8 bytes (position and edge id) for each neighbour.

        Requests, counts and headers are not included.
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
    """Take an epoch to warm everything, one to count what other hosts hold, then the measured ones."""
    with _dataset(job) as dataset, _loader(job, dataset) as loader:
        Pass.over(loader)
        share = RemoteShare.over(loader, job) if job.partitions is not None else RemoteShare()
        _barrier()
        before, cpu, began = _costs(job, dataset, loader), CpuMeter(), time.perf_counter()
        total = Pass.over(loader, epochs=job.epochs)
        seconds = time.perf_counter() - began
        _barrier()  # Until all ranks are done, this host still serves rows to them.
        (tree_cpu, _), after = cpu.read(), _costs(job, dataset, loader)
        _print(
            seconds=seconds,
            seeds=total.seeds,
            nodes=total.nodes,
            edges=total.edges,
            batches=total.batches,
            tree_cpu=tree_cpu,
            remote_bytes_per_batch=share.bytes_per_batch,
            **{name: after[name] - before[name] for name in after},
        )
        _barrier()


def _start(job: Job) -> None:
    """Stop for measurements: before a loader is built, when its workers are up, with batches in flight."""
    with _dataset(job) as dataset:
        _barrier()
        _stop("before")
        with _loader(job, dataset) as loader:
            loader._frames.source.wait_until_up(300)
            _stop("up")
            next(iter(loader))
            _stop("first batch")
            _barrier()


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
    """Return seeds that this host holds, as many as its share of all seeds has."""
    assert job.partitions is not None
    seeds = np.load(Path(job.seeds))
    owners = dataset.partition_of(torch.from_numpy(seeds)).numpy()
    held = seeds[np.isin(owners, job.partitions[int(os.environ["GROUP_RANK"])])]
    return np.asarray(held[: job.workload.num_seeds // len(job.partitions)])


def _costs(job: Job, dataset: DistDataset, loader: DistNeighborLoader) -> dict[str, float]:
    """Return the counters of this rank's workers and of this host's peer service."""
    stats = loader.stats()
    costs = {f"workers_{name}": float(stats.get(name, 0)) for name in _COSTS}
    own = _own_service(job, dataset)
    return costs | {f"service_{name}": own.get(name, 0.0) for name in ("cpu_s", "sampling_s", "gathering_s")}


def _own_service(job: Job, dataset: DistDataset) -> dict[str, float]:
    """Return the totals of the peer service that this rank started; empty where there is one host."""
    if job.partitions is None or os.environ["LOCAL_RANK"] != "0":
        return {}
    totals: dict[str, float] = dataset.peer_stats()[int(os.environ["GROUP_RANK"])]
    return totals


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def _stop(where: str) -> None:
    _print(at=where)
    sys.stdin.readline()


def _print(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
