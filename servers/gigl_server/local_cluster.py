"""Local cluster: storage servers as child processes, for laptops, tests and demonstrations."""

from __future__ import annotations

import os
import signal
import time
import weakref
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.manifest import Manifest
from gigl_loader.rpc.tokens import new_token
from gigl_server.child import start_storage_server
from gigl_server.config import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.rpc.server_process import ServerProcess


def count_partitions(graph_dir: str | os.PathLike[str]) -> int:
    """Return the number of partitions of a graph. ``FileNotFoundError`` where there is none."""
    if not Path(graph_dir).exists():
        raise FileNotFoundError(f"no graph at {graph_dir}")
    return Manifest.read(DiskFolder(graph_dir)).schema.num_partitions


def deal(partitions: int, servers: int | None = None, replicas: int = 1) -> list[tuple[int, ...]]:
    """Return the partitions of each server: in order, as evenly as possible.

    Without ``servers``, there are two, or one for a graph of one partition. With ``replicas``, that many
    servers hold each partition: the one it is assigned to and its predecessors. ``ValueError`` for more
    servers than partitions, or more replicas than servers.
    """
    servers = min(2, partitions) if servers is None else servers
    if not 1 <= servers <= partitions:
        raise ValueError(
            f"a graph of {partitions} partitions can have 1 to {partitions} servers, not {servers}: build it "
            f"with as many (gigl-loader partition -p {servers})"
        )
    if not 1 <= replicas <= servers:
        raise ValueError(f"{servers} servers can hold 1 to {servers} replicas, not {replicas}")
    ends = [partitions * index // servers for index in range(servers + 1)]
    dealt = [tuple(range(low, high)) for low, high in pairwise(ends)]
    return [
        tuple(sorted(part for more in range(replicas) for part in dealt[(index + more) % servers]))
        for index in range(servers)
    ]


class LocalCluster:
    """Servers of one graph on this machine. They end with ``close``, this object, or this process."""

    def __init__(
        self,
        graph_dir: str | os.PathLike[str],
        *,
        servers: int | None = None,
        replicas: int = 1,
        workers: int = 1,
        token: str | None = None,
        timeout_s: float = 120.0,
        options: Mapping[str, Any] | None = None,
        log_level: str = "WARNING",
    ) -> None:
        """Start ``servers`` processes on free loopback ports, and wait until all are ready. Default: two.

        A graph of one partition has one by default.

        Partitions are assigned in order, as evenly as possible. With ``replicas``, that many servers hold
        each partition: the one it is assigned to and its predecessors. Each server samples ``workers``
        batches at once. ``options`` are further options of ``gigl-loader serve``, such as ``{"lease": 5}``.
        Raises ``ValueError`` for more servers than partitions or more replicas than servers, ``TimeoutError``
        or a server's own error if a server does not become ready. Servers log messages from ``log_level`` on
        to this process's stderr. With a token, they also get a new cluster key, unless ``options`` name one.
        """
        given = {"listen": "127.0.0.1:0", **(options or {}), "graph_dir": graph_dir, "workers": workers}
        base = read_settings(given, {}, {})
        base = replace(base, graph_dir=str(Path(graph_dir).absolute()))
        credentials = base.load_credentials()
        if token is not None:
            credentials = replace(credentials, token=token)
        if credentials.token and not credentials.cluster_key:
            credentials = replace(credentials, cluster_key=new_token())
        self.token = credentials.token
        self._timeout_s = timeout_s
        self._base, self._credentials, self._log_level = base, credentials, log_level
        dealt = deal(count_partitions(graph_dir), servers, replicas)
        self._options = [replace(base, partitions=parts) for parts in dealt]
        self._incarnations: list[ServerProcess] = []
        self._finish = weakref.finalize(self, _end_all, self._incarnations, os.getpid())
        with ExitStack() as undo:
            undo.callback(self.close)
            deadline = time.monotonic() + timeout_s
            for index in range(len(dealt)):
                self._incarnations.append(self._started(index))
            for index, incarnation in enumerate(self._incarnations):
                self._keep_ports(index, incarnation.bound(deadline))
            for index, incarnation in enumerate(self._incarnations):
                incarnation.meet(self._others(index))
            self.wait_ready(deadline - time.monotonic())
            undo.pop_all()

    @property
    def addresses(self) -> list[str]:
        """Control addresses of all servers by rank. Any of them is enough to connect."""
        return [options.listen for options in self._options]

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers, by rank."""
        return [incarnation.pid for incarnation in self._incarnations]

    def running(self, index: int) -> bool:
        """Return whether the process of a server has not ended."""
        return self._incarnations[index].status(0) is None

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until all running servers are ready. Raises ``TimeoutError``, or a server's own error."""
        deadline = time.monotonic() + timeout_s
        for incarnation in self._incarnations:
            incarnation.ready(deadline)

    def kill(self, index: int) -> None:
        """End a server by SIGKILL."""
        self._incarnations[index].signal(signal.SIGKILL)
        self._incarnations[index].end()

    def terminate(self, index: int, timeout_s: float = 30.0) -> int:
        """Drain and end a server by SIGTERM. Return its exit code. ``TimeoutError`` if it does not end."""
        status = self._incarnations[index].terminate(timeout_s)
        if status is None:
            raise TimeoutError(f"storage server {index} did not end within {timeout_s:g} s")
        return status

    def restart(self, index: int, *, wait: bool = True, elsewhere: bool = False) -> None:
        """Start a server again on the same ports. A running one is killed first.

        ``elsewhere``: on other ports, as one that takes the place of a server that is gone for good.
        """
        self.kill(index)
        if elsewhere:
            first = self._base
            self._options[index] = replace(
                self._options[index], listen=first.listen, data_port=first.data_port
            )
        incarnation = self._incarnations[index] = self._started(index)
        deadline = time.monotonic() + self._timeout_s
        endpoint = incarnation.bound(deadline)
        if elsewhere:
            self._keep_ports(index, endpoint)
        incarnation.meet(self._others(index))
        if wait:
            incarnation.ready(deadline)

    def describe(self, index: int) -> str:
        """Return whether a server runs, or how it ended, as text."""
        return self._incarnations[index].describe()

    def close(self) -> None:
        """End all servers. Closing twice is fine; in a forked child of this process it does nothing."""
        self._finish()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_ports(self, index: int, endpoint: Endpoint) -> None:
        """Fix the ports of a server, so that a restart keeps its address."""
        self._options[index] = replace(
            self._options[index], listen=endpoint.control_address, data_port=endpoint.data_port
        )

    def _started(self, index: int) -> ServerProcess:
        return start_storage_server(
            self._options[index],
            self._credentials,
            name=f"storage server {index}",
            log_level=self._log_level,
        )

    def _others(self, index: int) -> list[str]:
        return [address for place, address in enumerate(self.addresses) if place != index]


def _end_all(incarnations: list[ServerProcess], owner: int) -> None:
    """End every server. The sockets of all are closed before the first wait."""
    if os.getpid() != owner:
        return
    for incarnation in incarnations:
        incarnation.let_go()
    for incarnation in incarnations:
        with suppress(OSError):
            incarnation.end()
