"""A graph store: servers on this machine that sample, and one trainer that fetches batches from them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gigl_client import Caller, RemoteDistDataset
from gigl_loader.bench.flight import KEEP_MEMORY, bare_transfer
from gigl_loader.bench.loading import Pass, open_loader
from gigl_loader.bench.meter import CpuMeter
from gigl_loader.bench.rounds import Case, Figures
from gigl_loader.bench.workload import Workload
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_server.local_cluster import LocalCluster

__all__ = [
    "DIRECT",
    "DIRECT_4",
    "FRAMES",
    "FRAMES_WARM",
    "NETWORK",
    "RING",
    "SMALL",
    "SMALL_RING",
    "THROUGH",
    "THROUGH_4",
    "Setup",
    "small_batches",
    "small_case",
    "store_case",
]

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
