"""Storage servers in this process, and what their batches must equal."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.graph.graph import Graph
from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.pyg_graphs import same_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gigl_server.server import StorageServer

READY_S = 60.0


def held_by(server: int, *, of: int, partitions: int) -> tuple[int, ...]:
    """Return what a server holds where partitions are dealt out in turn: they need not be neighbours."""
    return tuple(range(server, partitions, of))


@contextmanager
def servers_of(
    graph: Path,
    count: int,
    *,
    workers: int = 1,
    special: dict[int, dict[str, Any]] | None = None,
    **options: Any,
) -> Iterator[list[StorageServer]]:
    """Serve a graph from ``count`` servers on free ports, ready when given. Each is told of the first.

    ``options`` are of ``ServeOptions``; ``special`` has further ones by server.
    """
    partitions = Graph.open(graph).schema.num_partitions
    with ExitStack() as stack:
        servers: list[StorageServer] = []
        for index in range(count):
            settings: dict[str, Any] = {
                "graph_dir": graph,
                "partitions": held_by(index, of=count, partitions=partitions),
                "listen": "127.0.0.1:0",
                "peers": tuple(addresses_of(servers[:1])),
                "workers": workers,
            }
            settings |= options | (special or {}).get(index, {})
            servers.append(stack.enter_context(build_storage_server(ServeOptions(**settings))))
        for server in servers:
            server.wait_ready(READY_S)
        yield servers


def addresses_of(servers: Sequence[StorageServer]) -> list[str]:
    return [server.endpoint.control_address for server in servers]


def embedded(graph: Path, *arguments: Any, **options: Any) -> list[Any]:
    """Return the batches of an epoch as one process makes them, alone and from all of the graph."""
    options = {"num_workers": 0} | options
    with DistNeighborLoader(DistDataset.open(graph), *arguments, **options) as loader:
        return list(loader)


def check_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Fail unless the batches are these, bit for bit and in this order."""
    assert len(found) == len(expected)
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        assert same_batch(left, right), f"batch {number} differs"
