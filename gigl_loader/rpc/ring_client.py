"""Client of the ring server: receives the ring of a channel from a storage server on the same host.

A ring is a memory file that server and trainer map. Its descriptor passes through an abstract Unix
socket, which only processes in the same network namespace can reach. The server responds only to processes
of its own user, and the trainer accepts only a server of its own user.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from gigl_loader.retry import Deadline
from gigl_loader.rpc.refusals import Contact, FaultKind, RingRefused, rule_of

CHANNEL_BYTES = 16
RESPONSE_RING = b"\1"
"""Response with a descriptor."""
RESPONSE_NONE = b"\0"
"""Response without a descriptor: no such channel, or it has no ring."""

_NO_RING = rule_of(FaultKind.RING).error
_CREDENTIALS = struct.Struct("3i")  # struct ucred of Linux: process, user, group.
_SENT_AWAY = "the server's ring socket closed without an answer: it is for processes of its own user"
_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN)
_SHORTEST_S = 0.001  # 0 would mean not to wait at all.
_MAX_NAME = 107  # An address holds 108 bytes, the first of which makes it abstract.


def receive_ring(
    name: str, channel: bytes, nbytes: int, timeout_s: float, *, contact: Contact = Contact.FIRST
) -> int:
    """Return the descriptor of a channel's ring. The caller closes it.

    ``name`` is that of the server's socket, ``nbytes`` the minimum size of the ring. The file is sealed
    against shrinking, so that a map of it is safe to read. ``RingRefused`` where the server is on another
    host or runs as another user, unless this caller had a ring of it before (``contact``).
    ``StorageUnavailable`` where there is no such ring now, no descriptor left, or no response within
    ``timeout_s``.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise RingRefused("memory is handed over on Linux only")
    place = name.encode()
    if not 0 < len(place) <= _MAX_NAME:
        raise rule_of(FaultKind.RING).error(f"{name[:40]!r} is no name of a ring socket")
    deadline = Deadline.after(timeout_s)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(max(deadline.left_s(), _SHORTEST_S))
            link.connect(b"\0" + place)
            uid = peer_uid(link)
            if uid != os.geteuid():
                raise RingRefused(f"the server runs as user {uid}, this process as {os.geteuid()}")
            link.settimeout(max(deadline.left_s(), _SHORTEST_S))
            link.sendall(channel)
            response, fds, _, _ = socket.recv_fds(link, 1, 1)
    except OSError as error:
        raise _failure(name, error, timeout_s, contact) from None
    return _checked(response, fds, nbytes)


def _failure(name: str, error: OSError, timeout_s: float, contact: Contact) -> Exception:
    """Return the exception for an error of the socket, by ``refusals.FAULT_RULES``."""
    if isinstance(error, TimeoutError):
        text = f"the ring socket {name!r} did not answer within {timeout_s:.3g} s"
        return rule_of(FaultKind.RING).error_class(contact)(text)
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return rule_of(FaultKind.RING).error_class(contact)(_SENT_AWAY)
    if error.errno in _LACKING:
        return rule_of(FaultKind.RESOURCES).error_class(contact)(f"no ring: {error.strerror}")
    return rule_of(FaultKind.RING_ELSEWHERE).error_class(contact)(
        f"no ring socket {name!r} here ({error.strerror or error}): is the server on this host, in this "
        "network namespace?"
    )


def peer_uid(link: socket.socket) -> int:
    """Return the user id of the process at the other end, from the kernel."""
    record = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(record)[1])


def _checked(response: bytes, fds: list[int], nbytes: int) -> int:
    """Return the received descriptor. ``RingRefused`` unless it is one memory file that is safe to map."""
    try:
        if response == RESPONSE_NONE:
            raise _NO_RING("the server knows no ring of this channel")
        if not response:
            raise _NO_RING(_SENT_AWAY)
        if response != RESPONSE_RING or len(fds) != 1:
            raise _NO_RING(f"the server's ring socket answered {response!r} with {len(fds)} descriptors")
        _check_memory(fds[0], nbytes)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    os.set_inheritable(fds[0], False)
    return fds[0]


def _check_memory(fd: int, nbytes: int) -> None:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise _NO_RING("the server's ring socket handed out what is no memory file") from None
    if not seals & fcntl.F_SEAL_SHRINK:
        raise _NO_RING("the server's ring socket handed out memory that may shrink")
    if os.fstat(fd).st_size < nbytes:
        raise _NO_RING(f"the server's ring has {os.fstat(fd).st_size} bytes, not {nbytes}")
