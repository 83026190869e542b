"""Load on storage servers: a kill, idle channels, many loaders at once. Cases of ``whole.py``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

from gigl_client import RemoteDistDataset
from gigl_loader.bench.loading import open_loader
from gigl_loader.bench.rounds import Case, Figures, memory_of
from gigl_loader.bench.store import Setup
from gigl_loader.bench.workload import Workload
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tokens import new_job
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_server.local_cluster import LocalCluster

KILLED = "store, server killed"
IDLE = "store, idle channels"
CROWDED = "store, many loaders"

_LOAD_LIMIT_S = 120.0


def kill_case(graph: Path, seeds: Any, workload: Workload, setup: Setup) -> Case:
    """Kill the last server in the middle of an epoch, start it again at once, and time the recovery.

    Recovery is the time from the kill to the end of the longest wait between two batches after it. Batches
    that have arrived and batches of live servers come without a wait, so the longest wait ends with the
    first batch that needs the restarted server.
    """

    def case() -> dict[str, Figures]:
        with (
            LocalCluster(graph, servers=setup.servers, workers=setup.workers) as cluster,
            RemoteDistDataset.connect(
                cluster.addresses,
                credentials=Caller(),
                transport=setup.transport,
                rows=setup.rows,
                timeout=_LOAD_LIMIT_S,
            ) as dataset,
            open_loader(dataset, workload, seeds, 2) as loader,
        ):
            batches = iter(loader)
            for _ in range(workload.batches // 4):
                next(batches)
            killed = time.perf_counter()
            cluster.kill(setup.servers - 1)
            cluster.restart(setup.servers - 1, wait=False)
            came = [time.perf_counter() for _ in batches]
        return {f"{KILLED}: {setup}": {"kill_to_batch_s": recovered(killed, came)}}

    return case


def recovered(killed: float, came: Sequence[float]) -> float:
    """Return the seconds from ``killed`` to the end of the longest wait for one of the batches after it."""
    waits = [(later - earlier, later) for earlier, later in pairwise((killed, *came))]
    return max(waits)[1] - killed


def idle_case(graph: Path, workload: Workload, *, channels: int = 1_000) -> Case:
    """Open channels on a server, some of them with a ring, and measure the memory that they add."""
    sampler = NeighborPlan(
        seed_type=HOMOGENEOUS_NODE, num_neighbors={HOMOGENEOUS_EDGE: workload.fanout}, with_edge=True
    )
    plan = BatchPlan(sampler=sampler, run_seed=1, columns=ColumnPlan(nodes={HOMOGENEOUS_NODE: ("x", "y")}))

    def case() -> dict[str, Figures]:
        with (
            LocalCluster(graph, servers=1, workers=2) as cluster,
            _client_of(cluster.addresses[0]) as client,
        ):
            digest = client.cluster(_LOAD_LIMIT_S).graph
            before = memory_of(cluster.pids[0])
            client.create_producer("idle", plan.to_json(), digest, _LOAD_LIMIT_S)
            for number in range(channels):
                _open_idle(client, number)
            after = memory_of(cluster.pids[0])
            threads = len(os.listdir(f"/proc/{cluster.pids[0]}/task"))
        added = after.anonymous + after.shared - before.anonymous - before.shared
        return {
            IDLE: {
                "idle_channels": channels,
                "idle_channels_add_mb": added / 1e6,
                "idle_server_mb": (after.anonymous + after.shared) / 1e6,
                "idle_threads": threads,
            }
        }

    return case


def _client_of(address: str) -> closing[StoreClient]:
    endpoint = Endpoint.of_address(Address.parse(address), what="storage server")
    return closing(StoreClient(endpoint, Caller(), new_job()))


def _open_idle(client: StoreClient, number: int) -> None:
    """Open a channel. Every tenth is for a trainer on the server's host, with a ring of 64 MB."""
    client.open_channel(
        "idle",
        name=f"idle {number}",
        credit=4,
        ring_slots=16 if number % 10 == 0 else 0,
        ring_slot_bytes=4 << 20 if number % 10 == 0 else 0,
        timeout_s=_LOAD_LIMIT_S,
    )


def crowd_case(
    graph: Path,
    seeds: Any,
    workload: Workload,
    *,
    loaders: int = 24,
    prefetch: int = 8,
    seconds: float = 10.0,
) -> Case:
    """Let loaders fetch from one server for some seconds, each in a thread, and count the batches of each.

    The threads share this process, so the figure is the fairness of the server and of the interpreter
    together. Batches are a sixteenth of the workload's: with full ones, batches in flight exceed the memory
    of small machines.
    """
    small = replace(workload, batch_size=max(workload.batch_size // 16, 1))

    def case() -> dict[str, Figures]:
        with (
            LocalCluster(graph, servers=1, workers=2) as cluster,
            RemoteDistDataset.connect(
                cluster.addresses, credentials=Caller(), transport="network", timeout=_LOAD_LIMIT_S
            ) as dataset,
        ):
            opened = [
                open_loader(dataset, small, seeds, 1, name=f"loader {number}", prefetch_size=prefetch)
                for number in range(loaders)
            ]
            try:
                counts = race(opened, seconds)
            finally:
                for loader in opened:
                    loader.shutdown()
        mean = sum(counts) / len(counts)
        return {
            CROWDED: {
                "loaders": loaders,
                "mean_batches": mean,
                "fewest_batches": min(counts),
                "slowest_over_mean": min(counts) / max(mean, 1e-9),
            }
        }

    return case


def race(loaders: list[DistNeighborLoader], seconds: float) -> list[int]:
    """Return the batches of each loader in ``seconds``, counted from when all have begun."""
    start, stop = threading.Barrier(len(loaders) + 1), threading.Event()

    def run(loader: DistNeighborLoader) -> int:
        batches, count = _endless(loader), 0
        try:
            next(batches)
        except BaseException:
            start.abort()  # Or the other threads wait for this one at the barrier.
            raise
        start.wait(_LOAD_LIMIT_S)
        for _ in batches:
            if stop.is_set():
                break
            count += 1
        return count

    with ThreadPoolExecutor(len(loaders)) as threads:
        runners = [threads.submit(run, loader) for loader in loaders]
        with suppress(BrokenBarrierError):  # The error of the loader that broke it is raised below.
            start.wait(_LOAD_LIMIT_S)
            wait(runners, seconds, return_when=FIRST_EXCEPTION)
        stop.set()
    failures = [error for runner in runners if (error := runner.exception()) is not None]
    if failures:
        raise next((each for each in failures if not isinstance(each, BrokenBarrierError)), failures[0])
    return [runner.result() for runner in runners]


def _endless(loader: DistNeighborLoader) -> Iterator[Any]:
    while True:
        yield from loader
