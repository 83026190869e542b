"""Client of the ring server: receives the ring of a channel from a storage server on the same host.

A ring is a memory file that server and trainer map. Its descriptor passes through an abstract Unix
socket, which only processes in the same network namespace can reach. The server responds only to processes
of its own user, and the trainer accepts only a server of its own user.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from gigl_loader.errors import SamplingError

__all__ = ["CHANNEL_BYTES", "RESPONSE_NONE", "RESPONSE_RING", "RingRefused", "peer_uid", "receive_ring"]

CHANNEL_BYTES = 16
RESPONSE_RING = b"\1"
"""Response with a descriptor."""
RESPONSE_NONE = b"\0"
"""Response without a descriptor: no such channel, or it has no ring."""

_CREDENTIALS = struct.Struct("3i")  # struct ucred of Linux: process, user, group.
_SENT_AWAY = "the server's ring socket closed without an answer: it is for processes of its own user"
_MAX_NAME = 107  # An address holds 108 bytes, the first of which makes it abstract.


class RingRefused(SamplingError):
    """The server's memory is not available here: frames must come over the network."""


def receive_ring(name: str, channel: bytes, nbytes: int, timeout_s: float) -> int:
    """Return the descriptor of a channel's ring. The caller closes it.

    ``name`` is that of the server's socket, ``nbytes`` the minimum size of the ring. The file is sealed
    against shrinking, so that a map of it is safe to read. ``RingRefused`` where the server is on another
    host, runs as another user, has no such ring, or does not respond within ``timeout_s``.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise RingRefused("memory is handed over on Linux only")
    place = name.encode()
    if not 0 < len(place) <= _MAX_NAME:
        raise RingRefused(f"{name[:40]!r} is no name of a ring socket")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(timeout_s)
            link.connect(b"\0" + place)
            uid = peer_uid(link)
            if uid != os.geteuid():
                raise RingRefused(f"the server runs as user {uid}, this process as {os.geteuid()}")
            link.sendall(channel)
            response, fds, _, _ = socket.recv_fds(link, 1, 1)
    except TimeoutError:
        raise RingRefused(f"the ring socket {name!r} did not answer within {timeout_s:g} s") from None
    except (BrokenPipeError, ConnectionResetError):
        raise RingRefused(_SENT_AWAY) from None
    except OSError as error:
        raise RingRefused(
            f"no ring socket {name!r} here ({error.strerror or error}): is the server on this host, in this "
            "network namespace?"
        ) from None
    return _checked(response, fds, nbytes)


def peer_uid(link: socket.socket) -> int:
    """Return the user id of the process at the other end, from the kernel."""
    record = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(record)[1])


def _checked(response: bytes, fds: list[int], nbytes: int) -> int:
    """Return the received descriptor. ``RingRefused`` unless it is one memory file that is safe to map."""
    try:
        if response == RESPONSE_NONE:
            raise RingRefused("the server knows no ring of this channel")
        if not response:
            raise RingRefused(_SENT_AWAY)
        if response != RESPONSE_RING or len(fds) != 1:
            raise RingRefused(f"the server's ring socket answered {response!r} with {len(fds)} descriptors")
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
        raise RingRefused("the server's ring socket handed out what is no memory file") from None
    if not seals & fcntl.F_SEAL_SHRINK:
        raise RingRefused("the server's ring socket handed out memory that may shrink")
    if os.fstat(fd).st_size < nbytes:
        raise RingRefused(f"the server's ring has {os.fstat(fd).st_size} bytes, not {nbytes}")
