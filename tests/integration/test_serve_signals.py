"""Signals of ``gigl-loader serve``, sent to a real process: it ends in order, or reads its files again."""

from __future__ import annotations

import random
import signal
import socket
import ssl
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistNeighborLoader
from tests.support.certificates import Authority
from tests.support.command_line import COMMAND
from tests.support.leftovers import wait_until
from tests.support.peers import TOKEN
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

AUTHORITY = Authority()
HEAVY = ("numpy", "pyarrow", "grpc", "typer")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("signals") / "graph")


@contextmanager
def serving(graph: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "serve", str(graph), "--listen", "127.0.0.1:0", "--workers", "1", *options],
        text=True,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def handles(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def line_with(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"the log ended without {words!r}")


def test_signals_are_handled_before_anything_heavy_is_imported(graph: Path) -> None:
    with serving(graph) as process:
        assert wait_until(lambda: handles(process.pid, signal.SIGTERM), seconds=60)
        process.send_signal(signal.SIGSTOP)
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
        process.send_signal(signal.SIGCONT)
        assert [name for name in HEAVY if f"/{name}/" in mapped] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.timeout(400)
def test_a_signal_at_any_moment_of_the_start_ends_a_server_in_order(
    graph: Path, number: signal.Signals
) -> None:
    """From the moment that Python runs our code: before, a process has its defaults."""
    chance = random.Random(7)
    for _ in range(12):
        with serving(graph) as process:
            assert wait_until(lambda pid=process.pid: handles(pid, signal.SIGTERM), seconds=60)
            time.sleep(chance.uniform(0, 2))
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
            assert "Traceback" not in said
            assert f"{number.name}: ending" in said


def test_a_hangup_opens_the_log_again(graph: Path, tmp_path: Path) -> None:
    log, moved = tmp_path / "log", tmp_path / "log.1"
    with serving(graph, "--log-file", str(log)) as process:
        assert wait_until(lambda: log.exists() and "ready" in log.read_text(), seconds=60)
        log.rename(moved)
        process.send_signal(signal.SIGHUP)
        assert wait_until(lambda: log.exists() and "SIGHUP" in log.read_text(), seconds=60)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert "ready" in moved.read_text()
    assert "SIGTERM" not in moved.read_text()
    assert log.read_text().rstrip().endswith("stopped")


class Secrets:
    """Files of a server, which may change while it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("ca", AUTHORITY.pem)
        self.write("token", TOKEN.encode())
        self.renew()

    def renew(self) -> bytes:
        certificate, key = AUTHORITY.sign()
        self.write("cert", certificate)
        self.write("key", key)
        return certificate

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.write_bytes(content)
        path.chmod(0o600)

    @property
    def options(self) -> list[str]:
        names = {"--token-file": "token", "--tls-cert": "cert", "--tls-key": "key", "--tls-ca": "ca"}
        return [word for option, name in names.items() for word in (option, str(self.folder / name))]


def shown_by(port: int) -> bytes:
    """Return the certificate that a port shows, or nothing while it is closed."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
    context.set_alpn_protocols(["h2"])
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=10) as line,
        context.wrap_socket(line, server_hostname="127.0.0.1") as secure,
    ):
        return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"").encode()
    return b""


def test_a_hangup_shows_new_certificates_and_asks_for_new_tokens(graph: Path, tmp_path: Path) -> None:
    secrets = Secrets(tmp_path)
    with serving(graph, *secrets.options) as process:
        said = line_with(process, "starting: control port at ")
        control = int(said.partition("127.0.0.1:")[2].partition(",")[0])
        data = int(said.partition("data port ")[2].partition(",")[0])
        line_with(process, "ready")
        caller = Caller(token=TOKEN, authority=AUTHORITY.pem.decode())
        dataset = RemoteDistDataset.connect(f"127.0.0.1:{control}", credentials=caller, timeout=60)
        loader = DistNeighborLoader(
            dataset, num_neighbors=[3], batch_size=8, input_nodes=torch.arange(96), seed=3, device="cpu"
        )
        before = loader.state_dict()
        whole = [batch.node.tolist() for batch in loader]
        loader.load_state_dict(before)
        batches = iter(loader)
        seen = [next(batches).node.tolist() for _ in range(3)]
        renewed = secrets.renew()
        process.send_signal(signal.SIGHUP)
        assert wait_until(lambda: shown_by(control) == shown_by(data) == renewed, seconds=60)
        line_with(process, "are those of now")
        assert [*seen, *(batch.node.tolist() for batch in batches)] == whole

        secrets.write("cert", b"no certificate")
        process.send_signal(signal.SIGHUP)
        assert "cert" in line_with(process, "stay as they are")
        assert shown_by(control) == shown_by(data) == renewed

        secrets.renew()
        secrets.write("token", b"another-token-of-this-cluster")
        process.send_signal(signal.SIGHUP)
        line_with(process, "are those of now")
        with pytest.raises(Exception, match="token"):
            RemoteDistDataset.connect(f"127.0.0.1:{control}", credentials=caller, timeout=60)
        fresh = Caller(token="another-token-of-this-cluster", authority=AUTHORITY.pem.decode())
        RemoteDistDataset.connect(f"127.0.0.1:{control}", credentials=fresh, timeout=60).close()
        dataset.close()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=90)
        assert process.returncode == 0
