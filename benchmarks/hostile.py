"""An honest trainer beside eight hostile callers of the same storage server, and a stranger without a token.

    python benchmarks/hostile.py --data DIR --json hostile.json

Measures, alternating in one run, on the small workload of ``gigl-loader bench --quick``:

- seeds per second of a trainer alone, and beside eight callers that hold valid tokens of their own and behave
  as ``hostile_callers.py`` says; their ratio to a fair share, a ninth of what the trainer has alone;
- what a caller without a token holds: memory, threads and descriptors of the server, and for how long.

Callers would have machines of their own: the server and its trainer have one half of the cores here, alone as
beside others, and the callers the other half.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from hostile_callers import BEHAVIOURS, Scene, connected, ended

from gigl_client import Caller, RemoteDistDataset
from gigl_loader.bench.loading import open_loader
from gigl_loader.bench.workload import QUICK, prepare
from gigl_loader.errors import GiglError
from gigl_loader.graph.graph import Graph
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.native import DataClient, StreamError
from gigl_loader.rpc.credentials import Credentials

FAIR = 0.7
"""Of its fair share that an honest trainer keeps at least."""
STRANGER_MB, STRANGER_S = 64.0, 30.0
"""What a caller without a token holds at most, and for how long."""
_COMMAND = [sys.executable, "-c", "from gigl_loader.cli import main; main()", "serve"]
_READY_S, _END_S, _TIMEOUT_S, _CALLERS_READY_S = 60.0, 40.0, 10.0, 30.0
_STRANGERS = 200
"""Connections to each port."""
_MAX_MB = 4_000.0
"""A server that takes more is killed: the machine is ours only in part."""


def main() -> int:
    """Measure, print ratios, and return 1 where a target is missed."""
    options = _arguments()
    ours, theirs = _halves(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, ours)
    rounds: list[dict[str, float]] = []
    with _folder(options.data) as folder:
        graph = prepare(QUICK, folder)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            alone = _honest(graph, folder, [], options.seconds)
            beside = _honest(graph, folder, options.only or list(BEHAVIOURS), options.seconds, cores=theirs)
            rounds.append(
                {
                    "alone_seeds_per_s": alone["seeds_per_s"],
                    "beside_seeds_per_s": beside["seeds_per_s"],
                    "fair_share": beside["seeds_per_s"]
                    / (alone["seeds_per_s"] / (1 + int(beside["callers"]))),
                    "longest_wait_s": beside["longest_wait_s"],
                    "server_peak_mb": beside["server_peak_mb"],
                    "servers_killed": beside["killed"],
                }
            )
        stranger = _stranger(graph, folder)
    figures = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]} | stranger
    for name, value in figures.items():
        print(f"{name:32} {value:.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps({"figures": figures, "rounds": rounds}, indent=2) + "\n")
    missed = _missed(figures)
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


def _missed(figures: dict[str, float]) -> list[str]:
    """Return the targets that were missed."""
    found = []
    if figures["fair_share"] < FAIR:
        found.append(
            f"the honest trainer keeps {figures['fair_share']:.0%} of its fair share, not {FAIR:.0%}"
        )
    if figures["stranger_holds_mb"] > STRANGER_MB:
        found.append(f"a caller without a token holds {figures['stranger_holds_mb']:.0f} MB")
    if figures["servers_killed"]:
        found.append(f"a server took more than {_MAX_MB:,.0f} MB and was killed for it")
    kept = [port for port in ("control", "data") if figures[f"stranger_longest_{port}_s"] > STRANGER_S]
    return [*found, *(f"a silent connection to the {port} port is kept > {STRANGER_S:g} s" for port in kept)]


def _honest(
    graph: Path, folder: Path, hostile: Sequence[str], seconds: float, *, cores: Sequence[int] = ()
) -> dict[str, float]:
    """Train for a while beside hostile callers, which have these cores, on a fresh server."""
    with ExitStack() as stack:
        server = stack.enter_context(_Server.running(graph, folder, callers=len(hostile)))
        dataset = stack.enter_context(
            RemoteDistDataset.connect(
                server.scene.control,
                credentials=Caller(token=server.tokens[0]),
                transport="network",
                timeout=_TIMEOUT_S,
            )
        )
        seeds = np.load(folder / "train.npy")[: QUICK.num_seeds].astype(np.int64)
        loader = stack.enter_context(open_loader(dataset, QUICK, seeds, 1, timeout=_TIMEOUT_S))
        for _ in loader:
            pass
        stack.enter_context(server.watched())
        started = [
            stack.enter_context(_caller(behaviour, replace(server.scene, token=token), cores))
            for behaviour, token in zip(hostile, server.tokens[1:], strict=True)
        ]
        _wait_until_ready(started)
        taken, longest = _train(loader, seconds)
        return {
            "seeds_per_s": taken / seconds,
            "longest_wait_s": longest,
            "server_peak_mb": server.peak_mb,
            "killed": float(server.killed),
            "callers": float(len(hostile)),
        }


def _train(loader: DistNeighborLoader, seconds: float) -> tuple[int, float]:
    """Return the seeds taken in so many seconds, and the longest wait for a batch. Errors are waits."""
    taken, longest = 0, 0.0
    began = last = time.perf_counter()
    batches = iter(loader)
    while True:
        batch = None
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            continue
        except (GiglError, TimeoutError):
            time.sleep(0.1)
        now = time.perf_counter()
        if now - began > seconds:
            return taken, max(longest, now - last)
        if batch is not None:
            longest, last = max(longest, now - last), now
            taken += batch.batch_size


def _stranger(graph: Path, folder: Path) -> dict[str, float]:
    """Return what a caller without a token holds of a server: silent connections, and large messages."""
    with _Server.running(graph, folder, callers=0) as server:
        before = server.memory_mb, server.threads, server.descriptors
        began = time.perf_counter()
        held = {
            port: [connected(getattr(server.scene, port)) for _ in range(_STRANGERS)]
            for port in ("control", "data")
        }
        _large_messages(server.scene)
        peak = server.memory_mb - before[0]
        ends = dict.fromkeys(held, 0.0)
        while any(held.values()) and time.perf_counter() - began < 1.5 * STRANGER_S:
            for port, connections in held.items():
                held[port] = [each for each in connections if not ended(each)]
                if len(held[port]) < len(connections):
                    ends[port] = time.perf_counter() - began
            peak = max(peak, server.memory_mb - before[0])
            time.sleep(0.2)
        after = server.memory_mb, server.threads, server.descriptors
        longest = {
            f"stranger_longest_{port}_s": time.perf_counter() - began if held[port] else ends[port]
            for port in held
        }
        for connection in [*held["control"], *held["data"]]:
            connection.close()
    return {
        "stranger_peak_mb": peak,
        "stranger_holds_mb": after[0] - before[0],
        "stranger_holds_threads": float(after[1] - before[1]),
        "stranger_holds_descriptors": float(after[2] - before[2]),
        **longest,
    }


def _large_messages(scene: Scene) -> None:
    """Send requests of 16 MiB without a token to the data port."""
    host, _, port = scene.data.rpartition(":")
    for _ in range(16):
        client = DataClient(host, int(port))
        with suppress(StreamError):
            client.connect(10)
            client.call(b"", bytes(16 << 20), 10)


class _Server:
    """A storage server in a process of its own, with a token for every caller."""

    def __init__(self, process: subprocess.Popen[bytes], scene: Scene, tokens: list[str]) -> None:
        self._process, self.scene, self.tokens = process, scene, tokens
        self.peak_mb, self.killed = 0.0, False

    @classmethod
    @contextmanager
    def running(cls, graph: Path, folder: Path, *, callers: int) -> Iterator[_Server]:
        """Serve ``graph`` with two workers until the end of the block."""
        tokens = [secrets.token_hex(16) for _ in range(1 + callers)]
        if not hasattr(Credentials, "identify"):  # One token for all: callers are not told apart by it.
            tokens = tokens[:1] * len(tokens)
        file = folder / "tokens"
        names = [f"caller-{number} {token}" for number, token in enumerate(tokens)]
        file.write_text("\n".join(names) + "\n" if len(set(tokens)) > 1 else tokens[0])
        file.chmod(0o600)
        port = _two_free_ports()
        command = [*_COMMAND, str(graph), "--listen", f"127.0.0.1:{port}", "--workers", "2"]
        log = (folder / "server.log").open("wb")
        process = subprocess.Popen(
            [*command, "--token-file", str(file), "--frame-memory", "512MB"], stderr=log
        )
        try:
            scene = Scene(
                control=f"127.0.0.1:{port}",
                data=f"127.0.0.1:{port + 1}",
                token=tokens[0],
                graph=Graph.open(graph).manifest.digest,
                nodes=QUICK.nodes,
            )
            credentials = Caller(token=tokens[0])
            with RemoteDistDataset.connect(scene.control, credentials=credentials, timeout=_READY_S):
                pass
            yield cls(process, scene, tokens)
        finally:
            process.kill()
            process.wait(_END_S)
            log.close()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the most memory that it takes, and kill it if that is too much."""
        end = threading.Event()

        def watch() -> None:
            with suppress(FileNotFoundError, IndexError):
                while not end.wait(0.02):
                    self.peak_mb = max(self.peak_mb, self.memory_mb)
                    if self.peak_mb > _MAX_MB:
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

    @property
    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/task"))

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))


@contextmanager
def _caller(behaviour: str, scene: Scene, cores: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    """Run a hostile caller on these cores until the end of the block."""
    command = [sys.executable, str(Path(__file__).with_name("hostile_callers.py")), behaviour]
    process = subprocess.Popen(
        [*command, json.dumps(asdict(scene))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    os.sched_setaffinity(process.pid, cores)  # It has no other thread yet: those inherit it.
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=_END_S)


def _halves(cores: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return two halves of the cores. Of a single one, both are that one."""
    middle = (len(cores) + 1) // 2
    return cores[:middle], cores[middle:] or cores


def _wait_until_ready(started: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until all callers are at work, or were refused, or wait for the server themselves."""
    deadline = time.monotonic() + _CALLERS_READY_S
    for process in started:
        select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))


def _two_free_ports() -> int:
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
        with suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
            return port


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="gigl-hostile-") as folder:
        yield Path(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="where the workload is kept for the next run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--only", nargs="+", choices=list(BEHAVIOURS), help="these behaviours instead of all")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
