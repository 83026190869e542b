"""A graph store: servers on this machine that sample, and one trainer that fetches batches from them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from gigl_client import RemoteDistDataset
from gigl_loader.bench.loading import Pass, open_loader
from gigl_loader.bench.rounds import Case, CpuMeter, Figures
from gigl_loader.bench.workload import Workload
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.rpc.credentials import Caller
from gigl_server.local_cluster import LocalCluster

_NUMBER_BYTES = 4
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Number of servers, and how batches come from them."""

    servers: int = 1
    workers: int
    """Of each server."""
    transport: Literal["ring", "network"]
    rows: Literal["auto", "direct", "through"] = "auto"
    cache_percent: int | None = None
    """Memory for features at the trainer, as a share of the features. ``None``: as the loader decides."""
    window: int | None = None
    """Batches whose rows are fetched together, at most. ``None``: as the loader decides."""

    def __str__(self) -> str:
        return ", ".join(
            [
                "store",
                "1 server" if self.servers == 1 else f"{self.servers} servers",
                self.transport,
                *([] if self.rows == "auto" else [f"rows {self.rows}"]),
                *([] if self.cache_percent is None else [f"cache {self.cache_percent} %"]),
                *([] if self.window is None else [f"window {self.window}"]),
            ]
        )

    def features(self, workload: Workload) -> dict[str, Any]:
        """Return the options of a loader that say how features are kept."""
        given = {} if self.window is None else {"window": self.window}
        if self.cache_percent is not None:
            given["feature_memory"] = max(workload.nodes * workload.row_bytes * self.cache_percent // 100, 1)
        return given


RING = Setup(workers=2, transport="ring")
NETWORK = Setup(workers=2, transport="network")
DIRECT = Setup(servers=2, workers=1, transport="network", rows="direct")
THROUGH = Setup(servers=2, workers=1, transport="network", rows="through")
DIRECT_4 = Setup(servers=4, workers=1, transport="network", rows="direct")
THROUGH_4 = Setup(servers=4, workers=1, transport="network", rows="through")
CACHED = replace(DIRECT, cache_percent=20)
SETUPS = (RING, NETWORK, DIRECT, THROUGH, DIRECT_4, THROUGH_4)


def cached_setups(cache_percents: Sequence[int], windows: Sequence[int | None]) -> list[Setup]:
    """Return two servers whose trainer keeps rows: each size of its cache with each window."""
    return [
        replace(DIRECT, cache_percent=percent, window=window)
        for percent, window in product(cache_percents, windows)
    ]


SMALL = Setup(servers=2, workers=1, transport="network")
SMALL_RING = Setup(servers=2, workers=1, transport="ring")


def store_case(graph: Path, seeds: Any, workload: Workload, setup: Setup, *, epochs: int = 2) -> Case:
    """Start servers, fetch an epoch that warms them, time its first batch, then measure ``epochs`` more.

    The CPU seconds of all processes are split in four: *sampling* and *gathering* in the servers' kernels;
    *rest*, the trainer's own thread; *wire*, everything else in servers and trainer.
    """

    def case() -> dict[str, Figures]:
        with LocalCluster(graph, servers=setup.servers, workers=setup.workers) as cluster:
            return {str(setup): _measured(cluster, seeds, workload, setup, epochs)}

    return case


def small_batches(workload: Workload) -> Workload:
    """Return the same seeds in batches of an eighth, one hop less: their calls cost more than their bytes."""
    size = max(workload.batch_size // 8, 1)
    fanout = workload.fanout[1:] or workload.fanout
    return replace(workload, batch_size=size, batches=workload.num_seeds // size, fanout=fanout)


def small_case(graph: Path, seeds: Any, workload: Workload, setup: Setup) -> Case:
    """Measure ``small_batches`` as ``store_case`` does."""
    case = store_case(graph, seeds, small_batches(workload), setup)
    return lambda: {small_name(setup): figures for figures in case().values()}


def small_name(setup: Setup) -> str:
    return f"small batches, {str(setup).removeprefix('store, ')}"


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
        open_loader(dataset, workload, seeds, setup.workers, **setup.features(workload)) as loader,
    ):
        built = time.perf_counter() - began
        first = built + Pass.over(loader).first_batch_s
        before, meter, own = _costs(dataset, loader), CpuMeter(), time.thread_time()
        began = time.perf_counter()
        total = Pass.over(loader, epochs=epochs)
        seconds, own = time.perf_counter() - began, time.thread_time() - own
        tree, after = meter.read()[0], _costs(dataset, loader)
    spent = {name: after[name] - before[name] for name in after}
    return {
        **total.figures(seconds=seconds, cpu_s=tree, first_batch_s=first),
        **_breakdown(spent, tree=tree, own=own, seeds=total.seeds),
        **wire_figures(spent, total, setup),
    }


def _costs(dataset: RemoteDistDataset, loader: DistNeighborLoader) -> dict[str, float]:
    """Return the counters of servers and loader."""
    loads, stats = list(dataset.server_stats(timeout=_LIMIT_S).values()), loader.stats()
    peers = [peer for load in loads for peer in load["peers"]]
    return {
        **{name: sum(load["totals"][name] for load in loads) for name in ("sampling_s", "gathering_s")},
        "between_in": sum(peer["bytes_in"] for peer in peers),
        "between_out": sum(peer["bytes_out"] for peer in peers),
        **{name: float(stats[name]) for name in ("bytes", "wire_bytes_in", "wire_bytes_out")},
    }


def _breakdown(spent: Mapping[str, float], *, tree: float, own: float, seeds: int) -> dict[str, float]:
    sampling, gathering = spent["sampling_s"], spent["gathering_s"]
    parts = {
        "sampling": sampling,
        "gathering": gathering,
        "wire": tree - sampling - gathering - own,
        "rest": own,
    }
    return {f"cpu_{name}_s_per_kseed": value / seeds * 1e3 for name, value in parts.items()}


def wire_figures(spent: Mapping[str, float], total: Pass, setup: Setup) -> dict[str, float]:
    """Return the bytes that crossed, and their ratio to the least that must cross.

    Nodes are assigned by hash, so the neighbour lists of all but one in ``servers`` nodes are remote for
    the server that samples. A list is a count, and for every neighbour a position and an edge id, 4 bytes
    each; requests and headers are not included. There is no ratio where servers also fetch rows from each
    other.
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
