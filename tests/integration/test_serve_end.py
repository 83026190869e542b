"""A storage server ends in time, whatever its callers do: a real process, real signals, raw callers."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import CustomSamplerOptions, DistNeighborLoader, GiglError
from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.graph_requests import ListRequest, encode_graph_request
from gigl_loader.rpc.requests import Envelope, encode
from gigl_loader.sampling.store import FeatureRequest
from gigl_server.local_cluster import LocalCluster
from gigl_server.ports.data import _FREELY_S
from tests.support.leftovers import wait_until
from tests.support.stalled import StalledCaller

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRAIN_S = 2
WITHIN_S = 8.0
"""After the drain: the promise is 2 s, on a machine that is not busy with other work."""
CRASH = int(signal.SIGSYS)
"""``faulthandler`` does not take it: it reads the stacks of running threads, and may crash once more."""
ENDLESS = "tests.support.user_samplers:NeverReturns"

READER = """
import sys, time
from tests.support.stalled import StalledCaller
caller = StalledCaller(sys.argv[1])
assert all([caller.ask(bytes.fromhex(line)) for line in sys.stdin])
print("asked", flush=True)
time.sleep(600)
"""


class Server:
    """A process of ``gigl-loader serve``."""

    def __init__(self, graph: Path, log: Path, *options: str, ready: bool = True, prepared: str = "") -> None:
        """``prepared`` are statements that it runs first."""
        self.log = log
        program = prepared + "from gigl_loader.cli import main; main()"
        command = ["-c", program, "serve", str(graph), "--listen", "127.0.0.1:0"]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--drain", str(DRAIN_S), "--data-port", "0", *options],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        if ready:
            self.control = "127.0.0.1:" + self.told(r"control port at 127.0.0.1:(\d+)")
            self.data = "127.0.0.1:" + self.told(r"data port (\d+)")
            self.told("ready: (.)")

    def told(self, pattern: str) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.log.read_text()):
                return found[1]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def end(self) -> float:
        """Tell it to end, and return how long that took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log.read_text()
        return time.monotonic() - began


@contextmanager
def serving(
    graph: Path, log: Path, *options: str, ready: bool = True, prepared: str = ""
) -> Iterator[Server]:
    server = Server(graph, log, *options, ready=ready, prepared=prepared)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture
def server(graph: Path, tmp_path: Path) -> Iterator[Server]:
    with serving(graph, tmp_path / "log") as found:
        yield found


def large_tickets(graph: Path) -> list[bytes]:
    """Return requests whose replies exceed what a connection takes: and a small one."""
    opened = Graph.open(graph)
    digest, schema = opened.manifest.digest, opened.schema
    (node_type,) = schema.nodes
    first, end = schema.nodes[node_type].bounds[:2]
    rows = np.random.default_rng(0).integers(first, end, 1_000_000)
    columns = tuple(schema.nodes[node_type].columns)
    ask = FeatureRequest(kind=node_type, columns=columns, rows=rows)
    small = ListRequest(node_type=node_type, first=0, count=end)
    return [encode(Envelope(graph=digest, partition=0), ask, schema), encode_graph_request(small, digest)]


def check_end(server: Server) -> None:
    took = server.end()
    assert took < DRAIN_S + WITHIN_S
    text = server.log.read_text()
    assert re.search(r"replies that were not read: [12], their connections are cut", text), text
    assert text.rstrip().endswith("stopped"), text


def test_it_ends_while_a_caller_reads_nothing(server: Server, graph: Path) -> None:
    with StalledCaller(server.data) as caller:
        assert caller.ask(large_tickets(graph)[0])
        check_end(server)


def test_it_ends_while_a_caller_is_stopped(server: Server, graph: Path) -> None:
    with ExitStack() as stack:
        reader = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", READER, server.data],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(reader.kill)
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write("".join(f"{ticket.hex()}\n" for ticket in large_tickets(graph)))
        reader.stdin.close()
        assert reader.stdout.readline() == "asked\n"
        os.kill(reader.pid, signal.SIGSTOP)
        stack.callback(os.kill, reader.pid, signal.SIGCONT)
        check_end(server)


def test_it_ends_at_once_while_nobody_asks(server: Server) -> None:
    assert server.end() < DRAIN_S + WITHIN_S
    text = server.log.read_text()
    assert "connections are cut" not in text
    assert "leaving all the same" not in text
    assert _FREELY_S < WITHIN_S


@contextmanager
def endless_batch(address: str, sign: Path, how: str) -> Iterator[None]:
    """Ask a server for a batch that never ends, and wait until it has begun."""
    sampler = CustomSamplerOptions(ENDLESS, how=how, sign=str(sign))

    def ask() -> None:
        with (
            suppress(GiglError, TimeoutError),
            RemoteDistDataset.connect(address, timeout=5.0) as dataset,
            DistNeighborLoader(
                dataset, None, list(range(8)), batch_size=8, sampler_options=sampler, timeout=5.0
            ) as loader,
        ):
            next(loader)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        assert wait_until(lambda: sign.exists() or asked.done(), seconds=60)
        assert not asked.done(), asked.result()
        yield


@pytest.mark.slow
@pytest.mark.parametrize("how", ["native", "python", "waiting"])
def test_it_ends_while_a_batch_never_does(graph: Path, tmp_path: Path, how: str) -> None:
    """And its journal says so: it was no batch that killed the server. A busy machine may force the end."""
    log, journal = tmp_path / "log", tmp_path / "journal"
    options = ("--workers", "1", "--allow-sampler", ENDLESS, "--journal", str(journal))
    with (
        serving(graph, log, *options) as server,
        endless_batch(server.control, tmp_path / "sign", how),
    ):
        assert server.end() < DRAIN_S + WITHIN_S
    text = log.read_text()
    ends = {
        "native": r"stopped\s*$",  # The kernel looks at the stop flag, and the server closes in order.
        "python": r"not ended 3\.8 s after SIGTERM: .*sampler \d+ \(user_samplers\.py:\d+ sample\)",
        "waiting": r"not ended 3\.8 s after SIGTERM: .*sampler \d+ \(threading\.py:",
    }
    assert re.search(f"{ends[how]}|{ends['python']}" if how == "native" else ends[how], text), text
    with serving(graph, tmp_path / "next", *options) as after:
        after.end()
    assert "died" not in (tmp_path / "next").read_text()


def test_a_server_of_a_local_cluster_ends_while_a_batch_never_does(graph: Path, tmp_path: Path) -> None:
    options = {"drain": DRAIN_S, "allow_sampler": (ENDLESS,)}
    with (
        LocalCluster(graph, servers=1, options=options) as cluster,
        endless_batch(cluster.addresses[0], tmp_path / "sign", "native"),
    ):
        assert cluster.terminate(0) == 0


@pytest.mark.slow
def test_a_server_of_a_local_cluster_that_is_let_go_ends_while_a_batch_never_does(
    graph: Path, tmp_path: Path
) -> None:
    with (
        LocalCluster(graph, servers=1, options={"allow_sampler": (ENDLESS,)}) as cluster,
        endless_batch(cluster.addresses[0], tmp_path / "sign", "native"),
    ):
        incarnation = cluster._incarnations[0]
        incarnation.let_go()
        assert incarnation.status(WITHIN_S) == 0


@pytest.mark.slow
def test_it_ends_while_it_joins(graph: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # Takes connections, and never answers.
        peer = f"127.0.0.1:{silent.getsockname()[1]}"
        with serving(graph, tmp_path / "log", "--partition", "0", "--peer", peer, ready=False) as server:
            server.told("starting: (.)")
            assert server.end() < DRAIN_S + WITHIN_S


def test_it_ends_while_it_pulls_from_a_server_that_hangs(graph: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = f"127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "empty").mkdir()
        options = ("--adopt", "0", "--peer", peer)
        with serving(tmp_path / "empty", tmp_path / "log", *options, ready=False) as server:
            silent.settimeout(60)
            with silent.accept()[0]:
                assert server.end() < DRAIN_S + WITHIN_S


@pytest.mark.slow
def test_it_ends_while_a_batch_waits_for_a_server_that_is_stopped(graph: Path, tmp_path: Path) -> None:
    def ask(address: str) -> None:
        with (
            suppress(GiglError, TimeoutError),
            RemoteDistDataset.connect(address, timeout=10.0) as dataset,
            DistNeighborLoader(dataset, [3, 3], list(range(512)), batch_size=64, timeout=10.0) as loader,
        ):
            begun.release()
            for _ in loader:
                pass

    begun = threading.Semaphore(0)
    with (
        LocalCluster(graph, servers=2, options={"drain": DRAIN_S}) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        pool.submit(ask, cluster.addresses[0])
        assert begun.acquire(timeout=60)
        os.kill(cluster.pids[1], signal.SIGSTOP)
        try:
            assert cluster.terminate(0) == 0
        finally:
            os.kill(cluster.pids[1], signal.SIGCONT)


SLOW_DISK = """
import collections, threading, time
from pathlib import Path
from gigl_loader.graph.manifest import Document
verify, times = Document.verify, collections.Counter()
def slow(document, report, data=None):
    times[document.name] += 1
    if {part!r} not in document.name or times[document.name] <= {after}:
        return verify(document, report, data)
    Path({sign!r}).touch()
    while not threading.Event().wait({step_s}):
        report(1 << 20)
Document.verify = slow
"""
VERIFICATIONS = {
    "full": ("", 0, ("--verify", "full")),
    "topology": ("topology", 0, ()),
    "again and again": ("topology", 1, ("--scrub-rate", "1GB")),
}


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [0.01, None], ids=["slow", "hangs"])
@pytest.mark.parametrize("verified", VERIFICATIONS)
def test_it_ends_while_its_graph_is_verified(
    graph: Path, tmp_path: Path, verified: str, step_s: float | None
) -> None:
    """From a disk that is slow, or answers nothing."""
    sign = tmp_path / "sign"
    part, after, options = VERIFICATIONS[verified]
    prepared = SLOW_DISK.format(part=part, after=after, sign=str(sign), step_s=step_s)
    ready = verified == "again and again"
    with serving(graph, tmp_path / "log", *options, ready=ready, prepared=prepared) as server:
        assert wait_until(sign.exists, seconds=60)
        assert server.end() < DRAIN_S + WITHIN_S
    assert "Traceback" not in server.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("log_file", ["/dev/full", ""])
def test_it_ends_where_no_line_can_be_logged(graph: Path, log_file: str) -> None:
    """On a full disk; and into a pipe that is full and never read, with which every line waits."""
    program = "from gigl_loader.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", str(graph), "--listen", "127.0.0.1:0"]
    options = ["--drain", str(DRAIN_S), *(("--log-file", log_file) if log_file else ())]
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while not log_file:
                os.write(writing, b" ")
        os.set_blocking(writing, True)
        process = subprocess.Popen([*command, *options], stderr=writing)
        try:
            assert wait_until(lambda: command_name(process.pid) == "gigl-store", seconds=60)
            time.sleep(2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(reading)
        os.close(writing)


def command_name(pid: int) -> str:
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        return file.read().strip()


def test_it_ends_while_it_is_told_to_read_its_files_again_and_again(server: Server) -> None:
    for _ in range(300):
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.002)
    assert server.end() < DRAIN_S + WITHIN_S


@pytest.fixture
def unlimited_cores() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def wrote_core(process: subprocess.Popen[Any]) -> bool:
    """Wait for a process that crashes, and return whether the kernel wrote its core."""
    status = os.waitpid(process.pid, 0)[1]
    process.returncode = -os.WTERMSIG(status)
    assert process.returncode == -CRASH
    return os.WCOREDUMP(status)


@pytest.mark.usefixtures("unlimited_cores")
@pytest.mark.parametrize("allowed", [False, True])
def test_a_crash_writes_no_core_unless_it_is_allowed(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, allowed: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    if not wrote_core(
        subprocess.Popen([sys.executable, "-c", f"import os; os.kill(os.getpid(), {CRASH})"], text=True)
    ):
        pytest.skip("the system writes no cores")
    with serving(graph, tmp_path / "log", *(["--allow-core"] if allowed else [])) as server:
        server.process.send_signal(CRASH)
        assert wrote_core(server.process) == allowed


STUCK = """
import threading
from gigl_server.signals import leave_within
from gigl_server.logs import configure_logging
configure_logging(None)
threading.Thread(target=threading.Event().wait, name="stuck").start()
leave_within(0.5, 3)
"""


def test_a_process_that_is_kept_from_ending_leaves_with_its_code_and_a_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert re.search(r"not ended after 0\.5 s: leaving all the same, with threads .*stuck", done.stderr)
