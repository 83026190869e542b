"""A storage server needs no torch: its image has none. Here, as a process, from its start to SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.learnable import learnable_graph

SERVE = """
import sys
sys.modules["torch"] = sys.modules["torch_geometric"] = None
from gigl_loader.cli import main
main()
"""


@pytest.mark.usefixtures("no_leftovers")
def test_a_server_becomes_ready_and_drains_without_torch(tmp_path: Path) -> None:
    graph = learnable_graph(tmp_path / "graph", num_partitions=1)
    command = [sys.executable, "-c", SERVE, "serve", str(graph), "--listen", "127.0.0.1:0"]
    told = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            for line in server.stderr:  # Ends with the server, if it ends before it is ready.
                told += line
                if "ready" in line:
                    break
            server.send_signal(signal.SIGTERM)
            told += server.communicate(timeout=30)[1]
        finally:
            server.kill()
    assert server.returncode == 0, told
    assert "draining" in told
