"""HTTP/2 frames by hand: requests, and what breaks the protocol."""

from __future__ import annotations

import random
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from tests.fuzz.live.target import Target

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _CONTINUATION = range(10)
_END_STREAM, _END_HEADERS = 1, 4
_PATHS = (
    b"/gigl.v1.GraphStore/OpenChannel",
    b"/gigl.v1.GraphStore/CreateProducer",
    b"/gigl.v1.GraphStore/Cluster",
    b"/gigl.v1.Peer/Describe",
    b"/grpc.health.v1.Health/Check",
    b"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
_FRAMES_PER_CONNECTION = 400
_FRAMES_PER_WRITE = 50


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return headers as literals that no table needs."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def _text(value: bytes) -> bytes:
    size = len(value)
    if size < 127:
        return bytes([size]) + value
    encoded, size = bytearray([127]), size - 127
    while size >= 128:
        encoded.append(size % 128 + 128)
        size //= 128
    encoded.append(size)
    return bytes(encoded) + value


def _request(path: bytes, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *more,
    ]


KILLER = PREFACE + frame(_SETTINGS, 0, 0) + frame(_HEADERS, 5, 1, header_block(_request(b"/\xff")))
"""A path that is not UTF-8. It ended grpc.aio's listener."""

Frames = Iterator[bytes]


def _requests(draw: random.Random) -> Frames:
    """Requests with headers and messages of all sorts. Most are well-formed enough to be looked at."""
    for stream in range(1, 1 << 30, 2):
        path = draw.choice(_PATHS)
        if draw.random() < 0.3:
            path = _mutated(path, draw)
        more = [(b"authorization", _noise(draw, 60)), (b"gigl-job", draw.randbytes(32).hex().encode())]
        if draw.random() < 0.3:
            more.append((_noise(draw, 20).lower() or b"x", _noise(draw, 200)))
        headers = _request(path, *more)
        if draw.random() < 0.1:
            draw.shuffle(headers)
        if draw.random() < 0.1:
            headers.pop(draw.randrange(len(headers)))
        yield frame(_HEADERS, _END_HEADERS | draw.choice((0, _END_STREAM)), stream, header_block(headers))
        message = _noise(draw, 300)
        yield frame(
            _DATA,
            _END_STREAM,
            stream,
            struct.pack(">BI", draw.choice((0, 0, 1, 255)), len(message)) + message,
        )


def _random_frames(draw: random.Random) -> Frames:
    while True:
        kind = draw.choice((draw.randrange(10), draw.randrange(256)))
        stream = draw.choice((0, 1, 3, draw.randrange(1 << 31)))
        yield frame(kind, draw.randrange(256), stream, _noise(draw, 120))


def _resets(draw: random.Random) -> Frames:
    """Rapid reset: requests that are taken back at once (CVE-2023-44487)."""
    block = header_block(_request(draw.choice(_PATHS)))
    for stream in range(1, 1 << 30, 2):
        yield frame(_HEADERS, _END_HEADERS, stream, block)
        yield frame(_RESET, 0, stream, struct.pack(">I", 8))


def _continuations(draw: random.Random) -> Frames:
    """A header block that does not end (CVE-2024-27316)."""
    yield frame(_HEADERS, 0, 1, header_block(_request(draw.choice(_PATHS))))
    while True:
        yield frame(_CONTINUATION, 0, 1, header_block([(b"x-more", _noise(draw, 400))]))


def _large_headers(draw: random.Random) -> Frames:
    """Header lists around and beyond every usual limit."""
    for stream in range(1, 1 << 30, 2):
        count, size = draw.choice(((1, 15_000), (200, 60), (4, 4_000), (1000, 10)))
        more = [(b"x-%d" % number, b"y" * size) for number in range(count)]
        yield frame(_HEADERS, 5, stream, header_block(_request(draw.choice(_PATHS), *more))[: (1 << 14) - 1])


def _pings(draw: random.Random) -> Frames:
    while True:
        yield frame(_PING, draw.choice((0, 1)), 0, draw.randbytes(8))
        setting = struct.pack(">HI", draw.randrange(8), draw.randrange(1 << 32))
        yield frame(_SETTINGS, 0, 0, setting if draw.random() < 0.9 else setting[:5])


def _windows(draw: random.Random) -> Frames:
    """Flow control: windows that overflow, close, or belong to no stream."""
    yield frame(_HEADERS, _END_HEADERS, 1, header_block(_request(draw.choice(_PATHS))))
    while True:
        size = draw.choice((0, 1, 1 << 16, (1 << 31) - 1))
        yield frame(_WINDOW, 0, draw.choice((0, 1, 3)), struct.pack(">I", size))
        yield frame(_PRIORITY, 0, draw.choice((1, 3, 5)), _noise(draw, 8))


def _truncated(draw: random.Random) -> Frames:
    """A frame that says it is longer than what comes."""
    whole = frame(_HEADERS, 5, 1, header_block(_request(draw.choice(_PATHS))))
    while True:
        yield whole[: draw.randrange(1, len(whole))]


def _killer(draw: random.Random) -> Frames:
    for stream in range(1, 1 << 30, 2):
        path = draw.choice((b"/\xff", b"/\xc3\x28", b"/\xed\xa0\x80", b"\xff", b"/gigl.v1.Peer/\xfe"))
        yield frame(_HEADERS, 5, stream, header_block(_request(path)))


def _damaged_tokens(draw: random.Random, token: str) -> Frames:
    """The token with a byte that no log may show."""
    for stream in range(1, 1 << 30, 2):
        damaged = bytearray(f"Bearer {token}".encode())
        damaged[draw.randrange(len(damaged))] = draw.choice((0x07, 0x80, 0xFF))
        block = header_block(_request(draw.choice(_PATHS), (b"authorization", bytes(damaged))))
        yield frame(_HEADERS, 5, stream, block)


def _noises(draw: random.Random) -> Frames:
    while True:
        yield draw.choice((draw.randbytes(64), b"GET / HTTP/1.1\r\n\r\n", _mutated(PREFACE, draw)))


_KINDS: dict[str, Callable[[random.Random], Frames]] = {
    "requests": _requests,
    "random frames": _random_frames,
    "rapid reset": _resets,
    "CONTINUATION flood": _continuations,
    "large header lists": _large_headers,
    "PING and SETTINGS flood": _pings,
    "flow control": _windows,
    "truncated frames": _truncated,
    "paths that are not UTF-8": _killer,
    "noise": _noises,
}


def throw_frames(target: Target, draw: random.Random, count: int) -> Counter[str]:
    """Send ``count`` frames, some hundred on each connection, to the control and the data port."""
    sent: Counter[str] = Counter()
    kinds: dict[str, Callable[[random.Random], Frames]] = {
        **_KINDS,
        "damaged tokens": partial(_damaged_tokens, token=target.token),
    }
    while sent.total() < count:
        kind = draw.choice(list(kinds))
        port = draw.choice((target.control_port, target.data_port))
        frames = islice(kinds[kind](draw), min(_FRAMES_PER_CONNECTION, count - sent.total()))
        # Truncated once, a connection is out of step: the rest would be noise.
        wanted = list(islice(frames, 20)) if kind in ("truncated frames", "noise") else list(frames)
        sent[f"HTTP/2: {kind}"] += _send(target, port, wanted, greet=kind != "noise") or 1
    return sent


def _send(target: Target, port: int, frames: Sequence[bytes], *, greet: bool) -> int:
    """Return how many frames were sent before the other side closed."""
    done = 0
    with suppress(OSError), target.connect(port) as plain, _secured(plain, target) as connection:
        if greet:
            connection.sendall(PREFACE + frame(_SETTINGS, 0, 0))
        for first in range(0, len(frames), _FRAMES_PER_WRITE):
            part = frames[first : first + _FRAMES_PER_WRITE]
            connection.sendall(b"".join(part))
            done += len(part)
            _drain(connection)
    return done


def _drain(connection: socket.socket) -> None:
    """Read what there is, so that the server need not wait for us."""
    connection.settimeout(0.0)
    with suppress(BlockingIOError, ssl.SSLWantReadError):
        while connection.recv(1 << 16):
            pass
    connection.settimeout(2.0)


def _secured(plain: socket.socket, target: Target) -> socket.socket:
    if not target.certificate:
        return plain
    context = ssl.create_default_context(cadata=target.certificate)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(plain, server_hostname="localhost")


def _noise(draw: random.Random, most: int) -> bytes:
    """Return bytes, printable more often than not."""
    size = draw.randrange(most)
    if draw.random() < 0.7:
        return bytes(draw.choices(range(32, 127), k=size))
    return draw.randbytes(size)


def _mutated(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        changed[draw.randrange(len(changed))] = draw.choice((0, 10, 128, 255, draw.randrange(256)))
    return bytes(changed)
