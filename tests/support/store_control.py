"""Both ports of a sampling service, and clients of them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.native.draws import DRAW_SPECIFICATION
from gigl_loader.rpc.calls import Cancellation
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.control import ClusterView
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.reply_stream import read_sample_reply
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tokens import JOB_HEADER
from gigl_loader.rpc.versions import BuildVersions
from gigl_server.cluster.membership import View
from gigl_server.cluster.peers import PeerResponse
from gigl_server.counters import Counters
from gigl_server.logs import AuditLog
from gigl_server.ports.auth import AuthenticatedCalls
from gigl_server.ports.control import ControlService
from gigl_server.ports.data import DataPort
from gigl_server.ports.queries import Queries
from gigl_server.ports.sample_calls import SampleCalls
from tests.support.made import record_made
from tests.support.peers import TOKEN
from tests.support.raw_data import RawSample, header_of
from tests.support.sources import PLAN, small_graph
from tests.support.store_service import service_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.rpc.graph_store_pb2 import SampleReply, SampleRequest
    from gigl_loader.rpc.reply_stream import ReplyStream
    from gigl_server.sampling.service import SamplingService


_DATA_ADDRESS = Address("127.0.0.1", 0)


@dataclass(frozen=True)
class Served:
    """Both ports, what is behind them, and where they are."""

    control: ControlService
    data: DataPort
    service: SamplingService
    endpoint: Endpoint
    calls: AuthenticatedCalls
    """Of the control port."""


@contextmanager
def controlled(
    *, credentials: Credentials | None = None, options: dict[str, Any] | None = None, **service: Any
) -> Iterator[Served]:
    """Serve the small graph's control calls. ``options`` are of the port, others of the service."""
    given = Credentials(token=TOKEN) if credentials is None else credentials
    with service_of(**service) as found, pytest.MonkeyPatch.context() as patch:
        calls = record_made(patch, AuthenticatedCalls)
        counters, chosen = Counters(), {"view": lambda: _alone(found), **(options or {})}
        queries = Queries(small_graph(), [0], counters)
        data = DataPort(
            _DATA_ADDRESS,
            queries,
            counters,
            given,
            audit=chosen.get("audit") or AuditLog(),
            access=chosen.get("access"),
            samples=SampleCalls(found, counters, view=chosen["view"], membership=int),
        )
        control = ControlService(
            Address("127.0.0.1", 0),
            given,
            counters,
            graph=small_graph().manifest.digest,
            partitions=[0],
            data_port=4711,
            service=found,
            **chosen,
        )
        endpoint = Endpoint(
            what="storage server",
            host_index=0,
            host="127.0.0.1",
            control_port=control.port,
            data_port=data.port,
            partitions=(),
            certificate=given.trusted,
        )
        try:
            yield Served(control, data, found, endpoint, calls[0])
        finally:
            control.close()
            data.close()
            queries.close()


def _alone(service: SamplingService) -> View:
    ready = service.state == "ready"
    return View(members=(), ready=ready, reason="" if ready else service.state)


class JobClient(StoreClient):
    """Client of both ports, for one job."""

    def __init__(self, endpoint: Endpoint, caller: Caller, job: str) -> None:
        super().__init__(endpoint, caller, job)
        self._header = header_of(caller.token, (JOB_HEADER, job))
        self.data = Connection(endpoint, caller, timeout_s=20, job=job)

    def sample(self, request: SampleRequest) -> RawSample:
        """Request a batch. The reply is waited for without a thread."""
        return RawSample(self.endpoint.data_address, request.SerializeToString(), self._header)

    def sampled(
        self, request: SampleRequest, timeout_s: float = 20, cancellation: Cancellation | None = None
    ) -> SampleReply:
        """Request a batch as trainers do, and wait for the reply. Its frame is read and dropped."""

        def read(reply: ReplyStream) -> SampleReply:
            found = read_sample_reply(reply)
            reply.read(np.empty(reply.nbytes - reply.received, np.uint8))
            reply.finish()
            return found

        body, ended = request.SerializeToString(), cancellation or Cancellation()
        return self.data.sample(body, read, timeout_s=timeout_s, cancellation=ended)

    def close(self) -> None:
        super().close()
        self.data.close()


@contextmanager
def client_of(
    endpoint: Endpoint, *, job: str = "a" * 64, caller: Caller | None = None
) -> Iterator[JobClient]:
    """Lend a client of a job."""
    client = JobClient(endpoint, Caller(token=TOKEN) if caller is None else caller, job)
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
        draw_specification=DRAW_SPECIFICATION,
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
