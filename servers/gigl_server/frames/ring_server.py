"""Server that hands rings to trainers on this host: one thread, an abstract Unix socket, same user only."""

from __future__ import annotations

import logging
import os
import secrets
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gigl_loader.rpc.ring_client import CHANNEL_BYTES, RESPONSE_NONE, RESPONSE_RING, peer_uid

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RingServer"]

_LOGGER = logging.getLogger(__name__)
_PATIENCE_S = 2.0
_MAX_WAITING = 64
_BACKLOG = 128
_END_S = 5.0


class RingServer:
    """Serves from its construction to ``close``. A trainer that sends the id of a channel gets its ring."""

    def __init__(self, ring_of: Callable[[bytes], int | None]) -> None:
        """``ring_of`` returns a descriptor, which this server closes, or ``None`` where there is no ring.

        It is called with any 16 bytes, on the thread of this server.
        """
        self._ring_of = ring_of
        self.name = f"gigl-ring-{secrets.token_hex(16)}"
        """Name of the socket in the abstract namespace."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(b"\0" + self.name.encode())
        self._listener.listen(_BACKLOG)
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._visitors: dict[socket.socket, float] = {}  # Deadline of each (monotonic) to send a channel id.
        self._thread = threading.Thread(target=self._serve, name="ring server", daemon=True)
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        """Thread that lives until ``close``."""
        return self._thread

    def close(self) -> None:
        """Stop serving. Closing twice is fine."""
        with suppress(OSError):
            self._wake.send(b"x")
        self._thread.join(_END_S)
        self._wake.close()

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            for each in (*self._visitors, self._listener, self._woken):
                each.close()
            self._selector.close()

    def _turn(self) -> bool:
        """Serve pending connections. Return whether to go on."""
        soonest = min(self._visitors.values(), default=None)
        wait_s = None if soonest is None else max(soonest - time.monotonic(), 0.0)
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listener:
                self._welcome()
            else:
                self._respond(key.fileobj)  # type: ignore[arg-type]
        for visitor in [each for each, until in self._visitors.items() if until <= time.monotonic()]:
            self._dismiss(visitor)
        return True

    def _welcome(self) -> None:
        try:
            visitor, _ = self._listener.accept()
        except OSError:  # The visitor is gone, or the system has no descriptor left.
            time.sleep(0.01)  # Without descriptors, the loop would otherwise keep a core busy.
            return
        try:
            if len(self._visitors) < _MAX_WAITING and peer_uid(visitor) == os.geteuid():
                visitor.setblocking(False)
                self._selector.register(visitor, selectors.EVENT_READ)
                self._visitors[visitor] = time.monotonic() + _PATIENCE_S
        except OSError:  # The system cannot watch another file. Keep serving.
            _LOGGER.warning("a visitor could not be let in")
        finally:
            if visitor not in self._visitors:
                visitor.close()

    def _respond(self, visitor: socket.socket) -> None:
        try:
            channel = visitor.recv(CHANNEL_BYTES + 1)  # One message: the rest of a longer one is dropped.
            if len(channel) == CHANNEL_BYTES:
                self._hand_out(visitor, channel)
        except OSError:
            _LOGGER.debug("a visitor left before it was answered")
        except Exception:
            _LOGGER.exception("a ring could not be handed out")
        finally:
            self._dismiss(visitor)

    def _hand_out(self, visitor: socket.socket, channel: bytes) -> None:
        fd = self._ring_of(channel)
        if fd is None:
            visitor.send(RESPONSE_NONE)
            return
        try:
            socket.send_fds(visitor, [RESPONSE_RING], [fd])
        finally:
            os.close(fd)

    def _dismiss(self, visitor: socket.socket) -> None:
        if self._visitors.pop(visitor, None) is not None:
            self._selector.unregister(visitor)
            visitor.close()
