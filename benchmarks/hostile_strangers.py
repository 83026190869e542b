"""Callers without a token that take all that they can: one behaviour each, for ``hostile.py``.

    python benchmarks/hostile_strangers.py BEHAVIOUR SECONDS '{"control": ..., ...}' [CONNECTIONS]

Opens connections for so many seconds, then waits until the last one has ended, and prints how many there were
and how long the one lived that lived longest, as JSON. CONNECTIONS are held at once in place of the
behaviour's own number; then the program ends after SECONDS, and waits for none. Talks to 127.0.0.1 only.
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
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hostile_callers import request_head
from hostile_server import Scene

sys.path.append(str(Path(__file__).parents[1]))
from tests.support.key_updates import KeyUpdates

_ENDED_S = 45.0
"""In which all connections have to end, when no more are opened."""
_TURN_S, _TRICKLE_S = 0.02, 1.0
_OPENED_PER_TURN, _OPENING_S = 100, 0.2
_HANDSHAKE_S, _CONNECT_S = 2.0, 5.0
_FROM = "127.0.0.66"
_IP_BIND_ADDRESS_NO_PORT = 24  # A port is taken by connect(), which may share it.
_POURED_BYTES = 64 << 10
_UPDATES_PER_TURN = 1000
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
    updates: bool = False
    """Renews its keys without end, and requests a renewal in return each time. Silent in plain text."""


def _half_head(number: int) -> bytes:
    """Return the beginning of a good head that announces a long header text."""
    return request_head(b"x" * 4064, body_bytes=0)[: 1 + number % 200]


def _half_handshake(number: int) -> bytes:
    """Return most of a TLS greeting of 131,000 bytes, which is what OpenSSL takes at most."""
    message = b"\x01" + (131_000).to_bytes(3, "big") + b"\x03\x03" + bytes(130_000)
    pieces = [message[at : at + 16_384] for at in range(0, len(message) - 1, 16_384)][: 1 + number % 8]
    return b"".join(struct.pack(">BHH", 22, 0x0301, len(piece)) + piece for piece in pieces)


@cache
def _greeting() -> bytes:
    """Return the first message of a handshake, whole: answering it takes a signature."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def _connected(address: str) -> socket.socket:
    """Return a connection from an address that no honest caller has."""
    host, _, port = address.rpartition(":")
    connection = socket.socket()
    try:
        connection.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        connection.bind((_FROM, 0))
        connection.settimeout(_CONNECT_S)
        connection.connect((host, int(port)))
    except OSError:
        connection.close()
        raise
    connection.setblocking(False)
    return connection


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
    "greetings": Stranger(connections=400, opening=lambda _: _greeting(), tls=False, leaves=True),
    "key_updates": Stranger(connections=250, updates=True),
}


class _Connection:
    """One connection, and what it still has to send."""

    def __init__(self, scene: Scene, stranger: Stranger, number: int) -> None:
        self._stranger = stranger
        self.began = self._trickled = time.monotonic()
        address = getattr(scene, stranger.ports[number % len(stranger.ports)])
        self._updates: KeyUpdates | None = None
        if stranger.updates and scene.certificate:
            self._socket, self._updates = _renewing(address)
        else:
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
        if self._updates is not None:
            self._updates.send(_UPDATES_PER_TURN, requested=True)
        now = time.monotonic()
        if self._stranger.trickles and now - self._trickled > _TRICKLE_S:
            self._trickled = now
            self._pending += b"a"
        while self._pending or self._stranger.pours:
            sent = self._socket.send(self._pending or bytes(_POURED_BYTES))
            self._pending = self._pending[sent:]

    def close(self) -> None:
        if self._updates is not None:
            self._updates.close()
        self._socket.close()


def _opened(address: str, *, tls: bool) -> socket.socket:
    connection = _connected(address)
    if not tls:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection.settimeout(_HANDSHAKE_S)
    secure = context.wrap_socket(connection)
    secure.setblocking(False)
    return secure


def _renewing(address: str) -> tuple[socket.socket, KeyUpdates]:
    """Open a connection whose keys can be renewed."""
    connection = _connected(address)
    connection.setblocking(True)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(_HANDSHAKE_S), 0))
    try:
        updates = KeyUpdates(connection)
    except OSError:
        connection.close()
        raise
    connection.setblocking(False)
    return connection, updates


def _attack(scene: Scene, stranger: Stranger, seconds: float, ended_s: float) -> dict[str, float]:
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
        elif not held or now - began > seconds + ended_s:
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
    chosen, waits_s = STRANGERS[sys.argv[1]], _ENDED_S
    if len(sys.argv) > 4:
        chosen, waits_s = replace(chosen, connections=int(sys.argv[4])), 0.0
    print("ready", flush=True)
    print(json.dumps(_attack(Scene(**json.loads(sys.argv[3])), chosen, float(sys.argv[2]), waits_s)))
