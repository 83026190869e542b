"""Messages between a trainer and a sampling process, a few bytes each, over a ``SOCK_SEQPACKET`` pair.

The kernel keeps message boundaries, and end of file is how each side learns that the other is gone.
Payload never travels in a message: it lies in the ring, or in a memory file passed with the message.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LARGEST = 256
_FDS_PER_MESSAGE = 128  # The kernel takes 253.
_REQUEST = struct.Struct("<6Q")
_RESPONSE = struct.Struct("<15Q")
_COUNT = struct.Struct("<Q")
_FD = array("i")


class Result(IntEnum):
    """Kind of a response."""

    STARTED = 0
    """The process is up. Not a response to a request."""
    FRAME = 1
    """A frame in ``slot`` of the ring."""
    OVERSIZE = 2
    """A frame in a memory file of its own, because it is larger than a slot of the ring."""
    SKIPPED = 3
    """No frame: the request is of an older generation, whose epoch the trainer has left."""


class Request(NamedTuple):
    """Request for one batch. Its ``num_entries`` entries lie in request slot ``request_slot`` of the ring."""

    request_slot: int
    num_entries: int
    generation: int
    epoch: int
    batch: int
    number: int

    def pack(self) -> bytes:
        return _REQUEST.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Request:
        return cls(*_fields(_REQUEST, data))


class Spent(NamedTuple):
    """CPU time and traffic of a process since its start, over all its threads."""

    cpu_ns: int = 0
    cpu_sampling_ns: int = 0
    """Of sampling threads, while they drew nodes and edges and merged them."""
    cpu_gathering_ns: int = 0
    """Of sampling threads, while they wrote frames."""
    cpu_wire_ns: int = 0
    """Of the threads that send requests to other hosts, threads of network libraries included."""
    wire_bytes_in: int = 0
    wire_bytes_out: int = 0
    peer_calls: int = 0

    def plus(self, other: Spent) -> Spent:
        return Spent(*(mine + more for mine, more in zip(self, other, strict=True)))


NOTHING = Spent()


class Response(NamedTuple):
    """Result of the request in request slot ``request_slot``."""

    result: int
    request_slot: int
    slot: int
    nbytes: int
    sampling_ns: int
    """Wall time from the start of the request to the finished frame."""
    unavailable: int = 0
    """1 where the frame records a ``StorageUnavailable``: the batch may be requested again."""
    spent: Spent = NOTHING
    began_ns: int = 0
    """When the request was started: by ``time.perf_counter_ns``, one clock for all processes of a host."""
    gathering_ns: int = 0
    """Of ``sampling_ns``, for the frame."""

    def pack(self) -> bytes:
        return _RESPONSE.pack(*self[:6], *self.spent, self.began_ns, self.gathering_ns)

    @classmethod
    def unpack(cls, data: bytes) -> Response:
        result, request_slot, slot, nbytes, sampling_ns, unavailable, *rest = _fields(_RESPONSE, data)
        spent, began_ns, gathering_ns = Spent(*rest[:-2]), *rest[-2:]
        return cls(
            result, request_slot, slot, nbytes, sampling_ns, unavailable, spent, began_ns, gathering_ns
        )


def _fields(form: struct.Struct, data: bytes) -> tuple[int, ...]:
    if len(data) != form.size:
        raise FormatError(f"a message of {len(data)} bytes between trainer and worker, not {form.size}")
    return form.unpack(data)


def receive(link: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message and the file descriptors that came with it.

    An empty message means that the other side is gone. Raises ``BlockingIOError`` when there is no message
    and ``link`` does not block, ``OSError`` (``EMFILE``) when this process may not open the descriptors.
    """
    try:
        return _receive_once(link)
    except ConnectionResetError:
        # The other side died with messages unread. Linux reports that once, before the messages it had sent.
        return _receive_once(link)


def _receive_once(link: socket.socket) -> tuple[bytes, list[int]]:
    # Not socket.recv_fds: it ignores its flags, so that child processes would inherit the descriptors.
    data, ancillary, flags, _ = link.recvmsg(
        _LARGEST, socket.CMSG_LEN(_FDS_PER_MESSAGE * _FD.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += array("i", payload[: len(payload) // _FD.itemsize * _FD.itemsize])
    if flags & socket.MSG_CTRUNC:  # Descriptors that did not fit are lost: waiting for them would never end.
        for fd in fds:
            os.close(fd)
        raise OSError(errno.EMFILE, "too many open files to receive more: raise the limit (ulimit -n)")
    return data, fds


def send_fds(link: socket.socket, fds: Sequence[int]) -> None:
    """Send any number of file descriptors, in messages that the socket's buffer holds until they are read."""
    link.send(_COUNT.pack(len(fds)))
    for begin in range(0, len(fds), _FDS_PER_MESSAGE):
        socket.send_fds(link, [b"fds"], fds[begin : begin + _FDS_PER_MESSAGE])


def receive_fds(link: socket.socket) -> list[int]:
    """Return the descriptors that ``send_fds`` sent. Raises ``EOFError`` when the other side is gone."""
    (count,) = _fields(_COUNT, _expect(link)[0])
    fds: list[int] = []
    while len(fds) < count:
        fds += _expect(link)[1]
    return fds


def _expect(link: socket.socket) -> tuple[bytes, list[int]]:
    data, fds = receive(link)
    if not data:
        raise EOFError("the trainer is gone")
    return data, fds
