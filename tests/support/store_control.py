"""A control port with a sampling service behind it, and clients of it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader.rpc.control import ClusterView
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.versions import BuildVersions
from gigl_server.cluster.membership import View
from gigl_server.cluster.peers import PeerResponse
from gigl_server.counters import Counters
from gigl_server.ports.auth import AuthenticatedCalls
from gigl_server.ports.control import ControlService
from tests.support.made import record_made
from tests.support.peers import TOKEN
from tests.support.sources import PLAN, small_graph
from tests.support.store_service import service_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_server.sampling.service import SamplingService


@dataclass(frozen=True)
class Served:
    """A control port, what is behind it, and where it is."""

    control: ControlService
    service: SamplingService
    endpoint: Endpoint
    calls: AuthenticatedCalls
    """Of the port."""


@contextmanager
def controlled(
    *, credentials: Credentials | None = None, options: dict[str, Any] | None = None, **service: Any
) -> Iterator[Served]:
    """Serve the small graph's control calls. ``options`` are of the port, others of the service."""
    given = Credentials(token=TOKEN) if credentials is None else credentials
    with service_of(**service) as found, pytest.MonkeyPatch.context() as patch:
        calls = record_made(patch, AuthenticatedCalls)
        control = ControlService(
            Address("127.0.0.1", 0),
            given,
            Counters(),
            graph=small_graph().manifest.digest,
            partitions=[0],
            data_port=4711,
            service=found,
            **{"view": lambda: _alone(found), **(options or {})},
        )
        endpoint = Endpoint(
            what="storage server",
            host_index=0,
            host="127.0.0.1",
            control_port=control.port,
            data_port=control.port,
            partitions=(),
            certificate=given.trusted,
        )
        try:
            yield Served(control, found, endpoint, calls[0])
        finally:
            control.close()


def _alone(service: SamplingService) -> View:
    ready = service.state == "ready"
    return View(members=(), ready=ready, reason="" if ready else service.state)


@contextmanager
def client_of(
    endpoint: Endpoint, *, job: str = "a" * 64, caller: Caller | None = None
) -> Iterator[StoreClient]:
    """Lend a client of a job."""
    client = StoreClient(endpoint, Caller(token=TOKEN) if caller is None else caller, job)
    try:
        yield client
    finally:
        client.close()


def opened(client: StoreClient, *, key: str = "train", **order: Any) -> bytes:
    """Create a producer of the usual plan and open a channel of it."""
    client.create_producer(key, PLAN.to_json(), small_graph().manifest.digest, 10)
    given = {"name": "train rank 0", "credit": 64, **order}
    return client.open_channel(key, timeout_s=10, **given).id


def response_of(itself: Endpoint, *others: str, graph: str, **changes: Any) -> PeerResponse:
    """Return the response of a server that knows others at some addresses. ``changes`` are of its view."""
    known = [Endpoint.of_address(Address.parse(each), what="storage server") for each in others]
    view = ClusterView(
        version="1",
        wire_version=BuildVersions.own().wire,
        oldest_wire_version=0,  # Not told, as by the oldest builds.
        draw_specification=0,
        graph=graph,
        partitions=itself.partitions,
        data_port=itself.data_port,
        pid=1,
        uptime_s=1.0,
        servers=(itself, *known),
        membership=0,
        away=frozenset(),
        incarnation=itself.incarnation,
        ready=True,
        reason="",
    )
    return PeerResponse(itself, replace(view, **changes))
