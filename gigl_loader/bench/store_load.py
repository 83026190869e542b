"""What a storage server bears: trainers that wait, many at once, and its own death."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gigl_client import RemoteDistDataset
from gigl_loader.bench.loading import open_loader
from gigl_loader.bench.meter import memory_of
from gigl_loader.bench.rounds import Case, Figures
from gigl_loader.bench.workload import Workload
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.options import SamplingPlan
from gigl_loader.rpc.address import Address
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.job import new_job
from gigl_loader.rpc.store_client import StoreClient
from gigl_server.local import LocalCluster

__all__ = ["CROWDED", "IDLE", "KILLED", "crowd_case", "idle_case", "kill_case"]

KILLED = "store, server killed"
IDLE = "store, idle channels"
CROWDED = "store, many loaders"

_LIMIT_S = 120.0


def kill_case(graph: Path, seeds: Any, workload: Workload) -> Case:
    """Kill a server in the middle of an epoch, start it again at once, and time the longest wait after.

    Batches that had arrived before are delivered without a wait, so that the wait ends with the first that
    the server which is back has sampled.
    """

    def case() -> dict[str, Figures]:
        with (
            LocalCluster(graph, servers=1, workers=2) as cluster,
            RemoteDistDataset.connect(cluster.addresses, timeout=_LIMIT_S) as dataset,
            open_loader(dataset, workload, seeds, 2) as loader,
        ):
            batches = iter(loader)
            for _ in range(workload.batches // 4):
                next(batches)
            longest, last = 0.0, time.perf_counter()
            cluster.kill(0)
            cluster.restart(0, wait=False)
            for _ in batches:
                now = time.perf_counter()
                longest, last = max(longest, now - last), now
        return {KILLED: {"kill_to_batch_s": longest}}

    return case


def idle_case(graph: Path, workload: Workload, *, channels: int = 1_000) -> Case:
    """Open channels on a server and weigh what they add, those for its own host included."""
    plan = SamplingPlan(
        seed_type=HOMOGENEOUS_NODE,
        num_neighbors={HOMOGENEOUS_EDGE: workload.fanout},
        run_seed=1,
        with_edge=True,
        node_columns={HOMOGENEOUS_NODE: ("x", "y")},
        edge_columns={},
    )

    def case() -> dict[str, Figures]:
        with (
            LocalCluster(graph, servers=1, workers=2) as cluster,
            _client_of(cluster.addresses[0]) as client,
        ):
            digest = client.cluster(_LIMIT_S).graph
            before = memory_of(cluster.pids[0])
            client.create_producer("idle", plan.to_json(), digest, _LIMIT_S)
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


@contextmanager
def _client_of(text: str) -> Iterator[StoreClient]:
    address = Address.parse(text)
    endpoint = Endpoint(
        host_index=0, host=address.host, control_port=address.port, data_port=address.port, partitions=()
    )
    client = StoreClient(endpoint, Caller(), new_job())
    try:
        yield client
    finally:
        client.close()


def _open_idle(client: StoreClient, number: int) -> None:
    """Every tenth is for a trainer on the server's host, with 64 MB of addresses."""
    client.open_channel(
        "idle",
        name=f"idle {number}",
        credit=4,
        ring_slots=16 if number % 10 == 0 else 0,
        ring_slot_bytes=4 << 20 if number % 10 == 0 else 0,
        timeout_s=_LIMIT_S,
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
    """Let loaders fetch from one server for some seconds, each in a thread, and count what each gets.

    Their batches are a sixteenth of the workload's: else what all of them have in flight exceeds the memory
    of small machines.
    """
    small = replace(workload, batch_size=max(workload.batch_size // 16, 1))

    def case() -> dict[str, Figures]:
        with (
            LocalCluster(graph, servers=1, workers=2) as cluster,
            RemoteDistDataset.connect(cluster.addresses, transport="flight", timeout=_LIMIT_S) as dataset,
        ):
            opened = [
                open_loader(dataset, small, seeds, 1, name=f"loader {number}", prefetch_size=prefetch)
                for number in range(loaders)
            ]
            try:
                counts = _race(opened, seconds)
            finally:
                for loader in opened:
                    loader.shutdown()
        mean = sum(counts) / len(counts)
        return {
            CROWDED: {
                "loaders": loaders,
                "mean_batches": mean,
                "slowest_over_mean": min(counts) / max(mean, 1e-9),
            }
        }

    return case


def _race(loaders: list[DistNeighborLoader], seconds: float) -> list[int]:
    """Return how many batches each loader gave in ``seconds``, counted once all have begun."""
    counts, start, stop = [0] * len(loaders), threading.Barrier(len(loaders) + 1), threading.Event()

    def run(place: int) -> None:
        batches = _endless(loaders[place])
        next(batches)
        start.wait(_LIMIT_S)
        for _ in batches:
            if stop.is_set():
                return
            counts[place] += 1

    runners = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(loaders))]
    for runner in runners:
        runner.start()
    start.wait(_LIMIT_S)
    stop.wait(seconds)
    stop.set()
    for runner in runners:
        runner.join(_LIMIT_S)
    return counts


def _endless(loader: DistNeighborLoader) -> Iterator[Any]:
    while True:
        yield from loader
