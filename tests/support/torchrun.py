"""Programs run by torchrun, on one host or on several at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from typing_extensions import Self

from tests.support.hosts import Host
from tests.support.leftovers import wait_until
from tests.support.ports import free_port

_MARK = "GIGL_TEST_RUN"
_PATIENCE = 60.0
"""Seconds in which processes that ought to end by themselves have ended."""


class Torchrun:
    """A script run by an agent of torchrun on every host. A context manager.

    ``{host}`` in the command stands for the index of the host. Without ``hosts``, several hosts are
    several agents on this machine, whose ranks have boot ids of their own. When an agent has ended and a
    process is left, the test fails.
    """

    def __init__(
        self,
        *command: str,
        ranks_per_host: int,
        num_hosts: int = 1,
        hosts: Sequence[Host] | None = None,
        folder: Path,
    ) -> None:
        self._mark = uuid.uuid4().hex
        self._folder = folder
        count = len(hosts) if hosts else num_hosts
        master, port = (hosts[0].address, hosts[0].free_port()) if hosts else ("127.0.0.1", free_port())
        common = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count)),
            *("--nproc-per-node", str(ranks_per_host), "--master-addr", master, "--master-port", str(port)),
        ]
        self._agents: list[subprocess.Popen[bytes]] = []
        for index in range(count):
            own = ["--node-rank", str(index), *(word.replace("{host}", str(index)) for word in command)]
            self._agents.append(self._start(index, [*common, *own], hosts[index] if hosts else None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            quiet = kind is not None or wait_until(lambda: not self.everyone(), seconds=_PATIENCE)
            assert quiet, f"still there: {self.everyone()}"
        finally:
            for process in self.everyone():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            for agent in self._agents:
                agent.wait()

    def everyone(self) -> list[psutil.Process]:
        """Return agents, ranks and what these started: all whose environment was ours at their start."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark:
                    found.append(process)
        return found

    def ranks(self) -> list[psutil.Process]:
        """Return the processes of ranks, in their order."""
        agents = [agent.pid for agent in self._agents]
        children = [process for process in self.everyone() if process.ppid() in agents]
        return sorted(children, key=lambda process: int(process.environ()["RANK"]))

    def output(self, host: int) -> str:
        """Return what the ranks of a host have printed."""
        return self._path(host, "output").read_text()

    def errors(self, host: int) -> str:
        """Return what the ranks of a host, and torchrun, have written to standard error."""
        return self._path(host, "errors").read_text()

    def finish(self, *, seconds: float) -> list[int]:
        """Wait for all agents, and return how they ended."""
        deadline = time.monotonic() + seconds
        return [agent.wait(max(deadline - time.monotonic(), 0)) for agent in self._agents]

    def _start(self, index: int, command: list[str], host: Host | None) -> subprocess.Popen[bytes]:
        environment = host.environment if host else {"GIGL_BOOT_ID": f"boot-{index}"}
        with (
            open(self._path(index, "output"), "wb") as output,
            open(self._path(index, "errors"), "wb") as errors,
        ):
            return subprocess.Popen(
                host.command(*command) if host else command,
                cwd=self._folder,
                env={**os.environ, **environment, _MARK: self._mark, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def _path(self, host: int, kind: str) -> Path:
        return self._folder / f"host-{host}.{kind}"


def run_torchrun(
    *command: str,
    ranks_per_host: int,
    num_hosts: int = 1,
    hosts: Sequence[Host] | None = None,
    seconds: float,
    folder: Path,
) -> list[str]:
    """Run a script to its end, as ``Torchrun`` does, and return what each host printed."""
    job = Torchrun(*command, ranks_per_host=ranks_per_host, num_hosts=num_hosts, hosts=hosts, folder=folder)
    with job:
        statuses = job.finish(seconds=seconds)
        assert not any(statuses), "\n".join(job.errors(host) for host in range(len(statuses)))
    return [job.output(host) for host in range(len(statuses))]
