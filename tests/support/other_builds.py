"""Storage servers that pass for other builds, as processes that are replaced one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gigl_loader.errors import GiglError
from gigl_loader.retry import Backoff
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.store_client import StoreClient
from tests.support.ports import free_port

if TYPE_CHECKING:
    from types import TracebackType

_ROOT = Path(__file__).parents[2]
_RUN = (
    "import json, sys; from tests.support.store_server import serve_or_train; "
    "serve_or_train(**json.loads(sys.argv[1]))"
)
_READY_S = 60.0
_END_S = 30.0


class BuildServers:
    """A server for each partition of a graph, or one for all, each of a build of its own."""

    def __init__(self, graph: Path, count: int) -> None:
        self._graph = graph
        ports: list[int] = []
        while len(ports) < count:  # Each server takes the next port for data, too.
            port = free_port()
            if all(abs(port - other) > 1 for other in ports):
                ports.append(port)
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._logs: dict[int, IO[bytes]] = {}
        self._open = ExitStack()

    def start(self, server: int, *options: str, **build: int) -> None:
        """Start a server. ``build`` is as in ``store_server.serve_or_train``."""
        arguments = {"serve": self._arguments(server, *options), **build}
        self._start(server, [sys.executable, "-c", _RUN, json.dumps(arguments)])

    def start_release(self, server: int, python: Path, *options: str) -> None:
        """Start a server of a release, with its interpreter (``releases.interpreter``)."""
        run = "import sys; from gigl_loader.cli import main; main()"
        self._start(server, [str(python), "-I", "-c", run, "serve", *self._arguments(server, *options)])

    def _arguments(self, server: int, *options: str) -> list[str]:
        serve = [str(self._graph), "--listen", self.addresses[server]]
        if len(self.addresses) > 1:
            serve += ["--partition", str(server)]
        for each in self.addresses:
            serve += ["--peer", each] if each != self.addresses[server] else []
        return [*serve, "--workers", "1", "--drain", "10", *options]

    def _start(self, server: int, command: list[str]) -> None:
        self._logs[server] = log = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._processes[server] = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stderr=log)

    def wait_ready(self, server: int, caller: Caller | None = None) -> None:
        """Wait until a server says that it is ready. ``RuntimeError`` where it ended, with its log."""
        address = Address.parse(self.addresses[server])
        endpoint = Endpoint.of_address(address, what="storage server")
        backoff, deadline = Backoff(), time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self._processes[server].poll() is not None:
                raise RuntimeError(f"server {server} ended: {self.ended(server)}")
            with closing(StoreClient(endpoint, caller or Caller())) as client:
                try:
                    if client.cluster(2.0).ready:
                        return
                except GiglError:
                    pass
            time.sleep(backoff.next_s())
        raise TimeoutError(f"server {server} is not ready")

    def stop(self, server: int) -> tuple[int, str]:
        """End a server by SIGTERM, and return its exit code and its log."""
        self._processes[server].send_signal(signal.SIGTERM)
        return self.ended(server)

    def ended(self, server: int) -> tuple[int, str]:
        """Wait for the end of a server, and return its exit code and its log."""
        code = self._processes[server].wait(timeout=_END_S)
        del self._processes[server]
        return code, self.log(server)

    def log(self, server: int) -> str:
        """Return what a server has logged so far. Its file is not moved, for the server writes there."""
        log = self._logs[server].fileno()
        return os.pread(log, os.fstat(log).st_size, 0).decode()

    def __enter__(self) -> BuildServers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:
            for process in self._processes.values():
                process.kill()
                process.wait()
