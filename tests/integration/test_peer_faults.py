"""A host that dies, stalls or lies while others ask it: in time, by name, and nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.native import StopFlag, Stopped
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.host_service import HostService
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.store import DrawRule, FeatureRequest, NeighborRequest
from tests.support.leftovers import wait_until
from tests.support.peers import TOKEN, remote_store, served
from tests.support.proxy import Proxy
from tests.support.raw_data import Liar, reply_bytes
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


def test_a_call_that_nobody_wants_any_more_waits_no_longer(service: HostService, store: RemoteStore) -> None:
    """Neither for a service that is silent, nor in the pause before another attempt at one that is gone."""
    gathered(store)
    flag, ended = StopFlag(), []

    def ask_under_flag() -> None:
        try:
            with flag:
                gathered(store)
        except Stopped as stopped:
            ended.append((str(stopped), time.monotonic()))

    os.kill(service.pid, signal.SIGSTOP)
    try:
        thread = threading.Thread(target=ask_under_flag)
        thread.start()
        time.sleep(0.3)
        flag.stop("the channel was closed")
        began = time.monotonic()
        thread.join(15)  # The call itself would take 20 s.
    finally:
        os.kill(service.pid, signal.SIGCONT)
    [(reason, at)] = ended
    assert reason == "the channel was closed"
    assert at - began < 10
    assert same(gathered(store))


@pytest.mark.some(1)
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
    assert wait_until(lambda: store.wire().calls > 0)
    store.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert "was closed" in str(errors[0])
    with pytest.raises(SamplingError, match="was closed"):
        store.sample(ask())
    os.kill(service.pid, signal.SIGCONT)


# --- services that lie


SHORT = b"\x01\x02\x03"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (reply_bytes(), "0 bytes cannot hold"),
        (reply_bytes(SHORT), "3 bytes cannot hold the 8-byte header length"),
        (reply_bytes(SHORT, trailer=0), "does not match its checksum"),
        (reply_bytes(SHORT, payload_bytes=2**63), "at most"),
    ],
)
def test_a_reply_that_breaks_a_rule_is_asked_for_again_until_the_timeout(reply: bytes, message: str) -> None:
    """It may have been damaged on its way, where no checksum covers it."""
    with lied_to(reply, timeout_s=2.0) as store:
        with pytest.raises(StorageUnavailable, match=message):
            store.sample(ask())
        assert store.wire().calls == store.wire().damaged
        assert store.wire().damaged > 2


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"", "closed by the other side"),
        (reply_bytes(SHORT)[:31], "closed by the other side"),
        (reply_bytes(SHORT)[:-1], "closed by the other side"),
        (reply_bytes(SHORT) + b"x", "bytes follow the reply"),
        (reply_bytes(SHORT, magic=b"HTTP"), "not one of a data port"),
        (reply_bytes(SHORT, version=5), "version 5"),
        (reply_bytes(SHORT, crc=1), "the head of the reply was damaged"),
        (reply_bytes(SHORT, status=2), "breaks a rule"),
        (reply_bytes(b"x" * 20_000, status=1), "breaks a rule"),
        (reply_bytes(b"foreign", status=1), "a refusal that cannot be read"),
        (reply_bytes(b'{"kind": "new", "message": "odd"}', status=1), "a refusal that cannot be read"),
    ],
)
def test_replies_that_are_none_end_in_one_of_our_errors(reply: bytes, message: str) -> None:
    with lied_to(reply, timeout_s=1.0) as store:
        with pytest.raises(StorageUnavailable, match=rf"did not answer within .*{message}") as raised:
            store.sample(ask())
        assert "Traceback" not in str(raised.value)


@contextmanager
def lied_to(reply: bytes, **options: Any) -> Iterator[RemoteStore]:
    """Lend a store whose service replies with these bytes."""
    with Liar(reply) as liar:
        endpoint = Endpoint(
            host_index=2, host="127.0.0.1", control_port=1, data_port=liar.port, partitions=(0,)
        )
        store = remote_store(small_graph(), endpoint, **options)
        try:
            yield store
        finally:
            store.close()


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
