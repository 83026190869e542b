"""Rings of channels whose trainers run on this host: their memory, and the server that hands them out."""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.rpc.ring_client import CHANNEL_BYTES, RESPONSE_NONE, RESPONSE_RING, peer_uid
from gigl_loader.threads import start_thread
from gigl_server.admission import LOCAL, RING_PORT, Quota

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.arrays import Bytes
    from gigl_server.admission import Identity


_LOGGER = logging.getLogger(__name__)
_UNBOUNDED = 1 << 62
_BACKLOG = 128
_END_S = 5.0


class FrameRing:
    """Slots, numbered from 1, that the trainer owns: each request names the slot to write.

    The file is created when it is first needed, and the descriptor goes to the trainer: a trainer that
    requests rings and never fetches them costs neither memory nor descriptors. (A mapping keeps a descriptor
    of its own, and a process may have only about a thousand.)
    """

    def __init__(
        self, slots: int, slot_bytes: int, *, memory: Quota | None = None, owner: Identity = LOCAL
    ) -> None:
        """``ValueError`` for invalid sizes. Committed bytes count in ``memory`` for ``owner``."""
        if slots < 1 or slot_bytes < 1 or slot_bytes % mmap.PAGESIZE:
            raise ValueError(
                f"a ring has whole slots of whole pages ({mmap.PAGESIZE} bytes), got {slots} of {slot_bytes}"
            )
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._account = memory or Quota("bytes of rings", _UNBOUNDED)
        self._owner = owner
        self._lock = threading.Lock()
        self._memory: Bytes | None = None
        self._fd: int | None = None
        self._committed: dict[int, int] = {}  # Bytes written so far, by slot, from its start.
        self._given = self._closed = False

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    @property
    def is_shared(self) -> bool:
        """Whether the trainer has fetched the file. Until then, slots must not be written."""
        return self._given

    def slot(self, number: int) -> Bytes:
        """Return the memory of a slot, uint8 [slot bytes]. It stays valid after ``close``."""
        with self._lock:
            memory = self._mapped()
        return memory[(number - 1) * self.slot_bytes : number * self.slot_bytes]

    def room(self, number: int, nbytes: int) -> Bytes | None:
        """Return the start of a slot, uint8 [nbytes], and commit its memory.

        ``None`` where the slot is too small, or there is no memory left.
        """
        if nbytes > self.slot_bytes:
            return None
        whole = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            if self._closed:
                return None
            more = whole - self._committed.get(number, 0)
            if more > 0:
                if not self._account.enter(self._owner, more):
                    return None
                self._committed[number] = whole
        return self.slot(number)[:nbytes]

    def hand_over(self) -> int | None:
        """Return the file's descriptor, once. The caller owns it. ``OSError`` if no file can be created."""
        with self._lock:
            if self._given or self._closed:
                return None
            self._mapped()
            fd, self._fd = self._fd, None
            self._given = True
            return fd

    def close(self) -> None:
        """Close the file. Its memory is freed with the last array of it. Closing twice is fine."""
        with self._lock:
            fd, self._fd = self._fd, None
            self._memory = None
            self._closed = True
            committed, self._committed = sum(self._committed.values()), {}
        if fd is not None:
            os.close(fd)
        self._account.leave(self._owner, committed)

    def _mapped(self) -> Bytes:
        if self._closed:
            raise ValueError("the ring is closed")
        if self._memory is None:
            self._fd = create_memory("gigl-store-ring", self.nbytes)
            self._memory = map_memory(self._fd, self.nbytes)
        return self._memory


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
        self._thread = start_thread(threading.Thread(target=self._serve, name="ring server", daemon=True))

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
            if len(self._visitors) < RING_PORT.connections and peer_uid(visitor) == os.geteuid():
                visitor.setblocking(False)
                self._selector.register(visitor, selectors.EVENT_READ)
                self._visitors[visitor] = time.monotonic() + RING_PORT.first_s
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
