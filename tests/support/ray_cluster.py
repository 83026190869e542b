"""A Ray cluster of several nodes on this machine, in a process of its own.

It is told ``add`` and ``kill`` on standard input, a line each, and answers with a line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_NODE_BYTES = 1 << 30
_STORE_BYTES = 80 << 20
_EXIT_SECONDS = 60

ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Without it, Ray warns of a default that will change.
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(_ROOT),
}
"""Environment of the cluster, and of programs that use it."""


class RayCluster:
    """The cluster, as a test drives it. Its head does no tasks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=_ROOT,
            env=os.environ | ENVIRONMENT,
        )
        self.size = 0
        self.address = self._line()

    def add(self) -> None:
        """Add a machine with one CPU."""
        self._tell("add")
        self.size += 1

    def kill(self) -> None:
        """Kill the machine that was added last."""
        self._tell("kill")
        self.size -= 1

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._tell("end")
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tell(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()
        assert self._line() == words

    def _line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("> "):
                return line.removeprefix("> ").strip()
        raise AssertionError(f"the cluster ended with {self._process.wait()}")


def _serve() -> None:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes: list[Any] = []
    print(f"> {cluster.address}", flush=True)
    for line in sys.stdin:
        words = line.strip()
        if words == "add":
            nodes.append(
                cluster.add_node(num_cpus=1, memory=_NODE_BYTES, object_store_memory=_STORE_BYTES, wait=True)
            )
        elif words == "kill":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        else:
            cluster.shutdown()  # type: ignore[no-untyped-call]
        print(f"> {words}", flush=True)
        if words == "end":
            break


if __name__ == "__main__":
    _serve()
