"""Handshake with a peer: whether it can be reached, is the right one and works."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.printable import printable
from gigl_loader.retry import Deadline
from gigl_loader.rpc.certificates import check_dates, tls_fault
from gigl_loader.rpc.control import NO_TOKEN, ControlClient
from gigl_loader.rpc.endpoint import tcp_probe
from gigl_loader.rpc.replicas import connection_to
from gigl_loader.rpc.replies import bounded
from gigl_loader.rpc.requests import Envelope, encode_ping
from gigl_loader.rpc.versions import BuildVersions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.rpc import graph_store_pb2 as messages
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

_LOOK_S = 2.0
"""Timeout of a TLS handshake that finds out why a call failed."""
_SHORTEST_S = 0.001
"""Timeout of a call for which no time is left."""


class HoldsOthers(ValueError):
    """A peer holds other partitions than its endpoint says. A storage server may gain and lose partitions."""


def check_peer(endpoint: Endpoint, caller: Caller, *, digest: str, timeout_s: float) -> messages.Description:
    """Return how a peer describes itself, whose ports both respond, and which has the expected graph.

    ``digest`` is that of the local graph. Raises ``StorageUnavailable`` where the peer cannot be reached, and
    ``ValueError`` where waiting cannot help: a wrong token, an invalid certificate, another graph, another
    version. ``HoldsOthers`` for other partitions.
    """
    deadline = Deadline.after(timeout_s)
    for port in (endpoint.control_port, endpoint.data_port):
        tcp_probe(endpoint, port, deadline.at)
    if endpoint.certificate:
        with _naming(endpoint):
            check_dates(endpoint.certificate)
    with ControlClient.connected(endpoint, caller) as client, _rpc_errors(endpoint, caller, deadline):
        found = client.describe(deadline.left_s())
    wire = BuildVersions.of(found).agree(str(endpoint))
    _check_graph(endpoint, found.graph, digest)
    if tuple(found.partitions) != endpoint.partitions:
        raise HoldsOthers(
            f"{endpoint} holds partitions {list(found.partitions)}, not {list(endpoint.partitions)}"
        )
    _ping(endpoint, caller, digest, wire, deadline)
    return found


def check_data_port(endpoint: Endpoint, caller: Caller, *, digest: str, timeout_s: float) -> None:
    """Check that the data port of a peer responds to requests about this graph. Raises as ``check_peer``."""
    deadline = Deadline.after(timeout_s)
    tcp_probe(endpoint, endpoint.data_port, deadline.at)
    _ping(endpoint, caller, digest, endpoint.wire_version, deadline)


def peer_stats(endpoint: Endpoint, caller: Caller, *, timeout_s: float) -> messages.Statistics:
    """Return the counters of a peer since its start. Raises as ``check_peer``."""
    deadline = Deadline.after(timeout_s)
    with ControlClient.connected(endpoint, caller) as client, _rpc_errors(endpoint, caller, deadline):
        return client.stats(deadline.left_s())


def _ping(endpoint: Endpoint, caller: Caller, digest: str, wire: int, deadline: Deadline) -> None:
    if not endpoint.partitions:
        return
    connection = connection_to(endpoint, caller, timeout_s=max(deadline.left_s(), _SHORTEST_S))
    try:
        request = encode_ping(Envelope(graph=digest, partition=endpoint.partitions[0], wire=wire))
        connection.call(request, bounded(0))
    except SamplingError as error:
        if isinstance(error, StorageUnavailable):
            raise
        raise ValueError(str(error)) from None
    finally:
        connection.close()


def _check_graph(endpoint: Endpoint, graph: str, digest: str) -> None:
    if graph != digest:
        raise ValueError(
            f"{endpoint} has another graph ({printable(graph[:12])}, here {digest[:12]}): copy one and the "
            "same partitioned graph to all hosts"
        )


@contextmanager
def _naming(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{endpoint}: {error}") from None


@contextmanager
def _rpc_errors(endpoint: Endpoint, caller: Caller, deadline: Deadline) -> Iterator[None]:
    """Translate exceptions of gRPC."""
    try:
        yield
    except grpc.RpcError as error:
        details = printable(" ".join(str(error.details()).split()), 300)
        code = error.code()
        if code is grpc.StatusCode.UNAUTHENTICATED:
            raise ValueError(f"{endpoint}: {details if caller.token else NO_TOKEN}") from None
        if code is grpc.StatusCode.PERMISSION_DENIED:
            raise ValueError(f"{endpoint}: {details}") from None
        left_s = deadline.left_s(_LOOK_S)
        fault = tls_fault(endpoint, caller, endpoint.control_port, left_s) if left_s else None
        if fault is not None:
            raise ValueError(f"{endpoint}: {fault}") from None
        raise StorageUnavailable(f"{endpoint}: {code.name}: {details}") from None
