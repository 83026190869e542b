"""The data port between callers that ask and do not read, and callers that want their batches."""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.native import check_stop
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.requests import Envelope, encode
from gigl_loader.rpc.tokens import Token
from gigl_loader.sampling.store import DrawRule, FeatureRequest, NeighborRequest
from gigl_server.admission import DATA_PORT
from gigl_server.peer_server import build_server
from gigl_server.ports import data, shares
from gigl_server.ports.queries import Queries
from gigl_server.ports.shares import ByteSemaphore
from tests.support.leftovers import wait_until
from tests.support.peers import TOKEN, remote_store
from tests.support.raw_data import RawCaller, Refused, connected_socket, header_of, read_all, request_bytes
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


@pytest.mark.some(1)
@pytest.mark.parametrize("request_", [ROWS, LISTS], ids=["rows", "neighbors"])
def test_whoever_does_not_read_holds_its_share_and_no_turn(server: Served, request_: Any) -> None:
    with StalledCaller(server.endpoint.data_address, HOSTILE) as hostile:
        answered = [hostile.ask(ticket(request_)) for _ in range(8)]
        assert 1 <= sum(answered) < len(answered)
        assert server.sending.lent <= SENT_BYTES // 2
        assert server.turns.lent == 0
        assert gathers(server)
        assert samples(server)
    assert wait_until(lambda: server.sending.lent == 0)
    assert server.calls.lent == 0


def test_calls_are_counted_until_their_replies_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "DATA_PORT", replace(DATA_PORT, calls=6))
    with serving() as server, StalledCaller(server.endpoint.data_address, HOSTILE) as hostile:
        assert [hostile.ask(ticket(ROWS)) for _ in range(5)] == [True] * 3 + [False] * 2
        assert gathers(server)


def test_a_hoarder_makes_room_for_who_has_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gigl_server.ports.queries._SENT_BYTES", 300 << 20)
    monkeypatch.setattr(shares, "_UNREAD_S", 0.5)
    with serving() as server, StalledCaller(server.endpoint.data_address, HOSTILE) as hostile:
        assert [hostile.ask(ticket(ROWS)) for _ in range(3)] == [True, True, False]
        with server.sending.take(70 << 20):  # Of a third caller.
            assert gathers(server)
    told = "a reply was not read for 0.5 s, and other callers wait"
    assert wait_until(lambda: told in caplog.text)


def test_a_reply_that_nobody_reads_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_REPLY_S", 1.0)
    with serving() as server, StalledCaller(server.endpoint.data_address, HOSTILE) as hostile:
        threads = len(os.listdir("/proc/self/task"))
        assert hostile.ask(ticket(ROWS))
        assert hostile.ask(ticket(LISTS))
        assert server.sending.lent > 30 << 20
        assert wait_until(lambda: server.sending.lent == 0)
        assert server.calls.lent == 0
        assert len(os.listdir("/proc/self/task")) <= threads + 8
        monkeypatch.setattr(data, "_REPLY_S", 60.0)
        assert gathers(server)


# --- connections


def test_connections_that_show_no_token_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "DATA_PORT", replace(DATA_PORT, first_s=1.0))
    request = request_bytes(b"x" * 100, header_of("wrong-token-of-some-length"))
    openings = [b"", b"GIGL", request[:31], request[:40], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", request] * 10
    with serving() as server, ExitStack() as stack:
        store = remote_store(small_graph(), server.endpoint)
        stack.callback(store.close)
        store.sample(LISTS)
        strangers = [connected_socket(server.endpoint.data_address, opening) for opening in openings]
        for stranger in strangers:
            stack.enter_context(stranger)
        assert all(read_all(stranger) is not None for stranger in strangers)
        store.sample(LISTS)
        assert store.wire().retries == 0  # Its connection was silent as well, but had shown a token.


def test_the_oldest_of_too_many_connections_without_a_token_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "DATA_PORT", replace(DATA_PORT, connections=10))
    with serving() as server, ExitStack() as stack:
        first, *_ = [stack.enter_context(connected_socket(server.endpoint.data_address)) for _ in range(30)]
        assert read_all(first) == b""
        assert gathers(server)


def test_a_body_without_a_token_is_not_received(server: Served) -> None:
    head = request_bytes(b"x" * (64 << 20), header_of("wrong-token-of-some-length"))[:4096]
    with connected_socket(server.endpoint.data_address, head) as stranger:
        assert b"unauthenticated" in (read_all(stranger) or b"")
    assert gathers(server)


def test_a_body_of_a_known_caller_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_BODY_STALL_S", 0.5)
    head = request_bytes(b"x" * (1 << 20), header_of(HOSTILE))[:4096]
    with serving() as server, connected_socket(server.endpoint.data_address, head) as slow:
        assert read_all(slow) == b""
        assert wait_until(lambda: server.calls.lent == 0)


def test_a_body_beyond_the_limit_is_refused_unread(server: Served) -> None:
    head = request_bytes(b"", header_of(HOSTILE), body_bytes=1 << 40)
    with connected_socket(server.endpoint.data_address, head) as greedy:
        assert b"at most" in (read_all(greedy) or b"")


def test_another_version_is_told(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    with connected_socket(
        server.endpoint.data_address, request_bytes(b"", header_of(TOKEN), version=5)
    ) as other:
        assert b"version 5 of the data port, this service reads 4" in (read_all(other) or b"")


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
    assert "refused 127.0.0.1: data port: unauthenticated: wrong token" in caplog.text
    assert "a-wrong-token" not in caplog.text


def test_texts_of_strangers_are_escaped(served_once: Served, caplog: pytest.LogCaptureFixture) -> None:
    graph = small_graph()
    text = "\x1b[31mred\nlines\u202e"
    request = encode(
        Envelope(graph=graph.manifest.digest, partition=0),
        FeatureRequest(kind="node", columns=(text,), rows=np.zeros(1, np.int64)),
        graph.schema,
    )
    with (
        RawCaller(served_once.endpoint.data_address, token=TOKEN) as caller,
        pytest.raises(Refused) as raised,
    ):
        caller.ask(request)
    for told in (str(raised.value), caplog.messages[-1]):
        assert "no column" in told
        assert told.isascii()
        assert told.isprintable()


@pytest.mark.usefixtures("no_leftovers")
def test_a_port_that_is_closed_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with serving() as server:
        assert gathers(server)
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("data ")]


def test_a_port_without_calls_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its threads finishes a wait before."""
    monkeypatch.setattr(data, "_SWEEP_S", 60.0)
    before = set(threading.enumerate())
    with serving() as server:
        assert gathers(server)
        [watcher] = [each for each in set(threading.enumerate()) - before if each.name == "data callers"]
        time.sleep(0.3)  # It waits for replies by now.
    assert not watcher.is_alive()


def test_a_port_ends_while_a_reply_is_not_read(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        with serving() as server:
            hostile = stack.enter_context(StalledCaller(server.endpoint.data_address, HOSTILE))
            assert hostile.ask(ticket(ROWS))
            assert hostile.ask(ticket(LISTS))
        assert re.search("replies that were not read: [12], their connections are cut", caplog.text)
        assert "does not end" not in caplog.text


def endless(*_: object) -> None:
    """Make a reply until it is stopped."""
    while True:
        check_stop()


@pytest.mark.slow
def test_a_reply_is_not_made_for_a_caller_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr(Queries, "respond", endless)
            with connected_socket(server.endpoint.data_address) as caller:
                caller.sendall(request_bytes(header_of(HOSTILE), ticket(LISTS)))
                assert wait_until(lambda: server.turns.lent == 1)
            assert wait_until(lambda: server.turns.lent == 0)
        assert wait_until(lambda: server.calls.lent == 0)
        assert samples(server)


@pytest.mark.slow
def test_a_port_ends_while_a_reply_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        with serving() as server, monkeypatch.context() as patch:
            patch.setattr(Queries, "respond", endless)
            caller = stack.enter_context(connected_socket(server.endpoint.data_address))
            caller.sendall(request_bytes(header_of(HOSTILE), ticket(LISTS)))
            assert wait_until(lambda: server.turns.lent == 1)
        assert "does not end" not in caplog.text


def test_a_reply_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "_MAKE_S", 0.2)
    with serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr(Queries, "respond", endless)
            told = r"was not made: it took more than 0\.2 s; request less at once"
            with pytest.raises(Refused, match=told):
                RawCaller(server.endpoint.data_address, token=HOSTILE).ask(ticket(LISTS))
        assert samples(server)
