"""Jobs that request the same batches of one storage server, as trainers of a hyperparameter search do.

Each case is a server of its own with one trainer, or with several that start together, whose frames are
shared or not. A trainer is a process that runs this file, prints a line when its loader is open, and begins
when it reads one. CPU seconds are those of the server: *sampling* and *gathering* (copies of shared frames
included) of its kernels, and of the whole process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from gigl_client import RemoteDistDataset
from gigl_loader.bench.loading import Pass, open_loader
from gigl_loader.bench.workload import FULL, Workload, prepare, training_seeds
from gigl_loader.rpc.credentials import Caller
from gigl_server.local_cluster import LocalCluster

_LIMIT_S = 120.0
_COSTS = ("sampling_s", "gathering_s", "cpu_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the workload, made if missing")
    parser.add_argument("--nodes", type=int, default=FULL.nodes)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--step", type=float, default=0.0, help="seconds between two batches of a trainer")
    parser.add_argument("--lag", type=float, default=0.0, help="seconds between the starts of two trainers")
    parser.add_argument("--shared-frame-memory", default="1GB")
    parser.add_argument("--transports", default="network,ring")
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    batches = min(FULL.batches, given.nodes // (20 * FULL.batch_size))
    workload = replace(FULL, nodes=given.nodes, edges=30 * given.nodes, batches=batches)
    if given.trainer:
        _train(json.loads(given.trainer), workload, given)
        return
    graph = prepare(workload, given.data)
    cases = [
        (transport, jobs, memory)
        for transport in given.transports.split(",")
        for jobs, memory in (
            (1, given.shared_frame_memory),
            (1, 0),
            (given.jobs, given.shared_frame_memory),
            (given.jobs, 0),
        )
    ]
    rounds: dict[Any, list[dict[str, float]]] = {case: [] for case in cases}
    for _ in range(given.rounds):
        for case, figures in rounds.items():
            figures.append(_measured(graph, *case, given))
            print(case, {name: round(value, 3) for name, value in figures[-1].items()}, flush=True)
    print("| transport | jobs | shared | sampling | gathering | server CPU | batches shared | slowest |")
    print("|---|---|---|---|---|---|---|---|")
    for (transport, jobs, memory), figures in rounds.items():
        middle = {name: statistics.median(each[name] for each in figures) for name in figures[0]}
        cells = [
            *(transport, jobs, memory),
            *(f"{middle[name]:.2f} s" for name in _COSTS),
            f"{middle['shared']:.0f} of {middle['batches']:.0f}",
            f"{middle['slowest_s']:.2f} s",
        ]
        print(f"| {' | '.join(map(str, cells))} |")


def _measured(graph: Path, transport: str, jobs: int, memory: Any, given: Any) -> dict[str, float]:
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(graph, servers=1, workers=2, options={"shared_frame_memory": memory})
        )
        job = json.dumps({"addresses": cluster.addresses, "transport": transport})
        command = [sys.executable, __file__, *sys.argv[1:], "--trainer", job]
        trainers = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(jobs)
        ]
        for each in trainers:
            assert each.stdout is not None
            assert each.stdout.readline()
        before = _load(cluster)
        for each in trainers:
            assert each.stdin is not None
            print("go", file=each.stdin, flush=True)
            time.sleep(given.lag)
        ends = [json.loads(each.communicate(timeout=_LIMIT_S)[0]) for each in trainers]
        after = _load(cluster)
    assert len({each["digest"] for each in ends}) == 1
    return {
        **{name: after["totals"][name] - before["totals"][name] for name in _COSTS},
        "batches": after["batches"] - before["batches"],
        "shared": after.get("shared", 0) - before.get("shared", 0),
        "slowest_s": max(each["seconds"] for each in ends),
    }


def _load(cluster: LocalCluster) -> dict[str, Any]:
    with RemoteDistDataset.connect(cluster.addresses, credentials=Caller(), timeout=_LIMIT_S) as dataset:
        (load,) = dataset.server_stats(timeout=_LIMIT_S).values()
    return dict(load)


def _train(job: dict[str, Any], workload: Workload, given: Any) -> None:
    seeds = training_seeds(workload, given.data)
    with (
        RemoteDistDataset.connect(
            job["addresses"], credentials=Caller(), transport=job["transport"], timeout=_LIMIT_S
        ) as dataset,
        open_loader(dataset, workload, seeds, 2) as loader,
    ):
        Pass.over(loader)  # Touches all memory.
        print("ready", flush=True)
        sys.stdin.readline()
        began, digest = time.perf_counter(), 0
        for _ in range(given.epochs):
            for batch in loader:
                digest = hash((digest, int(batch.n_id.sum()), float(batch.x[:100].sum())))
                time.sleep(given.step)
        seconds = time.perf_counter() - began
    print(json.dumps({"digest": digest, "seconds": seconds}))


if __name__ == "__main__":
    main()
