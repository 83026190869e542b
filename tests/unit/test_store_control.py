"""The control port of a storage server and its client, over the network."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc import store_client
from gigl_loader.rpc.checksums import (
    CHECKSUM_HEADER,
    HEAD_CHECKSUM_HEADER,
    checksum_text,
    head_checksum,
    message_checksum,
)
from gigl_loader.rpc.control import PENDING_HEADER, REFUSAL_HEADER, STORE_METHODS, STORE_SERVICE, is_marked
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.refusals import Damaged, Unknown
from gigl_loader.rpc.tokens import JOB_HEADER, authorization, job_key
from gigl_loader.sampling.store import WireCounts
from gigl_server.admission import LOCAL, Limits
from gigl_server.cluster.membership import View
from gigl_server.counters import Counters
from gigl_server.logs import AuditLog
from gigl_server.ports import control_call
from gigl_server.ports.admin import Announcements
from gigl_server.ports.control import ControlService
from gigl_server.ports.control_call import ControlCall
from gigl_server.ports.sample_calls import SampleCalls
from gigl_server.sessions.channel import SKIPPED
from tests.support.leftovers import wait_until
from tests.support.peers import TOKEN
from tests.support.sources import PLAN, SourceKind, drain, small_graph
from tests.support.store_control import JobClient, Served, client_of, controlled, opened
from tests.support.store_service import Gate, sample_request

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CONTROL_THREADS = 40
"""They come as calls do, and stay: 32 that read messages, and 8."""
DIGEST = small_graph().manifest.digest
JOB = "a" * 64
OTHER, RAW, LATER = "b" * 64, "c" * 64, "d" * 64
"""Calls of ``RAW`` never carry checksums."""
TOKEN_HEADER = ("authorization", authorization(TOKEN))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with controlled(workers=2) as found:
        yield found


# --- the whole way


def test_batches_are_those_of_any_other_mode(served: Served) -> None:
    source = SourceKind(0).open()
    source.start_epoch(0)
    wanted = drain(source, 4)
    with client_of(served.endpoint) as client:
        assert client.create_producer("train", PLAN.to_json(), DIGEST, 10)
        assert not client.create_producer("train", PLAN.to_json(), DIGEST, 10)
        channel = client.open_channel("train", name="rank 0", credit=4, timeout_s=10)
        assert (len(channel.id), channel.lease_s, channel.ring_door) == (16, 60.0, "")
        calls = [client.sample(sample_request(channel.id, batch)) for batch in range(4)]
        replies = [call.result() for call in calls]
        assert [reply.WhichOneof("outcome") for reply in replies] == ["frame"] * 4
        assert [call.frame for call in calls] == wanted
        assert [reply.nbytes for reply in replies] == [len(each) for each in wanted]
        assert all(reply.sampling_s > 0 for reply in replies)
        assert client.heartbeat([channel.id, bytes(16)], 10) == [channel.id]
        client.close_channel(channel.id, 10)
        client.close_channel(channel.id, 10)
        assert client.heartbeat([channel.id], 10) == []
        client.destroy_producer("train", 10)


def test_a_ring_is_named_by_its_door(served: Served) -> None:
    with client_of(served.endpoint) as client:
        client.create_producer("train", PLAN.to_json(), DIGEST, 10)
        served.service.ring_door = "gigl-door"
        given: dict[str, Any] = {"name": "", "credit": 2, "timeout_s": 10}
        channel = client.open_channel("train", ring_slots=2, ring_slot_bytes=1 << 20, **given)
        plain = client.open_channel("train", **given)
        served.service.ring_door = ""
        assert (channel.ring_door, plain.ring_door) == ("gigl-door", "")
        before = client.sampled(sample_request(channel.id, 0, slot=2))
        fd = served.service.ring_of(channel.id)
        assert fd is not None
        os.close(fd)
        after = client.sampled(sample_request(channel.id, 0, slot=2))
        assert [each.WhichOneof("outcome") for each in (before, after)] == ["frame", "in_slot"]
        client.destroy_producer("train", 10)


def test_failures_and_skipped_asks_are_outcomes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise StorageUnavailable("host 1 did not answer")

    with client_of(served.endpoint) as client:
        channel = opened(client)
        with monkeypatch.context() as patch:
            patch.setattr("gigl_loader.sampling.neighbor_sampler.LocalSampler.sample", silent)
            reply = client.sampled(sample_request(channel, 0, fence=3))
        assert (reply.WhichOneof("outcome"), reply.unavailable) == ("failure", True)
        reply = client.sampled(sample_request(channel, 0, fence=2))
        assert reply.WhichOneof("outcome") == "skipped"
        client.destroy_producer("train", 10)


# --- refusals


def test_each_refusal_has_its_exception(served: Served) -> None:
    with client_of(served.endpoint) as client, client_of(served.endpoint, job=OTHER) as other:
        channel = opened(client, credit=1)
        where = str(served.endpoint)
        assert where.startswith("storage server 0 at 127.0.0.1:")
        with pytest.raises(ValueError, match=f"^{where}: a producer 'train' of other options") as conflict:
            client.create_producer("train", replace(PLAN, run_seed=8).to_json(), DIGEST, 10)
        assert "run_seed is 7 there and 8 here" in str(conflict.value)
        with pytest.raises(ValueError, match="asked for graph '000000000000'"):
            client.create_producer("train", PLAN.to_json(), "0" * 64, 10)
        with pytest.raises(ValueError, match="unknown field 'code' of the plan"):
            client.create_producer("new", PLAN.to_json()[:-1] + ', "code": "os"}', DIGEST, 10)
        with pytest.raises(Unknown, match="no producer 'train' here: create it again"):
            other.open_channel("train", name="", credit=1, timeout_s=10)
        with pytest.raises(Unknown, match=f"^{where}: "):
            other.sampled(sample_request(channel, 0))
        with pytest.raises(ValueError, match=f"^{where}: "):
            client.sampled(sample_request(channel, 1, inputs=b"x"))
        client.destroy_producer("train", 10)


@pytest.mark.parametrize("headers", [[], [JOB[:-1]], [JOB.upper().replace("A", "G")], [JOB, OTHER]])
def test_calls_of_a_job_need_its_header(served: Served, headers: list[str]) -> None:
    metadata = (TOKEN_HEADER, *((JOB_HEADER, value) for value in headers))
    with grpc.insecure_channel(served.endpoint.control_address) as channel:
        for name, (request, _) in STORE_METHODS.items():
            call = channel.unary_unary(f"/{STORE_SERVICE}/{name}")
            if name in ("Cluster", "Load"):
                call(request().SerializeToString(), timeout=10, metadata=metadata)
                continue
            with pytest.raises(grpc.RpcError) as raised:
                call(request().SerializeToString(), timeout=10, metadata=metadata)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "'gigl-job' has 64 hex digits, once" in raised.value.details()


def test_a_job_that_came_damaged_is_told_apart_by_the_checksum(served: Served) -> None:
    """Callers that send a checksum send the job as well."""
    request = messages.HeartbeatRequest()
    metadata = (TOKEN_HEADER, (JOB_HEADER, JOB[:-1] + "~"), (CHECKSUM_HEADER, message_checksum(request)))
    with grpc.insecure_channel(served.endpoint.control_address) as channel:
        call = channel.unary_unary(f"/{STORE_SERVICE}/Heartbeat")
        with pytest.raises(grpc.RpcError) as raised:
            call(request.SerializeToString(), timeout=10, metadata=metadata)
        assert raised.value.code() is grpc.StatusCode.DATA_LOSS


def test_a_request_that_lost_its_checksum_is_damaged(served: Served) -> None:
    """Damage to the table of compressed headers takes the name away from all calls of a connection."""
    request = messages.HeartbeatRequest()
    checksum, lost = (CHECKSUM_HEADER, message_checksum(request)), ("gigl-crc32b", message_checksum(request))
    with grpc.insecure_channel(served.endpoint.control_address) as channel:
        call = channel.unary_unary(f"/{STORE_SERVICE}/Heartbeat")
        for job, headers in [(LATER, ()), (LATER, (checksum,)), (RAW, (lost,))]:
            call(b"", timeout=10, metadata=(TOKEN_HEADER, (JOB_HEADER, job), *headers))
        with pytest.raises(grpc.RpcError) as raised:
            call(b"", timeout=10, metadata=(TOKEN_HEADER, (JOB_HEADER, LATER), lost))
    assert raised.value.code() is grpc.StatusCode.DATA_LOSS
    assert is_marked(raised.value)


def test_a_refusal_of_a_call_that_lost_its_checksum_is_not_believed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(served.endpoint) as client:
        with pytest.raises(Unknown):
            client.open_channel("nowhere", name="", credit=1, timeout_s=10)
        monkeypatch.setattr(store_client, "HEAD_CHECKSUM_HEADER", "gigl-head-crc32b")
        with pytest.raises(Damaged, match="lost their checksum"):
            client.open_channel("nowhere", name="", credit=1, timeout_s=10)


def test_a_reply_that_lost_its_checksum_is_damaged(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(served.endpoint) as client:
        with monkeypatch.context() as patch:
            patch.setattr(control_call, "CHECKSUM_HEADER", "gigl-crc32b")
            client.heartbeat([], 10)  # None was seen yet.
        client.heartbeat([], 10)
        monkeypatch.setattr(control_call, "CHECKSUM_HEADER", "gigl-crc32b")
        with pytest.raises(Damaged):
            client.heartbeat([], 10)


@pytest.mark.parametrize(
    ("damaged", "path"),
    [
        ((("authorization", "Bearer another-token-of-some-length"), (JOB_HEADER, JOB)), "Heartbeat"),
        ((TOKEN_HEADER, (JOB_HEADER, OTHER)), "Heartbeat"),
        ((TOKEN_HEADER, ("gigl-joc", JOB)), "Heartbeat"),
        ((TOKEN_HEADER, (JOB_HEADER, JOB)), "Load"),
    ],
    ids=["token", "job", "name", "path"],
)
def test_headers_that_came_damaged_are_told_apart_from_wrong_ones(
    served: Served, damaged: tuple[tuple[str, str], ...], path: str
) -> None:
    checksum = (CHECKSUM_HEADER, message_checksum(messages.HeartbeatRequest()))
    sent = head_checksum(f"/{STORE_SERVICE}/Heartbeat", (TOKEN_HEADER, (JOB_HEADER, JOB), checksum))
    with grpc.insecure_channel(served.endpoint.control_address) as channel:
        call = channel.unary_unary(f"/{STORE_SERVICE}/{path}")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"", timeout=10, metadata=(*damaged, checksum, (HEAD_CHECKSUM_HEADER, sent)))
    assert raised.value.code() is grpc.StatusCode.DATA_LOSS
    assert is_marked(raised.value)


def test_every_refusal_is_marked_and_every_reply_has_a_checksum(served: Served) -> None:
    metadata = (TOKEN_HEADER, (JOB_HEADER, RAW))
    refused = {"Format": "unimplemented", "Sample": "unimplemented", "OpenChannel": "invalid"}
    with grpc.insecure_channel(served.endpoint.control_address) as channel:
        for name, kind in refused.items():
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(f"/{STORE_SERVICE}/{name}")(b"", timeout=10, metadata=metadata)
            assert dict(raised.value.trailing_metadata())[REFUSAL_HEADER].startswith(f"{kind};")
            assert is_marked(raised.value)
        for name in ("Cluster", "Load", "Heartbeat"):
            reply, call = channel.unary_unary(f"/{STORE_SERVICE}/{name}").with_call(
                b"", timeout=10, metadata=metadata
            )
            assert dict(call.trailing_metadata())[CHECKSUM_HEADER] == checksum_text(reply)


def test_a_damaged_reply_is_asked_for_again_over_another_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed headers stay as they were damaged for as long as their connection lives."""
    peers: list[str] = []

    def wrong(data: bytes) -> str:
        return checksum_text(data + b"x" * (not peers))

    tell = ControlCall._tell_trailers

    def told(self: ControlCall, *more: tuple[str, str]) -> None:
        peers.append(self.connection)
        tell(self, *more)

    monkeypatch.setattr("gigl_server.ports.control_call.checksum_text", wrong)
    monkeypatch.setattr(ControlCall, "_tell_trailers", told)
    monkeypatch.setattr("gigl_loader.rpc.store_client._ANEW_S", 0.0)
    with client_of(served.endpoint) as client:
        assert client.heartbeat([], 10) == []
    assert len(set(peers)) == 2


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer another-token-of-some-length"),)])
def test_nothing_is_told_without_the_token(served: Served, metadata: tuple[tuple[str, str], ...]) -> None:
    with grpc.insecure_channel(served.endpoint.control_address) as channel:
        for name in STORE_METHODS:
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary(f"/{STORE_SERVICE}/{name}")(
                    b"\xff" * 100_000, timeout=10, metadata=metadata
                )
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with (
        client_of(served.endpoint, caller=Caller()) as client,
        pytest.raises(SamplingError, match="it wants a token, and none was given"),
    ):
        client.cluster(10)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"\xff" * 1000, grpc.StatusCode.INVALID_ARGUMENT),
        (b"x" * (33 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"", grpc.StatusCode.INVALID_ARGUMENT),
    ],
    ids=["garbage", "oversized", "empty"],
)
def test_hostile_messages_get_a_status_and_others_are_served(
    served: Served, message: bytes, code: grpc.StatusCode
) -> None:
    metadata = (TOKEN_HEADER, (JOB_HEADER, RAW))
    with grpc.insecure_channel(
        served.endpoint.control_address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        call = channel.unary_unary(f"/{STORE_SERVICE}/OpenChannel")
        with pytest.raises(grpc.RpcError) as raised:
            call(message, timeout=20, metadata=metadata)
        assert raised.value.code() is code
        assert "Traceback" not in str(raised.value.details())
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(f"/{STORE_SERVICE}/Format")(b"", timeout=20, metadata=metadata)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with client_of(served.endpoint) as client:
        assert client.cluster(10).graph == DIGEST


# --- waiting


def test_calls_that_wait_cost_no_threads_and_none_when_given_up() -> None:
    gate = Gate()
    with controlled(gate=gate, workers=1) as served, client_of(served.endpoint) as client:
        channels = [opened(client, key=str(number)) for number in range(8)]
        first = client.sample(sample_request(channels[0], 0))
        assert gate.entered.acquire(timeout=20)
        before = threading.active_count()
        calls = [client.sample(sample_request(each, batch)) for each in channels for batch in range(10)]

        def queued() -> int:
            return sum(each.queued for each in served.service.load().channels)

        assert wait_until(lambda: queued() == 80)
        assert threading.active_count() <= before + MAX_CONTROL_THREADS
        for call in calls[:40]:
            call.cancel()
        assert wait_until(lambda: queued() == 40)
        gate.opened.set()
        assert first.result().frame
        assert all(call.result().frame for call in calls[40:])


def test_a_call_whose_time_is_over_is_not_worked_on() -> None:
    gate = Gate()
    with controlled(gate=gate) as served, client_of(served.endpoint) as client:
        channel = opened(client)
        first = client.sample(sample_request(channel, 0))
        assert gate.entered.acquire(timeout=20)
        with pytest.raises(StorageUnavailable, match="the deadline passed"):
            client.sampled(sample_request(channel, 1), 0.2)
        assert wait_until(lambda: served.service.load().channels[0].queued == 0)
        gate.opened.set()
        assert first.result().frame


def test_a_probe_names_the_batches_that_a_caller_waits_for() -> None:
    """A trainer whose request or reply was lost learns so."""
    gate = Gate()
    with controlled(gate=gate) as served, client_of(served.endpoint) as client:
        channel, other = opened(client, key="one"), opened(client, key="other")

        def pending(channel: bytes) -> str:
            call = client.probe(channel, 10)
            call.result()
            return str(dict(call.trailing_metadata())[PENDING_HEADER])

        assert pending(channel) == ""
        calls = [client.sample(sample_request(channel, batch)) for batch in (3, 5, 11)]
        assert gate.entered.acquire(timeout=20)
        assert wait_until(lambda: sorted(pending(channel).split(",")) == ["11", "3", "5"])
        assert pending(other) == pending(bytes(16)) == ""
        calls[2].cancel()
        assert wait_until(lambda: sorted(pending(channel).split(",")) == ["3", "5"])
        gate.opened.set()
        assert all(call.result().frame for call in calls[:2])
        assert pending(channel) == ""


def waiting_for(client: JobClient, channel: bytes, errors: list[Exception]) -> list[threading.Thread]:
    """Have threads wait for three batches."""

    def wait(batch: int) -> None:
        try:
            client.sampled(sample_request(channel, batch))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, args=(batch,)) for batch in range(3)]
    for thread in threads:
        thread.start()
    return threads


def test_a_client_that_leaves_ends_its_calls() -> None:
    gate, errors = Gate(), list[Exception]()
    with controlled(gate=gate) as served:
        with client_of(served.endpoint) as client:
            threads = waiting_for(client, opened(client), errors)
            assert gate.entered.acquire(timeout=20)
        for thread in threads:
            thread.join(20)
        assert [type(each) for each in errors] == [SamplingError] * 3
        assert wait_until(lambda: served.service.load().channels[0].queued == 0)


@pytest.mark.usefixtures("no_leftovers")
def test_closing_ends_calls_that_wait_and_leaves_nothing() -> None:
    before = {*threading.enumerate()}
    gate, errors = Gate(), list[Exception]()
    with controlled(gate=gate) as served, client_of(served.endpoint) as client:
        threads = waiting_for(client, opened(client), errors)
        assert gate.entered.acquire(timeout=20)
        served.control.close()
        served.control.close()
        served.data.close()
        for thread in threads:
            thread.join(20)
        assert [type(each) for each in errors] == [StorageUnavailable] * 3
        with pytest.raises(StorageUnavailable):
            client.heartbeat([], 5)
    assert wait_until(lambda: {*threading.enumerate()} <= before)


def test_a_server_that_comes_back_is_found_soon() -> None:
    with controlled() as served, client_of(served.endpoint) as client:
        client.cluster(10)
        port = served.control.port
        served.control.close()
        with pytest.raises(StorageUnavailable, match="nothing listens there"):
            client.cluster(5)
        began = time.monotonic()
        with controlled_at(port):
            assert wait_until(lambda: answers(client))
            assert time.monotonic() - began < 10


@contextmanager
def controlled_at(port: int) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.support.store_control.Address", lambda host, _: Address(host, port))
        with controlled() as found:
            yield found


def answers(client: Any) -> bool:
    try:
        client.heartbeat([], 2)
    except StorageUnavailable:
        return False
    return True


def test_a_closed_client_says_so(served: Served) -> None:
    with client_of(served.endpoint) as client:
        client.close()
        for call in (partial(client.heartbeat, []), client.load, client.cluster):
            with pytest.raises(SamplingError, match=rf"^the connection to {served.endpoint} was closed$"):
                call(5)
        with pytest.raises(SamplingError, match="was closed"):
            client.sampled(sample_request(b"", 0))


def test_messages_that_do_not_come_end_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_server.ports.auth._CALL_S", 0.1)
    metadata = (TOKEN_HEADER, (JOB_HEADER, JOB))
    silent = threading.Event()
    with controlled() as served, grpc.insecure_channel(served.endpoint.control_address) as channel:
        call = channel.stream_unary(f"/{STORE_SERVICE}/Heartbeat")
        stalled = call.future((b"" for _ in iter(silent.wait, True)), timeout=60, metadata=metadata)
        assert stalled.exception(50).code() is grpc.StatusCode.CANCELLED
        assert wait_until(lambda: served.calls.idle)
        silent.set()


def test_a_job_that_sends_no_messages_holds_up_another_of_its_caller_for_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gigl_server.ports.auth._CALL_S", 1.0)
    metadata = (TOKEN_HEADER, (JOB_HEADER, OTHER))
    silent = threading.Event()
    with (
        controlled() as served,
        grpc.insecure_channel(served.endpoint.control_address) as channel,
        client_of(served.endpoint) as client,
    ):
        call = channel.stream_unary(f"/{STORE_SERVICE}/Heartbeat")
        stalled = [
            call.future((b"" for _ in iter(silent.wait, True)), timeout=60, metadata=metadata)
            for _ in range(40)  # More than this caller may have at once.
        ]
        assert wait_until(lambda: any(each.done() for each in stalled))
        assert wait_until(lambda: answers(client))
        silent.set()


def test_seeds_are_kept_once_while_a_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request for the batch holds them: their message is freed."""

    class Request:  # Messages of protobuf have no weak references.
        @staticmethod
        def FromString(data: bytes) -> Request:
            return Request()

    class Service:
        limits = Limits()
        done: Any = None
        message: Any = None

        def submit(self, job: bytes, message: Any, done: Any, span: Any, cut: Any) -> None:
            self.message, self.done = weakref.ref(message), done

    monkeypatch.setattr(
        "gigl_server.ports.sample_calls.messages",
        SimpleNamespace(SampleRequest=Request, SampleReply=messages.SampleReply),
    )
    replies: list[Any] = []
    call: Any = SimpleNamespace(
        id=1,
        wait=lambda: None,
        post=lambda chunks, seconds, membership: replies.append(chunks),
        cut_reply=lambda reason: False,
    )
    service: Any = Service()
    nothing: Any = None
    calls = SampleCalls(service, Counters(), view=nothing, membership=int)
    calls.begin(call, LOCAL, b"job", b"")
    assert service.message() is None
    service.done(SKIPPED)
    [[chunk]] = replies
    assert messages.SampleReply.FromString(chunk.tobytes()[4:]).skipped


def test_a_port_that_is_taken_is_refused_and_leaves_nothing(served: Served) -> None:
    before = {*threading.enumerate()}  # Those of earlier tests may end meanwhile.
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{served.control.port}"):
        ControlService(
            Address("127.0.0.1", served.control.port),
            Credentials(token=TOKEN),
            Counters(),
            graph=DIGEST,
            partitions=[0],
            data_port=1,
        )
    assert {*threading.enumerate()} <= before


# --- what it tells


def member(port: int, *partitions: int) -> Endpoint:
    return Endpoint(
        what="storage server",
        host_index=0,
        host="10.0.0.7",
        control_port=port,
        data_port=port + 1,
        partitions=partitions,
    )


def test_a_view_of_the_cluster_is_given_before_it_is_ready() -> None:
    heard: list[str] = []
    view = View(members=(member(7000, 0), member(7010, 1, 2)), ready=False, reason="waiting for partition 3")
    options = {"view": lambda: view, "announced": Announcements("", heard.append, AuditLog()).exchange}
    with controlled(ready=False, options=options) as served, client_of(served.endpoint) as client:
        found = client.cluster(10, announce="10.0.0.7:7020")
        assert heard == ["10.0.0.7:7020"]
        assert (found.graph, found.partitions, found.data_port) == (DIGEST, (0,), 4711)
        assert (found.ready, found.reason) == (False, "waiting for partition 3")
        assert [str(each) for each in found.servers] == [
            "storage server 0 at 10.0.0.7:7000",
            "storage server 1 at 10.0.0.7:7010",
        ]
        assert found.servers[1].partitions == (1, 2)
        with pytest.raises(StorageUnavailable, match="the server is starting: waiting for partition 3"):
            client.create_producer("train", PLAN.to_json(), DIGEST, 10)


def test_load_names_all_channels_where_the_server_may() -> None:
    with controlled(options={"show_names": True}) as served:
        with client_of(served.endpoint) as client, client_of(served.endpoint, job=OTHER) as other:
            opened(client)
            [channel] = other.load(10).channels
        assert (channel.key, channel.name) == ("train", "train rank 0")


def test_load_names_only_what_is_the_callers() -> None:
    traffic = {1: WireCounts(bytes_in=5, bytes_out=6, calls=7, retries=8)}
    view = View(members=(), ready=True, reason="", peers=traffic)
    with controlled(options={"view": lambda: view}) as served:
        with client_of(served.endpoint) as client, client_of(served.endpoint, job=OTHER) as other:
            channel = opened(client)
            client.sampled(sample_request(channel, 0))
            mine, theirs = client.load(10), other.load(10)
        assert (mine.channels[0].key, mine.channels[0].name) == ("train", "train rank 0")
        assert (theirs.channels[0].key, theirs.channels[0].name) == ("", "")
        assert theirs.channels[0].batches == 1
        key = job_key([JOB], "1")
        assert key is not None
        assert theirs.channels[0].job == key.hex()[:8]
        assert (theirs.workers, theirs.jobs, theirs.producers) == (1, 1, 1)
        assert theirs.rss_bytes > 1 << 20
        assert mine.channels[0].bytes > 0
        assert [(each.server, each.retries) for each in theirs.peers] == [(1, 8)]


def health(endpoint: Endpoint) -> list[int]:
    with grpc.insecure_channel(endpoint.control_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        names = ("", STORE_SERVICE, "gigl.v1.Peer")
        return [stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status for name in names]


def test_health_says_whether_trainers_may_come() -> None:
    yes, no = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    with controlled(ready=False) as served:
        assert health(served.endpoint) == [no, no, yes]
        served.control.set_serving(True)
        assert health(served.endpoint) == [yes, yes, yes]
        served.control.set_serving(False)
        assert health(served.endpoint) == [no, no, yes]


def test_services_are_listed_to_anyone(served: Served) -> None:
    with grpc.insecure_channel(served.endpoint.control_address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest
        requests = iter([ask(list_services=""), ask(file_containing_symbol=STORE_SERVICE)])
        listed, described = stub.ServerReflectionInfo(requests, timeout=10)
    names = {each.name for each in listed.list_services_response.service}
    assert {STORE_SERVICE, "gigl.v1.Peer", "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto


def test_health_is_told_as_it_changes() -> None:
    yes, no = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    with controlled() as served, grpc.insecure_channel(served.endpoint.control_address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=20)
        seen = [next(watch).status]
        for serving in (True, False):
            served.control.set_serving(serving)
            seen.append(next(watch).status)
        assert seen == [no, yes, no]


def test_strangers_who_hold_on_take_nothing_from_trainers_and_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gigl_server.ports.public_calls._LASTING", 4)
    monkeypatch.setattr("gigl_server.ports.public_calls._CHECK_S", 0.1)
    silent = threading.Event()
    with (
        controlled(calls=16) as served,
        grpc.insecure_channel(served.endpoint.control_address) as channel,
        client_of(served.endpoint) as client,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=60) for _ in range(2)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as raised:
            next(stub.Watch(health_pb2.HealthCheckRequest(), timeout=20))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        check = channel.stream_unary("/grpc.health.v1.Health/Check")
        stalled = [check.future((b"" for _ in iter(silent.wait, True)), timeout=60) for _ in range(4)]
        stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        opened(client)
        assert {each.exception(50).code() for each in stalled} == {grpc.StatusCode.CANCELLED}
        watches[0].cancel()
        assert wait_until(lambda: watched(stub))
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"\xff" * 99, timeout=20)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        silent.set()


def watched(stub: Any) -> bool:
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
    try:
        next(watch)
    except grpc.RpcError:
        return False
    watch.cancel()
    return True


# --- what a new user meets


def complaint(endpoint: Endpoint, error: type[Exception], message: str, caller: Caller | None = None) -> None:
    with client_of(endpoint, caller=caller) as client, pytest.raises(error, match=message) as raised:
        client.cluster(5)
    assert "\n" not in str(raised.value)


def test_an_address_that_cannot_be_reached_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = replace(member(port, 0), host="127.0.0.1")
    complaint(nobody, StorageUnavailable, rf"at 127\.0\.0\.1:{port}: nothing listens there")
    unknown = replace(nobody, host="no-such-host.invalid")
    insecure = Caller(token=TOKEN, insecure=True)
    complaint(unknown, StorageUnavailable, r"the name 'no-such-host\.invalid' is not known here", insecure)


def test_tls_works_and_its_absence_is_told(served: Served) -> None:
    credentials = Credentials.ephemeral(["127.0.0.1"], token=TOKEN)
    with controlled(credentials=credentials) as secure:
        with client_of(secure.endpoint) as client:
            channel = opened(client)
            assert client.sampled(sample_request(channel, 0)).frame
        plain = replace(secure.endpoint, certificate="")
        complaint(plain, ValueError, "it uses TLS, and is asked without")
        stranger = Credentials.ephemeral(["127.0.0.1"]).trusted
        complaint(replace(secure.endpoint, certificate=stranger), ValueError, "certificate")
    complaint(replace(served.endpoint, certificate=credentials.trusted), ValueError, "TLS")


def test_a_mistake_of_ours_is_told_without_its_innards(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(served.service, "heartbeat", lambda *_: 1 / 0)
    with client_of(served.endpoint) as client, pytest.raises(SamplingError, match=r"its log says why$"):
        client.heartbeat([], 10)
    assert "ZeroDivisionError" in caplog.text
