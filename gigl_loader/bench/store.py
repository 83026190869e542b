"""A graph store: servers on this machine that sample, and one trainer that fetches batches from them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any, Literal

from gigl_client import RemoteDistDataset
from gigl_loader.bench.flight import KEEP_MEMORY, bare_transfer
from gigl_loader.bench.loading import Pass, open_loader
from gigl_loader.bench.rounds import Case, CpuMeter, Figures, memory_of
from gigl_loader.bench.workload import Workload
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tokens import new_job
from gigl_loader.sampling.plan import BatchPlan, ColumnPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_server.local_cluster import LocalCluster

FRAMES = "bare Flight transfer of frames"
FRAMES_WARM = "bare Flight transfer of frames, memory kept"

_NUMBER_BYTES = 4
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How many servers there are, and how batches come from them."""

    servers: int = 1
    workers: int
    """Of each server."""
    transport: Literal["ring", "network"]
    rows: Literal["auto", "direct", "through"] = "auto"

    def __str__(self) -> str:
        servers = "1 server" if self.servers == 1 else f"{self.servers} servers"
        return f"store, {servers}, {self.transport}" + ("" if self.rows == "auto" else f", rows {self.rows}")


RING = Setup(workers=2, transport="ring")
NETWORK = Setup(workers=2, transport="network")
DIRECT = Setup(servers=2, workers=1, transport="network", rows="direct")
THROUGH = Setup(servers=2, workers=1, transport="network", rows="through")
DIRECT_4 = Setup(servers=4, workers=1, transport="network", rows="direct")
THROUGH_4 = Setup(servers=4, workers=1, transport="network", rows="through")
SMALL = Setup(servers=2, workers=1, transport="network")
SMALL_RING = Setup(servers=2, workers=1, transport="ring")


def store_case(graph: Path, seeds: Any, workload: Workload, setup: Setup, *, epochs: int = 2) -> Case:
    """Start servers, fetch an epoch to warm everything and time the first batch, then measure some more.

    For one server over the network, a bare transfer of as many messages of the same size is measured, too.

    The CPU seconds of all processes are told apart: *sampling* and *gathering* in the servers' kernels;
    *rest*: the trainer's own thread; *wire*: all else that servers and trainer did.
    """

    def case() -> dict[str, Figures]:
        with LocalCluster(graph, servers=setup.servers, workers=setup.workers) as cluster:
            figures = _measured(cluster, seeds, workload, setup, epochs)
        return {str(setup): figures} | (_bare(workload, figures, epochs) if setup == NETWORK else {})

    return case


def small_batches(workload: Workload) -> Workload:
    """Return the same seeds in batches of an eighth, one hop less: calls cost more there than bytes."""
    size = max(workload.batch_size // 8, 1)
    fanout = workload.fanout[1:] or workload.fanout
    return replace(workload, batch_size=size, batches=workload.num_seeds // size, fanout=fanout)


def small_case(graph: Path, seeds: Any, workload: Workload, setup: Setup, *, epochs: int = 2) -> Case:
    """Measure ``small_batches`` as ``store_case`` does."""
    case = store_case(graph, seeds, small_batches(workload), setup, epochs=epochs)
    return lambda: {_small(name): figures for name, figures in case().items()}


def _small(name: str) -> str:
    return f"small batches, {name.removeprefix('store, ')}"


def _measured(
    cluster: LocalCluster, seeds: Any, workload: Workload, setup: Setup, epochs: int
) -> dict[str, float]:
    began = time.perf_counter()
    with (
        RemoteDistDataset.connect(
            cluster.addresses,
            credentials=Caller(),
            transport=setup.transport,
            rows=setup.rows,
            timeout=_LIMIT_S,
        ) as dataset,
        open_loader(dataset, workload, seeds, setup.workers) as loader,
    ):
        built = time.perf_counter() - began
        first = built + Pass.over(loader).first_batch_s
        before, meter, own = _costs(dataset, loader), CpuMeter(), time.thread_time()
        began = time.perf_counter()
        passes = [Pass.over(loader) for _ in range(epochs)]
        seconds, own = time.perf_counter() - began, time.thread_time() - own
        tree, after = meter.read()[0], _costs(dataset, loader)
    spent = {name: after[name] - before[name] for name in after}
    total = _total(passes)
    return {
        "seeds_per_s": total.seeds / seconds,
        "edges_per_s": total.edges / seconds,
        "cpu_s_per_kseed": tree / total.seeds * 1e3,
        "nodes_per_batch": total.nodes / total.batches,
        "edges_per_batch": total.edges / total.batches,
        "first_batch_s": first,
        "later_first_batch_s": max(each.first_batch_s for each in passes),
        **_breakdown(spent, tree=tree, own=own, seeds=total.seeds),
        **_wire(spent, total, setup),
    }


def _costs(dataset: RemoteDistDataset, loader: DistNeighborLoader) -> dict[str, float]:
    """Return what servers and loader spent so far."""
    loads, stats = list(dataset.server_stats(timeout=_LIMIT_S).values()), loader.stats()
    peers = [peer for load in loads for peer in load["peers"]]
    return {
        **{name: sum(load["totals"][name] for load in loads) for name in ("sampling_s", "gathering_s")},
        "between_in": sum(peer["bytes_in"] for peer in peers),
        "between_out": sum(peer["bytes_out"] for peer in peers),
        **{name: float(stats[name]) for name in ("bytes", "wire_bytes_in", "wire_bytes_out")},
    }


def _total(passes: list[Pass]) -> Pass:
    names = ("seeds", "nodes", "edges", "targets", "batches")
    return Pass(**{name: sum(getattr(each, name) for each in passes) for name in names})


def _breakdown(spent: Mapping[str, float], *, tree: float, own: float, seeds: int) -> dict[str, float]:
    sampling, gathering = spent["sampling_s"], spent["gathering_s"]
    parts = {
        "sampling": sampling,
        "gathering": gathering,
        "wire": tree - sampling - gathering - own,
        "rest": own,
    }
    return {f"cpu_{name}_s_per_kseed": value / seeds * 1e3 for name, value in parts.items()}


def _wire(spent: Mapping[str, float], total: Pass, setup: Setup) -> dict[str, float]:
    """Return what crossed, beside the least that must.

    Whichever server samples a batch, the lists of all others' nodes are remote: for nodes dealt out by hash,
    that is all but one in as many as there are servers. A list is a count, and for every neighbour a
    position and an edge id, 4 bytes each: requests and headers are not in it. Where servers ask each other
    for rows, too, lists are not all that crosses between them, and nothing is compared.
    """
    frame, received, between = (
        spent[name] / total.batches / 1e6 for name in ("bytes", "wire_bytes_in", "between_in")
    )
    numbers = (total.targets + 2 * total.edges) * (setup.servers - 1) / setup.servers
    lists = numbers * _NUMBER_BYTES / total.batches / 1e6
    return {
        "frame_mb": frame,
        "received_mb": received,
        "received_over_frame": received / frame,
        "sent_mb": spent["wire_bytes_out"] / total.batches / 1e6,
        "between_mb": between,
        "between_out_mb": spent["between_out"] / total.batches / 1e6,
        **({"between_over_lists": between / lists} if lists and setup.rows != "through" else {}),
    }


def _bare(workload: Workload, figures: Mapping[str, float], epochs: int) -> dict[str, Figures]:
    """Transfer the frames of some epochs and do nothing else."""
    calls, size = epochs * workload.batches, round(figures["received_mb"] * 1e6)
    found: dict[str, Figures] = {}
    environments: dict[str, Mapping[str, str]] = {FRAMES: {}, FRAMES_WARM: KEEP_MEMORY}
    for name, environment in environments.items():
        cpu = bare_transfer(calls=calls, request_bytes=64, reply_bytes=size, environment=environment)
        found[name] = {
            "cpu_wire_s_per_kseed": cpu / (calls * workload.batch_size) * 1e3,
            "cpu_s_per_gb": cpu / (calls * size / 1e9),
        }
    return found


KILLED = "store, server killed"
IDLE = "store, idle channels"
CROWDED = "store, many loaders"

_LOAD_LIMIT_S = 120.0


def kill_case(graph: Path, seeds: Any, workload: Workload, setup: Setup) -> Case:
    """Kill the last server in the middle of an epoch, start it again at once, and time the recovery.

    That is from the kill to the end of the longest wait between two batches after it. Batches that had
    arrived before are delivered without a wait, and so are those of servers that live, until they wait for
    rows or for the batch that comes next: the wait ends with what the server which is back has sampled.
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
    """Open channels on a server and weigh what they add, those for its own host included."""
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
    """Let loaders fetch from one server for some seconds, each in a thread, and count what each gets.

    All are threads of this process, which takes turns among them, too: what is found is the fairness of
    both. Their batches are a sixteenth of the workload's: else what all of them have in flight exceeds the
    memory of small machines.
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
                counts = _race(opened, seconds)
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


def _race(loaders: list[DistNeighborLoader], seconds: float) -> list[int]:
    """Return how many batches each loader gave in ``seconds``, counted once all have begun."""
    start, stop = threading.Barrier(len(loaders) + 1), threading.Event()

    def run(loader: DistNeighborLoader) -> int:
        batches, count = _endless(loader), 0
        try:
            next(batches)
        except BaseException:
            start.abort()  # Nobody waits for the others' first batches any more.
            raise
        start.wait(_LOAD_LIMIT_S)
        for _ in batches:
            if stop.is_set():
                break
            count += 1
        return count

    with ThreadPoolExecutor(len(loaders)) as threads:
        runners = [threads.submit(run, loader) for loader in loaders]
        with suppress(BrokenBarrierError):  # What broke it is raised below.
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
