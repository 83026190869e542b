"""Several ranks on one host, and two hosts: cases of ``whole.py``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crowd import Crowd, Job

from gigl_loader.bench.rounds import Case, Figures, Memory, memory_of, process_tree, workers_in_words
from gigl_loader.bench.workload import Workload

HOSTS = "2 hosts, 1 worker each"
CACHED = "2 hosts, a tenth of rows cached"

_LIMIT_S = 600.0
_HOSTS_LIMIT_S = 900.0
_EVERY_S = 0.05


def name(ranks: int, num_workers: int) -> str:
    """Return the subject of a measurement of ranks."""
    each = " each" if ranks > 1 else ""
    return f"{ranks} rank{'s' if ranks > 1 else ''}, {workers_in_words(num_workers)}{each}"


def hosts_case(graph: Path, seeds: Path, workload: Workload, *, epochs: int = 2) -> Case:
    """Measure two hosts that hold half of the graph each, without a cache and with a small one.

    The CPU seconds of all processes are split in four: *sampling* and *gathering* in the kernels of workers
    and peer services; *wire*, everything else in workers and peer services; *rest*, the trainers.
    """
    job = Job(
        graph=str(graph),
        seeds=str(seeds),
        workload=workload,
        num_workers=1,
        epochs=epochs,
        partitions=((0,), (1,)),
    )

    def measured(job: Job) -> Figures:
        with Crowd("measure", job, ranks=2, hosts=2) as crowd, crowd.within(_HOSTS_LIMIT_S):
            records = crowd.read()
        return throughput(records) | _breakdown(records) | _wire(records)

    def case() -> dict[str, Figures]:
        cached = replace(job, cache_bytes=workload.row_bytes * workload.nodes // 2 // 10)
        return {CACHED: measured(cached), HOSTS: measured(job)}

    return case


def throughput(records: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of all ranks together, over the time of the slowest: in training all wait for it."""
    seconds = max(each["seconds"] for each in records)
    total = {name: sum(each[name] for each in records) for name in ("seeds", "nodes", "edges", "batches")}
    return {
        "seeds_per_s": total["seeds"] / seconds,
        "edges_per_s": total["edges"] / seconds,
        "nodes_per_batch": total["nodes"] / total["batches"],
        "edges_per_batch": total["edges"] / total["batches"],
        "cpu_s_per_kseed": sum(each["tree_cpu"] for each in records) / total["seeds"] * 1e3,
    }


def _breakdown(records: list[dict[str, Any]]) -> dict[str, float]:
    sums = _sums(records)
    sampling = sums["workers_cpu_sampling"] + sums["service_sampling_s"]
    gathering = sums["workers_cpu_gathering"] + sums["service_gathering_s"]
    wire = sums["workers_cpu_seconds"] + sums["service_cpu_s"] - sampling - gathering
    rest = sums["tree_cpu"] - sampling - gathering - wire
    parts = {"sampling": sampling, "gathering": gathering, "wire": wire, "rest": rest}
    return {f"cpu_{name}_s_per_kseed": value / sums["seeds"] * 1e3 for name, value in parts.items()}


def _wire(records: list[dict[str, Any]]) -> dict[str, float]:
    sums = _sums(records)
    crossed = (sums["workers_wire_bytes_in"] + sums["workers_wire_bytes_out"]) / sums["batches"]
    remote = sum(each["remote_bytes_per_batch"] for each in records) / len(records)
    return {
        "wire_mb_per_batch": crossed / 1e6,
        "remote_mb_per_batch": remote / 1e6,
        "wire_over_remote": crossed / remote,
        "calls_per_batch": sums["workers_peer_calls"] / sums["batches"],
    }


def _sums(records: list[dict[str, Any]]) -> Mapping[str, float]:
    return {name: sum(each[name] for each in records) for name in records[0]}


def ranks_case(
    graph: Path, seeds: Path, workload: Workload, *, ranks: int, num_workers: int, epochs: int = 2
) -> Case:
    """Measure the throughput of all ranks together. They share the seeds."""
    job = Job(graph=str(graph), seeds=str(seeds), workload=workload, num_workers=num_workers, epochs=epochs)

    def case() -> dict[str, Figures]:
        with Crowd("measure", job, ranks=ranks) as crowd, crowd.within(_LIMIT_S):
            return {name(ranks, num_workers): throughput(crowd.read())}

    return case


def start_memory_case(graph: Path, seeds: Path, workload: Workload, *, ranks: int, num_workers: int) -> Case:
    """Measure memory before the ranks build loaders, until all workers are up, and with batches in flight.

    Counted is memory that no file of the graph backs: private memory and resident shared memory.
    """
    job = Job(graph=str(graph), seeds=str(seeds), workload=workload, num_workers=num_workers)

    def case() -> dict[str, Figures]:
        with Crowd("start", job, ranks=ranks) as crowd, crowd.within(_LIMIT_S):
            crowd.read()
            before = _memory_bytes(crowd)
            with _peak(crowd) as starting:
                crowd.resume()
                crowd.read()
            with _peak(crowd) as first:
                crowd.resume()
                crowd.read()
            crowd.resume()
        return {
            f"start-up, {name(ranks, num_workers)}": {
                "before_mb": before / 1e6,
                "start_adds_mb": (starting.nbytes - before) / 1e6,
                "in_flight_adds_mb": (first.nbytes - before) / 1e6,
            }
        }

    return case


@dataclass(slots=True)
class _Peak:
    nbytes: int = 0


@contextmanager
def _peak(crowd: Crowd) -> Iterator[_Peak]:
    """Sample the memory of a crowd until the block ends; yields the peak."""
    peak, done = _Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY_S):
            peak.nbytes = max(peak.nbytes, _memory_bytes(crowd))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
        peak.nbytes = max(peak.nbytes, _memory_bytes(crowd))


def _memory_bytes(crowd: Crowd) -> int:
    """Return the memory of all processes of a crowd that no file of the graph backs, in bytes."""
    pids = [pid for root in crowd.pids for pid in process_tree(root)]
    whole = sum(map(memory_of, pids), Memory())
    return whole.anonymous + whole.shared
