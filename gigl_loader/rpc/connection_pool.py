"""Pool of native connections to the data port of one peer."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gigl_loader.native import DataClient, StreamCancelled, TlsContext
from gigl_loader.processes import keep_freed_memory
from gigl_loader.rpc.job import JOB_HEADER
from gigl_loader.rpc.reply_stream import Scratch

if TYPE_CHECKING:
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["ConnectionPool", "PooledConnection"]

_CONNECT_S = 5.0
"""A host that is down sends nothing: without this limit, connecting would take all the time of an attempt."""

_IDLE_S = 60.0
"""Shorter than the service's limit, so that callers close idle connections, and seldom find closed ones."""


class PooledConnection:
    """One connection, used by one call at a time."""

    def __init__(self, client: DataClient, header: bytes, generation: int) -> None:
        self.client = client
        self.header = header
        """Header text of every call."""
        self.generation = generation
        self.scratch = Scratch()
        self.idle_since = 0.0
        self.is_new = True
        """Whether no call has used it yet. The service may have closed an older one meanwhile."""
        self.cancelled = False

    def connect(self, timeout_s: float) -> None:
        """Connect a new connection. Raises ``StreamError``."""
        self.client.connect(min(timeout_s, _CONNECT_S))

    def cancel(self) -> None:
        """End the call that uses the connection, from any thread. No later call uses it."""
        self.cancelled = True
        self.client.cancel()


class ConnectionPool:
    """Connections to one peer: as many as calls are under way, and idle ones for later calls. Thread-safe."""

    def __init__(self, endpoint: Endpoint, caller: Caller, *, job: str) -> None:
        self._endpoint = endpoint
        self._caller = caller
        self._job = job
        self._lock = threading.Lock()
        self._tls: TlsContext | None = None
        self._has_tls = False
        self._generation = 0
        self._idle: list[PooledConnection] = []  # Last used last.
        self._closed = False

    def take(self) -> PooledConnection:
        """Return an idle connection, or a new one that is not connected yet.

        Raises ``StreamCancelled`` after ``close``, ``ValueError`` for a caller that must not connect, or
        whose certificates cannot be used.
        """
        with self._lock:
            self._end_old()
            while self._idle:
                connection = self._idle.pop()
                if not connection.client.is_stale():
                    connection.is_new = False
                    return connection
            return self._new()

    def put_back(self, connection: PooledConnection) -> None:
        """Take a connection back after a call, and keep it if another call can use it."""
        if connection.cancelled or not connection.client.reusable:
            return
        with self._lock:
            if not self._closed and connection.generation == self._generation:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)

    def drop_idle(self) -> None:
        """Close idle connections, which a service that was restarted does not know."""
        with self._lock:
            self._idle.clear()

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` from the next call on."""
        with self._lock:
            self._use(caller)

    def has_another_token(self, connection: PooledConnection, refused: int) -> bool:
        """Return whether new connections show another token than ``connection``, which was refused.

        It may be in the files by now, or be the caller's next one, where no more than ``refused`` were tried.
        """
        with self._lock:
            if connection.generation == self._generation and refused <= len(self._caller.other_tokens) + 1:
                self._use(self._caller.after_refusal())
            return connection.generation != self._generation

    def close(self) -> None:
        """Close idle connections, and make no more. Those that are in use belong to their calls."""
        with self._lock:
            self._closed = True
            self._idle.clear()

    def _new(self) -> PooledConnection:
        if self._closed:
            raise StreamCancelled("closed")
        keep_freed_memory()
        self._use(self._caller.latest())
        parts = self._caller.ssl_parts(self._endpoint)
        if parts is not None and not self._has_tls:
            self._tls = TlsContext.client(parts.roots, parts.certificate or b"", parts.key or b"")
            self._has_tls = True
        client = DataClient(self._endpoint.host, self._endpoint.data_port, self._tls if parts else None)
        headers = (*self._caller.headers, *(((JOB_HEADER, self._job),) if self._job else ()))
        text = "".join(f"{name}: {value}\n" for name, value in headers)
        return PooledConnection(client, text.encode(), self._generation)

    def _use(self, caller: Caller) -> None:
        """Show what ``caller`` has from the next call on. Under the lock."""
        if caller is not self._caller:
            self._caller, self._has_tls, self._tls = caller, False, None
            self._generation += 1
            self._idle.clear()

    def _end_old(self) -> None:
        now = time.monotonic()
        self._idle = [each for each in self._idle if now - each.idle_since < _IDLE_S]
