"""Several ranks on one host or on seeming ones: whether they get in each other's way, and what they cost.

A rank runs ``gigl_loader.bench.rank`` and talks in lines of JSON. Hosts are told apart by their boot
id, which the environment may override; so two hosts here reach each other over the loopback.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gigl_loader.bench.flight import KEEP_MEMORY, bare_transfer
from gigl_loader.bench.rounds import Case, Figures, Memory, memory_of, process_tree, workers_in_words
from gigl_loader.bench.workload import Workload

_LEAVE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every rank of a crowd does."""

    graph: str
    """Directory of the graph."""
    seeds: str
    """``.npy`` file; the first of them that the workload takes."""
    workload: Workload
    num_workers: int
    epochs: int = 2
    partitions: tuple[tuple[int, ...], ...] | None = None
    """By host: which partitions it holds. ``None``: one host, which holds all."""
    cache_bytes: int = 0
    """Memory of each host for rows of the others."""
    own_seeds: bool = False
    """Each host takes seeds that it holds, rather than its share of all."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields = json.loads(text)
        sizes = fields.pop("workload")
        partitions = fields.pop("partitions")
        return cls(
            **fields,
            workload=Workload(**{**sizes, "fanout": tuple(sizes["fanout"])}),
            partitions=None if partitions is None else tuple(map(tuple, partitions)),
        )


class Crowd:
    """Ranks that were started."""

    def __init__(self, task: str, job: Job, *, ranks: int, hosts: int = 1) -> None:
        """Start ``ranks`` ranks, those of a host next to each other. ``task`` names what they run."""
        self._processes: list[subprocess.Popen[str]] = []
        port, per_host = _free_port(), ranks // hosts
        try:
            for rank in range(ranks):
                host, local_rank = divmod(rank, per_host)
                variables = {
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    "RANK": rank,
                    "WORLD_SIZE": ranks,
                    "LOCAL_RANK": local_rank,
                    "LOCAL_WORLD_SIZE": per_host,
                    "GROUP_RANK": host,
                    "GROUP_WORLD_SIZE": hosts,
                    "GIGL_BOOT_ID": f"bench-host-{host}",
                    "OMP_NUM_THREADS": 1,
                }
                self._processes.append(_start(task, job, variables))
        except BaseException:
            self.end()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def hear(self) -> list[dict[str, Any]]:
        """Return the next thing that each rank says, in order of the ranks. Waits for all."""
        return [self._hear(rank, process) for rank, process in enumerate(self._processes)]

    def tell(self) -> None:
        """Let all ranks go on."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Kill all ranks where the block takes longer; then it fails, as the ranks say nothing more."""
        timer = threading.Timer(seconds, self._kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> None:
        """Wait for the ranks to leave; those that failed are ended."""
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
        try:
            for process in self._processes:
                process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill()
            for process in self._processes:
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._kill()
        self.end()

    def _hear(self, rank: int, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                return said
        raise RuntimeError(f"rank {rank} of the benchmark ended without a result; see what it wrote above")

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def _start(task: str, job: Job, variables: dict[str, Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gigl_loader.bench.rank", task, job.to_json()],
        env=os.environ | {name: str(value) for name, value in variables.items()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


HOSTS = "2 hosts, 1 worker each"
CACHED = "2 hosts, a tenth of rows cached"
BARE = "bare Flight transfer of the same"
BARE_WARM = "bare Flight transfer, memory kept"

_HOSTS_LIMIT_S = 900.0


def hosts_case(graph: Path, seeds: Path, workload: Workload, *, epochs: int = 2) -> Case:
    """Measure both hosts together, then a bare transfer of as many messages of the same sizes.

    Rows that a host keeps of the other would hide the network, so none are; how much a small cache
    spares is measured beside it.

    The transfer is measured as glibc comes, and with its memory kept as our processes have it.

    The CPU seconds of all processes are told apart: *sampling* and *gathering* in kernels, wherever they
    ran; *wire*: all else that workers and peer services did; *rest*: the trainers.
    """
    job = Job(
        graph=str(graph),
        seeds=str(seeds),
        workload=workload,
        num_workers=1,
        epochs=epochs,
        partitions=((0,), (1,)),
    )

    def measured(job: Job) -> tuple[Figures, list[dict[str, Any]]]:
        with Crowd("measure", job, ranks=2, hosts=2) as crowd, crowd.within(_HOSTS_LIMIT_S):
            said = crowd.hear()
        return throughput(said) | _breakdown(said) | _wire(said), said

    def case() -> dict[str, Figures]:
        cached, _ = measured(replace(job, cache_bytes=workload.row_bytes * workload.nodes // 2 // 10))
        hosts, said = measured(job)
        return {HOSTS: hosts, CACHED: cached, BARE: _bare(said, {}), BARE_WARM: _bare(said, KEEP_MEMORY)}

    return case


def throughput(said: list[dict[str, Any]]) -> dict[str, float]:
    """Return what all ranks did together: a rank that is slow holds up the others, as in training."""
    seconds = max(each["seconds"] for each in said)
    total = {name: sum(each[name] for each in said) for name in ("seeds", "nodes", "edges", "batches")}
    return {
        "seeds_per_s": total["seeds"] / seconds,
        "edges_per_s": total["edges"] / seconds,
        "nodes_per_batch": total["nodes"] / total["batches"],
        "edges_per_batch": total["edges"] / total["batches"],
        "cpu_s_per_kseed": sum(each["tree_cpu"] for each in said) / total["seeds"] * 1e3,
    }


def _breakdown(said: list[dict[str, Any]]) -> dict[str, float]:
    sums = _sums(said)
    sampling = sums["workers_cpu_sampling"] + sums["service_sampling_s"]
    gathering = sums["workers_cpu_gathering"] + sums["service_gathering_s"]
    wire = sums["workers_cpu_seconds"] + sums["service_cpu_s"] - sampling - gathering
    rest = sums["tree_cpu"] - sampling - gathering - wire
    parts = {"sampling": sampling, "gathering": gathering, "wire": wire, "rest": rest}
    return {f"cpu_{name}_s_per_kseed": value / sums["seeds"] * 1e3 for name, value in parts.items()}


def _wire(said: list[dict[str, Any]]) -> dict[str, float]:
    sums = _sums(said)
    crossed = (sums["workers_wire_bytes_in"] + sums["workers_wire_bytes_out"]) / sums["batches"]
    remote = sum(each["remote_bytes_per_batch"] for each in said) / len(said)
    return {
        "wire_mb_per_batch": crossed / 1e6,
        "remote_mb_per_batch": remote / 1e6,
        "wire_over_remote": crossed / remote,
        "calls_per_batch": sums["workers_peer_calls"] / sums["batches"],
    }


def _bare(said: list[dict[str, Any]], environment: Mapping[str, str]) -> dict[str, float]:
    """Transfer a rank's share, in calls of the mean size."""
    share = {name: value / len(said) for name, value in _sums(said).items()}
    calls = max(round(share["workers_peer_calls"]), 1)
    cpu = bare_transfer(
        calls=calls,
        request_bytes=round(share["workers_wire_bytes_out"] / calls),
        reply_bytes=round(share["workers_wire_bytes_in"] / calls),
        environment=environment,
    )
    gigabytes = (share["workers_wire_bytes_in"] + share["workers_wire_bytes_out"]) / 1e9
    return {"cpu_wire_s_per_kseed": cpu / share["seeds"] * 1e3, "cpu_s_per_gb": cpu / max(gigabytes, 1e-9)}


def _sums(said: list[dict[str, Any]]) -> Mapping[str, float]:
    return {name: sum(each[name] for each in said) for name in said[0]}


_LIMIT_S = 600.0
_EVERY_S = 0.05


def ranks_case(
    graph: Path, seeds: Path, workload: Workload, *, ranks: int, num_workers: int, epochs: int = 2
) -> Case:
    """Measure the throughput of all ranks together. They share the seeds."""
    job = Job(graph=str(graph), seeds=str(seeds), workload=workload, num_workers=num_workers, epochs=epochs)

    def case() -> dict[str, Figures]:
        with Crowd("measure", job, ranks=ranks) as crowd, crowd.within(_LIMIT_S):
            return {_in_words(ranks, num_workers): throughput(crowd.hear())}

    return case


def start_memory_case(graph: Path, seeds: Path, workload: Workload, *, ranks: int, num_workers: int) -> Case:
    """Weigh the ranks before they build their loaders, until all workers are up, and with batches in flight.

    Counted is memory that no file of the graph backs: processes' own, and what they have touched of
    shared memory.
    """
    job = Job(graph=str(graph), seeds=str(seeds), workload=workload, num_workers=num_workers)

    def case() -> dict[str, Figures]:
        with Crowd("start", job, ranks=ranks) as crowd, crowd.within(_LIMIT_S):
            crowd.hear()
            before = _weight(crowd)
            with _peak(crowd) as starting:
                crowd.tell()
                crowd.hear()
            with _peak(crowd) as first:
                crowd.tell()
                crowd.hear()
            crowd.tell()
        return {
            f"start-up, {_in_words(ranks, num_workers)}": {
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
    """Weigh a crowd again and again, until the block ends."""
    peak, done = _Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY_S):
            peak.nbytes = max(peak.nbytes, _weight(crowd))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
        peak.nbytes = max(peak.nbytes, _weight(crowd))


def _weight(crowd: Crowd) -> int:
    """Return the bytes of all processes of a crowd that no file of the graph backs."""
    pids = [pid for root in crowd.pids for pid in process_tree(root)]
    whole = sum(map(memory_of, pids), Memory())
    return whole.anonymous + whole.shared


def _in_words(ranks: int, num_workers: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}, {workers_in_words(num_workers)}" + (
        " each" if ranks > 1 else ""
    )
