"""The data port's server and client, over real sockets."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.native import (
    DataClient,
    DataServer,
    StreamClosed,
    StreamError,
    StreamTimedOut,
    crc32c,
)
from tests.support.leftovers import wait_until
from tests.support.proxy import Proxy
from tests.support.raw_data import Liar, connected_socket, header_of, read_all, reply_bytes, request_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_loader.native import DataCall

HEADER = header_of("a-token-for-tests-of-the-kernels")
SOON_S = 60.0


class Echo:
    """A server whose threads reply with the body of each request, or as ``respond`` does."""

    def __init__(self, respond: Callable[[DataCall, bytes], None] | None = None, **options: Any) -> None:
        self.server = DataServer("127.0.0.1", 0, **options)
        self.bodies: list[bytes | None] = []
        self._respond = respond or self._echo
        self._ending = False
        self._threads = [threading.Thread(target=self._serve) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.server.port

    def client(self) -> DataClient:
        client = DataClient(*self.address)
        client.connect(SOON_S)
        return client

    def _serve(self) -> None:
        while not self._ending:
            call = self.server.next(0.5)
            self.server.sweep()
            if call is None:
                continue
            try:
                body = call.read_body(SOON_S, SOON_S)
                self.bodies.append(body)
                self._respond(call, body or b"")
            except StreamError:
                pass

    def _echo(self, call: DataCall, body: bytes) -> None:
        data = np.frombuffer(body, np.uint8)
        call.reply([data[: len(data) // 3], data[len(data) // 3 :]], SOON_S, SOON_S)

    def close(self) -> None:
        self._ending = True
        self.server.stop()
        self.server.cut_all()
        for thread in self._threads:
            thread.join(SOON_S)


@contextmanager
def echoing(respond: Callable[[DataCall, bytes], None] | None = None, **options: Any) -> Iterator[Echo]:
    echo = Echo(respond, **options)
    try:
        yield echo
    finally:
        echo.close()


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    with echoing() as found:
        yield found


def asked(client: DataClient, body: bytes, timeout_s: float = SOON_S) -> bytes:
    refused, nbytes, membership = client.call(HEADER, body, timeout_s)
    assert (refused, membership) == (0, 0)
    out = np.empty(nbytes, np.uint8)
    client.read(out)
    assert client.finish()
    return out.tobytes()


def data_of(nbytes: int) -> bytes:
    return np.random.default_rng(nbytes).bytes(nbytes)


@pytest.mark.parametrize("nbytes", [0, 1, 100, 65_504, 65_536, 262_144, 262_145, 5_000_000])
def test_bodies_and_replies_of_every_size_arrive(echo: Echo, nbytes: int) -> None:
    client = echo.client()
    for _ in range(2):
        assert asked(client, data_of(nbytes)) == data_of(nbytes)
        assert client.reusable


@given(st.binary(max_size=200), st.lists(st.integers(0, 300), max_size=6))
@settings(max_examples=30)
def test_a_request_may_come_in_any_pieces(echo: Echo, body: bytes, cuts: list[int]) -> None:
    data = request_bytes(body, HEADER)
    with connected_socket(echo.address) as caller:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
            caller.sendall(data[begin:end])
            time.sleep(0.001)
        expected = reply_bytes(body)
        received = b""
        while len(received) < len(expected):
            received += caller.recv(1 << 16)
        assert received == expected


def test_a_request_byte_by_byte(echo: Echo) -> None:
    with connected_socket(echo.address) as caller:
        for byte in request_bytes(b"body", HEADER):
            caller.sendall(bytes([byte]))
        assert caller.recv(1 << 16)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + bytes(512),
        b"GIGX",
        bytes(1 << 16),
        request_bytes(b"", HEADER, magic=b"gigl"),
        request_bytes(b"", HEADER, header_bytes=4065),
        request_bytes(b"", HEADER, header_bytes=2**32 - 1),
        request_bytes(b"", HEADER, crc=0),
        request_bytes(b"", HEADER, reserved=1, crc=0),
        request_bytes(b"body", HEADER, body_bytes=3),
        request_bytes(b"", HEADER) * 2,
    ],
)
def test_what_is_no_request_ends_its_connection(echo: Echo, sent: bytes) -> None:
    served = len(echo.bodies)
    with connected_socket(echo.address, sent) as stranger:
        assert read_all(stranger) == b""
    assert asked(echo.client(), b"honest") == b"honest"
    assert len(echo.bodies) == served + 1


@given(st.integers(0, 8 * 70 - 1))
@settings(max_examples=60)
def test_every_flipped_bit_of_a_request_is_found(echo: Echo, bit: int) -> None:
    data = bytearray(request_bytes(b"b" * 30, b"h" * 8))
    data[bit // 8] ^= 1 << bit % 8
    before = len(echo.bodies)
    with connected_socket(echo.address, bytes(data)) as caller:
        caller.shutdown(socket.SHUT_WR)
        read_all(caller)
    assert all(body is None for body in echo.bodies[before:])  # Its checksum does not match.


@given(st.integers(0, 8 * 76 - 1))
@settings(max_examples=60)
def test_every_flipped_bit_of_a_reply_is_found(bit: int) -> None:
    data = bytearray(reply_bytes(b"p" * 40))
    data[bit // 8] ^= 1 << bit % 8
    with Liar(bytes(data)) as liar:
        client = DataClient("127.0.0.1", liar.port)
        client.connect(SOON_S)
        with pytest.raises((StreamError, AssertionError)):
            asked(client, b"")


def test_the_end_of_a_reply_in_its_middle_is_told() -> None:
    for cut in (0, 31, 40, 75):
        with Liar(reply_bytes(b"p" * 40)[:cut]) as liar:
            client = DataClient("127.0.0.1", liar.port)
            client.connect(SOON_S)
            with pytest.raises(StreamClosed):
                asked(client, b"")


def test_a_payload_is_read_within_its_bounds(echo: Echo) -> None:
    client = echo.client()
    assert client.call(HEADER, b"12345", SOON_S)[1] == client.left == 5
    with pytest.raises(ValueError, match="more bytes than the reply has"):
        client.read(np.empty(6, np.uint8))
    with pytest.raises(ValueError, match="not read to its end"):
        client.finish()
    assert not client.reusable
    with pytest.raises(StreamError, match="not connected"):
        client.call(HEADER, b"", SOON_S)
    with pytest.raises(ValueError, match="header text is too long"):
        echo.client().call(b"x" * 4065, b"", SOON_S)


def test_a_checksum_that_is_given_is_sent_and_one_that_is_not_is_computed() -> None:
    def respond(call: DataCall, body: bytes) -> None:
        data = np.frombuffer(body, np.uint8)
        call.reply([data], SOON_S, SOON_S, crc32c(data) if len(data) % 2 else 12345, 77)

    with echoing(respond) as echo:
        client = echo.client()
        for body, right in ((b"odd", True), (b"even", False)):
            assert client.call(HEADER, body, SOON_S) == (0, len(body), 77)
            client.read(np.empty(len(body), np.uint8))
            assert client.finish() is right


def test_a_refusal_ends_the_connection_where_the_body_was_not_read() -> None:
    server = DataServer("127.0.0.1", 0)

    def refuse() -> None:
        for _ in range(2):
            call = server.next(SOON_S)
            assert call is not None
            call.refuse(b"no", SOON_S)

    thread = threading.Thread(target=refuse)
    thread.start()
    for body, reusable in ((b"", True), (b"x" * (8 << 20), False)):
        client = DataClient("127.0.0.1", server.port)
        client.connect(SOON_S)
        assert client.call(HEADER, body, SOON_S)[:2] == (1, 2)
        client.read(np.empty(2, np.uint8))
        assert client.finish()
        assert client.reusable is reusable
    thread.join(SOON_S)
    server.stop()


def test_a_call_can_be_answered_by_another_thread_and_later() -> None:
    server = DataServer("127.0.0.1", 0)
    with ThreadPoolExecutor(8) as threads:
        clients = [DataClient("127.0.0.1", server.port) for _ in range(6)]
        for client in clients:
            client.connect(SOON_S)
        replies = [threads.submit(asked, client, b"%d" % i) for i, client in enumerate(clients)]
        calls = [server.next(SOON_S) for _ in clients]
        for call in reversed(calls):
            assert call is not None
            body = call.read_body(SOON_S, SOON_S)
            assert body is not None
            threads.submit(call.reply, [np.frombuffer(body, np.uint8)], SOON_S, SOON_S).result(SOON_S)
        assert [reply.result(SOON_S) for reply in replies] == [b"%d" % i for i in range(6)]
    server.stop()


def test_a_call_that_is_dropped_ends_its_connection(echo: Echo) -> None:
    server = DataServer("127.0.0.1", 0)
    with connected_socket(("127.0.0.1", server.port), request_bytes(b"", HEADER)) as caller:
        call = server.next(SOON_S)
        assert call is not None
        assert server.num_connections == 1
        del call
        assert read_all(caller) == b""
    assert server.num_connections == 0
    server.stop()


# --- waits


def test_what_does_not_answer_or_exist_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = DataClient("127.0.0.1", silent.getsockname()[1])
        client.connect(SOON_S)
        with pytest.raises(StreamTimedOut, match="the deadline passed"):
            client.call(HEADER, b"", 0.2)
    with pytest.raises(StreamError, match="Connection refused"):
        DataClient("127.0.0.1", 1).connect(SOON_S)
    with pytest.raises(StreamError, match=r"the name nowhere\.invalid is not known"):
        DataClient("nowhere.invalid", 1).connect(SOON_S)


def test_a_reply_that_a_slow_network_carries_has_the_time_of_its_bytes() -> None:
    """On both sides: a fixed time would end every large reply, and every repetition of it."""
    sent = np.arange(1 << 20, dtype=np.uint8)
    with echoing(lambda call, _: call.reply([sent], 0.2, 0.2)) as echo, Proxy(echo.address) as network:
        network.bytes_per_second = 1 << 20
        client = DataClient(*network.address)
        client.connect(SOON_S)
        began = time.monotonic()
        assert client.call(HEADER, b"", 0.2)[1] == len(sent)
        received = np.empty_like(sent)
        client.read(received)
        assert client.finish()
        assert time.monotonic() - began > 0.5, "the network was not slow"
    assert (received == sent).all()


def test_a_reply_that_trickles_ends_when_the_time_of_its_bytes_is_over() -> None:

    def receive(client: DataClient) -> None:
        client.call(HEADER, b"", 0.8)
        client.read(np.empty(1 << 18, np.uint8))

    def respond(call: DataCall, _: bytes) -> None:
        call.reply([np.zeros(1 << 18, np.uint8)], 60.0, 60.0)

    with echoing(respond) as echo, Proxy(echo.address) as network:
        network.bytes_per_second = 1 << 17
        client = DataClient(*network.address)
        client.connect(SOON_S)
        with pytest.raises(StreamTimedOut, match="the deadline passed"):
            receive(client)


def test_a_reader_that_stops_ends_its_call_only() -> None:
    failed = threading.Event()

    def respond(call: DataCall, body: bytes) -> None:
        try:
            call.reply([np.zeros(64 << 20, np.uint8)] if body else [], 60.0, 0.5)
        except StreamTimedOut:
            failed.set()
            raise

    with echoing(respond) as echo:
        slow = echo.client()
        assert slow.call(HEADER, b"much", 60.0)[1] == 64 << 20
        assert asked(echo.client(), b"") == b""
        assert failed.wait(SOON_S)
        with pytest.raises(StreamClosed):
            slow.read(np.empty(64 << 20, np.uint8))


def test_a_connection_that_the_server_closed_is_stale() -> None:
    with echoing(idle_s=0.2) as echo:
        client = echo.client()
        asked(client, b"")
        assert not client.is_stale()
        deadline = time.monotonic() + SOON_S
        while not client.is_stale() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert client.is_stale()


# --- strangers


def test_strangers_are_bounded_in_number_and_time() -> None:
    server = DataServer("127.0.0.1", 0, strangers=5, stranger_s=0.5)
    with ExitStack() as stack:
        place = ("127.0.0.1", server.port)
        strangers = [stack.enter_context(connected_socket(place, b"GIGL")) for _ in range(20)]
        while server.num_connections < 5:
            assert server.next(0.05) is None
        assert server.next(0.2) is None
        assert server.num_strangers == 5
        reasons = {reason for _, _, reason, *_ in server.sweep()}
        assert reasons == {"6 connections showed no token"}
        assert all(read_all(stranger) == b"" for stranger in strangers[:15])
        assert server.next(0.5) is None
        assert {reason for _, _, reason, *_ in server.sweep()} == {"no token within 0 s"}
        assert server.num_connections == 0
        assert all(read_all(stranger) == b"" for stranger in strangers)
    server.stop()


TOKENS = [f"Bearer {token}".encode() for token in ("a-token-for-tests-of-the-kernels", "another-token")]
REFUSAL = b"no such token"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        header_of("a-wrong-token"),
        header_of("another-tokem"),
        header_of("another-token-"),
        header_of("another-toke"),
        header_of("another-token", ("authorization", "Bearer another-token")),
        b"authorization:Bearer another-token\n",
        b" authorization: Bearer another-token\n",
    ],
)
def test_strangers_are_refused_although_nobody_waits_for_calls(header: bytes) -> None:
    server = DataServer("127.0.0.1", 0, tokens=TOKENS, refusal=REFUSAL)
    place = ("127.0.0.1", server.port)
    for body in (b"", b"a body that is not read"):
        with connected_socket(place, request_bytes(body, header)) as stranger:
            assert read_all(stranger) == reply_bytes(REFUSAL, status=1, flags=1)
    assert [entry[2:] for entry in server.sweep()] == [("", True, 2)]
    assert server.next(0.0) is None
    server.stop()


def test_whoever_shows_an_accepted_token_is_no_stranger() -> None:
    server = DataServer("127.0.0.1", 0, tokens=TOKENS, refusal=REFUSAL, strangers=1)
    headers = [
        header_of("another-token"),
        header_of("a-token-for-tests-of-the-kernels", ("more", "of it")),
        b"more: of it\r\nauthorization: Bearer another-token\r\n",
    ]
    with ExitStack() as stack:
        for header in headers:
            caller = stack.enter_context(connected_socket(("127.0.0.1", server.port)))
            caller.sendall(request_bytes(b"", header))
            call = server.next(SOON_S)
            assert call is not None
            assert call.header == header
            call.reply([], SOON_S, SOON_S)
            assert caller.recv(1 << 16) == reply_bytes()
        assert (server.num_connections, server.num_strangers) == (3, 0)
        server.accept([b"Bearer a-third-token"], REFUSAL)
        with connected_socket(("127.0.0.1", server.port), request_bytes(b"", headers[0])) as late:
            assert REFUSAL in (read_all(late) or b"")
        caller.sendall(request_bytes(b"", headers[0]))  # Its connection has shown a token.
        assert server.next(SOON_S) is not None
    server.stop()


def test_nothing_is_kept_of_networks_without_connections() -> None:
    server = DataServer("127.0.0.1", 0, per_address=2)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connected_socket(("127.0.0.1", server.port)))
        assert wait_until(lambda: len(server.sweep()) == 1, seconds=SOON_S)
        assert server.num_networks == 1
    assert wait_until(lambda: server.num_networks == 0, seconds=SOON_S)
    server.stop()
    refusing = DataServer("127.0.0.1", 0, per_address=0)
    with connected_socket(("127.0.0.1", refusing.port)) as stranger:
        assert read_all(stranger) == b""
    assert refusing.num_networks == 0
    refusing.stop()


def test_a_refusal_after_half_a_reply_ends_the_connection() -> None:
    server = DataServer("127.0.0.1", 0)
    with connected_socket(("127.0.0.1", server.port), request_bytes(b"", HEADER)) as caller:
        call = server.next(SOON_S)
        assert call is not None
        with pytest.raises(StreamTimedOut):
            call.reply([np.zeros(64 << 20, np.uint8)], 0.2, 0.2)
        with pytest.raises(RuntimeError, match="the call has its reply"):
            call.refuse(b"a second head", SOON_S)
        received = read_all(caller)
        assert received is not None
        assert received.count(b"GIGL") == 1
        assert b"a second head" not in received
        assert server.num_connections == 0
    server.stop()


def test_one_address_has_its_share() -> None:
    server = DataServer("127.0.0.1", 0, per_address=3)
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(connected_socket(("127.0.0.1", server.port)))
        assert server.next(0.3) is None
        assert server.num_connections == 3
        assert {reason for _, _, reason, *_ in server.sweep()} == {"more than 3 connections of one address"}
    server.stop()


def test_a_server_that_stops_frees_its_port_and_its_waits() -> None:
    server = DataServer("127.0.0.1", 0)
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(server.next, 600.0) for _ in range(2)]
        idle = connected_socket(("127.0.0.1", server.port))
        server.stop()
        assert [wait.result(SOON_S) for wait in waits] == [None, None]
        assert read_all(idle) == b""
        idle.close()
    again = DataServer("127.0.0.1", server.port)
    again.stop()
    server.stop()


def test_a_port_that_is_taken_is_told() -> None:
    server = DataServer("127.0.0.1", 0)
    with pytest.raises(OSError, match="Address already in use"):
        DataServer("127.0.0.1", server.port)
    with pytest.raises(OSError, match="Cannot assign"):
        DataServer("203.0.113.7", 0)
    server.stop()
