"""A thousand callers without a token at the data port of a server: they hold little, and not for long."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.graph_requests import ManifestRequest, encode_graph_request
from gigl_server.local_cluster import LocalCluster
from gigl_server.peer_server import build_server
from tests.support.hostile_clients import HostileClient
from tests.support.raw_data import RawCaller, connected_socket, header_of, read_all, request_bytes
from tests.support.sources import small_graph

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

TOKEN = "a-token-for-tests-never-a-secret"
STRANGERS = 1000
MAX_GROWTH_MB = 64
GONE_S = 30.0
GARBAGE_BYTES = 100 << 20
ATTACK = Path(__file__).parents[2] / "benchmarks" / "hostile_strangers.py"
KINDS = (
    "silent",
    "half_heads",
    "half_handshakes",
    "greetings",
    "large_bodies",
    "wrong_tokens",
    "bytes_after_requests",
    "crowd",
    "key_updates",
)
ATTACKERS, ATTACK_S = 60, 4.0


class Server:
    """A process that is watched."""

    def __init__(self, pid: int, data: str) -> None:
        self.process = psutil.Process(pid)
        self.data = data

    def held(self) -> tuple[float, int, int]:
        """Return megabytes, threads and descriptors."""
        with self.process.oneshot():
            memory = self.process.memory_info().rss / 1e6
            return memory, self.process.num_threads(), self.process.num_fds()


@pytest.fixture(scope="module")
def server(graph: Path) -> Iterator[Server]:
    with LocalCluster(graph, servers=1, token=TOKEN) as cluster:
        (control,), (pid,) = cluster.addresses, cluster.pids
        with HostileClient(control, control, token=TOKEN) as caller:
            view = messages.ClusterView.FromString(caller.say("Cluster", b""))
        found = Server(pid, f"127.0.0.1:{view.servers[0].data_port}")
        ask(found)
        yield found


def ask(server: Server) -> float:
    """Make an honest call over a new connection, and return how long it took."""
    began = time.monotonic()
    with RawCaller(server.data, token=TOKEN) as caller:
        assert caller.ask(encode_graph_request(ManifestRequest(), ""))
    return time.monotonic() - began


def half_handshake() -> bytes:
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.slow
def test_a_thousand_strangers_hold_little_and_not_for_long(server: Server) -> None:
    wrong = request_bytes(b"x" * (8 << 20), header_of("wrong-token-of-some-length"))
    openings = cycle([b"", wrong[:31], wrong[:60], wrong[:4096], half_handshake(), b"GIGL"])
    memory, threads, descriptors = server.held()
    peak_mb, peak_threads = memory, threads
    began = time.monotonic()
    with ExitStack() as stack:
        strangers: list[socket.socket] = []
        for opening in islice(openings, STRANGERS):
            with suppress(ConnectionError):
                strangers.append(stack.enter_context(connected_socket(server.data, opening)))
            if len(strangers) % 100 == 0:
                ask(server)
                peak_mb, peak_threads = max(peak_mb, server.held()[0]), max(peak_threads, server.held()[1])
        while server.held()[2] > descriptors + 8 and time.monotonic() - began < 2 * GONE_S:
            ask(server)
            peak_mb, peak_threads = max(peak_mb, server.held()[0]), max(peak_threads, server.held()[1])
            time.sleep(0.5)
        assert time.monotonic() - began < GONE_S
    assert peak_mb - memory < MAX_GROWTH_MB
    assert peak_threads - threads < 16


def test_garbage_without_end_is_not_read(server: Server) -> None:
    memory = server.held()[0]
    taken: list[int] = []

    def pour(data: bytes) -> None:
        sent = 0
        with connected_socket(server.data) as stranger, suppress(OSError):
            while sent < GARBAGE_BYTES:
                sent += stranger.send(data)
        taken.append(sent)

    wrong = request_bytes(bytes(1 << 20), header_of("wrong-token-of-some-length"), body_bytes=GARBAGE_BYTES)
    poured = (bytes(1 << 20), b"GIGL" * 4096, wrong)
    threads = [threading.Thread(target=pour, args=(data,)) for data in poured]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ask(server)
        assert server.held()[0] - memory < MAX_GROWTH_MB
        time.sleep(0.05)
    assert max(taken) < GARBAGE_BYTES // 2


def test_who_is_refused_is_told_before_the_end(server: Server) -> None:
    request = request_bytes(bytes(256 << 10), header_of("wrong-token-of-some-length"))
    with connected_socket(server.data, request) as stranger:
        assert b"unauthenticated" in (read_all(stranger) or b"")


@pytest.mark.slow
@pytest.mark.skipif(not ATTACK.exists(), reason="the tests were copied without the benchmarks")
@pytest.mark.parametrize("kind", KINDS)
def test_strangers_of_any_kind_let_no_call_fail(kind: str) -> None:
    credentials = Credentials.ephemeral(["127.0.0.1"], token=TOKEN)
    trust = credentials.certificate.decode()
    request = encode_graph_request(ManifestRequest(), "")
    with build_server(small_graph(), [0], "127.0.0.1:0", credentials) as server, ExitStack() as stack:
        data = server.endpoint.data_address
        caller = stack.enter_context(RawCaller(data, token=TOKEN, trust=trust))
        assert caller.ask(request)
        memory = psutil.Process().memory_info().rss / 1e6
        scene = {
            "control": f"127.0.0.1:{server.endpoint.control_port}",
            "data": data,
            "token": "",
            "graph": "",
            "nodes": 0,
            "certificate": trust,
        }
        command = [sys.executable, str(ATTACK), kind, str(ATTACK_S), json.dumps(scene), str(ATTACKERS)]
        attack = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(attack.communicate)
        stack.callback(attack.kill)
        assert attack.stdout is not None
        assert attack.stdout.readline() == "ready\n"
        calls = 0
        while attack.poll() is None:
            assert caller.ask(request)
            if calls % 20 == 0:
                with RawCaller(data, token=TOKEN, trust=trust) as late:
                    assert late.ask(request)
            calls += 1
        assert json.loads(attack.stdout.read())["opened"] >= ATTACKERS
        assert calls >= ATTACKERS
        assert psutil.Process().memory_info().rss / 1e6 - memory < MAX_GROWTH_MB
