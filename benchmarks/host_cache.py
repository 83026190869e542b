"""Rows that ranks of one host fetch from storage servers, with caches of their own and reading each other's.

    python benchmarks/host_cache.py --dir DIR [--ranks 1,2,4,8] [--window 4]

Two servers on this machine; each rank is a process that runs this file. Ranks go in step, as trainers do.
Shares are counts, and nearly the same on every machine; CPU milliseconds a batch are those of a rank.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import harness
import numpy as np
import torch
import torch.distributed as dist
from dependent_batches import graph_of

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc.credentials import Caller
from gigl_server.local_cluster import LocalCluster

_DIM = 128
_WAYS = ("alone", "shared")
_RUN_LIMIT_S = 900.0


def main() -> None:
    options = _arguments()
    if options.job:
        _train(**json.loads(options.job))
        return
    with harness.folder(options.dir) as folder:
        graph = folder / f"host-cache-{options.nodes}-{options.edges}"
        if not graph.exists():
            data = graph_of("power law", options.nodes, options.edges)
            random = np.random.default_rng(0)
            data.x = torch.from_numpy(random.standard_normal((options.nodes, _DIM), np.float32))
            build_graph(tables_from_pyg(data), graph, num_partitions=2, assigner="hash")
        with LocalCluster(graph, servers=2, workers=1) as cluster:
            found = [
                {"ranks": ranks, "way": way, **_run(list(cluster.addresses), ranks, way, options)}
                for ranks in options.ranks
                for way in (_WAYS if ranks > 1 else _WAYS[:1])
            ]
    if options.json:
        harness.write_json(options, {"figures": found, "load": harness.load()})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, help="folder of the graph (default: a temporary one)")
    parser.add_argument(
        "--ranks", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4]
    )
    for name, value in {"nodes": 300_000, "edges": 6_000_000, "percent": 20, "window": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"batch-size": 32, "batches": 150, "epochs": 2, "port": 29_611}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(addresses: list[str], ranks: int, way: str, options: argparse.Namespace) -> dict[str, float]:
    """Run the ranks, and return the medians of their figures."""
    job = {name: getattr(options, name) for name in ("percent", "window", "batch_size", "batches", "epochs")}
    command = [sys.executable, __file__, "--job", json.dumps({**job, "addresses": addresses, "way": way})]
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=_environment(rank, ranks, options.port)
        )
        for rank in range(ranks)
    ]
    try:
        told = [
            json.loads(process.communicate(timeout=_RUN_LIMIT_S)[0].splitlines()[-1]) for process in processes
        ]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    figures = {name: statistics.median(each[name] for each in told) for name in told[0]}
    print(ranks, way, json.dumps(figures), f"load {harness.load():.1f}", flush=True)
    return figures


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    group = {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {**os.environ, **{name: str(value) for name, value in {**place, **group}.items()}}


def _train(
    *, addresses: list[str], way: str, percent: int, window: int, batch_size: int, batches: int, epochs: int
) -> None:
    """Go through an epoch to fill the cache, and count in those after it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if way == "alone":
        mock.patch("gigl_loader.sampling.window._ranks_of", return_value=None).start()
    with RemoteDistDataset.connect(addresses, credentials=Caller(), transport="network") as dataset:
        nbytes = dataset.num_nodes * _DIM * 4 * percent // 100
        options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "seed": 1, "device": "cpu"}
        options |= {"feature_memory": nbytes, "window": window or "auto", "with_edge": False}
        with DistNeighborLoader(dataset, [10, 10], **options) as loader:
            _epoch(loader, batches)
            before, cpu, began = loader.stats(), time.process_time(), time.perf_counter()
            for _ in range(epochs):
                _epoch(loader, batches)
            after, seconds = loader.stats(), time.perf_counter() - began
            cpu = time.process_time() - cpu
    rows = {name: after["rows"][name] - before["rows"][name] for name in ("wanted", "cache", "ranks", "wire")}
    count = batches * epochs
    figures = {name: rows[name] / rows["wanted"] for name in ("cache", "ranks", "wire")}
    figures |= {"rows": rows["wanted"] / count, "cpu_ms": cpu / count * 1e3, "ms": seconds / count * 1e3}
    figures["mb_in"] = (after["wire_bytes_in"] - before["wire_bytes_in"]) / count / 1e6
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}), flush=True)
    dist.destroy_process_group()


def _epoch(loader: DistNeighborLoader, batches: int) -> None:
    for _ in islice(loader, batches):
        dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main()
