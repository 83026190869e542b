"""A TCP proxy that treats what it carries badly: late, slowly, not at all, one way only, or damaged."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from typing_extensions import Self

_CHUNK = 1 << 16
_PATIENCE = 60.0
"""Seconds for the far side to accept, and for threads to end."""


@dataclass(eq=False, slots=True)
class _Link:
    """One connection of a client, and ours to the target for it. A thread carries each direction."""

    near: socket.socket
    far: socket.socket
    bytes_down: int = 0
    reset: bool = False
    directions: int = 2
    threads: list[threading.Thread] = field(default_factory=list)

    def end(self, how: int) -> None:
        """Wake both threads. ``SHUT_RD`` says nothing to the other sides."""
        for connection in (self.near, self.far):
            with suppress(OSError):
                connection.shutdown(how)

    def close(self) -> None:
        """Close both connections: with a reset, if there was one."""
        for connection in (self.near, self.far):
            if self.reset:
                _reset_when_closed(connection)
            connection.close()


class Proxy:
    """Listens at ``address`` and carries every connection to ``target``, as it was last told to.

    ``server`` is the listening socket and ``connect`` makes a connection to the target, where these
    shall not be on this machine's own network. Faults are for connections that exist and later ones.
    """

    def __init__(
        self,
        target: tuple[str, int] = ("127.0.0.1", 0),
        *,
        listen: tuple[str, int] = ("127.0.0.1", 0),
        server: socket.socket | None = None,
        connect: Callable[[], socket.socket] | None = None,
    ) -> None:
        self._server = server or socket.create_server(listen)
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        self._connect = connect or (lambda: socket.create_connection(target, _PATIENCE))
        self.latency_s = 0.0
        """Added to every piece that is carried, either way."""
        self.bytes_per_second = 0
        """Of each direction of each connection; 0 for as fast as it goes."""
        self.flips = 0
        """Bits that were flipped."""
        self._flip_every = 0
        self._random = random.Random()
        self._state = threading.Condition()
        self._stalled = self._refuses = self._drops = self._closed = False
        self._flip: int | None = None
        self._links: list[_Link] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def bytes_down(self) -> int:
        """Bytes carried from the target to its clients."""
        with self._state:
            return sum(link.bytes_down for link in self._links)

    @property
    def connections(self) -> int:
        """Connections so far."""
        with self._state:
            return len(self._links)

    def stall(self) -> None:
        """Carry nothing. Connections stay open and new ones are accepted, as a stopped process does."""
        self._become(stalled=True)

    def drop(self) -> None:
        """Lose every piece, either way, and say nothing: what comes later lacks a part."""
        self._become(drops=True)

    def resume(self) -> None:
        """Undo ``stall``, ``drop``, ``cut``, ``slow_down`` and ``flip_bits``."""
        self.latency_s, self.bytes_per_second = 0.0, 0
        self.flip_bits(0)
        self._become()

    def slow_down(self) -> None:
        """Carry late and slowly."""
        self.latency_s, self.bytes_per_second = 0.01, 2_000_000

    def flip_bits(self, every: int, seed: int = 0) -> None:
        """Flip one random bit in so many bytes, on average, either way. 0: none from now on."""
        with self._state:
            self._flip_every, self._random = every, random.Random(seed)

    def half_close(self) -> None:
        """End the direction from the target to its clients, of all connections. The other goes on."""
        for link in self._now():
            with suppress(OSError):
                link.near.shutdown(socket.SHUT_WR)

    def flip(self, choice: int) -> None:
        """Flip one bit of the next piece that is carried to a client; ``choice`` says which."""
        with self._state:
            self._flip = choice

    def cut(self) -> None:
        """Reset all connections, and every later one, until ``resume``."""
        self._become(refuses=True)
        for link in self._now():
            link.reset = True
            link.end(socket.SHUT_RD)

    def close(self) -> None:
        """End all connections and threads. Closing twice is fine."""
        self._closed = True
        self._become()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(_PATIENCE)
        self._server.close()
        for link in self._now():
            link.end(socket.SHUT_RDWR)
            for thread in link.threads:
                thread.join(_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _become(self, *, stalled: bool = False, refuses: bool = False, drops: bool = False) -> None:
        with self._state:
            self._stalled, self._refuses, self._drops = stalled, refuses, drops
            self._state.notify_all()

    def _is_cut(self) -> bool:
        return self._refuses

    def _now(self) -> list[_Link]:
        with self._state:
            return list(self._links)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            if self._closed:
                near.close()
                return
            self._link(near)

    def _link(self, near: socket.socket) -> None:
        try:
            if self._is_cut():
                raise ConnectionResetError
            link = _Link(near, self._connect())
        except OSError:
            _reset_when_closed(near)
            near.close()
            return
        ends = ((link.near, link.far), (link.far, link.near))
        link.threads = [threading.Thread(target=self._carry, args=(link, *end), daemon=True) for end in ends]
        with self._state:
            link.reset = self._is_cut()  # Meanwhile.
            self._links.append(link)
        if link.reset:
            link.end(socket.SHUT_RD)
        for thread in link.threads:
            thread.start()

    def _carry(self, link: _Link, source: socket.socket, sink: socket.socket) -> None:
        """Carry one direction until it ends. The last of the two directions closes the connections."""
        try:
            while piece := source.recv(_CHUNK):
                if not self._passes(link, len(piece)):
                    break
                if self._drops:
                    continue
                piece = self._damaged(piece)
                sink.sendall(self._flipped(piece) if sink is link.near else piece)
                if sink is link.near:
                    with self._state:
                        link.bytes_down += len(piece)
            if not link.reset:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            link.end(socket.SHUT_RD)
        with self._state:
            link.directions -= 1
            last = link.directions == 0
        if last:
            link.close()

    def _damaged(self, piece: bytes) -> bytes:
        """Return a piece, with bits flipped at random places if that was wanted."""
        with self._state:
            if not self._flip_every:
                return piece
            copy = bytearray(piece)
            at = int(self._random.expovariate(1 / self._flip_every))
            while at < len(copy):
                copy[at] ^= 1 << self._random.randrange(8)
                self.flips += 1
                at += 1 + int(self._random.expovariate(1 / self._flip_every))
            return bytes(copy)

    def _flipped(self, piece: bytes) -> bytes:
        """Return a piece, with the one bit flipped that was wanted."""
        with self._state:
            choice, self._flip = self._flip, None
        if choice is None:
            return piece
        damaged = bytearray(piece)
        damaged[(choice >> 3) % len(piece)] ^= 1 << (choice & 7)
        return bytes(damaged)

    def _passes(self, link: _Link, nbytes: int) -> bool:
        """Wait as long as a piece is held back. False when its connection ended meanwhile."""
        seconds = self.latency_s + (nbytes / self.bytes_per_second if self.bytes_per_second else 0.0)

        def over() -> bool:
            return self._closed or link.reset

        with self._state:
            if seconds:
                self._state.wait_for(over, seconds)
            self._state.wait_for(lambda: over() or not self._stalled)
            return not over()


def _reset_when_closed(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
