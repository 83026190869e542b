"""Memory, threads and descriptors of storage servers and trainers over a long run.

    python benchmarks/soak.py --minutes 60 --json soak.json

Three servers hold two copies of each partition of a random graph. Two trainers, one by network and one by
ring, open loaders, run epochs, leave epochs early, close loaders and connect anew, until the time is over. A
third trainer does the same and is killed (SIGKILL) every two minutes, and replaced. Every batch is compared
with the one that a process with the whole graph samples. Prints for each process that lived all the time what
it used after a fifth of the time and at the end, and the growth per hour of a line fitted in between; for the
servers also by kind of object (``gigl_memory_bytes``). Exits with 1 where a batch differed, a trainer failed,
or threads or descriptors grew.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import multiprocessing
import os
import queue
import re
import signal
import tempfile
import time
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from failover import random_graph

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_server.local_cluster import LocalCluster

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess
    from multiprocessing.queues import Queue

FANOUT = [10, 5]
BATCH = 256
SEEDS = range(4)
LEFT_AFTER = 3
"""Batches of an epoch that is left early."""
CONNECT_EVERY = 5
SAMPLE_S = 5.0
KILL_S = 120.0
START_S = 600.0
END_S = 10.0
TELL_S = 60.0


@dataclass
class Use:
    """Resources of one process, at times in seconds since the start."""

    name: str
    seconds: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    metrics: str = ""
    """URL of the metrics; empty for a trainer."""
    kinds_mb: dict[str, list[float]] = field(default_factory=dict)
    """Memory by kind of object."""

    def look(self, process: psutil.Process, at: float) -> None:
        """Add what the process uses now."""
        with process.oneshot():
            self.seconds.append(at)
            self.rss_mb.append(process.memory_info().rss / 1e6)
            self.threads.append(process.num_threads())
            self.descriptors.append(process.num_fds())
        for kind, nbytes in kinds_of(self.metrics).items():
            self.kinds_mb.setdefault(kind, []).append(nbytes / 1e6)

    def steady(self) -> slice:
        """Return the samples after the first fifth of the time."""
        return slice(int(np.searchsorted(self.seconds, self.seconds[-1] / 5)), None)

    def growth(self, values: list[Any]) -> float:
        """Return the growth per hour of a line through the samples after the first fifth."""
        span = self.steady()
        return float(np.polyfit(self.seconds[span], values[span], 1)[0]) * 3600

    def grew(self, values: list[int]) -> bool:
        """Whether the least of the last fifth is above the most of the second fifth."""
        fifth = max(len(values) // 5, 1)
        return min(values[-fifth:]) > max(values[fifth : 2 * fifth])

    def line(self) -> str:
        """Return a row of the table."""
        rss = self.rss_mb[self.steady()]
        threads, files = self.threads[self.steady()], self.descriptors[self.steady()]
        growth = self.growth(self.rss_mb)
        return (
            f"| {self.name} | {rss[0]:.0f} | {rss[-1]:.0f} | {max(rss):.0f} | {growth:+.1f} "
            f"| {min(threads)} to {max(threads)} | {min(files)} to {max(files)} |"
        )

    def kinds(self) -> str:
        """Return the growth by kind of object, in rows of a table."""
        span = self.steady()
        return "\n".join(
            f"| {self.name} | {kind} | {values[span][0]:.1f} | {values[-1]:.1f} "
            f"| {self.growth(values):+.1f} |"
            for kind, values in self.kinds_mb.items()
            if max(values) > 0
        )


def metrics_of(process: psutil.Process, known: set[int]) -> str:
    """Return the URL of the metrics of a server: the port at which it listens and that is not ``known``."""
    for each in process.net_connections("tcp"):
        url = f"http://127.0.0.1:{each.laddr.port}/metrics"
        if each.status == psutil.CONN_LISTEN and each.laddr.port not in known and kinds_of(url):
            return url
    raise SystemExit(f"process {process.pid} has no metrics")


def kinds_of(url: str) -> dict[str, float]:
    """Return the memory by kind of object; nothing where there are no metrics."""
    text = ""
    with (
        suppress(OSError, ValueError, http.client.HTTPException),
        urllib.request.urlopen(url, timeout=10) as found,
    ):
        text = found.read().decode()
    return {
        kind: float(nbytes) for kind, nbytes in re.findall(r'gigl_memory_bytes\{of="(\w+)"\} (\S+)', text)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0, help="batches per second and trainer, at most")
    parser.add_argument("--json", type=Path, help="write all samples to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = random_graph(Path(folder) / "graph")
        expected = {seed: expected_batches(path, seed) for seed in SEEDS}
        # With cores: else nobody but root may count the descriptors of a server.
        extra = {"metrics": "127.0.0.1:0", "allow_core": True}
        with LocalCluster(path, servers=3, replicas=2, log_level="ERROR", options=extra) as cluster:
            uses, batches, wrong = soak(cluster, expected, seconds=60 * options.minutes, rate=options.rate)
    print("| process | RSS after 1/5, MB | at the end | most | growth, MB/h | threads | descriptors |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for use in uses:
        print(use.line())
    print("\n| process | memory of | after 1/5, MB | at the end | growth, MB/h |\n|---|---|---:|---:|---:|")
    for use in uses:
        if use.kinds_mb:
            print(use.kinds())
    grown = [use.name for use in uses if use.grew(use.threads) or use.grew(use.descriptors)]
    print(
        f"\n{batches} batches, {wrong} differed or failed; threads or descriptors grew: {grown or 'nowhere'}"
    )
    if options.json:
        report = {"batches": batches, "wrong": wrong, "uses": [asdict(use) for use in uses]}
        options.json.write_text(json.dumps(report) + "\n")
    return 1 if wrong or grown else 0


def soak(
    cluster: LocalCluster, expected: dict[int, tuple[list[str], list[str]]], *, seconds: float, rate: float
) -> tuple[list[Use], int, int]:
    """Run the trainers. Return what the processes used, and how many batches were received and differed."""
    context = multiprocessing.get_context("spawn")
    results: Queue[tuple[int, int, int]] = context.Queue()

    def trainer(transport: str) -> SpawnProcess:
        process = context.Process(
            target=train, args=(cluster.addresses, transport, expected, rate, results), daemon=True
        )
        process.start()
        return process

    steady = {"trainer by network": trainer("network"), "trainer by ring": trainer("ring")}
    victim = trainer("network")
    servers = list(map(psutil.Process, cluster.pids))
    known = {int(address.rpartition(":")[2]) for address in cluster.addresses}
    watched = [
        (process, Use(f"server {rank}", metrics=metrics_of(process, known)))
        for rank, process in enumerate(servers)
    ]
    watched += [(psutil.Process(process.pid), Use(name)) for name, process in steady.items()]
    batches = wrong = 0
    try:
        wait_for({process.pid for process in steady.values()}, results)
        began = killed = told = time.monotonic()
        while (at := time.monotonic() - began) < seconds:
            time.sleep(SAMPLE_S)
            for name, trained in steady.items():
                if not trained.is_alive():
                    raise SystemExit(f"{name} ended with status {trained.exitcode}")
            for process, use in watched:
                use.look(process, at)
            if time.monotonic() - killed > KILL_S:
                assert victim.pid is not None
                os.kill(victim.pid, signal.SIGKILL)
                victim.join(END_S)
                victim, killed = trainer("network"), time.monotonic()
            while not results.empty():
                _, more, differing = results.get()
                batches, wrong = batches + more, wrong + differing
            if time.monotonic() - told > TELL_S:
                told = time.monotonic()
                print(f"{at / 60:.0f} min, {batches} batches, {wrong} wrong", flush=True)
    finally:
        for ended in (*steady.values(), victim):
            ended.kill()
        for ended in (*steady.values(), victim):
            ended.join(END_S)
    return [use for _, use in watched], batches, wrong


def wait_for(pids: set[int | None], results: Queue[tuple[int, int, int]]) -> None:
    """Wait until each of these trainers has received an epoch."""
    deadline = time.monotonic() + START_S
    try:
        while pids:
            pids.discard(results.get(timeout=max(deadline - time.monotonic(), 0.001))[0])
    except queue.Empty:
        raise SystemExit(f"trainers {sorted(map(str, pids))} received no epoch in {START_S:g} s") from None


def train(
    addresses: list[str],
    transport: str,
    expected: dict[int, tuple[list[str], list[str]]],
    rate: float,
    results: Queue[tuple[int, int, int]],
) -> None:
    """Run epochs until the process is ended."""
    turn = 0
    while True:
        with RemoteDistDataset.connect(addresses, transport=transport) as dataset:  # type: ignore[arg-type]
            for _ in range(CONNECT_EVERY):
                seed = SEEDS[turn % len(SEEDS)]
                turn += 1
                with loader_of(dataset, seed, num_workers=1) as loader:
                    for wanted in expected[seed]:
                        batches = islice(loader, len(wanted))
                        digests = paced((digest(batch) for batch in batches), rate)
                        differing = sum(a != b for a, b in zip(digests, wanted, strict=True))
                        results.put((os.getpid(), len(digests), differing))


def paced(digests: Any, rate: float) -> list[str]:
    found: list[str] = []
    began = time.monotonic()
    for each in digests:
        found.append(each)
        time.sleep(max(began + len(found) / rate - time.monotonic(), 0))
    return found


def expected_batches(path: Path, seed: int) -> tuple[list[str], list[str]]:
    """Return the batches of an epoch, and the first ones of the next, which trainers leave early."""
    with DistDataset.open(path) as dataset, loader_of(dataset, seed, num_workers=0) as loader:
        return [digest(batch) for batch in loader], [digest(batch) for batch in islice(loader, LEFT_AFTER)]


def loader_of(dataset: Any, seed: int, *, num_workers: int) -> DistNeighborLoader:
    nodes = np.arange(BATCH * 20)
    return DistNeighborLoader(
        dataset, FANOUT, nodes, batch_size=BATCH, shuffle=False, seed=seed, num_workers=num_workers
    )


def digest(batch: Any) -> str:
    parts = (batch.n_id, batch.edge_index, batch.x)
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
