"""The data port between callers that ask and do not read, and callers that want their batches."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.requests import Envelope, encode
from gigl_loader.rpc.tokens import Token, authorization
from gigl_loader.sampling.store import DrawRule, FeatureRequest, NeighborRequest
from gigl_server.peer_server import build_server
from gigl_server.ports import connections as connections_module
from gigl_server.ports.byte_semaphore import ByteSemaphore
from gigl_server.ports.connections import Connections, place_of
from tests.support.leftovers import wait_until
from tests.support.peers import TOKEN, remote_store
from tests.support.sources import small_graph
from tests.support.stalled import StalledCaller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.rpc.endpoint import Endpoint

HOSTILE = "the-token-of-another-team-in-this-cluster"
CREDENTIALS = Credentials(token=TOKEN, other_tokens=(Token(name="hostile", secret=HOSTILE),))
EDGE = ("node", "to", "node")
ROWS = FeatureRequest(kind="node", columns=("x",), rows=np.zeros(1_000_000, np.int64))
"""64 MB: more than a connection takes before anybody reads."""
LISTS = NeighborRequest(
    edge_type=EDGE,
    targets=np.arange(600).repeat(200),
    key=5,
    hop=0,
    rule=DrawRule(fanout=30, replace=True),
    with_edge_ids=True,
    with_slots=True,
)
"""43 MB."""
SENT_BYTES = 512 << 20


def ticket(request: FeatureRequest | NeighborRequest) -> bytes:
    graph = small_graph()
    return encode(Envelope(graph=graph.manifest.digest, partition=0), request, graph.schema)


@dataclass(frozen=True)
class Served:
    """A service and what it lends to callers."""

    endpoint: Endpoint
    calls: ByteSemaphore
    turns: ByteSemaphore
    sending: ByteSemaphore
    """Bytes of replies."""


@contextmanager
def serving() -> Iterator[Served]:
    lent: dict[str, ByteSemaphore] = {}
    init = ByteSemaphore.__init__

    def named(semaphore: ByteSemaphore, total: int, **options: Any) -> None:
        init(semaphore, total, **options)
        lent[options["what"]] = semaphore

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ByteSemaphore, "__init__", named)
        server = build_server(small_graph(), [0], "127.0.0.1:0", CREDENTIALS)
    with server:
        yield Served(server.endpoint, lent["calls"], lent["turns"], lent["replies"])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr("gigl_server.ports.queries._SENT_BYTES", SENT_BYTES)
    with serving() as found:
        yield found


def gathers(server: Served) -> bool:
    """Return whether a caller with the other token gets its rows."""
    store = remote_store(small_graph(), server.endpoint, timeout_s=30.0)
    try:
        out = [np.zeros((len(ROWS.rows), 64), np.uint8)]
        store.gather(ROWS, np.arange(len(ROWS.rows)), out)
        expected = small_graph().node_column("node", "x", 0)[0]
        return bool((out[0].view(np.float32)[-1] == expected).all())
    finally:
        store.close()


def samples(server: Served) -> bool:
    """Return whether a caller with the other token gets its lists."""
    store = remote_store(small_graph(), server.endpoint, timeout_s=30.0)
    try:
        return len(store.sample(LISTS).counts) == len(LISTS.targets)
    finally:
        store.close()


@pytest.mark.parametrize("request_", [ROWS, LISTS], ids=["rows", "neighbors"])
def test_whoever_does_not_read_holds_its_share_and_no_turn(server: Served, request_: Any) -> None:
    with StalledCaller(server.endpoint.data_address, HOSTILE) as hostile:
        answered = [hostile.ask(ticket(request_)) for _ in range(8)]
        assert 1 <= sum(answered) < len(answered)
        assert server.sending.lent <= SENT_BYTES // 2
        assert server.turns.lent == 0
        assert gathers(server)
        assert samples(server)
    assert wait_until(lambda: server.sending.lent == 0, seconds=20)
    assert server.calls.lent == 0


def test_calls_are_counted_until_their_replies_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_server.ports.flight._MAX_CALLS", 6)
    with serving() as server, StalledCaller(server.endpoint.data_address, HOSTILE) as hostile:
        assert [hostile.ask(ticket(ROWS)) for _ in range(5)] == [True] * 3 + [False] * 2
        assert gathers(server)


def test_a_hoarder_makes_room_for_who_has_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gigl_server.ports.queries._SENT_BYTES", 300 << 20)
    monkeypatch.setattr(connections_module, "_UNREAD_S", 0.5)
    with serving() as server, StalledCaller(server.endpoint.data_address, HOSTILE) as hostile:
        assert [hostile.ask(ticket(ROWS)) for _ in range(3)] == [True, True, False]
        with server.sending.lend(70 << 20):  # Of a third caller.
            assert gathers(server)
    told = "a reply was not read for 0.5 s, and other callers wait"
    assert wait_until(lambda: told in caplog.text, seconds=20)


def test_a_reply_that_nobody_reads_is_ended(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    threads = len(os.listdir("/proc/self/task"))
    with StalledCaller(server.endpoint.data_address, HOSTILE) as hostile:
        assert hostile.ask(ticket(ROWS))
        assert hostile.ask(ticket(LISTS))
        assert server.sending.lent > 30 << 20
        monkeypatch.setattr(connections_module, "_MAX_CALL_S", 0.1)
        assert wait_until(lambda: server.sending.lent == 0, seconds=20)
        assert server.calls.lent == 0
    told = "a reply was not read for 0.1 s"
    assert wait_until(lambda: told in caplog.text, seconds=20)  # After the connection was cut.
    assert "refused 127.0.0.1: data port: connection of port" in caplog.text
    assert wait_until(lambda: len(os.listdir("/proc/self/task")) <= threads + 8, seconds=20)
    assert gathers(server)


# --- connections


def test_connections_that_show_no_token_are_cut(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathers(server)
    monkeypatch.setattr(connections_module, "_SILENT_S", 1.0)
    store = remote_store(small_graph(), server.endpoint)
    store.sample(LISTS)
    with ExitStack() as stack:
        openings = [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"] * 20
        silent = []
        for opening in openings:
            place = (server.endpoint.host, server.endpoint.data_port)
            connection = stack.enter_context(socket.create_connection(place, 5))
            connection.sendall(opening)
            connection.settimeout(20)
            silent.append(connection)
        assert all(_ends(connection) for connection in silent)
    store.sample(LISTS)
    assert store.wire().retries == 0  # Its connection was silent as well, but had shown a token.
    store.close()


def _ends(connection: socket.socket) -> bool:
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_the_oldest_of_too_many_connections_without_a_token_are_cut(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "_MAX_UNKNOWN", 10)
    place = (server.endpoint.host, server.endpoint.data_port)
    with ExitStack() as stack:
        first, *others = [stack.enter_context(socket.create_connection(place, 5)) for _ in range(30)]
        first.settimeout(20)
        assert _ends(first)
        assert gathers(server)
        del others


def test_bytes_without_a_token_are_bounded(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections_module, "_MAX_UNKNOWN_BYTES", 8 << 20)
    client = flight.FlightClient(f"grpc+tcp://{server.endpoint.data_address}")
    options = flight.FlightCallOptions(timeout=20)
    for _ in range(3):
        with pytest.raises(pa.ArrowException):
            list(client.do_get(flight.Ticket(b"x" * (4 << 20)), options))
    assert wait_until(lambda: "bytes without a token" in caplog.text, seconds=20)
    client.close()
    assert gathers(server)


def test_connections_are_found_without_a_descriptor_to_spare() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        found = Connections(lambda place, reason: told.append(reason))
        found.start(listener.getsockname()[1])
        stack.callback(found.close)
        far = stack.enter_context(socket.create_connection(listener.getsockname(), 5))
        near = stack.enter_context(listener.accept()[0])
        filler: list[int] = []
        stack.callback(lambda: list(map(os.close, filler)))
        resource.setrlimit(resource.RLIMIT_NOFILE, (near.fileno() + 20, hard))
        try:
            with suppress(OSError):
                while True:
                    filler.append(os.dup(0))
            found.cut_all()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        far.settimeout(10)
        assert far.recv(1) == b""
        assert listener.fileno() >= 0


@pytest.mark.parametrize(
    ("peer", "place"),
    [
        ("ipv4:10.0.0.7:4711", ("10.0.0.7", 4711)),
        ("ipv6:[::1]:4711", ("::1", 4711)),
        ("ipv6:%5B::ffff:10.0.0.7%5D:4711", ("10.0.0.7", 4711)),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", ("fe80::1", 4711)),
        ("unix:/nowhere", ("", 0)),
        ("", ("", 0)),
    ],
)
def test_places_of_peers(peer: str, place: tuple[str, int]) -> None:
    assert place_of(peer) == place


# --- verbs that nobody of ours uses


def _verbs(client: Any, options: Any) -> list[Any]:
    batch, path = pa.record_batch([pa.array([1])], names=["a"]), flight.FlightDescriptor.for_path("x")

    def put() -> None:
        writer, reader = client.do_put(path, batch.schema, options)
        with suppress(pa.ArrowException):
            writer.write_batch(batch)
        writer.done_writing()
        reader.read()
        writer.close()

    def exchange() -> None:
        writer, reader = client.do_exchange(path, options)
        with suppress(pa.ArrowException):
            writer.begin(batch.schema)
            writer.done_writing()
        reader.read_all()

    return [
        put,
        exchange,
        lambda: list(client.list_flights(options=options)),
        lambda: list(client.list_actions(options)),
        lambda: list(client.do_action(flight.Action("healthcheck", b""), options)),
        lambda: client.get_flight_info(path, options),
        lambda: client.get_schema(path, options),
    ]


@pytest.mark.parametrize("token", [TOKEN, "", "wrong-token-of-some-length"])
@pytest.mark.parametrize("number", range(7))
def test_other_verbs_are_refused_without_innards(
    served_once: Served, token: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    headers = [(b"authorization", authorization(token).encode())] if token else []
    client = flight.FlightClient(f"grpc+tcp://{served_once.endpoint.data_address}")
    with pytest.raises((flight.FlightError, OSError)) as raised:
        _verbs(client, flight.FlightCallOptions(timeout=20, headers=headers))[number]()
    client.close()
    assert ("do_get only" if token == TOKEN else "wrong token") in str(raised.value)
    if isinstance(raised.value, flight.FlightError):  # pyarrow's own get_schema raises no such error.
        record = json.loads(raised.value.extra_info)
        assert record["kind"] == ("invalid" if token == TOKEN else "unauthenticated")
    assert "Traceback" not in str(raised.value)
    assert "NotImplemented" not in str(raised.value)
    assert not any(secret in caplog.text for secret in (TOKEN, "wrong-token-of-some-length"))


def test_other_verbs_are_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        client = flight.FlightClient(f"grpc+tcp://{server.endpoint.data_address}")
        for token, why in (
            (TOKEN, "the data port answers do_get only, not list_actions"),
            ("", "wrong token"),
        ):
            headers = [(b"authorization", authorization(token).encode())]
            with pytest.raises(flight.FlightError):
                list(client.list_actions(flight.FlightCallOptions(timeout=20, headers=headers)))
            assert f"data port: {why}" in caplog.messages[-1]
        client.close()


@pytest.fixture(scope="module")
def served_once() -> Iterator[Served]:
    with serving() as server:
        yield server


def test_who_shows_a_wrong_token_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        store = remote_store(small_graph(), server.endpoint, caller=Caller(token="a-wrong-token-of-ours"))
        with pytest.raises(Exception, match="wrong token"):
            store.sample(LISTS)
        store.close()
    assert "refused an address that Flight does not tell: data port: wrong token" in caplog.text
    assert "a-wrong-token" not in caplog.text


def test_texts_of_strangers_are_escaped(served_once: Served, caplog: pytest.LogCaptureFixture) -> None:
    graph = small_graph()
    text = "\x1b[31mred\nlines\u202e"
    request = encode(
        Envelope(graph=graph.manifest.digest, partition=0),
        FeatureRequest(kind="node", columns=(text,), rows=np.zeros(1, np.int64)),
        graph.schema,
    )
    client = flight.FlightClient(f"grpc+tcp://{served_once.endpoint.data_address}")
    options = flight.FlightCallOptions(
        timeout=20, headers=[(b"authorization", authorization(TOKEN).encode())]
    )
    with pytest.raises(flight.FlightError) as raised:
        list(client.do_get(flight.Ticket(request), options))
    client.close()
    for told in (json.loads(raised.value.extra_info)["message"], caplog.messages[-1]):
        assert "no column" in told
        assert told.isascii()
        assert told.isprintable()


@pytest.mark.usefixtures("no_leftovers")
def test_a_port_that_is_closed_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with serving() as server:
        assert gathers(server)
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("data ")]


def test_a_port_ends_while_a_reply_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        with serving() as server:
            hostile = stack.enter_context(StalledCaller(server.endpoint.data_address, HOSTILE))
            assert hostile.ask(ticket(ROWS))
            assert hostile.ask(ticket(LISTS))
        assert re.search("replies that were not read: [12], their connections are cut", caplog.text)
        assert "does not end" not in caplog.text
