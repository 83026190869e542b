"""Replies that are sent without a thread: whole, bounded in time, and cut where nobody reads."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader.native import DataClient, DataServer, StreamClosed, StreamTimedOut, TlsContext
from gigl_loader.rpc.certificates import self_signed
from tests.support.leftovers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.arrays import Bytes
    from gigl_loader.native import DataCall

SOON_S = 60.0
LARGE = 64 << 20
"""More than a connection takes before it is read."""


class PostingServer:
    """A data port that posts one reply to every request."""

    def __init__(self, reply: Bytes, *, seconds: float = SOON_S, tls: TlsContext | None = None) -> None:
        self.calls: list[DataCall] = []
        self.told: list[str] = []
        """Reasons for which connections were ended."""
        self._reply: Bytes | None = reply
        self.kept = weakref.ref(reply)
        """The reply, until it was sent and ``forget`` was called."""
        self._seconds = seconds
        self._server = DataServer("127.0.0.1", 0, tls)
        self.port = self._server.port
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(2)]
        for each in self._threads:
            each.start()

    def forget(self) -> None:
        self._reply = None

    def _serve(self) -> None:
        while not self._ending.is_set():
            call = self._server.next(0.05)
            self.told += [reason for _, _, reason, _, _ in self._server.sweep()]
            if call is not None and self._reply is not None:
                call.read_body(SOON_S, SOON_S)
                call.wait()
                self.calls.append(call)
                half = len(self._reply) // 2
                call.post([self._reply[:half], self._reply[half:]], self._seconds)

    def close(self) -> None:
        self._ending.set()
        self._server.stop()
        self._server.cut_all()
        for each in self._threads:
            each.join(SOON_S)


@contextmanager
def called(server: PostingServer, tls: TlsContext | None = None) -> Iterator[tuple[DataClient, int]]:
    """Yield a client whose call has the head of its reply, and the size of the payload."""
    client = DataClient("127.0.0.1", server.port, tls)
    client.connect(SOON_S)
    yield client, client.call(b"", b"x", SOON_S)[1]


def content(nbytes: int) -> Bytes:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("nbytes", [1, 2, (1 << 20) - 1, 1 << 20, 2 << 20, (2 << 20) + 3, (5 << 20) + 77])
def test_a_posted_reply_arrives_as_it_is(nbytes: int, encrypted: bool) -> None:
    server_tls = client_tls = None
    if encrypted:
        chain, key = self_signed(["127.0.0.1"])
        server_tls, client_tls = TlsContext.server(chain, key), TlsContext.client(chain)
    sent, out = content(nbytes), np.zeros(nbytes, np.uint8)
    with closing(PostingServer(sent, tls=server_tls)) as server, called(server, client_tls) as (client, size):
        assert size == nbytes
        client.read(out)
        assert client.finish()
        assert client.reusable
        assert not server.calls[0].cut_reply("it was sent")
        assert client.call(b"", b"x", SOON_S)[1] == nbytes  # The connection carries the next call.
        client.read(out)
        assert client.finish()
    assert (out == sent).all()


def test_a_reply_that_nobody_reads_is_cut_and_its_memory_is_free() -> None:
    with closing(PostingServer(content(LARGE))) as server, called(server) as (client, size):
        server.forget()
        assert wait_until(lambda: server.calls[0].cut_reply("nobody reads"), seconds=SOON_S)
        assert wait_until(lambda: server.kept() is None, seconds=SOON_S)
        assert not server.calls[0].cut_reply("again")
        assert wait_until(lambda: "nobody reads" in server.told, seconds=SOON_S)
        with pytest.raises(StreamClosed):
            client.read(np.empty(size, np.uint8))


def test_a_reply_ends_when_nothing_of_it_is_read_in_its_time() -> None:
    with closing(PostingServer(content(LARGE), seconds=0.2)) as server, called(server) as (client, size):
        server.forget()
        assert wait_until(lambda: server.kept() is None, seconds=SOON_S)
        with pytest.raises(StreamClosed):
            client.read(np.empty(size, np.uint8))


def test_a_reply_that_is_read_slowly_is_sent_to_its_end() -> None:
    sent, out = content(LARGE), np.empty(LARGE, np.uint8)
    with closing(PostingServer(sent, seconds=5.0)) as server, called(server) as (client, _):
        began = time.monotonic()
        for first in range(0, LARGE, 8 << 20):
            client.read(out[first : first + (8 << 20)])
            time.sleep(0.8)
        assert client.finish()
        assert time.monotonic() - began > 5.0  # Longer than it may rest.
    assert (out == sent).all()


def test_a_caller_may_expect_the_rest_of_a_reply_sooner() -> None:
    half = content(LARGE)
    with closing(PostingServer(half)) as server, called(server) as (client, size):
        client.expect_within(0.05)
        client.read(np.empty(1 << 20, np.uint8))
        assert wait_until(lambda: bool(server.calls), seconds=SOON_S)
        server._ending.set()  # No thread sends on.
        for each in server._threads:
            each.join(SOON_S)
        with pytest.raises(StreamTimedOut):
            client.read(np.empty(size - (1 << 20), np.uint8))
