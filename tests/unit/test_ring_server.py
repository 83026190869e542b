"""Memory handed over on one host: to who names a channel, and to nobody else."""

from __future__ import annotations

import logging
import mmap
import os
import selectors
import socket
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.rpc.refusals import RingRefused
from gigl_loader.rpc.ring_client import receive_ring
from gigl_server.admission import RING_PORT
from gigl_server.frames import ring as ring_module
from gigl_server.frames.ring import RingServer
from tests.support.leftovers import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHANNEL, OTHER = bytes(range(16)), bytes(16)
NBYTES = 4 * mmap.PAGESIZE


class Rings:
    """Memory of one channel, handed out as duplicates."""

    def __init__(self) -> None:
        self.fd = create_memory("test-ring", NBYTES)
        self.asked: list[bytes] = []

    def of(self, channel: bytes) -> int | None:
        self.asked.append(channel)
        return os.dup(self.fd) if channel == CHANNEL else None


@pytest.fixture
def rings() -> Iterator[Rings]:
    rings = Rings()
    yield rings
    os.close(rings.fd)


@contextmanager
def opened(ring_of: Callable[[bytes], int | None]) -> Iterator[RingServer]:
    server = RingServer(ring_of)
    try:
        yield server
    finally:
        server.close()
        server.close()


@pytest.fixture
def server(rings: Rings) -> Iterator[RingServer]:
    with opened(rings.of) as found:
        yield found


def works(server: RingServer) -> bool:
    os.close(receive_ring(server.name, CHANNEL, NBYTES, 10))
    return True


def eventually(server: RingServer) -> bool:
    with suppress(RingRefused):
        return works(server)
    return False


def knock(server: RingServer) -> socket.socket:
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    visitor.settimeout(10)
    visitor.connect("\0" + server.name)
    return visitor


def said(visitor: socket.socket) -> tuple[bytes, int]:
    """Return what the server answers, and how many descriptors come with it."""
    with visitor:
        answer, fds, _, _ = socket.recv_fds(visitor, 10, 4)
    for fd in fds:
        os.close(fd)
    return answer, len(fds)


@pytest.mark.usefixtures("no_leftovers")
def test_both_sides_map_one_memory() -> None:
    rings = Rings()
    with opened(rings.of) as server:
        fd = receive_ring(server.name, CHANNEL, NBYTES, 10)
        assert not os.get_inheritable(fd)
        near, far = map_memory(fd, NBYTES), map_memory(rings.fd, NBYTES)
        far[:] = np.arange(NBYTES) % 251
        assert (near == far).all()
        os.close(fd)
    os.close(rings.fd)


def test_an_unknown_channel_has_no_ring(server: RingServer) -> None:
    with pytest.raises(RingRefused, match="the server knows no ring of this channel"):
        receive_ring(server.name, OTHER, NBYTES, 10)
    assert works(server)


@pytest.mark.parametrize(
    "shown",
    [b"", b"x", CHANNEL[:15], CHANNEL + b"x", CHANNEL * 1000],
    ids=["nothing", "1", "15", "17", "many"],
)
def test_what_is_no_channel_is_not_looked_up(server: RingServer, rings: Rings, shown: bytes) -> None:
    visitor = knock(server)
    visitor.sendall(shown)
    assert said(visitor) == (b"", 0)
    assert rings.asked == []
    assert works(server)


def test_who_says_nothing_is_sent_away_and_keeps_nobody_waiting(
    rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "RING_PORT", replace(RING_PORT, first_s=0.2))
    with opened(rings.of) as server:
        silent = [knock(server) for _ in range(10)]
        assert works(server)
        assert all(said(visitor) == (b"", 0) for visitor in silent)


def test_so_many_may_wait(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "RING_PORT", replace(RING_PORT, connections=3))
    with opened(rings.of) as server:
        waiting = [knock(server) for _ in range(3)]
        assert said(knock(server)) == (b"", 0)
        waiting.pop().close()
        assert wait_until(lambda: eventually(server))
        for visitor in waiting:
            visitor.close()


def test_a_visitor_that_cannot_be_let_in_ends_no_door(
    server: RingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(selectors.DefaultSelector, "register", _no_room)
        with knock(server) as visitor:
            assert said(visitor) == (b"", 0)
    assert works(server)


def _no_room(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_another_user_is_not_answered(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "peer_uid", lambda _: os.geteuid() + 1)
    with opened(rings.of) as server, pytest.raises(RingRefused, match="for processes of its own user"):
        receive_ring(server.name, CHANNEL, NBYTES, 10)
    assert rings.asked == []


def test_another_users_server_is_not_believed(server: RingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.rpc.ring_client.peer_uid", lambda _: 12345)
    with pytest.raises(RingRefused, match=r"the server runs as user 12345, this process as \d+$"):
        receive_ring(server.name, CHANNEL, NBYTES, 10)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: os.open("/dev/null", os.O_RDONLY), "no memory file"),
        (lambda: os.memfd_create("unsealed", os.MFD_ALLOW_SEALING), "may shrink"),
        (lambda: create_memory("small", NBYTES - 1), f"has {NBYTES - 1} bytes, not {NBYTES}"),
    ],
    ids=["a device", "unsealed", "small"],
)
def test_what_cannot_be_mapped_without_fear_is_refused(make: Callable[[], int], told: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with opened(lambda _: make()) as server, pytest.raises(RingRefused, match=told):
        receive_ring(server.name, CHANNEL, NBYTES, 10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_ring_socket_here(server: RingServer) -> None:
    for name in ("absent", server.name + "x"):
        with pytest.raises(RingRefused, match=f"no ring socket '{name}' here .*: is the server on this host"):
            receive_ring(name, CHANNEL, NBYTES, 10)
    for name in ("", "x" * 200):
        with pytest.raises(RingRefused, match="is no name of a ring socket"):
            receive_ring(name, CHANNEL, NBYTES, 10)
    server.close()
    with pytest.raises(RingRefused, match="no ring socket"):
        receive_ring(server.name, CHANNEL, NBYTES, 10)


def test_a_door_that_does_not_answer() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
        deaf.bind("\0gigl-test-deaf-server")
        deaf.listen(1)
        with pytest.raises(RingRefused, match=r"did not answer within 0\.1 s"):
            receive_ring("gigl-test-deaf-server", CHANNEL, NBYTES, 0.1)


def test_a_mistake_of_the_service_ends_no_door(caplog: pytest.LogCaptureFixture, rings: Rings) -> None:
    def of(channel: bytes) -> int | None:
        if channel == OTHER:
            raise RuntimeError("a mistake")
        return rings.of(channel)

    with opened(of) as server, caplog.at_level(logging.ERROR):
        with pytest.raises(RingRefused):
            receive_ring(server.name, OTHER, NBYTES, 10)
        assert works(server)
    assert "a ring could not be handed out" in caplog.text
