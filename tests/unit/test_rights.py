"""Rights of callers, at every verb of both ports."""

from __future__ import annotations

import struct
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.errors import SamplingError
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.control import ADMIN_METHODS, METHODS, STORE_METHODS
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.graph_requests import (
    FileRequest,
    FindTextsRequest,
    IdsRequest,
    ListRequest,
    LocateRequest,
    ManifestRequest,
    TextsRequest,
    encode_graph_request,
)
from gigl_loader.rpc.refusals import Refusal
from gigl_loader.rpc.requests import EdgeListRequest, Envelope, SplitRequest, encode, encode_ping
from gigl_loader.rpc.tokens import JOB_HEADER, Grant, Token, job_key
from gigl_loader.sampling.store import DrawRule, EdgeRequest, FeatureRequest, InducedRequest, NeighborRequest
from gigl_server.config import ServeOptions
from gigl_server.ports.control_call import ControlCall
from gigl_server.ports.data import DataPort
from gigl_server.ports.queries import _VERBS, Queries, Reply
from gigl_server.ports.shares import ByteSemaphore
from gigl_server.server import build_storage_server
from tests.support.hostile_clients import PLAN, HostileClient
from tests.support.sources import small_graph
from tests.support.store_service import Gate, _holding_up, sample_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gigl_server.server import StorageServer

SERVERS, OWNER, OTHER, WRONG = (f"{name}-0123456789abcdef" for name in ("servers", "owner", "other", "wrong"))
JOB = "a" * 64
DIGEST = small_graph().manifest.digest
LINKS = ("node", "to", "node")
SOME = np.arange(3)
PLAIN: dict[str, Any] = {"edge_type": LINKS, "targets": SOME, "with_edge_ids": True, "with_slots": False}
HERE = Envelope(graph=DIGEST, partition=0)
SCHEMA = small_graph().schema


def about(inquiry: Any) -> bytes:
    return encode_graph_request(inquiry, DIGEST)


def of_part(request: Any) -> bytes:
    return encode(HERE, request, SCHEMA)


QUERIES: dict[str, bytes] = {
    "contains": of_part(EdgeRequest(edge_type=LINKS, targets=SOME, neighbors=SOME)),
    "edges": of_part(EdgeListRequest(edge_type=LINKS, first=0, count=2)),
    "file": about(FileRequest(path="graph.json", first=0, count=10)),
    "find_texts": about(FindTextsRequest(node_type="node", texts=["a"])),
    "ids": about(IdsRequest(node_type="node", positions=SOME)),
    "induced": of_part(InducedRequest(nodes=SOME, **PLAIN)),
    "list": about(ListRequest(node_type="node", first=0, count=2)),
    "locate": about(LocateRequest(node_type="node", ids=SOME)),
    "manifest": about(ManifestRequest()),
    "neighbors": of_part(NeighborRequest(rule=DrawRule(fanout=2), key=1, hop=0, **PLAIN)),
    "ping": encode_ping(HERE),
    "rows": of_part(FeatureRequest(kind="node", columns=("x",), rows=SOME)),
    "split": of_part(SplitRequest(node_type="node", split="train")),
    "texts": about(TextsRequest(node_type="node", ids=SOME)),
}
CONTROL: dict[str, Any] = {
    "Describe": messages.DescribeRequest(),
    "Stats": messages.StatsRequest(),
    "Cluster": messages.ClusterRequest(),
    "CreateProducer": messages.CreateProducerRequest(
        key="key", plan=PLAN.to_json(), graph=DIGEST, draw_specification=2
    ),
    "OpenChannel": messages.OpenChannelRequest(key="key", name="n", credit=1, share=1),
    "Heartbeat": messages.HeartbeatRequest(channels=[bytes(16)]),
    "CloseChannel": messages.CloseChannelRequest(channel=bytes(16)),
    "DestroyProducer": messages.DestroyProducerRequest(key="key"),
    "Load": messages.LoadRequest(),
    "Adopt": messages.AdoptRequest(partition=0),
}
SERVICES = {
    **dict.fromkeys(METHODS, "gigl.v1.Peer"),
    **dict.fromkeys(STORE_METHODS, "gigl.v1.GraphStore"),
    **dict.fromkeys(ADMIN_METHODS, "gigl.v1.Admin"),
}
DATA = [*QUERIES, "sample"]
VERBS = [*DATA, *CONTROL]


def test_the_table_has_every_verb() -> None:
    assert set(QUERIES) == set(_VERBS.values())
    assert set(CONTROL) == set(SERVICES)


class Job:
    """A server, a job of its token ``owner`` with a channel and a frame, and calls of any token."""

    def __init__(self, server: StorageServer) -> None:
        self.server, self.parts = server, server.parts
        with self._client(OWNER) as client:
            client.make_producer(DIGEST)
            self.channel = client.open_channel(credit=8)
        found = job_key([JOB], "owner")
        assert found is not None
        self.key = found

    def kind(self, verb: str, token: str, *, channel: bytes | None = None) -> str:
        """Return the kind of the refusal of a call, or its status at the control port; empty for a reply."""
        with self._client(token) as client:
            if verb in CONTROL:
                return self._status(client, verb, channel)
            body = QUERIES.get(verb) or sample_request(self.channel, 0).SerializeToString()
            return client._data.kind(body, client._header(None), sample=verb == "sample")

    def _status(self, client: HostileClient, verb: str, channel: bytes | None) -> str:
        request = CONTROL[verb]
        if channel is not None and verb in ("Heartbeat", "CloseChannel"):
            request = {"Heartbeat": messages.HeartbeatRequest(channels=[channel])}.get(
                verb, messages.CloseChannelRequest(channel=channel)
            )
        status = client.status(verb, request.SerializeToString(), service=SERVICES[verb])
        return "" if status == "OK" else status

    def _client(self, token: str) -> HostileClient:
        own = self.parts.own
        return HostileClient(own.control_address, own.data_address, token=token, job=JOB)

    def withdraw(self) -> None:
        """Take the owner's right to the graph away, as a changed file of tokens does."""
        self.server.renew(credentials(Grant(graph=("elsewhere",))))


def credentials(grant: Grant = Grant()) -> Credentials:  # noqa: B008
    others = (Token(name="owner", secret=OWNER, grant=grant), Token(name="other", secret=OTHER))
    return Credentials(token=SERVERS, token_name="servers", other_tokens=others)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    path = tmp_path / "tokens"
    path.write_text(f"servers {SERVERS}\nowner {OWNER}\nother {OTHER}\n")
    path.chmod(0o600)
    options = ServeOptions(graph_dir="small", listen="127.0.0.1:0", workers=1, token_file=str(path))
    with build_storage_server(options, graph=small_graph()) as server:
        server.wait_ready(30)
        yield Job(server)


REFUSED = {"unauthenticated", "UNAUTHENTICATED", "forbidden", "PERMISSION_DENIED"}


def test_a_caller_without_a_good_token_is_refused(job: Job) -> None:
    for verb in VERBS:
        refused = "UNAUTHENTICATED" if verb in CONTROL else "unauthenticated"
        assert job.kind(verb, "") == refused, verb
        assert job.kind(verb, WRONG) == refused, verb
        assert job.kind(verb, SERVERS) not in REFUSED, verb
    for verb in VERBS[::-1]:  # ``DestroyProducer`` after the calls for a channel.
        assert job.kind(verb, OWNER) not in REFUSED, verb


def test_a_good_token_at_first_opens_no_connection_for_a_wrong_one(job: Job) -> None:
    with closing(job._client(OWNER)) as client:
        wrong = client._header([("authorization", f"Bearer {WRONG}"), (JOB_HEADER, JOB)])
        for body in QUERIES.values():
            assert client._data.kind(QUERIES["ping"], client._header(None)) == ""
            assert client._data.kind(body, wrong) == "unauthenticated"


def test_the_secret_of_a_job_is_worth_nothing_with_another_token(job: Job) -> None:
    expected = {"sample": "not found", "OpenChannel": "NOT_FOUND"}
    for verb in ("sample", "OpenChannel", "Heartbeat", "CloseChannel", "DestroyProducer"):
        assert job.kind(verb, OTHER, channel=job.channel) == expected.get(verb, ""), verb
    assert job.kind("CreateProducer", OTHER) == ""  # One of its own.
    load = job.parts.service.load()
    assert [each.job for each in load.channels] == [job.key]
    assert (load.jobs, load.producers) == (2, 2)
    assert job.kind("sample", OWNER) == ""


@pytest.mark.parametrize("verb", VERBS)
def test_a_right_that_is_withdrawn_while_a_call_runs_stops_it(
    job: Job, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """What is replaced: the step of the server at which the right is withdrawn."""
    withdrawn: list[str] = []

    def withdraw() -> None:
        if not withdrawn:
            withdrawn.append(verb)
            job.withdraw()

    if verb in CONTROL:
        followed(monkeypatch, ControlCall, "read", withdraw)
    elif verb == "frame":
        followed(monkeypatch, DataPort, "_frame", withdraw)
    elif verb == "sample":
        gate = Gate()
        with _holding_up(gate):
            monkeypatch.setattr(gate, "opened", Opened(withdraw))
            assert job.kind(verb, OWNER) == "forbidden"
    else:
        monkeypatch.setattr(Queries, "respond", made_anyway(withdraw))
    assert job.kind(verb, OWNER) == ("PERMISSION_DENIED" if verb in CONTROL else "forbidden")
    assert withdrawn == [verb]
    load = job.parts.service.load()
    assert (load.jobs, load.channels, load.ready_bytes, load.ring_bytes) == (0, (), 0, 0)
    assert job.kind(verb, SERVERS) not in REFUSED


class Opened:
    """Stands for the event of a gate: what waits for it calls a function instead."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def wait(self, timeout: float) -> bool:
        self._then()
        return True


def followed(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, then: Callable[[], None]) -> None:
    """Call a function after each call of a method."""
    method = getattr(owner, name)

    def changed(*given: Any) -> Any:
        found = method(*given)
        then()
        return found

    monkeypatch.setattr(owner, name, changed)


def made_anyway(withdraw: Callable[[], None]) -> Callable[..., Reply]:
    """Return ``Queries.respond`` that withdraws the right when its reply is made."""
    respond = Queries.respond

    def made(queries: Queries, ticket: bytes, caller: Any, checksum: Any) -> Reply:
        reply = None
        with suppress(Refusal):  # The small graph has no texts.
            reply = respond(queries, ticket, caller, checksum)
        withdraw()
        return reply or Reply([np.zeros(9, np.uint8)], queries.sending.take(9, caller), None)

    return made


def test_a_server_that_takes_no_more_calls_says_so_at_every_verb(job: Job) -> None:
    data, control = job.parts.data, job.parts.control._authenticated
    data._calls = ByteSemaphore(2, wait_s=0.0, what="calls")
    data._calls.take(1)
    control._calls.most = 0
    for verb in VERBS:
        assert job.kind(verb, OWNER) == ("RESOURCE_EXHAUSTED" if verb in CONTROL else "busy"), verb


def test_a_frame_beyond_the_quota_of_its_token_is_a_failure_that_names_both(job: Job) -> None:
    grant = Grant(frames=1 << 20)
    job.server.renew(credentials(grant))
    with closing(job._client(OWNER)) as client:
        for batch, frames, outcome in ((0, 1 << 20, "frame"), (1, 1 << 10, "failure")):
            object.__setattr__(grant, "frames", frames)
            body = sample_request(job.channel, batch).SerializeToString()
            said = client._data.ask(body, client._header(None), sample=True)
            (size,) = struct.unpack_from("<I", said)
            reply = messages.SampleReply.FromString(said[4 : 4 + size])
            assert reply.WhichOneof("outcome") == outcome
    assert b"and the quota of token owner is 0.0 MB" in reply.failure


@pytest.mark.parametrize("transport", ["ring", "network"])
def test_a_trainer_whose_right_is_withdrawn_stops_at_once(
    job: Job, transport: Literal["ring", "network"]
) -> None:
    """It does not retry for its timeout: every server refuses it for good."""
    address, caller = job.parts.own.control_address, Caller(token=OWNER)
    with RemoteDistDataset.connect(address, credentials=caller, transport=transport) as dataset:
        seeds = torch.arange(600)
        with DistNeighborLoader(dataset, [2], seeds, batch_size=1, device="cpu", prefetch_size=2) as loader:
            batches = iter(loader)
            next(batches)
            job.withdraw()
            with pytest.raises(SamplingError, match="owner has no right to read this graph"):
                list(batches)
