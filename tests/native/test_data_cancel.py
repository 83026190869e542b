"""Cancellation of calls and of connecting, at the data port's server and client."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gigl_loader.native import DataClient, DataServer, StreamCancelled, StreamError, StreamTimedOut
from tests.support.raw_data import header_of

HEADER = header_of("a-token-for-tests-of-the-kernels")
SOON_S = 60.0


def test_a_call_is_cancelled_before_its_first_byte() -> None:
    server = DataServer("127.0.0.1", 0)
    client = DataClient("127.0.0.1", server.port)
    client.connect(SOON_S)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.call, HEADER, b"", 600.0)
        call = server.next(SOON_S)  # Kept: a call that is dropped ends its connection.
        assert call is not None
        client.cancel()
        with pytest.raises(StreamCancelled):
            waiting.result(SOON_S)
    server.stop()


def test_connecting_is_cancelled_and_has_a_deadline() -> None:
    with socket.socket() as deaf, socket.socket() as filler:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)  # One connection waits in its queue; the kernel drops what further ones send.
        filler.connect(deaf.getsockname())
        with pytest.raises(StreamTimedOut):
            DataClient("127.0.0.1", deaf.getsockname()[1]).connect(0.2)
        client = DataClient("127.0.0.1", deaf.getsockname()[1])
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.connect, 600.0)
            time.sleep(0.1)
            client.cancel()
            with pytest.raises(StreamError):
                waiting.result(SOON_S)
        with pytest.raises(StreamCancelled):
            client.connect(SOON_S)


def test_a_late_cancel_leaves_the_callers_next_call_alone() -> None:
    server = DataServer("127.0.0.1", 0)
    client = DataClient("127.0.0.1", server.port)
    client.connect(SOON_S)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.call, HEADER, b"", SOON_S)
        replied = server.next(SOON_S)
        assert replied is not None
        replied.reply([], SOON_S, SOON_S)
        assert first.result(SOON_S)[:2] == (0, 0)
        assert client.finish()
        second = threads.submit(client.call, HEADER, b"", SOON_S)  # Over the same connection.
        call = server.next(SOON_S)
        assert call is not None
        assert not replied.cancel()
        call.reply([np.zeros(3, np.uint8)], SOON_S, SOON_S)
        assert second.result(SOON_S)[:2] == (0, 3)
        assert call.cancel() is False
    server.stop()


def test_a_call_that_the_server_cancels_ends_with_its_connection() -> None:
    server = DataServer("127.0.0.1", 0)
    client = DataClient("127.0.0.1", server.port)
    client.connect(SOON_S)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.call, HEADER, b"", SOON_S)
        call = server.next(SOON_S)
        assert call is not None
        assert call.cancel()
        with pytest.raises(StreamError):
            call.reply([], SOON_S, SOON_S)
        with pytest.raises(StreamError):
            waiting.result(SOON_S)
    assert server.num_connections == 0
    server.stop()
