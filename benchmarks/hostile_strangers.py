"""Callers without a token that take all that they can: one behaviour each, for ``hostile.py``.

    python benchmarks/hostile_strangers.py BEHAVIOUR SECONDS '{"control": ..., "data": ..., ...}'

Opens connections for so many seconds, then waits until the last one has ended, and prints how many there were
and how long the one lived that lived longest, as JSON. Talks to 127.0.0.1 only.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from hostile_callers import connected, request_head
from hostile_server import Scene

__all__ = ["STRANGERS"]

_ENDED_S = 45.0
"""In which all connections have to end, when no more are opened."""
_TURN_S, _TRICKLE_S = 0.02, 1.0
_OPENED_PER_TURN, _OPENING_S = 100, 0.2
_HANDSHAKE_S = 2.0
_POURED_BYTES = 64 << 10
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_TOKEN = b"authorization: Bearer a-token-that-nobody-made\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A behaviour: what its connections send."""

    connections: int
    """At once. Those that are ended are opened anew."""
    opening: Callable[[int], bytes] = lambda number: b""
    """First bytes of a connection, by its number."""
    trickles: bool = False
    """Sends a letter a second after them."""
    pours: bool = False
    """Sends zeros after them, as fast as they are taken."""
    tls: bool = True
    """Makes the TLS handshake first, where the port wants one."""
    ports: tuple[str, ...] = ("data",)
    leaves: bool = False
    """Opens further connections however many there are."""


def _half_head(number: int) -> bytes:
    """Return the beginning of a good head that announces a long header text."""
    return request_head(b"x" * 4064, body_bytes=0)[: 1 + number % 200]


def _half_handshake(number: int) -> bytes:
    """Return most of a TLS greeting of 131,000 bytes, which is what OpenSSL takes at most."""
    message = b"\x01" + (131_000).to_bytes(3, "big") + b"\x03\x03" + bytes(130_000)
    pieces = [message[at : at + 16_384] for at in range(0, len(message) - 1, 16_384)][: 1 + number % 8]
    return b"".join(struct.pack(">BHH", 22, 0x0301, len(piece)) + piece for piece in pieces)


STRANGERS: Mapping[str, Stranger] = {
    "silent": Stranger(connections=400, ports=("data", "control")),
    "half_heads": Stranger(connections=400, opening=_half_head, trickles=True),
    "half_handshakes": Stranger(connections=400, opening=_half_handshake, tls=False),
    "large_bodies": Stranger(
        connections=32, opening=lambda _: request_head(b"", body_bytes=64 << 20), pours=True
    ),
    "wrong_tokens": Stranger(
        connections=32, opening=lambda _: request_head(_TOKEN, body_bytes=8 << 20), pours=True
    ),
    "bytes_after_requests": Stranger(
        connections=32, opening=lambda _: request_head(_TOKEN, body_bytes=0), pours=True
    ),
    "crowd": Stranger(connections=3000, leaves=True, tls=False),
}


class _Connection:
    """One connection, and what it still has to send."""

    def __init__(self, scene: Scene, stranger: Stranger, number: int) -> None:
        self._stranger = stranger
        self.began = self._trickled = time.monotonic()
        address = getattr(scene, stranger.ports[number % len(stranger.ports)])
        self._socket = _opened(address, tls=stranger.tls and bool(scene.certificate))
        self._pending = stranger.opening(number)

    def step(self) -> bool:
        """Send what is due. Return whether the other side has ended the connection."""
        try:
            with suppress(*_NOT_NOW):
                self._send()
            with suppress(*_NOT_NOW):
                while self._socket.recv(1 << 16):
                    pass
                self.close()
                return True
        except OSError:
            self.close()
            return True
        return False

    def _send(self) -> None:
        now = time.monotonic()
        if self._stranger.trickles and now - self._trickled > _TRICKLE_S:
            self._trickled = now
            self._pending += b"a"
        while self._pending or self._stranger.pours:
            sent = self._socket.send(self._pending or bytes(_POURED_BYTES))
            self._pending = self._pending[sent:]

    def close(self) -> None:
        self._socket.close()


def _opened(address: str, *, tls: bool) -> socket.socket:
    connection = connected(address)
    if not tls:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection.settimeout(_HANDSHAKE_S)
    secure = context.wrap_socket(connection)
    secure.setblocking(False)
    return secure


def _attack(scene: Scene, stranger: Stranger, seconds: float) -> dict[str, float]:
    held: list[_Connection] = []
    opened, longest, began = 0, 0.0, time.monotonic()
    while True:
        now = time.monotonic()
        if now - began < seconds:
            room = _OPENED_PER_TURN if stranger.leaves else stranger.connections - len(held)
            for _ in range(min(room, _OPENED_PER_TURN)):
                with suppress(OSError):
                    held.append(_Connection(scene, stranger, opened))
                opened += 1
                if time.monotonic() - now > _OPENING_S:
                    break
        elif not held or now - began > seconds + _ENDED_S:
            break
        alive = []
        for each in held:
            if each.step():
                longest = max(longest, time.monotonic() - each.began)
            else:
                alive.append(each)
        for each in alive[: len(alive) - stranger.connections] if stranger.leaves else []:
            each.close()  # This machine has ports for so many only.
        held = alive[-stranger.connections :]
        time.sleep(_TURN_S)
    longest = max([longest, *(time.monotonic() - each.began for each in held)])
    return {"opened": opened, "longest_s": longest}


if __name__ == "__main__":
    print("ready", flush=True)
    print(json.dumps(_attack(Scene(**json.loads(sys.argv[3])), STRANGERS[sys.argv[1]], float(sys.argv[2]))))
