"""The control port among bytes that no gRPC client sends, and calls that say nothing."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from ssl import PEM_cert_to_DER_cert
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.checksums import CHECKSUM_HEADER, checksum_text
from gigl_loader.rpc.control import STORE_SERVICE
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.refusals import Busy, Unknown
from gigl_loader.rpc.tokens import JOB_HEADER, Token, authorization
from gigl_server.admission import Identity, Quota
from tests.support.leftovers import wait_until
from tests.support.made import record_made
from tests.support.peers import TOKEN
from tests.support.peers import served as peer_served
from tests.support.raw_http2 import WINDOW, RawConnection
from tests.support.sources import small_graph
from tests.support.store_control import Served, client_of, controlled, opened
from tests.support.store_service import Gate, sample_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.store_control import JobClient

TOKEN_HEADER = (b"authorization", authorization(TOKEN).encode())
SHOWN = [TOKEN_HEADER, (JOB_HEADER.encode(), b"a" * 64)]
OTHER = "another-token-for-tests"
HEALTH = {"", STORE_SERVICE, "gigl.v1.Peer"}
HEARTBEAT = f"/{STORE_SERVICE}/Heartbeat".encode()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with controlled() as found:
        yield found


def check_alive(address: str) -> None:
    """A caller on a connection of its own hears that the port does well."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options) as channel:
        request = health_pb2.HealthCheckRequest(service="gigl.v1.Peer")
        reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


HEADERS: list[tuple[bytes, list[tuple[bytes, bytes]]]] = [
    (b"/\xff", []),
    (b"/gigl.v1.GraphStore/\xff", []),
    (b"/grpc.health.v1.Health/\xc3\x28", []),
    (b"/" + b"\xff" * 7000, []),
    (b"", []),
    (b"x", []),
    (b"//", []),
    (HEARTBEAT + b"\0", SHOWN),
    (HEARTBEAT, [*SHOWN, (b"x-\xff", b"1")]),
    (HEARTBEAT, [*SHOWN, (b"x", b"\xff\0\r\n")]),
    (HEARTBEAT, [*SHOWN, (b"x-bin", b"!!!")]),
    (HEARTBEAT, [*SHOWN, (b"x", b"y" * 15_000)]),
    (HEARTBEAT, [*SHOWN, (b"grpc-timeout", b"\xff" * 100)]),
    (HEARTBEAT, [*SHOWN, (b"grpc-encoding", b"\xff")]),
    (HEARTBEAT, [TOKEN_HEADER, (JOB_HEADER.encode(), b"\xff" * 64)]),
    (HEARTBEAT, [(b"authorization", b"\xff" * 40)]),
    (HEARTBEAT, [(b":authority", b"\xff")]),
]


@pytest.mark.parametrize(("path", "more"), HEADERS, ids=lambda value: repr(value)[:40])
def test_no_headers_end_the_port(served: Served, path: bytes, more: list[tuple[bytes, bytes]]) -> None:
    address = served.endpoint.control_address
    with RawConnection(address) as connection:
        connection.headers(1, path, more)
        connection.message(1, b"")
        connection.received(0.3)
        check_alive(address)
    check_alive(address)


def test_no_headers_end_the_control_port_of_a_peer_service() -> None:
    with peer_served(small_graph()) as endpoint:
        address = endpoint.control_address
        with RawConnection(address) as connection:
            connection.headers(1, b"/\xff")
            connection.received(0.3)
        check_alive(address)


def stalled(served: Served, calls: int, *, connections: int = 1) -> list[RawConnection]:
    """Open calls that show the token and whose messages do not come."""
    found = []
    for _ in range(connections):
        connection = RawConnection(served.endpoint.control_address)
        for number in range(calls):
            connection.headers(2 * number + 1, HEARTBEAT, SHOWN)
        found.append(connection)
    return found


@pytest.mark.parametrize("connections", [1, 20])
def test_silent_calls_hold_up_another_caller_not_at_all_and_their_own_for_moments(
    connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_server.ports.auth._CALL_S", 2.0)
    credentials = Credentials(token=TOKEN, other_tokens=(Token(name="other", secret=OTHER),))
    with (
        controlled(credentials=credentials) as served,
        client_of(served.endpoint, caller=Caller(token=OTHER)) as other,
        client_of(served.endpoint) as own,
    ):
        silent = stalled(served, 2000 // connections, connections=connections)
        try:
            assert wait_until(lambda: served.calls._turns.lent >= served.calls.turns // 2)
            for _ in range(8):
                assert other.heartbeat([], 20) == []
            assert wait_until(lambda: bool(opened_after_refusals(own)))
        finally:
            for connection in silent:
                connection.close()
        assert wait_until(lambda: served.calls.idle)


def opened_after_refusals(client: JobClient) -> bytes:
    with suppress(Busy):
        return opened(client)
    return b""


def test_one_caller_has_a_share_of_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = record_made(monkeypatch, Quota)
    with controlled(calls=200) as served, client_of(served.endpoint) as client:
        with RawConnection(served.endpoint.control_address, {WINDOW: 0}) as deaf:
            heartbeats(deaf, 300)
            assert wait_until(lambda: b"too many calls" in deaf.received(0.1))
        calls = next(each for each in quotas if "calls are under way" in each.reason)
        assert wait_until(lambda: _free(calls) == 200)

        # The last calls of the connection that ended may begin now.
        assert wait_until(lambda: bool(opened_after_refusals(client)))


def _free(quota: Quota) -> int:
    """Return how many calls four strangers may have among them, a quarter each at most."""
    strangers = [Identity(address=f"10.0.0.{number}") for number in range(4)]
    entered = [each for each in strangers for _ in range(50) if quota.enter(each)]
    for each in entered:
        quota.leave(each)
    return len(entered)


def test_calls_wait_without_threads() -> None:
    gate = Gate()
    with controlled(gate=gate, workers=1) as served, client_of(served.endpoint) as client:
        channels = [opened(client, key=str(number)) for number in range(17)]
        first = client.sample(sample_request(channels[-1], 0))
        assert gate.entered.acquire(timeout=20)
        before = threading.active_count()
        calls = [
            client.sample(sample_request(each, batch % 12)) for each in channels[:-1] for batch in range(63)
        ]

        def queued() -> int:
            return sum(each.queued for each in served.service.load().channels)

        def refused() -> int:  # Those whose messages come slowly on a busy machine.
            return sum(each.done() for each in calls)

        assert wait_until(lambda: queued() + refused() == 16 * 63, seconds=90)
        assert queued() > 15 * 63
        assert threading.active_count() - before <= 40
        for call in calls:
            call.cancel()
        assert wait_until(lambda: queued() == 0, seconds=60)
        gate.opened.set()
        assert first.result().frame


def test_replies_that_nobody_takes_hold_no_thread() -> None:
    """A window of 0 bytes: nothing may be sent, so a thread that waits until it was would wait for ever."""
    with controlled(workers=1) as served, client_of(served.endpoint) as client:
        channel = opened(client)
        with RawConnection(served.endpoint.control_address, {WINDOW: 0}) as deaf:
            heartbeats(deaf, 120)
            assert wait_until(lambda: beats(client, channel))


def heartbeats(connection: RawConnection, count: int) -> None:
    """Make whole calls."""
    checksum = (CHECKSUM_HEADER.encode(), checksum_text(b"").encode())
    for number in range(count):
        connection.headers(2 * number + 1, HEARTBEAT, [*SHOWN, checksum])
        connection.message(2 * number + 1, b"")


def beats(client: JobClient, channel: bytes) -> bool:
    with suppress(Busy):  # A burst is more than one caller may have at once.
        return client.heartbeat([channel], 20) == [channel]
    return False


def test_health_that_nobody_takes_holds_up_no_change_of_it() -> None:
    with controlled() as served:
        address = served.endpoint.control_address
        with RawConnection(address, {WINDOW: 0}) as deaf:
            for number in range(20):
                deaf.headers(2 * number + 1, b"/grpc.health.v1.Health/Watch")
                deaf.message(2 * number + 1, b"")
            for _ in range(3):
                for serving in (True, False):
                    served.control.set_serving(serving)
            check_alive(address)


def test_a_watch_without_the_token_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_server.ports.public_calls._LASTING_S", 0.5)
    with controlled() as served, grpc.insecure_channel(served.endpoint.control_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        with pytest.raises(grpc.RpcError) as raised:
            list(watch)
        assert raised.value.code() is grpc.StatusCode.CANCELLED
        shown = (("authorization", authorization(TOKEN)),)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=2, metadata=shown)
        with pytest.raises(grpc.RpcError) as raised:
            list(watch)
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_health_is_listed(served: Served) -> None:
    with grpc.insecure_channel(served.endpoint.control_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        listed = channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=20)
        if hasattr(health_pb2, "HealthListResponse"):  # In newer releases of gRPC.
            assert set(health_pb2.HealthListResponse.FromString(listed).statuses) == HEALTH
        found = messages.HealthList.FromString(listed).statuses
        assert set(found) == HEALTH
        reply = health_pb2.HealthCheckResponse
        statuses = {name: reply.FromString(each).status for name, each in found.items()}
        asked = {name: stub.Check(health_pb2.HealthCheckRequest(service=name)).status for name in HEALTH}
        assert statuses == asked
        with pytest.raises(grpc.RpcError) as raised:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=20)
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_refusals_are_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    wrong = "another-token-of-some-length"

    def lines() -> list[str]:  # A refusal is logged after it was sent: one of the test before may come late.
        ours = ": Heartbeat: ", ": CreateProducer: "
        return [line for line in caplog.messages if any(name in line for name in ours)]

    with controlled() as fresh:  # Else the lines of this caller for this minute may be used up.

        def refused(method: str, message: bytes, *headers: tuple[str, Any]) -> None:
            address = fresh.endpoint.control_address
            with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError):
                channel.unary_unary(f"/{STORE_SERVICE}/{method}")(message, timeout=20, metadata=headers)

        right = ("authorization", authorization(TOKEN))
        refused("Heartbeat", b"", ("authorization", authorization(wrong)))
        refused("CreateProducer", b"\xff" * 9, right, (JOB_HEADER, "a" * 64))
        assert wait_until(lambda: len(lines()) == 2)
    assert "refused 127.0.0.1: Heartbeat: UNAUTHENTICATED" in lines()[0]
    assert "CreateProducer: INVALID_ARGUMENT: the message is no CreateProducerRequest" in lines()[1]
    assert wrong not in caplog.text
    assert TOKEN not in caplog.text


def test_a_client_certificate_is_who_calls(caplog: pytest.LogCaptureFixture) -> None:
    own = Credentials.ephemeral(["127.0.0.1"], token=TOKEN)
    mutual = replace(own, client_authority=own.certificate)
    digest = sha256(PEM_cert_to_DER_cert(own.certificate.decode())).hexdigest()
    caller = Caller(token=TOKEN, certificate=own.certificate, key=own.key, authority=own.trusted)
    with (
        controlled(credentials=mutual) as served,
        client_of(served.endpoint, caller=caller) as client,
        pytest.raises(Unknown),
    ):
        client.open_channel("nothing", name="", credit=1, timeout_s=20)
    told = f"refused certificate {digest[:12]}, token 1: OpenChannel: NOT_FOUND"
    assert wait_until(lambda: told in caplog.text)
