"""Several trainers on this machine, as ranks of one process group, on one host or on seeming ones.

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from gigl_loader.bench.workload import Workload

__all__ = ["Crowd", "Job"]

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
