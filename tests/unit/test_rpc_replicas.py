"""Requests that go to several holders: failover, hedging, and rows that only one reply may write."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.holders import Holders
from gigl_loader.rpc.remote_store import RemoteStore
from gigl_loader.rpc.replicas import Replicas
from gigl_loader.rpc.replies import RowWriter, row_layout
from gigl_loader.rpc.reply_stream import ReplyBuffer, ReplyStream
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.store import FeatureRequest
from gigl_server.ports.queries import Queries
from tests.support.made import record_made
from tests.support.peers import CALLER, served
from tests.support.ports import free_port
from tests.support.stores import store_graphs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.rpc.endpoint import Endpoint

GRAPH = store_graphs()[0].graph
TIMEOUT = 20.0
REQUEST = FeatureRequest(kind="user", columns=("x",), rows=np.arange(3, dtype=np.int64))


def nobody(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint at which nothing listens."""
    port = free_port(count=2)
    return replace(endpoint, control_port=port, data_port=port + 1)


@contextmanager
def store(
    endpoints: Sequence[Endpoint], *, timeout_s: float = TIMEOUT, caller: Caller = CALLER
) -> Iterator[RemoteStore]:
    """Lend a store of partition 0 that asks the endpoints in this order."""
    replicas = Replicas(_Ordered(endpoints), caller, timeout_s=timeout_s)
    connection = replicas.connection(0)
    found = RemoteStore(connection, schema=GRAPH.schema, digest=GRAPH.manifest.digest)
    try:
        yield found
    finally:
        found.close()


class _Ordered(Holders):
    """Holders in the order in which they are given, healthy ones first."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        super().__init__(endpoints, key="")

    def _ranked(self, partition: int | None) -> tuple[Endpoint, ...]:
        return self.holding(partition)


def gathered(found: Any) -> np.ndarray[Any, Any]:
    width = GRAPH.schema.nodes["user"].columns["x"].row_bytes
    out = np.zeros((3, width), np.uint8)
    found.gather(REQUEST, np.arange(3, dtype=np.int64), [out])
    return out


EXPECTED = gathered(LocalStore(GRAPH, 0))
"""What any holder sends."""


def test_the_next_holder_is_asked_where_nobody_listens() -> None:
    with served(GRAPH) as endpoint, store([nobody(endpoint), endpoint]) as found:
        for _ in range(3):
            assert (gathered(found) == EXPECTED).all()
        assert found.wire().hedged == 0
        assert found.wire().retries == 0


def test_a_silent_holder_is_left_running_and_then_avoided() -> None:
    with ExitStack() as stack:
        endpoint = stack.enter_context(served(GRAPH))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        silent = replace(nobody(endpoint), data_port=listener.getsockname()[1])
        found = stack.enter_context(store([silent, endpoint]))
        for _ in range(3):
            assert (gathered(found) == EXPECTED).all()
        assert found.wire().hedged == 1


def test_all_holders_are_named_where_none_answers() -> None:
    with served(GRAPH) as endpoint:
        gone = [nobody(endpoint), nobody(endpoint)]
    with store(gone, timeout_s=0.5) as found, pytest.raises(StorageUnavailable) as raised:
        gathered(found)
    said = str(raised.value)
    assert "no holder of partition 0 answered within" in said
    assert all(each.control_address in said for each in gone)
    assert "\n" not in said


def test_what_every_holder_refuses_is_told_at_once() -> None:
    with served(GRAPH) as endpoint:
        other = replace(endpoint, control_port=endpoint.data_port)
        with (
            store([endpoint, other], timeout_s=600, caller=Caller(token="wrong" * 8)) as found,
            pytest.raises(SamplingError, match="token"),
        ):
            gathered(found)


def test_the_failure_of_one_holder_leaves_the_call_to_sound_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """``FAILED`` says that something is wrong with that service, not with the request."""
    respond, queries = Queries.respond, record_made(monkeypatch, Queries)

    def failing(self: Queries, *request: Any) -> Any:
        if self is queries[0]:
            raise RuntimeError("an error of this service")
        return respond(self, *request)

    monkeypatch.setattr(Queries, "respond", failing)
    with served(GRAPH) as broken, served(GRAPH) as sound:
        with store([broken, sound]) as found:
            assert (gathered(found) == EXPECTED).all()
        with (
            store([broken], timeout_s=0.5) as found,
            pytest.raises(StorageUnavailable, match="its log says why"),
        ):
            gathered(found)


def test_a_holder_that_joins_ends_the_wait() -> None:
    with served(GRAPH) as endpoint:
        holders = _Ordered([nobody(endpoint)])
        replicas = Replicas(holders, CALLER, timeout_s=TIMEOUT)
        connection = replicas.connection(0)
        found = RemoteStore(connection, schema=GRAPH.schema, digest=GRAPH.manifest.digest)
        joining = threading.Timer(0.3, holders.update, ([endpoint],))
        joining.start()
        assert (gathered(found) == EXPECTED).all()
        joining.join()
        found.close()


def test_traffic_is_still_counted_after_its_store_was_closed() -> None:
    with served(GRAPH) as endpoint:
        replicas = Replicas(_Ordered([endpoint]), CALLER, timeout_s=TIMEOUT)
        for calls in (1, 2):
            connection = replicas.connection(0)
            with closing(RemoteStore(connection, schema=GRAPH.schema, digest=GRAPH.manifest.digest)) as found:
                gathered(found)
            assert replicas.traffic()[endpoint.control_address].calls == calls


def test_closing_ends_a_call_that_waits_for_silent_holders() -> None:
    with ExitStack() as stack:
        endpoint = stack.enter_context(served(GRAPH))
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        silent = [replace(nobody(endpoint), data_port=each.getsockname()[1]) for each in listeners]
        found = stack.enter_context(store(silent, timeout_s=600))
        closing = threading.Timer(0.3, found.close)
        closing.start()
        with pytest.raises(SamplingError, match="closed"):
            gathered(found)
        closing.join()


class Reply:
    """A reply with the rows of ``REQUEST``, in two pieces, which pauses after the first until ``go``."""

    def __init__(self, *, damaged: bool = False) -> None:
        layout = row_layout({"x": EXPECTED.shape[1]}, len(EXPECTED))
        self._sent = np.frombuffer(layout.header + EXPECTED.tobytes(), np.uint8)
        self._data = self._sent.copy()
        self._data[len(layout.header) + EXPECTED.shape[1] :] ^= np.uint8(255 * damaged)
        self._read = 0
        self.begun, self.go = threading.Event(), threading.Event()

    def read(self, out: np.ndarray[Any, Any]) -> None:
        if self._read:
            self.begun.set()
            assert self.go.wait(30)
        out[:] = self._data[self._read :][: len(out)]
        self._read += len(out)

    def finish(self) -> bool:
        return bool((self._data == self._sent).all())

    def stream(self) -> ReplyStream:
        return ReplyStream(self, len(self._data), ReplyBuffer())


class Reading:
    """A thread that reads a reply."""

    def __init__(self, reader: RowWriter, reply: Reply) -> None:
        self.error: Exception | None = None
        self.reply = reply
        self._reader = reader
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert reply.begun.wait(30)

    def _read(self) -> None:
        try:
            self._reader(self.reply.stream())
        except Exception as error:
            self.error = error

    def end(self) -> Exception | None:
        self.reply.go.set()
        self._thread.join(30)
        return self.error


@pytest.fixture
def out() -> np.ndarray[Any, Any]:
    return np.zeros_like(EXPECTED)


@pytest.fixture
def reader(out: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch) -> RowWriter:
    header = row_layout({"x": EXPECTED.shape[1]}, len(EXPECTED)).header
    monkeypatch.setattr("gigl_loader.rpc.replies.CHUNK_BYTES", len(header) + 2 * EXPECTED.shape[1])
    return RowWriter(REQUEST, np.arange(3, dtype=np.int64), [out], placed=lambda ns: None)


@pytest.mark.parametrize("damaged", [False, True])
def test_the_second_reply_wins_and_the_first_writes_nothing_more(
    reader: RowWriter, out: np.ndarray[Any, Any], *, damaged: bool
) -> None:
    first = Reading(reader, Reply(damaged=damaged))
    second = Reading(reader, Reply())
    assert second.end() is None
    assert (out == EXPECTED).all()
    out[:] = 7  # It belongs to the next batch by now.
    assert isinstance(first.end(), SamplingError)
    assert (out == 7).all()


def test_the_first_reply_wins_and_the_second_writes_nothing(
    reader: RowWriter, out: np.ndarray[Any, Any]
) -> None:
    first = Reading(reader, Reply())
    second = Reading(reader, Reply())
    assert first.end() is None
    assert (out == EXPECTED).all()
    out[:] = 7
    assert isinstance(second.end(), SamplingError)
    assert (out == 7).all()


def test_a_damaged_reply_loses_to_a_whole_one_in_either_place(
    reader: RowWriter, out: np.ndarray[Any, Any]
) -> None:
    first = Reading(reader, Reply(damaged=True))
    second = Reading(reader, Reply(damaged=True))
    third = Reading(reader, Reply())
    assert isinstance(second.end(), FormatError)
    assert isinstance(first.end(), FormatError)
    assert third.end() is None
    assert (out == EXPECTED).all()


def test_nothing_is_written_after_the_end_of_the_call(reader: RowWriter, out: np.ndarray[Any, Any]) -> None:
    readings = [Reading(reader, Reply()) for _ in range(3)]
    reader.close()
    out[:] = 7
    assert all(isinstance(each.end(), SamplingError) for each in readings)
    assert (out == 7).all()
