"""The proxy does to connections what tests ask of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.leftovers import wait_until
from tests.support.proxy import Proxy

pytestmark = pytest.mark.usefixtures("no_leftovers")


def _echo(server: socket.socket) -> None:
    """Serve one connection after the other: everything comes back."""
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                while piece := connection.recv(1 << 16):
                    connection.sendall(piece)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_echo, args=(server,))
        thread.start()
        with Proxy(server.getsockname()) as proxy:
            yield proxy
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(proxy.address, 5)


def _exchange(connection: socket.socket, data: bytes = b"hello") -> bytes:
    connection.sendall(data)
    received = b""
    while len(received) < len(data) and (piece := connection.recv(1 << 16)):
        received += piece
    return received


def test_it_carries_everything_and_counts_it(proxy: Proxy) -> None:
    data = bytes(range(256)) * 1000
    with _connect(proxy) as connection:
        assert _exchange(connection, data) == data
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert wait_until(lambda: proxy.bytes_down == len(data))
    assert proxy.connections == 1


def test_a_stall_holds_everything_until_it_is_over(proxy: Proxy) -> None:
    with _connect(proxy) as connection:
        assert _exchange(connection) == b"hello"
        proxy.stall()
        connection.sendall(b"again")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(5)
        proxy.resume()
        assert connection.recv(10) == b"again"


def test_latency_and_throughput_take_their_time(proxy: Proxy) -> None:
    with _connect(proxy) as connection:
        began = time.monotonic()
        proxy.latency_s = 0.05
        _exchange(connection)
        assert time.monotonic() - began >= 0.1  # there and back
        proxy.latency_s, proxy.bytes_per_second = 0.0, 100_000
        began = time.monotonic()
        _exchange(connection, bytes(10_000))
        assert time.monotonic() - began >= 0.2


def test_a_half_closed_connection_ends_one_way_only(proxy: Proxy) -> None:
    with _connect(proxy) as connection:
        assert _exchange(connection) == b"hello"
        proxy.half_close()
        assert connection.recv(1) == b""
        connection.sendall(b"still accepted")


@pytest.mark.parametrize("stalled", [False, True])
def test_a_cut_resets_all_connections_until_it_is_mended(proxy: Proxy, stalled: bool) -> None:
    with _connect(proxy) as connection:
        assert _exchange(connection) == b"hello"
        if stalled:
            proxy.stall()
            connection.sendall(b"held back")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    # A reset may come while the connection is made, or after.
    with pytest.raises(ConnectionResetError), _connect(proxy) as connection:
        connection.recv(1)
    proxy.resume()
    with _connect(proxy) as connection:
        assert _exchange(connection) == b"hello"


def test_a_target_that_is_gone_is_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = server.getsockname()
    with Proxy(target) as proxy, pytest.raises(ConnectionResetError), _connect(proxy) as connection:
        connection.recv(1)
