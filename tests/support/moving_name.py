"""A storage server that moves to another address under its name: run in a mount namespace of its own.

``unshare --mount python -m tests.support.moving_name GRAPH HOSTS``: ``HOSTS`` is mounted as /etc/hosts.
Prints one line, "moved", when clients that were connected before reach the server at its new address.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError
from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.replicas import connection_to
from gigl_loader.rpc.replies import assembled
from gigl_loader.rpc.requests import Envelope, encode_ping
from gigl_loader.rpc.store_client import StoreClient
from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.leftovers import wait_until
from tests.support.ports import free_port

if TYPE_CHECKING:
    from gigl_server.server import StorageServer

NAME = "store.moving.test"
SECONDS = 20.0


def main() -> None:
    graph, hosts = Path(sys.argv[1]), Path(sys.argv[2])
    point_to("127.0.0.71", hosts)
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    port = free_port(count=2)
    with started(graph, "127.0.0.71", port) as server:
        endpoint = server.endpoint
        client, data = StoreClient(endpoint, Caller()), connection_to(endpoint, Caller(), timeout_s=SECONDS)
        ping = encode_ping(Envelope(graph=Graph.open(graph).manifest.digest, partition=0))
        before = client.cluster(SECONDS).incarnation
        data.call(ping, assembled)
    point_to("127.0.0.72", hosts)
    with started(graph, "127.0.0.72", port):
        assert reached(client) != before
        data.call(ping, assembled)
        client.close()
        data.close()
    print("moved")


def point_to(address: str, hosts: Path) -> None:
    """Give the name this address. The file is written in place, because it is mounted."""
    hosts.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")


def started(graph: Path, address: str, port: int) -> StorageServer:
    server = build_storage_server(
        ServeOptions(
            graph_dir=graph, listen=f"{address}:{port}", data_port=port + 1, advertise=NAME, workers=1
        )
    )
    server.wait_ready(SECONDS)
    return server


def reached(client: StoreClient) -> int:
    """Return the incarnation of the server that the client reaches in time."""
    found: list[int] = []

    def answers() -> bool:
        with suppress(GiglError):
            found.append(client.cluster(1.0).incarnation)
        return bool(found)

    assert wait_until(answers, seconds=SECONDS)
    return found[0]


if __name__ == "__main__":
    main()
