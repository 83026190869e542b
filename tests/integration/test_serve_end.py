"""A storage server ends in time, whatever its callers do: a real process, real signals, raw callers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.graph_requests import ListRequest, encode_graph_request
from gigl_loader.rpc.requests import Envelope, encode
from gigl_loader.sampling.store import FeatureRequest
from gigl_server.ports.data import _FREELY_S
from tests.support.stalled import StalledCaller

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRAIN_S = 2
WITHIN_S = 8.0
"""After the drain."""

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

    def __init__(self, graph: Path, log: Path) -> None:
        self.log = log
        program = "from gigl_loader.cli import main; main()"
        command = ["-c", program, "serve", str(graph), "--listen", "127.0.0.1:0"]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--drain", str(DRAIN_S), "--data-port", "0"],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.data = "127.0.0.1:" + self._told(r"data port (\d+)")
        self._told("ready: (.)")

    def _told(self, pattern: str) -> str:
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
def serving(graph: Path, log: Path) -> Iterator[Server]:
    server = Server(graph, log)
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


STUCK = """
import threading
from gigl_server.forced_exit import leave_within
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
