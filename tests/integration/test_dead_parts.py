"""Servers of which a part dies: they say so, end with code 3, and are started again."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.command_line import COMMAND, address_in, line_with
from tests.support.leftovers import wait_until
from tests.support.listeners import shut_listener
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from pathlib import Path

SAMPLING_THREAD_ENDS = """
import sys, threading
from gigl_server.sampling import scheduler
real = scheduler.Scheduler.next
def next(self):
    task = real(self) if threading.current_thread().name != "sampler 1" else sys.exit()
    return task
scheduler.Scheduler.next = next
from gigl_loader.cli import main
main()
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("dead") / "graph")


def ended(process: subprocess.Popen[str], seconds: float = 60.0) -> str:
    """Return the rest of the log of a server that ends by itself, with the code for it."""
    try:
        _, rest = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 3, rest
    return rest


@pytest.mark.slow
@pytest.mark.parametrize("port", ["control", "data"])
def test_a_server_whose_port_died_ends_with_code_3(graph: Path, port: str) -> None:
    arguments = ["serve", str(graph), "--listen", "127.0.0.1:0", "--workers", "1"]
    process = subprocess.Popen([*COMMAND, *arguments], text=True, stderr=subprocess.PIPE)
    starting = line_with(process, "data port")
    numbers = {
        "control": int(address_in(starting).rpartition(":")[2]),
        "data": int(re.findall(r"data port (\d+)", starting)[0]),
    }
    line_with(process, "ready")
    shut_listener(process.pid, numbers[port])
    rest = ended(process)
    assert f"the {port} port is dead: nothing listens at 127.0.0.1:{numbers[port]}" in rest
    assert "Traceback" not in rest


@pytest.mark.slow
def test_a_server_whose_sampling_thread_died_ends_with_code_3(graph: Path) -> None:
    arguments = ["serve", str(graph), "--listen", "127.0.0.1:0", "--workers", "2"]
    process = subprocess.Popen(
        [COMMAND[0], "-c", SAMPLING_THREAD_ENDS, *arguments], text=True, stderr=subprocess.PIPE
    )
    assert "the sampling service is dead: its thread 'sampler 1' ended" in ended(process)


@pytest.mark.slow
def test_health_says_that_a_part_is_dead(graph: Path) -> None:
    options = ServeOptions(graph_dir=str(graph), listen="127.0.0.1:0", metrics="127.0.0.1:0", workers=1)
    with build_storage_server(options) as server:
        server.wait_ready(30)
        assert asked(server.metrics_address) == (200, "ready")
        shut_listener(os.getpid(), server.endpoint.control_port)
        assert wait_until(lambda: asked(server.metrics_address)[0] == 503, seconds=30)
        assert "the control port is dead" in asked(server.metrics_address)[1]
        assert server.died.is_set()


def asked(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=10) as reply:
            return reply.status, reply.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()
