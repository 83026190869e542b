"""From addresses to a connected cluster, whose job is that of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_client.cluster import Cluster
from gigl_client.discovery import find_servers, read_addresses
from gigl_loader.graph.manifest import Manifest
from gigl_loader.group import RankGroup
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.directory import fetch_manifest
from gigl_loader.rpc.job import new_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_client.discovery import Found
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.rpc.credentials import Caller

__all__ = ["connect_cluster"]


def connect_cluster(addresses: str | Sequence[str], caller: Caller, *, timeout_s: float) -> Cluster:
    """Return the cluster of which one server, at least, has one of these addresses.

    Raises what ``find_servers`` does, and ``ValueError`` for servers that do not make up one graph.
    """
    found = find_servers(read_addresses(addresses), caller, timeout_s=timeout_s)
    schema = _manifest(found, caller, timeout_s).schema
    _check_complete(found, schema)
    return Cluster(
        found.endpoints,
        schema=schema,
        graph_digest=found.graph,
        job=_shared_job(found.graph, timeout_s),
        caller=caller,
        timeout_s=timeout_s,
    )


def _manifest(found: Found, caller: Caller, timeout_s: float) -> Manifest:
    """Return the ``graph.json`` of a server, which has the digest that all servers say."""
    server = found.endpoints[0]
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
    """Return the secret of this job: that of the rank which connects to this graph first."""
    job = new_job()
    group = RankGroup.current(patience_s=timeout_s)
    if group is None:
        return job
    key = f"store/{graph[:16]}"
    return group.first(f"{key}/{group.turn(key)}/job", job)
