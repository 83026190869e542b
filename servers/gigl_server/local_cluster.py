"""Local cluster: storage servers as child processes, for laptops, tests and demonstrations."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import weakref
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.manifest import Manifest
from gigl_loader.processes import FreshProcess, describe_status
from gigl_loader.rpc.credentials import new_token
from gigl_loader.rpc.endpoint import Endpoint
from gigl_server.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LocalCluster"]

_ENTRY = "gigl_server.local_server:main"
_SEND_S, _LEAVE_S, _TERMINATE_S, _KILL_S = 10.0, 5.0, 1.0, 5.0
_ERRORS = {kind.__name__: kind for kind in (FileNotFoundError, OSError, ValueError)}


class LocalCluster:
    """Servers of one graph on this machine. They end with ``close``, this object, or this process."""

    def __init__(
        self,
        graph_dir: str | os.PathLike[str],
        *,
        servers: int = 2,
        replicas: int = 1,
        workers: int = 1,
        token: str | None = None,
        timeout_s: float = 120.0,
        options: Mapping[str, Any] | None = None,
        log_level: str = "WARNING",
    ) -> None:
        """Start ``servers`` processes on free loopback ports, and wait until all are ready.

        Partitions are assigned in order, as evenly as possible. With ``replicas``, each is held by so many
        servers: the one that it is assigned to and those before it. Each server samples ``workers`` batches
        at once. ``options`` are further options of ``gigl-loader serve``, such as ``{"lease": 5}``. Raises
        ``ValueError`` for more servers than partitions or more replicas than servers, ``TimeoutError`` or a
        server's own error if a server does not become ready. Servers log messages from ``log_level`` on to
        this process's stderr. With a token, they also get a new cluster key, unless ``options`` name one.
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
        self._listening = {"listen": base.listen, "data_port": base.data_port}
        self._configs: list[dict[str, Any]] = [
            {
                "options": asdict(replace(base, partitions=parts)),
                "credentials": credentials.to_json(),
                "parent_pid": os.getpid(),
                "name": f"storage server {index}",
                "log_level": log_level,
            }
            for index, parts in enumerate(_dealt(_num_partitions(graph_dir), servers, replicas))
        ]
        self._incarnations: list[_Incarnation] = []
        self._finish = weakref.finalize(self, _end_all, self._incarnations, os.getpid())
        with ExitStack() as undo:
            undo.callback(self.close)
            deadline = time.monotonic() + timeout_s
            for config in self._configs:
                self._incarnations.append(_Incarnation(config))
            for index, incarnation in enumerate(self._incarnations):
                self._keep_ports(index, incarnation.bound(deadline))
            for index, incarnation in enumerate(self._incarnations):
                incarnation.meet(self._others(index))
            self.wait_ready(deadline - time.monotonic())
            undo.pop_all()

    @property
    def addresses(self) -> list[str]:
        """Control addresses of all servers by rank. Any of them is enough to connect."""
        return [config["options"]["listen"] for config in self._configs]

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
        incarnation = self._incarnations[index]
        incarnation.signal(signal.SIGTERM)
        status = incarnation.status(timeout_s)
        if status is None:
            raise TimeoutError(f"storage server {index} did not end within {timeout_s:g} s")
        incarnation.end()
        return status

    def restart(self, index: int, *, wait: bool = True, elsewhere: bool = False) -> None:
        """Start a server again on the same ports. A running one is killed first.

        ``elsewhere``: on other ports, as one that takes the place of a server that is gone for good.
        """
        self.kill(index)
        if elsewhere:
            self._configs[index]["options"] |= self._listening
        incarnation = self._incarnations[index] = _Incarnation(self._configs[index])
        deadline = time.monotonic() + self._timeout_s
        endpoint = incarnation.bound(deadline)
        if elsewhere:
            self._keep_ports(index, endpoint)
        incarnation.meet(self._others(index))
        if wait:
            incarnation.ready(deadline)

    def describe(self, index: int) -> str:
        """Return whether a server runs, or how it ended, as text."""
        status = self._incarnations[index].status(0)
        return "runs" if status is None else describe_status(status)

    def close(self) -> None:
        """End all servers. Closing twice is fine; in a forked child of this process it does nothing."""
        self._finish()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_ports(self, index: int, endpoint: Endpoint) -> None:
        """Fix the ports of a server, so that a restart keeps its address."""
        told = self._configs[index]["options"]
        told |= {"listen": endpoint.control_address, "data_port": endpoint.data_port}

    def _others(self, index: int) -> list[str]:
        return [address for place, address in enumerate(self.addresses) if place != index]


class _Incarnation:
    """One server process, and the socket to it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Start the process, and send its configuration. Returns at once."""
        self._name = config["name"]
        self._unread = b""
        self._is_ready = False
        self._link, far_end = socket.socketpair()
        try:
            self._process = FreshProcess(_ENTRY, far_end)
        except BaseException:
            self._link.close()
            raise
        finally:
            far_end.close()
        self._send(config)

    @property
    def pid(self) -> int:
        return self._process.pid

    def bound(self, deadline: float) -> Endpoint:
        """Wait until the server listens. Return its endpoint."""
        return Endpoint.from_json(self._hear(deadline, "listen")["endpoint"])

    def meet(self, peers: Sequence[str]) -> None:
        """Send the addresses of the other servers."""
        self._send({"peers": list(peers)})

    def ready(self, deadline: float) -> None:
        """Wait until the server is ready."""
        if not self._is_ready:
            self._is_ready = bool(self._hear(deadline, "become ready")["ready"])

    def status(self, timeout_s: float) -> int | None:
        """Return the exit status, or ``None`` if the process still runs after ``timeout_s``."""
        return self._process.wait(timeout_s)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def let_go(self) -> None:
        """Tell the process to end, by closing the socket. Does not wait."""
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Wait for the process to end, then terminate and kill it. Ending twice is fine."""
        self.let_go()
        for seconds, number in ((_LEAVE_S, signal.SIGTERM), (_TERMINATE_S, signal.SIGKILL)):
            if self._process.wait(seconds) is not None:
                break
            self._process.send_signal(number)
        self._process.wait(_KILL_S)
        self._link.close()

    def _send(self, document: object) -> None:
        self._link.settimeout(_SEND_S)  # A wait may have left a shorter timeout.
        with suppress(BrokenPipeError, ConnectionResetError):  # The process ended: ``_hear`` raises that.
            self._link.sendall(json.dumps(document).encode() + b"\n")

    def _hear(self, deadline: float, aim: str) -> Any:
        try:
            while b"\n" not in self._unread:
                self._link.settimeout(max(deadline - time.monotonic(), 0.001))
                data = self._link.recv(1 << 16)
                if not data:
                    raise ConnectionResetError
                self._unread += data
        except TimeoutError:
            raise TimeoutError(
                f"{self._name} did not {aim} in time; its log says what it waits for"
            ) from None
        except ConnectionResetError:
            status = self._process.wait(_KILL_S)
            raise GiglError(f"{self._name} {describe_status(status)} before it could {aim}") from None
        line, _, self._unread = self._unread.partition(b"\n")
        document = json.loads(line)
        if "error" in document:
            kind, text = document["error"]
            raise _ERRORS.get(kind, StorageUnavailable)(f"{self._name}: {text}")
        return document


def _num_partitions(graph_dir: str | os.PathLike[str]) -> int:
    if not Path(graph_dir).exists():
        raise FileNotFoundError(f"no graph at {graph_dir}")
    return Manifest.read(DiskFolder(graph_dir)).schema.num_partitions


def _dealt(partitions: int, servers: int, replicas: int = 1) -> list[tuple[int, ...]]:
    if not 1 <= servers <= partitions:
        raise ValueError(
            f"a graph of {partitions} partitions can have 1 to {partitions} servers, not {servers}"
        )
    if not 1 <= replicas <= servers:
        raise ValueError(f"{servers} servers can hold 1 to {servers} replicas, not {replicas}")
    ends = [partitions * index // servers for index in range(servers + 1)]
    dealt = [tuple(range(low, high)) for low, high in pairwise(ends)]
    return [
        tuple(sorted(part for more in range(replicas) for part in dealt[(index + more) % servers]))
        for index in range(servers)
    ]


def _end_all(incarnations: list[_Incarnation], owner: int) -> None:
    """End every server. All are told to end before the first is waited for."""
    if os.getpid() != owner:
        return
    for incarnation in incarnations:
        incarnation.let_go()
    for incarnation in incarnations:
        with suppress(OSError):
            incarnation.end()
