"""Handshake with a peer: whether it can be reached, is the right one and works."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc.certificates import check_dates, tls_fault
from gigl_loader.rpc.control import NO_TOKEN, ControlClient
from gigl_loader.rpc.endpoint import tcp_probe
from gigl_loader.rpc.replicas import connection_to
from gigl_loader.rpc.replies import assembled
from gigl_loader.rpc.requests import Envelope, encode_ping
from gigl_loader.rpc.versions import BuildVersions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.rpc import graph_store_pb2 as messages
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

_LOOK_S = 2.0
"""Timeout of a TLS handshake that finds out why a call failed."""


class HoldsOthers(ValueError):
    """A peer holds other partitions than its endpoint says. A storage server may gain and lose partitions."""


def check_peer(endpoint: Endpoint, caller: Caller, *, digest: str, timeout_s: float) -> messages.Description:
    """Return how a peer describes itself, whose ports both respond, and which has the expected graph.

    ``digest`` is that of the local graph. Raises ``StorageUnavailable`` where the peer cannot be reached, and
    ``ValueError`` where waiting cannot help: a wrong token, an invalid certificate, another graph, another
    version. ``HoldsOthers`` for other partitions.
    """
    deadline = time.monotonic() + timeout_s
    for port in (endpoint.control_port, endpoint.data_port):
        tcp_probe(endpoint, port, deadline)
    if endpoint.certificate:
        with _naming(endpoint):
            check_dates(endpoint.certificate)
    with ControlClient.connected(endpoint, caller) as client, _rpc_errors(endpoint, caller):
        found = client.describe(_left(deadline))
    wire = BuildVersions.of(found).agree(str(endpoint))
    _check_graph(endpoint, found.graph, digest)
    if tuple(found.partitions) != endpoint.partitions:
        raise HoldsOthers(
            f"{endpoint} holds partitions {list(found.partitions)}, not {list(endpoint.partitions)}"
        )
    _ping(endpoint, caller, digest, wire, _left(deadline))
    return found


def check_data_port(endpoint: Endpoint, caller: Caller, *, digest: str, timeout_s: float) -> None:
    """Check that the data port of a peer responds to requests about this graph. Raises as ``check_peer``."""
    deadline = time.monotonic() + timeout_s
    tcp_probe(endpoint, endpoint.data_port, deadline)
    _ping(endpoint, caller, digest, endpoint.wire_version, _left(deadline))


def peer_stats(endpoint: Endpoint, caller: Caller, *, timeout_s: float) -> messages.Statistics:
    """Return the counters of a peer since its start. Raises as ``check_peer``."""
    with ControlClient.connected(endpoint, caller) as client, _rpc_errors(endpoint, caller):
        return client.stats(timeout_s)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def _ping(endpoint: Endpoint, caller: Caller, digest: str, wire: int, timeout_s: float) -> None:
    if not endpoint.partitions:
        return
    connection = connection_to(endpoint, caller, timeout_s=timeout_s)
    try:
        request = encode_ping(Envelope(graph=digest, partition=endpoint.partitions[0], wire=wire))
        connection.call(request, assembled)
    except SamplingError as error:
        if isinstance(error, StorageUnavailable):
            raise
        raise ValueError(str(error)) from None
    finally:
        connection.close()


def _check_graph(endpoint: Endpoint, graph: str, digest: str) -> None:
    if graph != digest:
        raise ValueError(
            f"{endpoint} has another graph ({graph[:12]}, here {digest[:12]}): copy one and the same "
            "partitioned graph to all hosts"
        )


@contextmanager
def _naming(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{endpoint}: {error}") from None


@contextmanager
def _rpc_errors(endpoint: Endpoint, caller: Caller) -> Iterator[None]:
    """Translate exceptions of gRPC."""
    try:
        yield
    except grpc.RpcError as error:
        details = " ".join(str(error.details()).split())[:300]
        code = error.code()
        if code is grpc.StatusCode.UNAUTHENTICATED:
            raise ValueError(f"{endpoint}: {details if caller.token else NO_TOKEN}") from None
        if code is grpc.StatusCode.PERMISSION_DENIED:
            raise ValueError(f"{endpoint}: {details}") from None
        fault = tls_fault(endpoint, caller, endpoint.control_port, _LOOK_S)
        if fault is not None:
            raise ValueError(f"{endpoint}: {fault}") from None
        raise StorageUnavailable(f"{endpoint}: {code.name}: {details}") from None
