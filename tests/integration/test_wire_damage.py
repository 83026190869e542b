"""Bits that flip on a plain-text wire: a batch comes right, or not at all."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.rpc.checksums import Crc32c
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.store import DrawRule, FeatureRequest, NeighborRequest
from tests.support.clusters import addresses_of, servers_of
from tests.support.peers import remote_store, served
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.sources import small_graph
from tests.support.training import FANOUT, OPTIONS, digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_loader.sampling.store import NeighborStore

FLIPS = 120
EDGE = ("node", "to", "node")


def neighbors(store: NeighborStore, key: int) -> list[npt.NDArray[Any]]:
    drawn = store.sample(
        NeighborRequest(
            edge_type=EDGE,
            targets=np.arange(40),
            key=key,
            hop=0,
            rule=DrawRule(fanout=4, replace=True),
            with_edge_ids=True,
            with_slots=False,
        )
    )
    assert drawn.edge_ids is not None
    return [drawn.counts, drawn.positions, drawn.edge_ids]


def rows(store: NeighborStore, key: int) -> list[npt.NDArray[Any]]:
    width = small_graph().schema.nodes["node"].columns["x"].row_bytes
    asked = np.random.default_rng(key).integers(0, 40, 60)
    out = np.zeros((60, width), np.uint8)
    store.gather(FeatureRequest(kind="node", columns=("x",), rows=asked), np.arange(60), [out])
    return [out]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["neighbors", "rows"])
@pytest.mark.timeout(400)
def test_answers_of_a_peer_come_right_or_not_at_all(kind: str) -> None:
    ask = {"neighbors": neighbors, "rows": rows}[kind]
    graph = small_graph()
    local = LocalStore(graph, 0)
    asked = delivered = 0
    with served(graph) as endpoint, Proxy((endpoint.host, endpoint.data_port)) as proxy:
        store = remote_store(
            graph, replace(endpoint, data_port=proxy.address[1]), timeout_s=5.0, attempt_s=0.5
        )
        proxy.flip_bits(every=4_000, seed=0)
        while proxy.flips < FLIPS:
            with suppress(GiglError):
                found = ask(store, asked)
                for mine, right in zip(found, ask(local, asked), strict=True):
                    np.testing.assert_array_equal(mine, right)
                delivered += 1
            asked += 1
        assert store.wire().damaged > FLIPS // 20
        store.close()
    local.close()
    assert delivered > FLIPS // 10


def test_a_reply_that_is_always_damaged_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Crc32c):
        @property
        def value(self) -> int:
            return super().value ^ 1

    monkeypatch.setattr("gigl_server.ports.data.Crc32c", Wrong)
    graph = small_graph()
    with served(graph) as endpoint:
        store = remote_store(graph, endpoint, timeout_s=1.0)
        with pytest.raises(StorageUnavailable, match="does not match its checksum"):
            rows(store, 0)
        assert store.wire().damaged > 3
        store.close()


def drain(batches: Iterator[Any], right: set[int]) -> tuple[int, int]:
    """Return how many batches came, all of them right, and how many failed."""
    came = failed = 0
    while True:
        try:
            for batch in islice(batches, 1):
                assert digest(batch) in right
                came += 1
                break
            else:
                return came, failed
        except (GiglError, TimeoutError):
            failed += 1


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("rows", ["through", "direct"])
def test_batches_of_a_storage_server_come_right_or_not_at_all(
    graph: Path, expected: list[int], rows: Literal["through", "direct"]
) -> None:
    port = free_port(count=2)
    ports = port, port + 1
    listen = {"listen": f"127.0.0.1:{ports[0]}", "data_port": ports[1], "advertise": "127.0.0.77"}
    with ExitStack() as stack:
        lines = [
            stack.enter_context(Proxy(("127.0.0.1", each), listen=("127.0.0.77", each))) for each in ports
        ]
        servers = stack.enter_context(servers_of(graph, 2, special={1: listen}))
        dataset = stack.enter_context(
            RemoteDistDataset.connect(addresses_of(servers), timeout=30, transport="network", rows=rows)
        )
        loader = stack.enter_context(
            DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS | {"timeout": 30.0})
        )
        came = 0
        first = loader.state_dict()
        epoch = iter(loader)
        came += drain(epoch, set(expected))[0]
        data = lines[1]
        data.flip_bits(every=20_000, seed=0)
        while data.flips < FLIPS // 2:
            loader.load_state_dict(first)
            came += drain(iter(loader), set(expected))[0]
        for line in lines:
            line.close()  # A connection whose framing is damaged may hold up the server's end.
    assert came > len(expected)


UNKNOWN_ERROR = """
import socket, struct, threading
import grpc

def frame(kind, flags, content):
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + bytes(4) + content

def serve(listening):
    connection, _ = listening.accept()
    connection.recv(1000)
    connection.sendall(frame(4, 0, b"") + frame(4, 1, b""))
    connection.recv(1000)  # The call.
    connection.sendall(frame(7, 0, struct.pack(">II", 0, 14)))  # HTTP/2 defines error codes 0 to 13.
    connection.recv(1000)
    listening.close()

listening = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listening,), daemon=True).start()
channel = grpc.insecure_channel(f"127.0.0.1:{listening.getsockname()[1]}")
try:
    channel.unary_unary("/service/call")(b"", timeout=3)
except grpc.RpcError:
    print("raised")
"""


def test_an_error_code_that_http2_does_not_define_ends_no_client() -> None:
    """As damage makes one. The C core of some releases of gRPC aborts: pyproject.toml leaves them out."""
    command = [sys.executable, "-c", UNKNOWN_ERROR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "raised\n"), done.stderr
