"""Latency of batches on request from a storage server: alone, and beside a trainer that saturates it.

Open loop: requests begin at the times of a Poisson process, whatever became of those before. A latency counts
from the time at which its request was to begin, so that a stall counts for all requests that it delayed.

    python benchmarks/request_latency.py --data DIR --rounds 3
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.bench.workload import Workload, prepare
from gigl_loader.rpc.credentials import Caller
from gigl_server.local_cluster import LocalCluster

WORKLOAD = Workload(nodes=400_000, edges=8_000_000, dim=128, fanout=(15, 10, 5), batch_size=1024, batches=30)
FANOUT = [10, 5]


def main() -> None:
    options = _arguments()
    graph = prepare(WORKLOAD, options.data)
    figures: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for share in options.shares:
            for case, found in measure(graph, options, share).items():
                figures.setdefault(case, []).append(found)
                print(f"round {number + 1}, {case}: {_shown(found)}", flush=True)
    medians = {
        case: {name: statistics.median(each[name] for each in found) for name in found[0]}
        for case, found in figures.items()
    }
    for case, found in medians.items():
        print(f"median, {case}: {_shown(found)}")
    if options.json:
        options.json.write_text(json.dumps({"load": os.getloadavg(), "medians": medians, "rounds": figures}))


def measure(graph: Path, options: argparse.Namespace, share: float) -> dict[str, dict[str, float]]:
    """Return figures of one server: of requests alone, of the trainer alone, and of both."""
    context = multiprocessing.get_context("spawn")
    serve = {"interactive_share": share}
    with LocalCluster(graph, servers=1, workers=options.workers, options=serve) as cluster:
        seeds, stop = context.Value("q", 0), context.Event()
        with RemoteDistDataset.connect(cluster.addresses, credentials=Caller()) as dataset:
            alone = requests(dataset, options)
            trainer = context.Process(target=train, args=(cluster.addresses, seeds, stop), daemon=True)
            trainer.start()
            try:
                undisturbed = _speed(trainer, seeds, options.seconds)
                before, began = seeds.value, time.perf_counter()
                both = requests(dataset, options)
                both["trainer_share"] = (seeds.value - before) / (time.perf_counter() - began) / undisturbed
            finally:
                stop.set()
                trainer.join(60)
    return {
        f"share {share}, requests alone": alone,
        f"share {share}, trainer alone": {"seeds_s": undisturbed},
        f"share {share}, both": both,
    }


def requests(dataset: Any, options: argparse.Namespace) -> dict[str, float]:
    """Return the latencies, in ms, of requests that come at random."""
    random = np.random.default_rng(1)
    count = int(options.rate * options.seconds)
    due = np.cumsum(random.exponential(1 / options.rate, count))
    ids = random.integers(0, WORKLOAD.nodes, (count, options.ids))
    latencies = np.zeros(count)
    turns, lock = iter(range(count)), threading.Lock()

    def serve() -> None:
        while True:
            with lock:
                number = next(turns, None)
            if number is None:
                return
            time.sleep(max(began + due[number] - time.perf_counter(), 0))
            sampler.sample(ids[number], timeout=30)
            latencies[number] = time.perf_counter() - began - due[number]

    with dataset.sampler(FANOUT, seed=1, concurrency=options.concurrency) as sampler:
        warm = [
            threading.Thread(target=lambda: [sampler.sample(ids[0]) for _ in range(5)])
            for _ in range(options.concurrency)
        ]
        _run(warm)
        began = time.perf_counter() + 0.1
        _run([threading.Thread(target=serve) for _ in range(4 * options.concurrency)])
    ms = 1000 * latencies
    return {
        "median_ms": float(np.median(ms)),
        "p99_ms": float(np.percentile(ms, 99)),
        "max_ms": float(ms.max()),
    }


def train(addresses: Any, seeds: Any, stop: Any) -> None:
    """Consume batches as fast as they come, and count their seeds."""
    with RemoteDistDataset.connect(addresses, credentials=Caller()) as dataset:
        plan: Any = {"batch_size": WORKLOAD.batch_size, "num_workers": 2, "shuffle": True}
        with DistNeighborLoader(dataset, list(WORKLOAD.fanout), "train", **plan) as loader:
            while True:
                for batch in loader:
                    seeds.value += batch.batch_size
                    if stop.is_set():
                        return


def _speed(trainer: Any, seeds: Any, seconds: float) -> float:
    deadline = time.monotonic() + 120
    while not seeds.value:
        if not trainer.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the trainer has no batch: its output says why")
        time.sleep(0.05)
    time.sleep(1)
    before, began = seeds.value, time.perf_counter()
    time.sleep(seconds)
    return float((seeds.value - before) / (time.perf_counter() - began))


def _run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _shown(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in figures.items())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="keeps the graph for the next run")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second (%(default)s)")
    parser.add_argument("--ids", type=int, default=16, help="of a request (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="sampling threads of the server (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, help="of the sampler (%(default)s)")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5], help="of interactive work")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
