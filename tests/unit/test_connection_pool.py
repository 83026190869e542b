"""Connections of a caller: reused, replaced where the service closed them, cancelled by ``close``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.native import DataServer
from gigl_loader.rpc.calls import Cancellation, Cancelled
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.refusals import Busy, Refusal, RefusalKind
from gigl_loader.rpc.replicas import connection_to
from tests.support.leftovers import wait_until
from tests.support.peers import CALLER
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.native import DataCall
    from gigl_loader.rpc.reply_stream import ReplyStream

SOON_S = 60.0


class Service:
    """Replies to each request with its header text; to none while ``silent``; refuses while ``busy``.

    ``most``: connections that it takes.
    """

    def __init__(self, most: int = 100) -> None:
        self.server = DataServer("127.0.0.1", 0, idle_s=0.3, per_address=most)
        self.silent = self.busy = False
        self.held: list[DataCall] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def connection(self) -> Connection:
        endpoint = Endpoint(
            host_index=0, host="127.0.0.1", control_port=1, data_port=self.server.port, partitions=()
        )
        return Connection(endpoint, CALLER, timeout_s=SOON_S)

    def _serve(self) -> None:
        while not self._ending.is_set():
            call = self.server.next(0.1)
            if call is None:
                self.server.sweep()
            elif self.silent:
                self.held.append(call)
            elif self.busy:
                call.read_body(SOON_S, SOON_S)
                call.refuse(Refusal(RefusalKind.BUSY, "as many as it takes").to_record(), SOON_S)
            else:
                self._reply(call)

    @staticmethod
    def _reply(call: DataCall) -> None:
        call.read_body(SOON_S, SOON_S)
        call.reply([np.frombuffer(call.header, np.uint8)], SOON_S, SOON_S)

    def release(self) -> None:
        """Reply to the requests that are held, and to all others."""
        self.silent = False
        while self.held:
            self._reply(self.held.pop())

    def close(self) -> None:
        self._ending.set()
        self.server.stop()
        self._thread.join(SOON_S)


@contextmanager
def serving(most: int = 100) -> Iterator[Service]:
    with closing(Service(most)) as service:
        yield service


def read(reply: ReplyStream) -> bytes:
    out = np.empty(reply.nbytes, np.uint8)
    reply.read(out)
    reply.finish()
    return out.tobytes()


def test_a_connection_is_used_again() -> None:
    with serving() as service, closing(service.connection()) as connection:
        for _ in range(5):
            assert connection.call(b"request", read) == f"authorization: Bearer {CALLER.token}\n".encode()
        assert service.server.num_connections == 1
        assert (connection.counts().calls, connection.counts().retries) == (5, 0)


def test_threads_have_a_connection_each() -> None:
    with serving() as service, closing(service.connection()) as connection, ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(lambda _: connection.call(b"", read), range(40)))) == 1
        assert service.server.num_connections <= 4


def test_an_idle_connection_that_the_service_closed_costs_no_attempt() -> None:
    with serving() as service, closing(service.connection()) as connection:
        connection.call(b"", read)
        assert wait_until(lambda: service.server.num_connections == 0, seconds=SOON_S)
        connection.call(b"", read)
        assert connection.counts().retries == 0


def test_a_renewed_token_goes_with_the_next_call() -> None:
    with serving() as service, closing(service.connection()) as connection:
        connection.call(b"", read)
        connection.renew(Caller(token="another-token-of-some-length"))
        assert connection.call(b"", read) == b"authorization: Bearer another-token-of-some-length\n"


def test_close_ends_a_call_before_its_first_byte() -> None:
    with serving() as service, closing(service.connection()) as connection, ThreadPoolExecutor(1) as threads:
        service.silent = True
        waiting = threads.submit(connection.call, b"", read, timeout_s=600.0)
        assert wait_until(lambda: bool(service.held), seconds=SOON_S)
        connection.close()
        with pytest.raises(SamplingError, match="was closed"):
            waiting.result(SOON_S)
        with pytest.raises(SamplingError, match="was closed"):
            connection.call(b"", read)


def test_a_cancelled_call_ends_alone() -> None:
    """Its connection is closed. The connections of other calls, and later calls, are as they were."""
    with serving() as service, closing(service.connection()) as connection, ThreadPoolExecutor(1) as threads:
        service.silent = True
        cancellation = Cancellation()
        waiting = threads.submit(connection.call, b"", read, timeout_s=600.0, cancellation=cancellation)
        assert wait_until(lambda: bool(service.held), seconds=SOON_S)
        cancellation.cancel()
        with pytest.raises(Cancelled):
            waiting.result(SOON_S)
        service.silent = False
        assert connection.call(b"", read)
        assert wait_until(lambda: service.server.num_connections <= 1, seconds=SOON_S)


def test_a_call_that_was_cancelled_before_it_began_sends_nothing() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with serving() as service, closing(service.connection()) as connection:
        with pytest.raises(Cancelled):
            connection.call(b"", read, cancellation=cancellation)
        assert connection.counts().calls == 0


def test_a_call_that_waits_for_a_busy_service_is_cancelled_at_once() -> None:
    cancellation = Cancellation()
    with serving() as service, closing(service.connection()) as connection, ThreadPoolExecutor(1) as threads:
        service.busy = True
        waiting = threads.submit(connection.call, b"", read, timeout_s=600.0, cancellation=cancellation)
        assert wait_until(lambda: connection.counts().retries > 0, seconds=SOON_S)
        cancellation.cancel()
        with pytest.raises(Cancelled):
            waiting.result(SOON_S)


def test_a_busy_service_is_asked_again_until_the_time_of_the_attempt_is_over() -> None:
    with serving() as service, closing(service.connection()) as connection, ThreadPoolExecutor(1) as threads:
        service.busy = True
        with pytest.raises(Busy, match=r"did not answer within \d\.\d s: as many as it takes"):
            connection.call(b"", read, timeout_s=0.3)
        waiting = threads.submit(connection.call, b"", read)
        asked = connection.counts().retries
        assert wait_until(lambda: connection.counts().retries > asked, seconds=SOON_S)
        service.busy = False
        assert waiting.result(SOON_S)


def test_closing_ends_a_call_that_waits_for_its_next_attempt() -> None:
    nobody = Endpoint(host_index=0, host="127.0.0.1", control_port=1, data_port=free_port(), partitions=())
    connection = connection_to(nobody, CALLER, timeout_s=600.0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(connection.call, b"", read)
        assert wait_until(lambda: connection.counts().retries > 0, seconds=SOON_S)
        connection.close()
        with pytest.raises(SamplingError, match="was closed"):
            waiting.result(SOON_S)


def test_cancelling_after_the_end_leaves_the_connection_to_the_next_call() -> None:
    with serving() as service, closing(service.connection()) as connection:
        for _ in range(3):
            cancellation = Cancellation()
            connection.call(b"", read, cancellation=cancellation)
            cancellation.cancel()
        assert service.server.num_connections == 1


@pytest.fixture
def short() -> Iterator[tuple[Service, Connection, ThreadPoolExecutor]]:
    """A service that takes one connection, which a call holds, and threads for other calls."""
    with (
        ThreadPoolExecutor(9) as threads,
        serving(most=1) as service,
        closing(service.connection()) as caller,
    ):
        service.silent = True
        holder = threads.submit(caller.call, b"", read, timeout_s=600.0)
        assert wait_until(lambda: bool(service.held), seconds=SOON_S)
        yield service, caller, threads
        service.release()
        with suppress(StorageUnavailable):
            assert holder.result(SOON_S)


def test_calls_beyond_the_limit_of_a_peer_wait_for_the_connections_in_use(
    short: tuple[Service, Connection, ThreadPoolExecutor], caplog: pytest.LogCaptureFixture
) -> None:
    service, connection, threads = short
    others = [threads.submit(connection.call, b"", read, timeout_s=600.0) for _ in range(8)]
    assert wait_until(lambda: connection.counts().retries >= len(others), seconds=SOON_S)
    assert not any(each.done() for each in others)
    service.release()
    assert all(each.result(SOON_S) for each in others)
    assert service.server.num_connections == 1
    assert caplog.text.count("no further connection: calls wait for those that are in use") == 1


def test_a_call_that_waits_for_a_connection_has_a_deadline_and_can_be_cancelled(
    short: tuple[Service, Connection, ThreadPoolExecutor],
) -> None:
    _, connection, threads = short
    with pytest.raises(StorageUnavailable, match=r"closed by the other side|the deadline passed"):
        connection.call(b"", read, timeout_s=0.3)
    cancellation, before = Cancellation(), connection.counts().retries
    waiting = threads.submit(connection.call, b"", read, timeout_s=600.0, cancellation=cancellation)
    assert wait_until(lambda: connection.counts().retries > before, seconds=SOON_S)
    cancellation.cancel()
    with pytest.raises(Cancelled):
        waiting.result(SOON_S)


def test_a_call_that_waits_for_a_connection_fails_with_the_last_one(
    short: tuple[Service, Connection, ThreadPoolExecutor],
) -> None:
    service, connection, threads = short
    waiting = threads.submit(connection.call, b"", read, timeout_s=600.0)
    assert wait_until(lambda: connection.counts().retries > 0, seconds=SOON_S)
    service.close()
    service.held.clear()  # Each keeps its connection open.
    with pytest.raises(StorageUnavailable, match=r"closed by the other side|Connection refused"):
        waiting.result(SOON_S)
