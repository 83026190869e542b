"""Several hosts on one machine: network namespaces that see each other through a switch.

A host has an address and a boot id of its own and nothing else in common with this machine's network.
All namespaces are anonymous. Each is held open by a process that ends when its standard input does,
which is when the tests end, whatever ends them: there is nothing to clean up by name.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.support.ports import free_port

_CLONE_NEWNET = 0x40000000
_LISTENING = "0A"
_SECONDS = 10.0
"""For one command of iproute2, which takes milliseconds."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine for tests: a network of its own, with one link, to the switch."""

    index: int
    address: str
    boot_id: str
    holder: subprocess.Popen[bytes] = field(repr=False)
    switch: subprocess.Popen[bytes] = field(repr=False)

    @property
    def network(self) -> str:
        """File that stands for its network: for ``enter_network`` and ``nsenter``."""
        return f"/proc/{self.holder.pid}/ns/net"

    @property
    def environment(self) -> dict[str, str]:
        """What tells a process on which host it is. Gloo would look for the host's name otherwise."""
        return {"GIGL_BOOT_ID": self.boot_id, "GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}

    def command(self, *command: str) -> list[str]:
        """Return the command that runs ``command`` here. It keeps its process id."""
        return ["nsenter", f"--net={self.network}", "--", *command]

    def run(
        self, *command: str, seconds: float, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command here, to its end, and return what it printed."""
        return subprocess.run(
            self.command(*command),
            env={**os.environ, **self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in a thread that is on this host: sockets that it makes stay here."""
        results: list[T] = []

        def there() -> None:
            enter_network(self.network)
            results.append(function())

        thread = threading.Thread(target=there)
        thread.start()
        thread.join(_SECONDS)
        return results[0]

    def free_port(self) -> int:
        """Return a port that nobody listens on here."""
        return self.call(lambda: free_port(self.address))

    def cut(self) -> None:
        """Pull the cable: nothing arrives any more, and nobody is told."""
        _ip(self.switch, f"link set port{self.index} down")

    def heal(self) -> None:
        """Put the cable back."""
        _ip(self.switch, f"link set port{self.index} up")

    def firewall(self, port: int) -> None:
        """Drop, silently, whatever arrives for a TCP port."""
        _ip(self.holder, f"rule add pref 1 iif eth0 ipproto tcp dport {port} blackhole")

    def open_firewall(self, port: int) -> None:
        """Undo ``firewall``."""
        _ip(self.holder, f"rule del pref 1 iif eth0 ipproto tcp dport {port} blackhole")

    def processes(self) -> set[int]:
        """Return the processes that run here."""
        here = os.readlink(self.network)
        return {pid for pid in _pids() if pid != self.holder.pid and _network_of(pid) == here}

    def listening(self) -> set[int]:
        """Return the TCP ports that somebody listens on here."""
        lines = Path(f"/proc/{self.holder.pid}/net/tcp").read_text().splitlines()[1:]
        lines += Path(f"/proc/{self.holder.pid}/net/tcp6").read_text().splitlines()[1:]
        entries = (line.split() for line in lines)
        return {int(entry[1].rpartition(":")[2], 16) for entry in entries if entry[3] == _LISTENING}


class Network:
    """Hosts 0 .. n - 1, with addresses 10.77.0.1 and on, all at one switch."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = hosts

    @classmethod
    @contextmanager
    def of(cls, count: int) -> Iterator[Network]:
        """Give ``count`` hosts. They are gone afterwards, with the processes that still run there."""
        holders: list[subprocess.Popen[bytes]] = []
        hosts: list[Host] = []
        try:
            switch = _hold(holders)
            _ip(switch, "link add switch type bridge", "link set switch up")
            hosts.extend(_host(index, switch, _hold(holders)) for index in range(count))
            yield cls(hosts)
        finally:
            for host in hosts:
                _kill(host.processes())
            for holder in holders:
                _let_go(holder)

    def heal(self) -> None:
        """Put all cables back."""
        for host in self.hosts:
            host.heal()


@functools.cache
def missing_for_hosts() -> str:
    """Return why this machine cannot play several hosts; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"network namespaces need the program {program} (iproute2, util-linux)"
    try:
        with Network.of(1):
            return ""
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"network namespaces are not allowed here: {error}"


def enter_network(network: str) -> None:
    """Move the calling thread to another network. What it starts from now on is there too."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(network, os.O_RDONLY)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network {network}")
    finally:
        os.close(descriptor)


def _hold(holders: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process that keeps a network of its own open until its standard input ends."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the tests, which then clean up.
    )
    holders.append(holder)
    assert holder.stdout is not None
    assert holder.stderr is not None
    if holder.stdout.readline() != b"ready\n":
        raise RuntimeError(holder.stderr.read().decode().strip() or "unshare failed")
    return holder


def _host(index: int, switch: subprocess.Popen[bytes], holder: subprocess.Popen[bytes]) -> Host:
    address = f"10.77.0.{index + 1}"
    port = f"port{index}"
    _ip(
        switch,
        f"link add {port} type veth peer name eth0 netns {holder.pid}",
        f"link set {port} master switch",
        f"link set {port} up",
    )
    _ip(
        holder,
        "link set lo up",
        f"address add {address}/24 dev eth0",
        "link set eth0 up",
        # The rule for local addresses comes first by default, before any firewall.
        "rule add pref 100 lookup local",
        "rule del pref 0",
    )
    return Host(index, address, str(uuid.uuid4()), holder, switch)


def _ip(where: subprocess.Popen[bytes], *commands: str) -> None:
    done = subprocess.run(
        ["nsenter", f"--net=/proc/{where.pid}/ns/net", "--", "ip", "-batch", "-"],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"ip {'; '.join(commands)}: {done.stderr.strip()}")


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _let_go(holder: subprocess.Popen[Any]) -> None:
    for stream in (holder.stdin, holder.stdout, holder.stderr):
        if stream is not None:
            stream.close()
    try:
        holder.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        holder.kill()
        holder.wait()


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _network_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""
