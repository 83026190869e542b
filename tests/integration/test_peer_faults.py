"""A host that dies, stalls or lies while others ask it: in time, by name, and nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.native import crc32c
from gigl_loader.rpc.checksums import checksum_trailer
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.host_service import HostService
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.store import DrawRule, FeatureRequest, NeighborRequest
from tests.support.leftovers import wait_until
from tests.support.peers import TOKEN, remote_store, served
from tests.support.proxy import Proxy
from tests.support.sources import small_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_loader.rpc.remote_store import RemoteStore

# 115 MB: more than all buffers between a service and its caller hold.
ROWS = FeatureRequest(
    kind="node", columns=("x", "y"), rows=np.random.default_rng(0).integers(0, 600, 1_600_000)
)
"""29 MB in 28 chunks."""


def gathered(store: Any) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    out = [np.zeros((len(ROWS.rows), width), np.uint8) for width in (64, 8)]
    store.gather(ROWS, np.arange(len(ROWS.rows)), out)
    return out


def ask() -> NeighborRequest:
    return NeighborRequest(
        edge_type=("node", "to", "node"),
        targets=np.arange(600),
        key=5,
        hop=0,
        rule=DrawRule(fanout=5),
        with_edge_ids=False,
        with_slots=False,
    )


def same(found: list[Any]) -> bool:
    expected = gathered(LocalStore(small_graph(), 0))
    return all(np.array_equal(left, right) for left, right in zip(found, expected, strict=True))


def after_chunks(monkeypatch: pytest.MonkeyPatch, count: int, act: Callable[[], object]) -> None:
    """Do something once, when so many chunks were received."""
    from gigl_loader.rpc import replies

    real, seen = replies.RowScatter.add, [0]

    def add(self: Any, chunk: Any) -> None:
        seen[0] += 1
        if seen[0] == count:
            act()
        real(self, chunk)

    monkeypatch.setattr(replies.RowScatter, "add", add)


@pytest.fixture
def service() -> Iterator[HostService]:
    with HostService.start(
        small_graph().reference, [0], credentials=Credentials(token=TOKEN), timeout_s=30
    ) as found:
        yield found


@pytest.fixture
def store(service: HostService) -> Iterator[RemoteStore]:
    found = remote_store(small_graph(), service.endpoint)
    yield found
    found.close()


def test_a_service_killed_in_mid_stream_and_started_again_gives_the_same_bytes(
    service: HostService, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_chunks(monkeypatch, 5, lambda: os.kill(service.pid, signal.SIGKILL))
    assert same(gathered(store))
    assert service.restarts == 1
    assert store.wire().retries >= 1
    assert len(store.sample(ask()).counts) == 600


@pytest.mark.parametrize("at_chunk", [0, 5], ids=["before the call", "in mid-stream"])
def test_a_stopped_service_is_named_in_time(
    service: HostService, monkeypatch: pytest.MonkeyPatch, at_chunk: int
) -> None:
    store = remote_store(small_graph(), service.endpoint, timeout_s=0.6, attempt_s=0.2)
    patience = remote_store(small_graph(), service.endpoint)
    gathered(patience)
    if at_chunk:
        after_chunks(monkeypatch, at_chunk, lambda: os.kill(service.pid, signal.SIGSTOP))
    else:
        os.kill(service.pid, signal.SIGSTOP)
    began = time.monotonic()
    who = rf"^host 0 at {service.endpoint.control_address}, which holds partition 0, did not answer"
    with pytest.raises(StorageUnavailable, match=rf"{who} within \d\.\d s: "):
        gathered(store)
    assert time.monotonic() - began < 5
    later = threading.Timer(0.3, os.kill, (service.pid, signal.SIGCONT))
    later.start()
    assert same(gathered(patience))  # It waits longer than the service is stopped: nothing is lost.
    later.join()
    store.close()
    patience.close()


def test_a_service_that_is_gone_is_named_with_the_last_error() -> None:
    with served(small_graph()) as endpoint:
        store = remote_store(small_graph(), endpoint, timeout_s=1.0)
        store.sample(ask())
    with pytest.raises(StorageUnavailable, match=r"did not answer within .*Connection refused"):
        store.sample(ask())
    assert store.wire().retries >= 2
    store.close()


@pytest.mark.parametrize("fault", ["stall", "cut"])
def test_a_network_that_fails_in_mid_stream_and_heals_loses_nothing(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(small_graph()) as endpoint, Proxy((endpoint.host, endpoint.data_port)) as proxy:
        through = replace(endpoint, data_port=proxy.address[1])
        store = remote_store(small_graph(), through, attempt_s=5.0)
        healer = threading.Timer(0.2, proxy.resume)

        def fail() -> None:
            getattr(proxy, fault)()
            healer.start()

        after_chunks(monkeypatch, 5, fail)
        assert same(gathered(store))
        healer.join()
        store.close()


def _errors_of(work: Callable[[], object]) -> tuple[threading.Thread, list[Exception]]:
    """Run something in a thread that may fail, and return both."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_closing_ends_a_reply_under_way(service: HostService, monkeypatch: pytest.MonkeyPatch) -> None:
    store = remote_store(small_graph(), service.endpoint, timeout_s=60)
    stopped = threading.Event()

    def stop() -> None:
        os.kill(service.pid, signal.SIGSTOP)
        stopped.set()

    after_chunks(monkeypatch, 2, stop)
    waiting, errors = _errors_of(lambda: gathered(store))
    assert stopped.wait(10)
    store.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert type(errors[0]) is SamplingError
    assert "was closed" in str(errors[0])
    os.kill(service.pid, signal.SIGCONT)


def test_closing_ends_new_attempts(service: HostService) -> None:
    store = remote_store(small_graph(), service.endpoint, timeout_s=60, attempt_s=0.3)
    os.kill(service.pid, signal.SIGSTOP)
    waiting, errors = _errors_of(lambda: store.sample(ask()))
    assert wait_until(lambda: store.wire().calls > 0, seconds=10)
    store.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert "was closed" in str(errors[0])
    with pytest.raises(SamplingError, match="was closed"):
        store.sample(ask())
    os.kill(service.pid, signal.SIGCONT)


# --- services that lie


class Liar(flight.FlightServerBase):  # type: ignore[misc]
    """Sends what it was told to, with a checksum that fits."""

    def __init__(self, messages: list[Any], kind: Any = None, *, column: str | bytes = "bytes") -> None:
        self._messages = messages
        self._schema = pa.schema([pa.field(column, kind or pa.uint8(), nullable=kind is not None)])
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context: Any, ticket: Any) -> Any:
        return flight.GeneratorStream(self._schema, self._stream())

    def _stream(self) -> Iterator[Any]:
        crc = 0
        for data, metadata in self._messages:
            if isinstance(data, Exception):
                raise data
            crc = crc32c(np.array([value or 0 for value in data], np.uint8), crc)
            batch = pa.RecordBatch.from_arrays(
                [pa.array(data, self._schema.field(0).type)], schema=self._schema
            )
            yield batch if metadata is None else (batch, metadata)
        trailer = pa.array(list(checksum_trailer(crc)), self._schema.field(0).type)
        yield pa.RecordBatch.from_arrays([trailer], schema=self._schema)


@pytest.mark.parametrize(
    ("messages", "kind", "message"),
    [
        ([], None, "ended after 0 bytes"),
        ([([1, 2, 3], b"\x03" + b"\0" * 7)], None, "3 bytes cannot hold the 8-byte header length"),
        ([([1, 2, 3], None)], None, "of None bytes"),
        ([([1, 2, 3], b"x")], None, "1 bytes of metadata, not the 8 of its size"),
        ([([1, 2, 3], b"\xff" * 8)], None, "at most"),
        ([([1, 2, 3], b"\x03" + b"\0" * 7)], pa.int64(), "not one column of uint8"),
        ([([1, None, 3], b"\x03" + b"\0" * 7)], pa.uint8(), "nulls"),
    ],
)
def test_a_reply_that_breaks_a_rule_is_asked_for_again_then_refused(
    messages: list[Any], kind: Any, message: str
) -> None:
    """It may have been damaged on its way, where no checksum covers it."""
    check_refused_as_damaged(Liar(messages, kind), message)


def test_a_reply_whose_column_has_a_damaged_name_is_asked_for_again() -> None:
    """pyarrow reads the name only when it is asked for the column."""
    liar = Liar([([1, 2, 3], b"\x03" + b"\0" * 7)], column=b"\xe2(")
    check_refused_as_damaged(liar, "name is not UTF-8")


def check_refused_as_damaged(liar: Liar, message: str) -> None:
    endpoint = Endpoint(host_index=2, host="127.0.0.1", control_port=1, data_port=liar.port, partitions=(0,))
    store = remote_store(small_graph(), endpoint)
    with pytest.raises(FormatError, match=message):
        store.sample(ask())
    assert (store.wire().calls, store.wire().damaged) == (3, 3)
    store.close()
    liar.shutdown()


@pytest.mark.parametrize(
    "error",
    [ValueError("foreign"), flight.FlightServerError("odd", b'{"kind": "new"}')],
    ids=["no record", "unknown"],
)
def test_foreign_errors_end_in_one_of_ours(error: Exception) -> None:
    liar = Liar([(error, None)])
    endpoint = Endpoint(host_index=2, host="127.0.0.1", control_port=1, data_port=liar.port, partitions=(0,))
    store = remote_store(small_graph(), endpoint, timeout_s=1.0)
    with pytest.raises(StorageUnavailable, match=r"did not answer within .*(foreign|odd)") as raised:
        store.sample(ask())
    assert "Traceback" not in str(raised.value)
    store.close()
    liar.shutdown()


def test_who_speaks_another_language_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def talk() -> None:
            server.settimeout(0.05)
            while not stop.is_set():
                try:
                    connection = server.accept()[0]
                except TimeoutError:
                    continue
                with connection:
                    connection.sendall(b"220 mail.example.org ESMTP\r\n")

        talker = threading.Thread(target=talk)
        talker.start()
        port = server.getsockname()[1]
        endpoint = Endpoint(
            host_index=2, host="127.0.0.1", control_port=port, data_port=port, partitions=(0,)
        )
        store = remote_store(small_graph(), endpoint, timeout_s=0.5)
        with pytest.raises(StorageUnavailable, match="host 2 at"):
            store.sample(ask())
        store.close()
        stop.set()
        talker.join()
