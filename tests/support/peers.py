"""Peer services in this process, and stores that ask them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.remote_store import RemoteStore
from gigl_server.peer_server import build_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.sampling.store import NeighborStore

TOKEN = "a token for tests, never a secret".replace(" ", "-")
CALLER = Caller(token=TOKEN)


@contextmanager
def served(graph: Graph, credentials: Credentials | None = None) -> Iterator[Endpoint]:
    """Serve every partition of ``graph`` on free ports of this machine, without TLS unless told."""
    parts = range(graph.schema.num_partitions)
    with build_server(graph, parts, "127.0.0.1:0", credentials or Credentials(token=TOKEN)) as server:
        yield server.endpoint


def remote_store(graph: Graph, endpoint: Endpoint, partition: int = 0, **changes: Any) -> RemoteStore:
    """Return a store of a partition that ``endpoint`` serves."""
    options = {"schema": graph.schema, "digest": graph.manifest.digest, "timeout_s": 20.0, **changes}
    return RemoteStore(endpoint, partition, options.pop("caller", CALLER), **options)


@contextmanager
def remote_stores(graph: Graph, credentials: Credentials | None = None) -> Iterator[list[NeighborStore]]:
    """Serve a graph and lend one store per partition."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(served(graph, credentials))
        stores: list[NeighborStore] = []
        for partition in range(graph.schema.num_partitions):
            store = remote_store(graph, endpoint, partition)
            stack.callback(store.close)
            stores.append(store)
        yield stores
