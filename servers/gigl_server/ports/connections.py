"""Connections of the Flight port, which its server can neither end nor count: watched and cut here.

pyarrow's Flight server has no option for the size of a message, the number or idle time of connections, nor
the duration of a reply. Its sockets are descriptors of this process. Shutting one down ends its calls as if
the peer had disconnected: gRPC cancels what waits to be sent, and frees threads and memory.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import socket
import stat
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gigl_server.identity import Identity

__all__ = ["Connections", "Place", "place_of"]

Place: TypeAlias = tuple[str, int]
"""Address and port of a peer."""

_SWEEP_S = 1.0
_END_S = 5.0
_SILENT_S = 15.0
"""Time for a connection to send a token. Clients of this library send it with the first bytes."""
_MAX_CALL_S = 60.0
"""Time from a request to the last byte of its reply. Trainers give up after 30 s and retry."""
_UNREAD_S = 5.0
"""The same for a caller that holds most of a resource that another caller needs."""
_MAX_UNKNOWN_BYTES = 128 << 20
"""Limit of bytes received on a connection without a token: two requests of the largest size."""
_MAX_UNKNOWN = 256
_UNKNOWN_SHARE = 4
"""Divisor of this process's descriptor limit: so many connections may be without a token."""
_ADDRESS_SHARE = 2
_BYTES_RECEIVED = struct.Struct("=128xQ")  # Of struct tcp_info, since Linux 4.1.


@dataclass(slots=True)
class _Known:
    """State of a connection."""

    since: float
    accepted: bool = False


class _UnderWay(NamedTuple):
    """A call whose reply was not sent yet."""

    place: Place
    caller: Identity
    since: float


class Connections:
    """Watch over the accepted connections of one port of this process, each second, in a thread.

    It cuts connections that send no token for 15 s, or 128 MiB before a token; the oldest of more than 256
    connections without a token; connections beyond half of this process's descriptors from one address;
    connections with a call of more than 60 s; and that of the oldest call of a caller that hoards a resource
    which other callers need.
    """

    def __init__(
        self,
        tell: Callable[[Place, str], None],
        hoarders: Callable[[], Iterable[Identity | None]] = tuple,
    ) -> None:
        """``tell`` is called with the peer and the reason of each cut; ``hoarders`` returns the hoarders.

        Calls are recorded from now on, connections watched from ``start`` on.
        """
        self._tell = tell
        self._hoarders = hoarders
        self._lock = threading.Lock()
        self._known: dict[Place, _Known] = {}
        self._calls: dict[object, _UnderWay] = {}  # Oldest first.
        self._ending = threading.Event()
        self._sockets = _Sockets()
        self._thread = threading.Thread(target=self._keep_sweeping, name="data connections", daemon=True)

    @property
    def thread(self) -> threading.Thread:
        """Thread that lives from ``start`` to ``close``."""
        return self._thread

    def start(self, port: int) -> None:
        """Start to watch the connections of this port."""
        self._sockets.port = port
        self._thread.start()

    def begins(self, call: object, place: Place, caller: Identity) -> None:
        """Record a call of an authenticated caller."""
        now = time.monotonic()
        with self._lock:
            self._known.setdefault(place, _Known(now)).accepted = True
            self._calls[call] = _UnderWay(place, caller, now)

    def ends(self, call: object) -> None:
        """Record the end of a call."""
        with self._lock:
            self._calls.pop(call, None)

    def rest(self) -> None:
        """Stop watching: another service may use this port from now on."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def close(self) -> None:
        """End the thread, and close files. Closing twice is fine."""
        self.rest()
        self._sockets.close()

    def cut_all(self) -> int:
        """Cut every connection, and return the number of their calls. Does nothing after ``close``."""
        with self._lock:
            calls = len(self._calls)
        self._sockets.cut(None)
        return calls

    def sweep(self) -> None:
        """Check all connections once."""
        began = time.monotonic()
        seen = dict(self._sockets.received())
        now = time.monotonic()
        with self._lock:
            newer = {place: known for place, known in self._known.items() if known.since >= began}
            self._known = newer | {place: self._known.get(place) or _Known(now) for place in seen}
            reasons = dict(self._reasons(seen, now))
        if reasons:
            self._sockets.cut(reasons.keys())
        for place, reason in reasons.items():
            self._tell(place, reason)

    def _reasons(self, received: dict[Place, int], now: float) -> Iterator[tuple[Place, str]]:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        oldest = sorted(received, key=lambda place: self._known[place].since)
        unknown = [place for place in oldest if not self._known[place].accepted]
        for place in unknown[: max(len(unknown) - min(_MAX_UNKNOWN, files // _UNKNOWN_SHARE), 0)]:
            yield place, f"{len(unknown)} connections showed no token"
        for place in unknown:
            if now - self._known[place].since > _SILENT_S:
                yield place, f"no token within {_SILENT_S:g} s"
            elif received[place] > _MAX_UNKNOWN_BYTES:
                yield place, f"{received[place]} bytes without a token"
        seats: Counter[str] = Counter()
        for place in oldest:
            seats[place[0]] += 1
            if seats[place[0]] > files // _ADDRESS_SHARE:
                yield place, f"more than {files // _ADDRESS_SHARE} connections of one address"
        for call in self._calls.values():
            if now - call.since > _MAX_CALL_S:
                yield call.place, f"a reply was not read for {_MAX_CALL_S:g} s"
        for caller in self._hoarders():
            oldest_call = next((call for call in self._calls.values() if call.caller == caller), None)
            if oldest_call and now - oldest_call.since > _UNREAD_S:
                yield oldest_call.place, f"a reply was not read for {_UNREAD_S:g} s, and other callers wait"

    def _keep_sweeping(self) -> None:
        while not self._ending.wait(_SWEEP_S):
            self.sweep()


class _Sockets:
    """Accepted TCP sockets of a port, found among the descriptors of this process.

    A descriptor is inspected through a copy at a reserved number. That works when the process has used up its
    descriptors, and is safe when a descriptor is closed and reused meanwhile.
    """

    def __init__(self) -> None:
        self.port = 0
        self._lock = threading.Lock()
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._copy = os.dup(self._null)

    def received(self) -> Iterator[tuple[Place, int]]:
        """Yield each peer, and the number of bytes received from it."""
        with self._lock:
            for place, found in self._all():
                yield place, _received(found)

    def cut(self, places: Iterable[Place] | None) -> None:
        """Shut down the connections of ``places``. ``None``: of all peers."""
        chosen = None if places is None else set(places)
        with self._lock:
            for place, found in self._all():
                if chosen is None or place in chosen:
                    with suppress(OSError):
                        found.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            for fd in (self._copy, self._null):
                if fd >= 0:
                    os.close(fd)
            self._copy = self._null = -1

    def _all(self) -> Iterator[tuple[Place, socket.socket]]:
        if self._copy < 0:
            return
        try:
            for fd in _descriptors():
                with suppress(OSError):  # Closed meanwhile, or a socket that listens.
                    if fd == self._copy or not stat.S_ISSOCK(os.fstat(fd).st_mode):
                        continue
                    os.dup2(fd, self._copy, inheritable=False)
                    yield from self._one()
        finally:
            os.dup2(self._null, self._copy, inheritable=False)

    def _one(self) -> Iterator[tuple[Place, socket.socket]]:
        found = socket.socket(fileno=self._copy)
        try:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == self.port:
                yield _place(*found.getpeername()[:2]), found
        finally:
            found.detach()


def place_of(peer: str) -> Place:
    """Return address and port of a peer in gRPC's form: ``ipv4:10.0.0.7:4711``, ``ipv6:%5B::1%5D:4711``."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _place(host.strip("[]"), int(port) if port.isdecimal() else 0)


def _place(host: str, port: int) -> Place:
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address), port
    return host, port


def _descriptors() -> Iterable[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _received(found: socket.socket) -> int:
    with suppress(OSError, struct.error):
        (received,) = _BYTES_RECEIVED.unpack(
            found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
        )
        return int(received)
    return 0
