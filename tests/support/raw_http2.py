"""HTTP/2 by hand: bytes that no gRPC client would send."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW = 4
"""Setting: bytes that the peer may send on a stream before it is told to go on."""
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4


class RawConnection:
    """A connection to a gRPC port that sends what it is told, right or wrong."""

    def __init__(self, where: str | socket.socket, settings: Mapping[int, int] | None = None) -> None:
        """``where`` is ``HOST:PORT``, or a connection."""
        self.socket = _connected(where) if isinstance(where, str) else where
        body = b"".join(struct.pack(">HI", *each) for each in (settings or {}).items())
        self.socket.sendall(PREFACE + frame(_SETTINGS, 0, 0, body))

    def headers(self, stream: int, path: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Begin a call."""
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x")]
        fields += [(b"te", b"trailers"), (b"content-type", b"application/grpc"), *more]
        self.socket.sendall(frame(_HEADERS, _END_HEADERS, stream, b"".join(_field(*each) for each in fields)))

    def message(self, stream: int, message: bytes) -> None:
        """Send the only message of a call."""
        body = b"\0" + struct.pack(">I", len(message)) + message
        self.socket.sendall(frame(_DATA, _END_STREAM, stream, body))

    def received(self, seconds: float) -> bytes:
        """Return what comes until nothing has come for so long, or the connection ends."""
        self.socket.settimeout(seconds)
        found = b""
        try:
            while data := self.socket.recv(1 << 16):
                found += data
        except OSError:
            pass
        return found

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def _field(name: bytes, value: bytes) -> bytes:
    """Return a literal header field that is not indexed (RFC 7541, 6.2.2)."""
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(count: int) -> bytes:
    """Return an integer with a prefix of 7 bits (RFC 7541, 5.1)."""
    if count < 127:
        return bytes([count])
    count -= 127
    digits = [127]
    while count >= 128:
        digits.append(count % 128 + 128)
        count //= 128
    return bytes([*digits, count])
