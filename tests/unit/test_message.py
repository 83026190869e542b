from __future__ import annotations

import os
import resource
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from gigl_loader.channel.message import Request, Response, Result, Spent, receive, receive_fds, send_fds
from gigl_loader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("no_leftovers")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        yield near, far


def test_messages_keep_their_boundaries(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    asks = [Request(request_slot, 10, 1, 2, 2**40 + request_slot, 3) for request_slot in range(5)]
    for ask in asks:
        near.send(ask.pack())
    assert [Request.unpack(receive(far)[0]) for _ in asks] == asks


def test_answers_carry_descriptors(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    answer = Response(Result.OVERSIZE, 1, 2, 3, 4, 1, Spent(5, 6, 7, 8, 9, 10, 11))
    socket.send_fds(near, [answer.pack()], [0])
    data, (fd,) = receive(far)
    assert Response.unpack(data) == answer
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 39, 41, 256])
def test_messages_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(FormatError, match=f"a message of {size} bytes"):
        Request.unpack(bytes(size))
    with pytest.raises(FormatError, match=f"a message of {size} bytes"):
        Response.unpack(bytes(size))


def test_nothing_yet_and_never_again_differ(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive(far)
    near.close()
    assert receive(far) == (b"", [])


def test_what_was_sent_before_a_death_is_read_first(pair: tuple[socket.socket, socket.socket]) -> None:
    """A peer that dies with messages unread resets the connection; its own messages are still there."""
    near, far = pair
    far.setblocking(False)
    far.send(b"never read")
    near.send(b"first")
    near.send(b"second")
    near.close()
    assert [receive(far)[0], receive(far)[0], receive(far)[0]] == [b"first", b"second", b""]


@pytest.mark.parametrize("count", [0, 1, 128, 300])
def test_any_number_of_descriptors_travels(pair: tuple[socket.socket, socket.socket], count: int) -> None:
    near, far = pair
    with ExitStack() as stack:
        files = [stack.enter_context(open(os.devnull)) for _ in range(count)]
        send_fds(near, [file.fileno() for file in files])
        received = receive_fds(far)
        for fd in received:
            stack.callback(os.close, fd)
        assert len(set(received)) == count


def test_descriptors_from_nobody(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    near.close()
    with pytest.raises(EOFError, match="trainer is gone"):
        receive_fds(far)


def test_descriptors_beyond_the_limit_are_an_error_and_no_endless_wait(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    send_fds(near, [0] * 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 10, hard))
    try:
        with pytest.raises(OSError, match="ulimit -n"):
            receive_fds(far)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
