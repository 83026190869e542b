"""The service as a child: how it starts, how it is kept alive, how it ends."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gigl_loader.errors import FormatError, GiglError
from gigl_loader.processes import FreshProcess
from gigl_loader.rpc import host_service, server_process
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.host_service import HostService
from gigl_loader.rpc.peer import check_peer
from tests.support.leftovers import is_gone, wait_until
from tests.support.listeners import shut_listener
from tests.support.peers import CALLER, TOKEN
from tests.support.sources import small_graph

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_loader.rpc.endpoint import Endpoint

PLAIN = Credentials(token=TOKEN)


@pytest.fixture(autouse=True, scope="module")
def _graph() -> None:
    """Make the graph in memory before anyone counts open files."""
    small_graph()


def start(**options: Any) -> HostService:
    return HostService.start(
        small_graph().reference, [0], **{"credentials": PLAIN, "timeout_s": 30, **options}
    )


def reachable(endpoint: Endpoint) -> bool:
    try:
        check_peer(endpoint, CALLER, digest=small_graph().manifest.digest, timeout_s=5)
    except GiglError:
        return False
    return True


@pytest.mark.usefixtures("no_leftovers")
def test_a_child_serves_a_graph_in_memory_over_tls_until_it_is_closed() -> None:
    with start(credentials=Credentials.ephemeral(["127.0.0.1"], token=TOKEN), host_index=4) as service:
        assert service.endpoint.host_index == 4
        assert service.endpoint.partitions == (0,)
        found = check_peer(service.endpoint, CALLER, digest=small_graph().manifest.digest, timeout_s=10)
        assert found.pid == service.pid != os.getpid()
        assert psutil.Process(service.pid).name() == "gigl-peer"
    assert is_gone(service.pid)
    service.close()
    assert service.failure is None


def test_the_child_needs_no_torch() -> None:
    with start() as service:
        maps = psutil.Process(service.pid).memory_maps()
    assert not [each.path for each in maps if "torch" in each.path]


def test_secrets_are_not_in_the_command_line_or_the_environment() -> None:
    with start() as service:
        child = psutil.Process(service.pid)
        assert TOKEN not in " ".join(child.cmdline())
        assert TOKEN not in str(child.environ())


@pytest.mark.usefixtures("no_leftovers")
def test_a_child_that_dies_is_started_again_twice_on_the_same_ports(caplog: pytest.LogCaptureFixture) -> None:
    with start() as service:
        endpoint = service.endpoint
        for _ in range(2):
            before = service.pid
            os.kill(before, signal.SIGKILL)
            assert wait_until(lambda old=before: service.pid != old)
            assert wait_until(lambda: reachable(endpoint))
            assert service.endpoint == endpoint
        assert service.restarts == 2
        assert service.failure is None
        os.kill(service.pid, signal.SIGKILL)
        assert wait_until(lambda: service.failure is not None)
        told = str(service.failure)
        assert "the peer service of host 0 was killed by SIGKILL" in told
        assert "was started again 2 times before" in told
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]


@contextmanager
def stolen(service: HostService, port: int) -> Iterator[None]:
    """Kill a child, and take its port before the next one binds it."""
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        psutil.Process(service.pid).suspend()
        os.kill(service.pid, signal.SIGKILL)
        while True:
            try:
                thief.bind(("127.0.0.1", port))
                thief.listen()
                break
            except OSError:
                continue
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("port", ["control_port", "data_port"])
def test_a_child_whose_port_is_taken_for_a_moment_serves_again(
    port: str, capfd: pytest.CaptureFixture[str]
) -> None:
    told = ""
    with start() as service:
        endpoint = service.endpoint
        address = f"127.0.0.1:{getattr(endpoint, port)}"

        def waits() -> bool:
            nonlocal told
            told += capfd.readouterr().err
            return f"port {address} is taken: trying again for" in told

        with stolen(service, getattr(endpoint, port)):
            assert wait_until(waits, seconds=60)
        assert wait_until(lambda: reachable(endpoint), seconds=60)
        assert (service.restarts, service.failure) == (1, None)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_a_child_whose_port_was_taken_meanwhile_stays_down() -> None:
    with start() as service:
        endpoint = service.endpoint
        with stolen(service, endpoint.control_port):
            assert wait_until(lambda: service.failure is not None, seconds=60)
        told = str(service.failure)
        assert f"cannot listen on {endpoint.control_address}: Address already in use" in told


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("port", ["control_port", "data_port"])
def test_a_child_with_a_dead_port_is_started_again(port: str) -> None:
    with start() as service:
        pid = service.pid
        shut_listener(pid, getattr(service.endpoint, port))
        assert wait_until(lambda: service.restarts == 1, seconds=60)
        assert wait_until(lambda: reachable(service.endpoint), seconds=30)
        assert service.pid != pid


def test_a_child_that_lived_long_earns_its_restarts_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_service, "_MAX_RESTARTS", 1)
    monkeypatch.setattr(host_service, "_EARNED_S", 0.0)
    with start() as service:
        for restarts in (1, 2):
            os.kill(service.pid, signal.SIGKILL)
            assert wait_until(lambda most=restarts: service.restarts == most)
        assert service.failure is None


def _no_process(times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the system refuse so many children, and return a list that has one entry per refusal."""
    refused: list[int] = []

    def refuse(*given: Any, **options: Any) -> Any:
        if len(refused) < times:
            refused.append(1)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return FreshProcess(*given, **options)

    monkeypatch.setattr(host_service, "_PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(server_process, "FreshProcess", refuse)
    return refused


@pytest.mark.usefixtures("no_leftovers")
def test_a_child_is_started_once_the_system_lets_us(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with start() as service:
        refused = _no_process(2, monkeypatch)
        os.kill(service.pid, signal.SIGKILL)
        assert wait_until(lambda: service.restarts == 1)
        assert len(refused) == 2
        assert service.failure is None
    assert "cannot start a process, trying again in 0.01 s: [Errno 11]" in caplog.text


@pytest.mark.usefixtures("no_leftovers")
def test_a_system_that_gives_no_process_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with start() as service:
        refused = _no_process(99, monkeypatch)
        os.kill(service.pid, signal.SIGKILL)
        assert wait_until(lambda: service.failure is not None)
        assert str(service.failure).startswith(
            "the peer service of host 0 cannot be started again: [Errno 11]"
        )
        assert len(refused) == 3
    assert "it stays down" in caplog.text


@pytest.mark.usefixtures("no_leftovers")
def test_closing_does_not_wait_for_a_system_that_gives_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with start() as service:
        refused = _no_process(99, monkeypatch)
        monkeypatch.setattr(host_service, "_PAUSES_S", (60.0,))
        os.kill(service.pid, signal.SIGKILL)
        assert wait_until(lambda: len(refused) == 1)
        began = time.monotonic()
    assert time.monotonic() - began < 30
    assert service.failure is None


@pytest.mark.usefixtures("no_leftovers")
def test_a_stopped_child_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_service, "_LEAVE_S", 0.1)
    with start() as service:
        os.kill(service.pid, signal.SIGSTOP)
        service.close()
    assert is_gone(service.pid)


@pytest.mark.usefixtures("no_leftovers")
def test_a_service_that_nobody_holds_ends() -> None:
    service = start()
    pid = service.pid
    del service
    gc.collect()
    assert wait_until(lambda: is_gone(pid))


_PARENT = """
import os, sys
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.host_service import HostService
service = HostService.start({"path": sys.argv[1]}, [0], credentials=Credentials.plaintext())
print(service.pid, flush=True)
input()
"""


@pytest.mark.some(1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_child_leaves_with_its_parent(tmp_path: Path, number: int) -> None:
    _write_graph(tmp_path / "graph")
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path / "graph")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.send_signal(number)
    assert wait_until(lambda: is_gone(child))


def _write_graph(path: Path) -> None:
    source = small_graph().folder
    for name in source.names():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(bytes(source.open(name)))


def test_a_forked_child_of_the_parent_does_not_end_the_service() -> None:
    with start() as service:
        pid = os.fork()
        if not pid:
            service.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert reachable(service.endpoint)


@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"listen": "nonsense"}, ValueError, "write HOST:PORT"),
        ({"listen": "0.0.0.0:0"}, ValueError, "say which one others shall use"),
        ({"listen": "203.0.113.7:0"}, ValueError, "needs TLS"),
        (
            {"listen": "nowhere.invalid:0", "credentials": "tls"},
            OSError,
            r"^cannot listen on nowhere\.invalid:0: ",
        ),
        ({"timeout_s": 0.001}, TimeoutError, r"did not start within 0\.001 s"),
    ],
)
def test_what_keeps_it_from_starting_is_told(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    if options.get("credentials") == "tls":
        options = options | {"credentials": Credentials.ephemeral(["127.0.0.1"])}
    with pytest.raises(error, match=message):
        start(**options)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(
            OSError, match=f"^cannot listen on {address}: Address already in use; choose another"
        ):
            start(listen=address)


@pytest.mark.usefixtures("no_leftovers")
def test_a_graph_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"is not a graph: it has no graph\.json"):
        HostService.start({"path": str(tmp_path)}, [0], credentials=PLAIN)


@pytest.mark.usefixtures("no_leftovers")
def test_a_child_that_dies_while_it_starts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_service, "_ENTRY", "os:abort")
    with pytest.raises(GiglError, match=r"the peer service .* while it started; what it printed says why"):
        start()
