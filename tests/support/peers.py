"""Peer services in this process, and stores that ask them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.holders import Holders
from gigl_loader.rpc.remote_store import RemoteStore
from gigl_loader.rpc.replicas import Replicas
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


def remote_store(
    graph: Graph,
    endpoint: Endpoint,
    partition: int = 0,
    *,
    caller: Caller = CALLER,
    timeout_s: float = 20.0,
    attempt_s: float = 30.0,
    digest: str | None = None,
) -> RemoteStore:
    """Return a store of a partition that ``endpoint`` serves."""
    replicas = Replicas(Holders([endpoint], key=""), caller, timeout_s=timeout_s, attempt_s=attempt_s)
    digest = graph.manifest.digest if digest is None else digest
    return RemoteStore(replicas.connection(partition), schema=graph.schema, digest=digest)


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
