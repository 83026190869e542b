"""A data port in a process that has no descriptor left: it serves on, waits without work, and recovers."""

from __future__ import annotations

import gc
import os
import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader.native import DataClient, DataServer, StreamError
from tests.support.raw_data import header_of, read_all, reply_bytes, request_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = header_of("a-token-for-tests-of-the-kernels")
SOON_S = 60.0
WATCHED_S = 1.5
BUSY = 0.5
"""Of a core: less than a thread takes that never waits."""


@pytest.fixture
def server() -> Iterator[DataServer]:
    """Serve requests by their bodies, with a sweep every tenth of a second."""
    gc.collect()  # Garbage of earlier tests must not free descriptors in the middle of one of these.
    made, ending = DataServer("127.0.0.1", 0), threading.Event()

    def serve() -> None:
        while not ending.is_set():
            call = made.next(0.5)
            if call is not None:
                body = call.read_body(SOON_S, SOON_S)
                call.reply([np.frombuffer(body or b"", np.uint8)], SOON_S, SOON_S)

    def sweep() -> None:
        while not ending.wait(0.1):
            made.sweep()

    threads = [threading.Thread(target=target) for target in (serve, sweep)]
    for thread in threads:
        thread.start()
    yield made
    ending.set()
    made.stop()
    for thread in threads:
        thread.join(SOON_S)


def connected_client(server: DataServer) -> DataClient:
    client = DataClient("127.0.0.1", server.port)
    client.connect(SOON_S)
    return client


def asked(client: DataClient, body: bytes) -> bytes:
    out = np.empty(client.call(HEADER, body, SOON_S)[1], np.uint8)
    client.read(out)
    assert client.finish()
    return out.tobytes()


@contextmanager
def descriptors_below(number: int) -> Iterator[None]:
    """Let this process open no descriptor from ``number`` on. Those that are open stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_wait_without_work_until_descriptors_are_free(server: DataServer) -> None:
    honest = connected_client(server)
    assert asked(honest, b"before") == b"before"
    with ExitStack() as stack:
        late = [stack.enter_context(socket.socket()) for _ in range(5)]
        with descriptors_below(3):  # The descriptor that is kept in reserve can be used no more, either.
            for each in late:
                each.settimeout(SOON_S)
                each.connect(("127.0.0.1", server.port))
                each.sendall(request_bytes(b"late", HEADER))
            used, until = time.process_time(), time.monotonic() + WATCHED_S
            while time.monotonic() < until:
                assert asked(honest, b"meanwhile") == b"meanwhile"
                time.sleep(0.05)
            assert time.process_time() - used < BUSY * WATCHED_S
            assert server.num_connections == 1
        for each in late:
            assert each.recv(1 << 16) == reply_bytes(b"late")


def test_the_last_descriptor_refuses_connections_at_once(server: DataServer) -> None:
    honest = connected_client(server)
    assert asked(honest, b"before") == b"before"  # It has shown its token: connections without one give way.
    with ExitStack() as stack:
        late = [stack.enter_context(socket.socket()) for _ in range(20)]
        # No number below the limit is free, but that of the descriptor in reserve.
        most = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        fillers = [os.dup(0)]
        while fillers[-1] < most:
            fillers.append(os.dup(0))
        for filler in fillers:
            stack.callback(os.close, filler)
        with descriptors_below(fillers[-1] + 1):
            for each in late:
                each.settimeout(SOON_S)
                each.connect(("127.0.0.1", server.port))
                assert asked(honest, b"meanwhile") == b"meanwhile"
            assert [read_all(each) for each in late] == [b""] * len(late)
            assert asked(honest, b"meanwhile") == b"meanwhile"
            with pytest.raises(StreamError, match="Too many open files"):
                connected_client(server)
    assert asked(connected_client(server), b"after") == b"after"
