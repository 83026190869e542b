"""Time until the next batch after a storage server vanished for good, with two copies of each partition.

    python benchmarks/failover.py [GRAPH]

Three servers hold two copies of each partition. In each round one of them is killed (SIGKILL) or stopped
(SIGSTOP) in mid-epoch, and not started again. Prints the longest wait for a batch after that, beside the
longest before it, for both transports and both ways of the rows. The batches are compared with those of one
process that has the whole graph.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_server.local_cluster import LocalCluster

WAYS = (("ring", "through"), ("ring", "direct"), ("network", "through"), ("network", "direct"))
OPTIONS = {"batch_size": 256, "shuffle": True, "seed": 1}
FANOUT = [10, 5]
BEFORE = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", nargs="?", help="a graph of at least 3 partitions; default: a random one")
    graph = parser.parse_args().graph
    with tempfile.TemporaryDirectory() as folder:
        path = Path(graph) if graph else random_graph(Path(folder) / "graph")
        nodes = DistDataset.open(path).fetch_node_ids()[0][: 256 * 100]
        with DistNeighborLoader(DistDataset.open(path), FANOUT, nodes, num_workers=0, **OPTIONS) as loader:
            expected = [batch.x.sum().item() for batch in loader]
        print("| fault | transport | rows | longest wait before | after | differing batches |")
        print("|---|---|---|---:|---:|---:|")
        for number in (signal.SIGKILL, signal.SIGSTOP):
            for place, (transport, rows) in enumerate(WAYS):
                before, after, wrong = waits(
                    path, nodes, transport, rows, number=number, victim=place % 3, expected=expected
                )
                name, figures = signal.Signals(number).name, f"{before:.2f} s | {after:.2f} s | {wrong}"
                print(f"| {name} | {transport} | {rows} | {figures} |", flush=True)


def random_graph(path: Path) -> Path:
    random = np.random.default_rng(0)
    count = 30_000
    nodes = ArrayTable(
        "nodes", {"id": np.arange(count), "x": random.standard_normal((count, 64), dtype=np.float32)}
    )
    src, dst = random.integers(0, count, (2, 10 * count))
    edges = ArrayTable("edges", {"src": src, "dst": dst})
    tables = GraphTables(edges={("node", "to", "node"): edges}, nodes={"node": NodeTable(nodes)})
    build_graph(tables, path, num_partitions=3)
    return path


def waits(
    path: Path, nodes: object, transport: str, rows: str, *, number: int, victim: int, expected: list[float]
) -> tuple[float, float, int]:
    """Return the longest wait before and after the fault, in seconds, and how many batches differed."""
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(path, servers=3, replicas=2, log_level="ERROR"))
        dataset = stack.enter_context(
            RemoteDistDataset.connect(cluster.addresses, transport=transport, rows=rows)  # type: ignore[arg-type]
        )
        loader = stack.enter_context(DistNeighborLoader(dataset, FANOUT, nodes, num_workers=1, **OPTIONS))
        batches, sums = iter(loader), list[float]()

        def longest(count: int | None) -> float:
            times = [time.monotonic()]
            for batch in islice(batches, count):
                sums.append(batch.x.sum().item())
                times.append(time.monotonic())
            return max(np.diff(times))

        before = longest(BEFORE)
        pid = cluster.pids[victim]
        os.kill(pid, number)
        try:
            after = longest(None)
        finally:
            if number == signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
        return before, after, sum(a != b for a, b in zip(sums, expected, strict=True))


if __name__ == "__main__":
    main()
