"""Real storage servers and trainers in network namespaces of this machine, and what they counted.

Servers are processes of ``gigl-loader serve``, trainers processes of ``cluster_trainer.py``. Each has a
namespace of its own, and all are at one switch. Calls and bytes come from the servers' metrics.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster_model import Amount, Key

sys.path.append(str(Path(__file__).parents[1]))
from tests.support.hosts import Host, Network, missing_for_hosts

__all__ = ["Lab", "Measured", "Run", "missing_for_hosts"]

_COMMAND = [sys.executable, "-c", "from gigl_loader.cli import main; main()", "serve"]
_CONTROL, _DATA, _METRICS, _STORE = 7070, 7071, 9090, 29500
_LIMIT_S, _END_S, _POLL_S = 300.0, 20.0, 0.1
_SETTLE_S = 0.3
"""Calls of a phase whose callers do not wait for the response end within this time."""
_SAMPLE = re.compile(
    r'gigl_(control|data)_(calls|call_received_bytes|call_sent_bytes)_total\{method="([\w ]+)"\}'
)
_ESTABLISHED = "01"


@dataclass(slots=True)
class Measured:
    """Counters of the servers in one phase."""

    seconds: float = 0.0
    servers: list[dict[Key, Amount]] = field(default_factory=list)
    """By server: calls and bytes by port and method."""
    server_cpu_s: float = 0.0
    trainer_cpu_s: float = 0.0
    device_bytes: int = 0
    """Received by the network devices of the servers, with headers, framing, TCP and acknowledgements."""

    @property
    def total(self) -> dict[Key, Amount]:
        """Sums over servers."""
        found: dict[Key, Amount] = {}
        for each in self.servers:
            for key, amount in each.items():
                found[key] = found.get(key, Amount()) + amount
        return found


@dataclass(slots=True)
class Run:
    """Phases of one job: ``connect``, ``open``, ``epoch``, ``idle``, ``close``."""

    phases: dict[str, Measured]
    batches: int
    nodes_per_hop: list[float]
    """Mean over batches; seeds first."""
    edges_per_hop: list[float]
    connections: list[int]
    """By server: open at the end of the epoch."""
    trainer_calls: int
    trainer_bytes: int


@dataclass(slots=True)
class _Reading:
    at: float
    calls: list[dict[Key, Amount]]
    cpu_s: float
    device_bytes: int


class Lab:
    """Servers of one graph, one for every ``partitions / servers`` partitions."""

    def __init__(self, network: Network, servers: int, token: str, lease_s: float) -> None:
        self._hosts = network.hosts
        self.servers, self.lease_s = servers, lease_s
        self._token = token
        self.join = Measured()

    @classmethod
    @contextmanager
    def running(
        cls, graph: Path, folder: Path, *, servers: int, partitions: int, ranks: int, lease_s: float
    ) -> Iterator[Lab]:
        """Serve ``graph`` until the end of the block, with room for so many ranks."""
        token = secrets.token_hex(16)
        for name in ("token", "key"):
            file = folder / f"{name}.lab"
            file.write_text(token if name == "token" else secrets.token_hex(16))
            file.chmod(0o600)
        with ExitStack() as stack:
            network = stack.enter_context(Network.of(servers + ranks))
            lab = cls(network, servers, token, lease_s)
            share = partitions // servers
            for host in network.hosts[:servers]:
                parts = ",".join(str(part) for part in range(host.index * share, (host.index + 1) * share))
                log = stack.enter_context((folder / f"server-{host.index}.log").open("wb"))
                stack.enter_context(_process(host, lab._serve(graph, folder, host, parts), stderr=log))
            lab._wait_ready()
            lab.join = lab._spent(None, lab._read())
            yield lab

    def run(self, *, ranks: int, loaders: int, fanout: Sequence[int], batch_size: int, idle_s: float) -> Run:
        """Run a job of ``ranks`` trainers, and return the counters of the servers."""
        with ExitStack() as stack:
            trainers = [
                stack.enter_context(_Trainer.started(host, rank, ranks, self._hosts[self.servers]))
                for rank, host in enumerate(self._hosts[self.servers : self.servers + ranks])
            ]
            options = {
                "addresses": f"{self._hosts[0].address}:{_CONTROL}",
                "token": self._token,
                "world_size": ranks,
                "loaders": loaders,
                "fanout": list(fanout),
                "batch_size": batch_size,
            }
            for trainer in trainers:
                trainer.say(json.dumps(options))
            before, cpu_s, _ = self._after("joined", trainers)
            phases: dict[str, Measured] = {}
            lines: dict[str, list[dict[str, Any]]] = {}
            connections: list[int] = []
            for name, told in (
                ("connect", "connected"),
                ("open", "opened"),
                ("epoch", "epoch"),
                ("idle", "idle"),
                ("close", "closed"),
            ):
                if name == "idle":
                    connections = [self._connections(host) for host in self._hosts[: self.servers]]
                    time.sleep(idle_s)
                for trainer in trainers:
                    trainer.say("on")
                after, cpu_after_s, lines[told] = self._after(told, trainers)
                phases[name] = self._spent(before, after)
                phases[name].trainer_cpu_s = cpu_after_s - cpu_s
                before, cpu_s = after, cpu_after_s
            for trainer in trainers:
                trainer.say("end")
        shapes = [line["shape"] for line in lines["epoch"]]
        stats = [line["stats"] for line in lines["epoch"]]
        batches = sum(shape["batches"] for shape in shapes)
        return Run(
            phases=phases,
            batches=batches,
            nodes_per_hop=_means([shape["nodes"] for shape in shapes], batches),
            edges_per_hop=_means([shape["edges"] for shape in shapes], batches),
            connections=connections,
            trainer_calls=int(sum(each["peer_calls"] for each in stats)),
            trainer_bytes=int(sum(each["wire_bytes_in"] for each in stats)),
        )

    def _serve(self, graph: Path, folder: Path, host: Host, partitions: str) -> list[str]:
        first = self._hosts[0].address
        return [
            *_COMMAND,
            str(graph),
            *("--partition", partitions, "--listen", f"{host.address}:{_CONTROL}", "--workers", "1"),
            *([] if host.index == 0 else ["--peer", f"{first}:{_CONTROL}"]),
            *("--metrics", f"{host.address}:{_METRICS}", "--insecure", "--lease", str(self.lease_s)),
            *("--token-file", str(folder / "token.lab"), "--cluster-key-file", str(folder / "key.lab")),
            *("--frame-memory", "256MB", "--memory", "1GB", "--scrub-rate", "0"),
        ]

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _LIMIT_S
        for host in self._hosts[: self.servers]:
            while not self._is_ready(host):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"server {host.index} was not ready within {_LIMIT_S:g} s: see its log"
                    )
                time.sleep(_POLL_S)

    @staticmethod
    def _is_ready(host: Host) -> bool:
        try:
            return "gigl_ready 1.0" in _scraped(host)
        except OSError:
            return False

    def _after(
        self, phase: str, trainers: Sequence[_Trainer]
    ) -> tuple[_Reading, float, list[dict[str, Any]]]:
        """Wait until all trainers are through a phase. Return counters, the trainers' CPU time and lines."""
        lines = [trainer.line(phase) for trainer in trainers]
        time.sleep(_SETTLE_S)
        return self._read(), sum(line["cpu_s"] for line in lines), lines

    def _read(self) -> _Reading:
        texts = [_scraped(host) for host in self._hosts[: self.servers]]
        return _Reading(
            at=time.monotonic(),
            calls=[_calls(text) for text in texts],
            cpu_s=sum(
                float(value)
                for text in texts
                for value in re.findall(r"\nprocess_cpu_seconds_total (\S+)", text)
            ),
            device_bytes=sum(_received(host) for host in self._hosts[: self.servers]),
        )

    @staticmethod
    def _spent(before: _Reading | None, after: _Reading) -> Measured:
        if before is None:
            before = _Reading(after.at, [{} for _ in after.calls], 0.0, 0)
        return Measured(
            seconds=after.at - before.at,
            servers=[
                {
                    key: amount - old.get(key, Amount())
                    for key, amount in new.items()
                    if amount != old.get(key)
                }
                for new, old in zip(after.calls, before.calls, strict=True)
            ],
            server_cpu_s=after.cpu_s - before.cpu_s,
            device_bytes=after.device_bytes - before.device_bytes,
        )

    @staticmethod
    def _connections(host: Host) -> int:
        """Return the connections to the ports of the server on ``host``."""
        tables = [Path(f"/proc/{host.holder.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        entries = [line.split() for table in tables for line in table.splitlines()[1:]]
        ports = {f"{port:04X}" for port in (_CONTROL, _DATA)}
        return sum(each[3] == _ESTABLISHED and each[1].rpartition(":")[2] in ports for each in entries)


class _Trainer:
    """A process of ``cluster_trainer.py``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def started(cls, host: Host, rank: int, world_size: int, master: Host) -> Iterator[_Trainer]:
        environment = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": master.address,
            "MASTER_PORT": str(_STORE),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(Path(__file__).with_name("cluster_trainer.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with _process(host, command, environment=environment, **pipes) as process:
            yield cls(process)

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def line(self, phase: str) -> dict[str, Any]:
        """Return the line about a phase. Raises ``RuntimeError`` or ``TimeoutError``."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _LIMIT_S)
        if not ready:
            raise TimeoutError(f"a trainer did not get through {phase!r} within {_LIMIT_S:g} s")
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"a trainer ended before it got through {phase!r}: see what it printed")
        found: dict[str, Any] = json.loads(text)
        return found


@contextmanager
def _process(
    host: Host, command: Sequence[str], *, environment: Mapping[str, str] | None = None, **pipes: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Run a process on a host. It is killed at the end of the block if it has not ended by then."""
    settings = {**os.environ, **host.environment, **(environment or {})}
    process = subprocess.Popen(host.command(*command), env=settings, **pipes)
    try:
        yield process
    finally:
        if process.stdin is None:
            process.terminate()
        else:
            with suppress(BrokenPipeError):
                process.stdin.close()  # A trainer that waits for a line goes on to its end.
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _scraped(host: Host) -> str:
    def get() -> str | OSError:
        connection = http.client.HTTPConnection(host.address, _METRICS, timeout=_END_S / 4)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        except OSError as error:
            return error
        finally:
            connection.close()

    found = host.call(get)
    if isinstance(found, OSError):
        raise found
    return found


def _calls(text: str) -> dict[Key, Amount]:
    found: dict[Key, list[int]] = {}
    places = ("calls", "call_received_bytes", "call_sent_bytes")
    for line in text.splitlines():
        if match := _SAMPLE.match(line):
            port, what, method = match.groups()
            found.setdefault((port, method), [0, 0, 0])[places.index(what)] = int(float(line.split()[-1]))
    return {key: Amount(*values) for key, values in found.items()}


def _received(host: Host) -> int:
    for line in Path(f"/proc/{host.holder.pid}/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "eth0":
            return int(rest.split()[0])
    raise RuntimeError(f"host {host.index} has no device eth0")


def _means(sums: Sequence[Sequence[int]], batches: int) -> list[float]:
    return [sum(each) / batches for each in zip(*sums, strict=True)]
