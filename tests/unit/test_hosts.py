"""Hosts for tests see each other and nothing else, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import Host, Network, missing_for_hosts
from tests.support.leftovers import is_gone, wait_until

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.usefixtures("no_leftovers"),
    pytest.mark.skipif(bool(missing_for_hosts()), reason=missing_for_hosts() or "hosts can be made"),
]


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with Network.of(2) as network:
        yield list(network.hosts)


def _listen(host: Host) -> socket.socket:
    return host.call(lambda: socket.create_server((host.address, 0)))


def _reaches(host: Host, address: tuple[str, int]) -> bool:
    """Return whether a connection comes about within a moment. It lives no longer."""

    def attempt() -> bool:
        try:
            socket.create_connection(address, 0.3).close()
        except OSError:
            return False
        return True

    return host.call(attempt)


def test_a_process_is_on_the_host_it_was_started_on(hosts: list[Host]) -> None:
    program = "import os; print(os.environ['GIGL_BOOT_ID'], *os.listdir('/sys/class/net'))"
    done = hosts[1].run("ip", "-brief", "address", seconds=10)
    assert "10.77.0.2/24" in done.stdout
    assert hosts[0].address not in done.stdout
    assert hosts[1].run(sys.executable, "-c", program, seconds=10).stdout.split()[0] == hosts[1].boot_id
    assert hosts[0].boot_id != hosts[1].boot_id


def test_cables_and_firewalls(hosts: list[Host]) -> None:
    with _listen(hosts[0]) as server, _listen(hosts[0]) as other:
        address, port = server.getsockname(), server.getsockname()[1]
        assert hosts[0].listening() == {port, other.getsockname()[1]}
        assert _reaches(hosts[1], address)
        hosts[0].firewall(port)
        assert not _reaches(hosts[1], address)
        assert _reaches(hosts[1], other.getsockname())
        hosts[0].open_firewall(port)
        assert _reaches(hosts[1], address)
        hosts[1].cut()
        assert not _reaches(hosts[1], address)
        hosts[1].heal()
        assert wait_until(lambda: _reaches(hosts[1], address))
    assert hosts[0].listening() == set()


def test_this_machine_is_out_of_reach(hosts: list[Host]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not _reaches(hosts[0], server.getsockname())


def test_processes_end_with_their_host() -> None:
    with Network.of(1) as network:
        host = network.hosts[0]
        process = subprocess.Popen(host.command("sleep", "60"))
        assert wait_until(lambda: host.processes() == {process.pid})
    assert process.wait(5) == -signal.SIGKILL


def test_nothing_is_left_when_the_tests_are_killed() -> None:
    program = (
        "from tests.support.hosts import Network\n"
        "with Network.of(2) as network:\n"
        "    print(*[host.holder.pid for host in network.hosts], flush=True)\n"
        "    input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        holders = [int(pid) for pid in process.stdout.readline().split()]
        assert len(holders) == 2
        os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: all(map(is_gone, holders)))
