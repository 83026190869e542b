"""What a child of a local cluster tells its parent."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.rpc import server_process
from gigl_server.child import Parent


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError("no graph"), ["FileNotFoundError", "no graph"]),
        (OSError("taken"), ["OSError", "taken"]),
        (ValueError("wrong"), ["ValueError", "wrong"]),
        (StorageUnavailable("away"), ["GiglError", "away"]),
        (RuntimeError("a mistake of ours"), ["GiglError", "a mistake of ours"]),
        (MemoryError(), ["GiglError", "MemoryError"]),
    ],
)
def test_any_error_is_told(error: Exception, told: list[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb") as lines:
        Parent(theirs, lines).tell_error(error)
        Parent(theirs, lines).tell_error(error, "server 1")
        with ours.makefile("rb") as said:
            assert json.loads(said.readline()) == {"error": told}
            assert json.loads(said.readline()) == {"error": [told[0], f"server 1: {told[1]}"]}


def test_a_wait_that_had_no_time_left_leaves_time_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a socket takes at once, to a child that reads it a moment later."""
    ends: list[socket.socket] = []

    def process(_: str, link: socket.socket, **options: Any) -> Any:
        ends.append(link.dup())
        return SimpleNamespace(pid=1, wait=lambda _: 0, send_signal=print)

    monkeypatch.setattr(server_process, "FreshProcess", process)
    life = server_process.ServerProcess("module:function", {"name": "server"}, name="server")
    [child] = ends
    with child, child.makefile("rb") as lines:
        assert json.loads(lines.readline()) == {"name": "server", "parent_pid": os.getpid()}
        with pytest.raises(TimeoutError, match="server did not listen in time"):
            life.bound(0.0)
        peers = ["host:1"] * 500_000
        heard: list[Any] = []
        late = threading.Timer(0.2, lambda: heard.append(json.loads(lines.readline())))
        late.start()
        life.meet(peers)
        late.join(20)
        child.sendall(b'{"error": ["GiglError", "server: why"]}\n')
        with pytest.raises(GiglError, match=r"^server: why$"):
            life.bound(time.monotonic() + 20)
    assert heard == [{"peers": peers}]
    life.end()
