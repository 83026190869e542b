"""The measured process of ``beyond_memory.py``: takes batches of a graph, and prints what that took.

    python benchmarks/beyond_trainer.py JOB

``JOB`` is the JSON form of ``Job``. Runs with versions of gigl_loader that have no windows, too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.bench.rounds import CpuMeter, process_tree
from gigl_loader.graph import folder, manifest
from gigl_loader.loaders.arguments import LoaderOptions
from gigl_loader.native import advise_random, map_file

_ALL_FIT = 1 << 50
"""Bytes: more than any features have."""
_SLICE = 8 << 20

Way = Literal["mapped", "unadvised", "windows", "places"]
"""How features come: from mapped files with advice or without, or by windows. ``places``: not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to take, and how."""

    graph: str
    way: Way
    fanout: tuple[int, ...]
    batch_size: int
    batches: int
    """Of an epoch."""
    num_workers: int
    concurrency: int
    patience_s: float
    """How long to wait for a batch."""
    seconds: float | None = None
    """How long the first epoch is measured, after its first batches. ``None``: the second one is, whole."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the loader's features."""

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields = json.loads(text)
        return cls(**{**fields, "fanout": tuple(fields["fanout"])})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main() -> None:
    """Do the job, and print a JSON object."""
    job = Job.from_json(sys.argv[1])
    torch.set_num_threads(1)
    print(json.dumps(save_places(job) if job.way == "places" else measure(job)))


def open_loader(dataset: DistDataset, job: Job, **options: Any) -> DistNeighborLoader:
    """Return the loader of a job. Jobs of a graph have the same batches, however features come."""
    num_nodes = dataset.schema.nodes["node"].count
    seeds = np.random.default_rng(2).permutation(num_nodes)[: job.batches * job.batch_size]
    return DistNeighborLoader(
        dataset,
        list(job.fanout),
        seeds.astype(np.int64),
        batch_size=job.batch_size,
        shuffle=True,
        drop_last=True,
        with_edge=True,
        seed=1,
        num_workers=job.num_workers,
        timeout=job.patience_s,
        **({"worker_concurrency": job.concurrency} if job.num_workers else {}),
        **options,
    )


def measure(job: Job) -> dict[str, Any]:
    """Take batches, by windows or as mapped files give them."""
    options: dict[str, Any] = dict(job.options)
    if job.way != "windows":
        options = {"multiprocessing_context": "fork"} if job.num_workers else {}  # Inherits the advice.
        if "feature_memory" in LoaderOptions.__annotations__:
            options["feature_memory"] = _ALL_FIT
    began = time.perf_counter()
    found: dict[str, Any] = {}
    with (
        advice(job.way),
        DistDataset.open(job.graph) as dataset,
        open_loader(dataset, job, **options) as loader,
    ):
        found["loader"] = repr(loader)
        try:
            batches = iter(loader)
            next(batches)
            found["first_batch_s"] = time.perf_counter() - began
            if job.seconds is None:
                deque(batches, maxlen=0)  # A loop would hold the last batch of it during the next epoch.
                found["first_epoch"] = {**_plain(loader.stats()), "read_bytes": bytes_read()}
                found |= _taken(loader)
            else:
                read_in_sequence(Path(job.graph))
                next(batches)
                found |= _taken(batches, limit_s=job.seconds, step=max(job.num_workers, 1))
        except TimeoutError:
            found["waited_s"] = job.patience_s
        return {**found, "stats": _plain(loader.stats())}


def _taken(batches: Iterable[Any], *, limit_s: float | None = None, step: int = 1) -> dict[str, float]:
    """Take batches to their end, or for about ``limit_s``, and return what they took.

    Ends after a multiple of ``step`` batches: those of several workers come together.
    """
    meter, read, began = CpuMeter(), bytes_read(), time.perf_counter()
    count = seeds = nodes = 0
    for batch in batches:
        count, seeds, nodes = count + 1, seeds + batch.batch_size, nodes + batch.x.shape[0]
        if limit_s is not None and count % step == 0 and time.perf_counter() - began > limit_s:
            break
    seconds = time.perf_counter() - began
    return {
        "seeds_per_s": seeds / seconds,
        "cpu_s_per_batch": meter.read()[0] / count,
        "read_mb_per_batch": (bytes_read() - read) / count / 1e6,
        "nodes_per_batch": nodes / count,
        "batches": count,
    }


def save_places(job: Job) -> dict[str, Any]:
    """Write the nodes of every batch of two epochs, int32, beside the graph: what an oracle knows."""
    with DistDataset.open(job.graph) as dataset, open_loader(dataset, job, node_columns=[]) as loader:
        epochs = [[batch.n_id.numpy().astype(np.int32) for batch in loader] for _ in range(2)]
    np.savez(places_file(job), *epochs[0], *epochs[1])
    return {"batches": len(epochs[0])}


def places_file(job: Job) -> Path:
    """Return the file that ``save_places`` writes."""
    sizes = "-".join(map(str, (job.batches, job.batch_size, *job.fanout)))
    return Path(job.graph).with_name(f"{Path(job.graph).name}-places-{sizes}.npz")


@contextmanager
def advice(way: Way) -> Iterator[None]:
    """Have the kernel be told, or not, that files are read at random, by this process and those it forks."""
    if way not in {"mapped", "unadvised"}:
        yield
        return

    def map_advised(*arguments: Any) -> Any:
        memory = map_file(*arguments)
        if way == "mapped":
            advise_random(memory)
        return memory

    with (
        patch.object(folder, "map_file", map_advised),
        patch.object(manifest, "advise_random", lambda _: None),
    ):
        yield


def bytes_read() -> int:
    """Return the bytes that this process and its descendants have read from disks."""
    total = 0
    for pid in process_tree(os.getpid()):
        try:
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    return total


def read_in_sequence(graph: Path) -> None:
    """Fill memory with as much of the features as fits: what mapped files have after a while."""
    memory = bytearray(_SLICE)
    for path in sorted(graph.glob("*/nodes/*")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass


def _plain(stats: Any) -> Any:
    """Return counters as JSON has them."""
    if isinstance(stats, dict):
        return {str(name): _plain(value) for name, value in stats.items()}
    return stats if isinstance(stats, (int, float, str, bool, type(None))) else str(stats)


if __name__ == "__main__":
    main()
