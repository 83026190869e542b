"""A storage server in a process of its own for ``hostile.py``: tokens for every caller, and what it holds."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gigl_client import Caller, RemoteDistDataset
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_NODE
from gigl_loader.rpc.certificates import self_signed

_COMMAND = [sys.executable, "-c", "from gigl_loader.cli import main; main()", "serve"]
_READY_S, _END_S = 60.0, 40.0
_LOOK_S = 0.05
_MAX_MB = 4_000.0
"""A server that takes more is killed: the machine is ours only in part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where the server is, and what a caller of it must know."""

    control: str
    data: str
    token: str
    """Empty for a caller without one."""
    graph: str
    nodes: int
    """Ids are 0 .. nodes - 1."""
    certificate: str = ""
    """PEM; empty: plain text."""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory, threads and descriptors of a process."""

    memory_mb: float
    threads: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> Held:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
            len(os.listdir(f"/proc/{pid}/task")),
            len(os.listdir(f"/proc/{pid}/fd")),
        )

    def __sub__(self, other: Held) -> Held:
        return Held(
            self.memory_mb - other.memory_mb,
            self.threads - other.threads,
            self.descriptors - other.descriptors,
        )

    def largest(self, other: Held) -> Held:
        """Return the larger of each."""
        return Held(
            max(self.memory_mb, other.memory_mb),
            max(self.threads, other.threads),
            max(self.descriptors, other.descriptors),
        )


class HostileServer:
    """A running server, with a token for the honest trainer and one for every caller."""

    def __init__(self, process: subprocess.Popen[bytes], scene: Scene, tokens: list[str]) -> None:
        self._process, self.scene, self.tokens = process, scene, tokens
        self.peak = Held(0.0, 0, 0)
        """The most that was seen while it was watched."""
        self.killed = False

    @classmethod
    @contextmanager
    def running(
        cls, graph: Path, folder: Path, *, callers: int, tls: bool = False, options: Sequence[str] = ()
    ) -> Iterator[HostileServer]:
        """Serve ``graph`` with two workers, and more options, until the end of the block."""
        tokens = [secrets.token_hex(16) for _ in range(1 + callers)]
        names = [f"caller-{number} {token}" for number, token in enumerate(tokens)]
        _write(folder / "tokens", "\n".join(names).encode())
        port = _two_free_ports()
        command = [*_COMMAND, str(graph), "--listen", f"127.0.0.1:{port}", "--workers", "2"]
        command += ["--token-file", str(folder / "tokens"), "--frame-memory", "512MB", *options]
        certificate = b""
        if tls:
            certificate, key = self_signed(["127.0.0.1"])
            _write(folder / "cert", certificate)
            _write(folder / "key", key)
            command += ["--tls-cert", str(folder / "cert"), "--tls-key", str(folder / "key")]
        opened = Graph.open(graph)
        scene = Scene(
            control=f"127.0.0.1:{port}",
            data=f"127.0.0.1:{port + 1}",
            token=tokens[0],
            graph=opened.manifest.digest,
            nodes=opened.schema.nodes[HOMOGENEOUS_NODE].count,
            certificate=certificate.decode(),
        )
        with (folder / "server.log").open("wb") as log:
            # The class of the custom sampler among the bombs lies here.
            environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
            process = subprocess.Popen(command, stderr=log, env=environment)
        try:
            server = cls(process, scene, tokens)
            with server.connected(timeout_s=_READY_S):
                pass
            yield server
        finally:
            process.kill()
            process.wait(_END_S)

    def connected(self, *, timeout_s: float) -> RemoteDistDataset:
        """Connect as the honest trainer does."""
        credentials = Caller(token=self.tokens[0], authority=self.scene.certificate)
        return RemoteDistDataset.connect(
            self.scene.control, credentials=credentials, transport="network", timeout=timeout_s
        )

    @property
    def held(self) -> Held:
        return Held.of(self._process.pid)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the most that it holds, and kill it if that is too much memory."""
        end = threading.Event()
        self.peak = self.held

        def watch() -> None:
            with suppress(FileNotFoundError, IndexError):
                while not end.wait(_LOOK_S):
                    self.peak = self.peak.largest(self.held)
                    if self.peak.memory_mb > _MAX_MB:
                        self._process.kill()
                        self.killed = True
                        return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def _two_free_ports() -> int:
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
        with suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
            return port
