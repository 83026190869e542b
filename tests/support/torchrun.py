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

from tests.support.hosts import Host
from tests.support.leftovers import wait_until
from tests.support.ranks import free_port

__all__ = ["run_torchrun"]

_MARK = "GIGL_TEST_RUN"


def run_torchrun(
    *command: str,
    ranks_per_host: int,
    num_hosts: int = 1,
    hosts: Sequence[Host] | None = None,
    seconds: float,
    folder: Path,
) -> list[str]:
    """Run a script on every host, and return what each host printed.

    ``{host}`` in the command stands for the index of the host. Without ``hosts``, several hosts are
    several torchruns on this machine, whose ranks have boot ids of their own. Fails if an agent does,
    if it takes longer than ``seconds``, or if a process is left.
    """
    mark = uuid.uuid4().hex
    master, port = (hosts[0].address, hosts[0].free_port()) if hosts else ("127.0.0.1", free_port())
    agents = []
    for index in range(len(hosts) if hosts else num_hosts):
        host = hosts[index] if hosts else None
        arguments = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", str(len(hosts) if hosts else num_hosts), "--node-rank", str(index)),
            *("--nproc-per-node", str(ranks_per_host), "--master-addr", master, "--master-port", str(port)),
            *(word.replace("{host}", str(index)) for word in command),
        ]
        environment = host.environment if host else {"GIGL_BOOT_ID": f"boot-{index}"}
        with (
            open(folder / f"host-{index}.output", "wb") as output,
            open(folder / f"host-{index}.errors", "wb") as errors,
        ):
            agents.append(
                subprocess.Popen(
                    host.command(*arguments) if host else arguments,
                    cwd=folder,
                    env={**os.environ, **environment, _MARK: mark, "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                )
            )
    deadline = time.monotonic() + seconds
    try:
        for agent in agents:
            agent.wait(max(deadline - time.monotonic(), 0))
        printed = [(folder / f"host-{index}.errors").read_text() for index in range(len(agents))]
        assert not any(agent.returncode for agent in agents), "\n".join(printed)
        assert wait_until(lambda: not _marked(mark), seconds=10), f"still there: {_marked(mark)}"
    finally:
        for process in _marked(mark):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for agent in agents:
            agent.wait()
    return [(folder / f"host-{index}.output").read_text() for index in range(len(agents))]


def _marked(mark: str) -> list[psutil.Process]:
    """Return all processes whose environment, when they were started, had the mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                found.append(process)
    return found
