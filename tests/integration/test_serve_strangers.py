"""``gigl-loader serve`` among strangers: silent connections, and what they leave in the log."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.tokens import authorization
from tests.support.command_line import COMMAND, address_in, line_with
from tests.support.leftovers import wait_until
from tests.support.raw_http2 import PREFACE, RawConnection, frame
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "a-token-for-tests-never-a-secret"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("strangers") / "graph")


def healthy(address: str, seconds: float = 5.0) -> bool:
    """A caller who comes anew hears that trainers may come."""
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=seconds
            )
        except grpc.RpcError:
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


OPENINGS = {
    "nothing": b"",
    "TLS": bytes.fromhex("16030100f4"),
    "preface": PREFACE,
    "settings": PREFACE + frame(4, 0, 0, b""),
}


@pytest.mark.slow
@pytest.mark.parametrize("opening", OPENINGS)
def test_silent_connections_lock_nobody_out(graph: Path, opening: str) -> None:
    command = ["bash", "-c", 'ulimit -n 256; exec "$@"', "_", *COMMAND]
    process = subprocess.Popen(
        [*command, "serve", str(graph), "--listen", "127.0.0.1:0"], text=True, stderr=subprocess.PIPE
    )
    try:
        address = address_in(line_with(process, "ready"))
        host, _, port = address.rpartition(":")
        silent = []
        for _ in range(400):
            connection = socket.socket()
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.connect((host, int(port)))
            silent.append(connection)
        time.sleep(0.5)
        for connection in silent:
            with suppress(OSError):
                connection.sendall(OPENINGS[opening])
        assert wait_until(lambda: healthy(address), seconds=40)
        for connection in silent:
            connection.close()
    finally:
        process.kill()
        process.communicate(timeout=20)


@pytest.mark.slow
def test_bytes_of_strangers_do_not_reach_the_log(graph: Path, tmp_path: Path) -> None:
    credentials = Credentials.ephemeral(["127.0.0.1"], token=TOKEN)
    files: dict[str, Any] = {"cert": credentials.certificate, "key": credentials.key, "token": TOKEN.encode()}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o600)
    tls = [f"--tls-{name}={tmp_path / name}" for name in ("cert", "key")]
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        arguments = [
            "serve",
            str(graph),
            "--listen",
            "127.0.0.1:0",
            *tls,
            f"--token-file={tmp_path / 'token'}",
        ]
        process = subprocess.Popen([*COMMAND, *arguments], stderr=stderr)
    try:
        assert wait_until(lambda: b"ready" in log.read_bytes(), seconds=60)
        lines = log.read_text().splitlines()
        address = address_in(next(line for line in lines if "ready" in line))
        data_port = (
            next(line for line in lines if "data port" in line).partition("data port ")[2].split(",")[0]
        )
        for port in (address.rpartition(":")[2], data_port):
            for _ in range(20):
                _call_by_tls(port)
        assert wait_until(lambda: b"refused" in log.read_bytes())
    finally:
        process.terminate()
        process.communicate(timeout=60)
    said = log.read_bytes()
    assert TOKEN[:12].encode() not in said
    assert b"some-stranger" not in said
    assert b"Traceback" not in said
    assert all(32 <= byte < 127 or byte == 10 for byte in said)
    assert len(said.splitlines()) < 60


def _call_by_tls(port: str) -> None:
    """Show a token with a damaged byte, by a server name that is none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", int(port)), 10) as plain:
        wrapped = context.wrap_socket(plain, server_hostname="some-stranger\x1b[2J.example")
        with suppress(OSError), closing(wrapped):
            connection = RawConnection(wrapped)
            shown = authorization(TOKEN).encode()[:-1] + b"\xff"
            connection.headers(1, b"/gigl.v1.GraphStore/Load", [(b"authorization", shown)])
            connection.headers(3, b"/some-stranger\xff/x", [(b"some-stranger", b"\xff\x1b[2J")])
            connection.headers(5, b"/grpc.health.v1.Health/List", [(b"grpc-timeout", b"some-stranger")])
            connection.received(0.05)
