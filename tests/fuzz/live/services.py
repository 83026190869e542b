"""Services under attack, each a process: ``gigl-loader serve`` plain and with TLS, and a peer service."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigl_client import Caller
from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.host_service import HostService
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tokens import new_job
from tests.fuzz.live.target import Target
from tests.support.certificates import Authority
from tests.support.command_line import COMMAND
from tests.support.hostile_clients import PLAN
from tests.support.leftovers import wait_until
from tests.support.ports import free_port

TOKEN = "a-token-for-fuzzing-never-a-secret"
_READY_S = 60.0
_END_S = 40.0
_LEASE_S = 5
"""Soon after the end, the server has reclaimed what attackers made."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running service."""

    target: Target
    caller: Caller
    process: Any
    log: Path | None = None
    """What it wrote; ``None`` where that goes to our standard error."""

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def alive(self) -> bool:
        """Return whether it is the process that it was at the start."""
        if isinstance(self.process, HostService):
            return self.process.restarts == 0 and self.process.failure is None
        return self.process.poll() is None


@contextmanager
def storage_server(graph: Path, folder: Path, *, tls: bool) -> Iterator[Service]:
    """Run ``gigl-loader serve`` with a token, on free ports, until the end of the block. It must end well."""
    folder.mkdir()
    (folder / "token").write_text(TOKEN)
    port = free_port(count=2)
    command = [
        *COMMAND,
        "serve",
        str(graph),
        "--listen",
        f"127.0.0.1:{port}",
        "--token-file",
        str(folder / "token"),
    ]
    command += ["--lease", str(_LEASE_S), "--drain", "2", "--workers", "1"]
    authority = b""
    if tls:
        authority = _write_certificates(folder)
        command += [f"--tls-{name}={folder / name}" for name in ("cert", "key", "ca")]
    for path in folder.iterdir():
        path.chmod(0o600)
    caller = Caller(token=TOKEN, authority=authority.decode())
    name = f"storage server{' with TLS' if tls else ''}"
    log = folder / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(command, stderr=written)
    try:
        digest = Graph.open(graph).manifest.digest
        yield Service(_target(name, port, caller, digest, process=process, log=log), caller, process, log)
        process.terminate()
        assert process.wait(_END_S) == 0, f"{name} ended with {process.returncode}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def peer_service(graph: Path) -> Iterator[Service]:
    """Run the service that a host of a colocated run has."""
    opened = Graph.open(graph)
    with ExitStack() as stack:
        credentials = Credentials.plaintext(token=TOKEN)
        service = stack.enter_context(HostService.start(opened.reference, [0, 1], credentials=credentials))
        endpoint = service.endpoint
        target = Target(
            name="peer service",
            host=endpoint.host,
            control_port=endpoint.control_port,
            data_port=endpoint.data_port,
            token=TOKEN,
            certificate="",
            graph=opened.manifest.digest,
            ring_socket="",
        )
        yield Service(target, credentials.caller(), service)


def _target(
    name: str, port: int, caller: Caller, digest: str, *, process: subprocess.Popen[bytes], log: Path
) -> Target:
    """Wait until the server is ready, and ask it where its ring socket is."""
    address = Address("127.0.0.1", port)
    endpoint = Endpoint.of_address(address, what="storage server", certificate=caller.authority)
    client = StoreClient(endpoint, caller, new_job())
    try:

        def ready() -> bool:
            assert process.poll() is None, f"{name} ended with {process.returncode}:\n{log.read_text()}"
            try:
                return bool(client.cluster(5.0).ready)
            except Exception:
                return False

        assert wait_until(ready, seconds=_READY_S), f"{name} did not become ready:\n{log.read_text()}"
        client.create_producer("ring", PLAN.to_json(), digest, 20.0)
        channel = client.open_channel(
            "ring", name="ring", credit=1, ring_slots=1, ring_slot_bytes=4096, timeout_s=20.0
        )
        client.destroy_producer("ring", 20.0)
    finally:
        client.close()
    return Target(
        name=name,
        host="127.0.0.1",
        control_port=port,
        data_port=port + 1,
        token=TOKEN,
        certificate=caller.authority,
        graph=digest,
        ring_socket=channel.ring_door,
    )


def _write_certificates(folder: Path) -> bytes:
    authority = Authority()
    certificate, key = authority.sign()
    for name, content in {"cert": certificate, "key": key, "ca": authority.pem}.items():
        (folder / name).write_bytes(content)
    return authority.pem
