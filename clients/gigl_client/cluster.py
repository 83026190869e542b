"""Connections of one process to the storage servers of one graph."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_client.discovery import find_servers, read_addresses
from gigl_client.heartbeats import Heartbeats
from gigl_loader.graph.manifest import Manifest
from gigl_loader.group import RankGroup
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.directory import fetch_manifest
from gigl_loader.rpc.job import new_job
from gigl_loader.rpc.remote_store import open_remote_stores
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.sampling.partitioned import PartitionedStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_client.discovery import Found
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["Cluster", "Server", "connect_cluster"]


@dataclass(frozen=True, slots=True, eq=False)
class Server:
    """One storage server and the connections to it."""

    endpoint: Endpoint
    client: StoreClient
    """Client of the control port."""
    connection: Connection
    """Connection to the data port."""

    @property
    def rank(self) -> int:
        """Index of the server by ascending smallest partition."""
        return self.endpoint.host_index

    @classmethod
    def connect(cls, endpoint: Endpoint, caller: Caller, *, job: str, timeout_s: float) -> Server:
        """Return a server. Sends nothing yet. Requests to the data port are retried for ``timeout_s``."""
        return cls(
            endpoint,
            StoreClient(endpoint, caller, job),
            Connection(endpoint, caller, timeout_s=timeout_s, job=job),
        )


class Cluster:
    """All servers of a graph. Connections end with ``close``, or when the object is collected."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        schema: GraphSchema,
        graph_digest: str,
        job: str,
        caller: Caller,
        timeout_s: float,
    ) -> None:
        """``endpoints`` are by rank. ``job`` is the secret of the job's ranks, 64 hex digits."""
        self.servers = tuple(
            Server.connect(endpoint, caller, job=job, timeout_s=timeout_s) for endpoint in endpoints
        )
        self.schema = schema
        self.graph_digest = graph_digest
        self.job = job
        self.caller = caller
        self.timeout_s = timeout_s
        self.heartbeats = Heartbeats([server.client.heartbeat for server in self.servers])
        """Renew the leases of open channels. They hold no reference to the cluster."""
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, self.servers, self.heartbeats, self._owner)

    def open_store(self, *, timeout_s: float, concurrency: int = 1) -> PartitionedStore:
        """Return a store of all partitions. Each request to an owner is retried for ``timeout_s`` at most.

        The caller closes the store. ``concurrency`` is the number of batches that use it at the same time.
        """
        remote = open_remote_stores(
            {part: server.endpoint for server in self.servers for part in server.endpoint.partitions},
            self.caller,
            schema=self.schema,
            digest=self.graph_digest,
            timeout_s=timeout_s,
        )
        return PartitionedStore(self.schema, local={}, remote=remote, concurrency=concurrency)

    def check_usable(self) -> None:
        """Raise ``RuntimeError`` in a forked child, ``ValueError`` after ``close``."""
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"this RemoteDistDataset belongs to process {self._owner}: network connections do not "
                "survive a fork; connect in the process that uses it"
            )
        if not self._end.alive:
            raise ValueError("the dataset was closed: build loaders before, and shut them down first")

    def close(self) -> None:
        """Disconnect. Closing twice is fine, and in a forked child it does nothing."""
        self._end()


def _end(servers: Sequence[Server], heartbeats: Heartbeats, owner: int) -> None:
    if os.getpid() != owner:
        return
    heartbeats.stop()
    for server in servers:
        server.client.close()
        server.connection.close()


def connect_cluster(addresses: str | Sequence[str], caller: Caller, *, timeout_s: float) -> Cluster:
    """Connect to the cluster that one of ``addresses`` belongs to.

    Raises what ``find_servers`` raises, and ``ValueError`` for servers that do not hold one whole graph.
    """
    group = RankGroup.current()
    rank, world_size = (0, 1) if group is None else (group.rank, group.world_size)
    found = find_servers(
        read_addresses(addresses), caller, timeout_s=timeout_s, rank=rank, world_size=world_size
    )
    schema = _manifest(found, caller, timeout_s, rank).schema
    _check_complete(found, schema)
    return Cluster(
        found.endpoints,
        schema=schema,
        graph_digest=found.graph,
        job=_shared_job(found.graph, timeout_s),
        caller=caller,
        timeout_s=timeout_s,
    )


def _manifest(found: Found, caller: Caller, timeout_s: float, rank: int) -> Manifest:
    """Return the ``graph.json`` of a server. ``ValueError`` unless it has the digest of the cluster.

    Ranks ask different servers: with hundreds of partitions it has a megabyte.
    """
    server = found.endpoints[rank % len(found.endpoints)]
    connection = Connection(server, caller, timeout_s=timeout_s)
    try:
        manifest = Manifest.parse(fetch_manifest(connection), what=f"graph.json of {server}")
    finally:
        connection.close()
    if manifest.digest != found.graph:
        raise ValueError(
            f"{server} has another graph than it said: was it restarted on another one just now?"
        )
    return manifest


def _check_complete(found: Found, schema: GraphSchema) -> None:
    """Raise ``ValueError`` unless each partition has one server."""
    held = sorted(part for endpoint in found.endpoints for part in endpoint.partitions)
    if held != list(range(schema.num_partitions)):
        raise ValueError(
            f"the servers of this cluster hold the partitions {held}, and the graph has "
            f"{schema.num_partitions}: start one server for each"
        )


def _shared_job(graph: str, timeout_s: float) -> str:
    """Return the secret of this job, which the first rank to connect to this graph chooses."""
    job = new_job()
    group = RankGroup.current(patience_s=timeout_s)
    if group is None:
        return job
    key = f"store/{graph[:16]}"
    return group.first(f"{key}/{group.turn(key)}/job", job)
