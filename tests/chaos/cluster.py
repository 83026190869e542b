"""Storage servers of this machine whose lines, processes and surroundings can be harmed."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from typing_extensions import Self

from gigl_server.local_cluster import LocalCluster
from tests.chaos.lines import ADDRESS, LINE_KINDS, disturb
from tests.chaos.wrongs import few_descriptors, stopped
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    import os

    from gigl_loader.rpc.endpoint import Endpoint
    from tests.chaos.faults import Fault

SERVER_KINDS = (
    "SIGKILL of a server",
    "SIGTERM of a server",
    "SIGSTOP of a server",
    "few descriptors of a server",
    "full disk of a server",
    *LINE_KINDS,
)
_DRAIN_S = 2.0


class ProxiedCluster(LocalCluster):
    """Servers that trainers and other servers reach through proxies only."""

    def __init__(self, graph: os.PathLike[str], *, servers: int, replicas: int = 1, **further: str) -> None:
        """``further`` options are those of ``ServeOptions``."""
        self.lines: list[list[Proxy]] = []
        options = {"advertise": ADDRESS, "drain": _DRAIN_S, "lease": 10, **further}
        super().__init__(graph, servers=servers, replicas=replicas, options=options, log_level="CRITICAL")

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        super().close()
        for line in chain.from_iterable(self.lines):
            line.close()

    def harm(self, server: int, fault: Fault) -> None:
        """Commit a fault on a server, and undo it. Returns when that is done."""
        match fault.kind:
            case "SIGKILL of a server":
                self._incarnations[server].signal(signal.SIGKILL)
                time.sleep(fault.seconds / 2)
                self.restart(server)
            case "SIGTERM of a server":
                self._end_in_order(server)
                self.restart(server)
            case "SIGSTOP of a server":
                with stopped(self.pids[server]):
                    time.sleep(fault.seconds)
            case "few descriptors of a server":
                few_descriptors(self.pids[server], fault.seconds)
            case "full disk of a server":
                self._log_to(server, "/dev/full")
                time.sleep(fault.seconds)
                self._log_to(server, None)
            case _:
                disturb(self.lines[server], fault)

    def vanish(self, server: int) -> None:
        """End a server for good: nothing listens there any more. Another takes its place elsewhere."""
        self.kill(server)
        for line in self.lines[server]:
            line.close()
        self.restart(server, elsewhere=True)

    def _log_to(self, server: int, path: str | None) -> None:
        self._options[server] = replace(self._options[server], log_file=path)
        self.restart(server)

    def _end_in_order(self, server: int) -> None:
        code = self.terminate(server)
        if code != 0:
            raise AssertionError(f"server {server} ended with {code} after SIGTERM")

    def _keep_ports(self, index: int, endpoint: Endpoint) -> None:
        """Put proxies before the ports, which are known now, before anybody asks there."""
        ports = endpoint.control_port, endpoint.data_port
        self._options[index] = replace(
            self._options[index], listen=f"127.0.0.1:{ports[0]}", data_port=ports[1]
        )
        for line in chain.from_iterable(self.lines[index : index + 1]):
            line.close()
        self.lines[index : index + 1] = [
            [Proxy(("127.0.0.1", port), listen=(ADDRESS, port)) for port in ports]
        ]
