"""Data port of a server: a Flight service that can be replaced by another on the same port.

pyarrow's server reads its certificate only when it is created, so another certificate needs another server.
Calls under way on the old server are cut, and their callers retry.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gigl_loader.retry import Backoff
from gigl_loader.rpc.address import Address
from gigl_server.ports.flight import open_data_service, shut_down

if TYPE_CHECKING:
    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.audit import AuditLog
    from gigl_server.counters import Counters
    from gigl_server.ports.flight import DataService, FrameSource
    from gigl_server.ports.queries import Queries

__all__ = ["DataPort"]

_LOGGER = logging.getLogger(__name__)
_REOPEN_S = 5.0


class DataPort:
    """Serves from its construction to ``close``."""

    def __init__(
        self,
        address: Address,
        queries: Queries,
        counters: Counters,
        credentials: Credentials,
        *,
        audit: AuditLog,
        frames: FrameSource | None = None,
    ) -> None:
        """Listen at ``address``; port 0 takes a free one. ``OSError`` naming it where that cannot be."""
        self._queries, self._counters, self._audit, self._frames = queries, counters, audit, frames
        self._credentials = credentials
        self._lock = threading.Lock()
        self._closed = False
        self.reopening = False
        """The port is closed for a moment, between two services."""
        self.service: DataService = self._open(address, credentials)
        self._address = Address(address.host, self.port)

    @property
    def port(self) -> int:
        port: int = self.service.port
        return port

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that live as long as the port; none while it is being opened again."""
        service = self.service
        return () if self.reopening or self._closed else (service.connections.thread,)

    def renew(self, credentials: Credentials) -> None:
        """Use other credentials from now on. ``OSError`` where the port could not be opened with them.

        A new token takes effect at once; a new certificate closes the port for a moment.
        """
        with self._lock:
            if self._closed:
                return
            if credentials.flight_options() == self._credentials.flight_options():
                self.service.renew(credentials)
            else:
                self._reopen(credentials)
            self._credentials = credentials

    def close(self) -> None:
        """Stop serving, after a short wait for calls under way. Closing twice is fine."""
        with self._lock:
            self._closed = True
            shut_down(self.service)

    def _reopen(self, credentials: Credentials) -> None:
        self.reopening = True
        threading.Thread(target=self.service.shutdown, name="data shutdown", daemon=True).start()
        try:
            self.service = self._opened(credentials)
        except OSError:
            self.service = self._opened(self._credentials)
            raise
        finally:
            self.reopening = False
        _LOGGER.info("data port %d: opened again with another certificate", self.port)

    def _opened(self, credentials: Credentials) -> DataService:
        """Open the port as soon as the previous service has released it."""
        deadline = time.monotonic() + _REOPEN_S
        backoff = Backoff(first_s=0.01, longest_s=0.2)
        while time.monotonic() < deadline:
            with suppress(OSError):
                return self._open(self._address, credentials)
            time.sleep(backoff.next_s())
        return self._open(self._address, credentials)

    def _open(self, address: Address, credentials: Credentials) -> DataService:
        return open_data_service(
            address, self._queries, self._counters, credentials, audit=self._audit, frames=self._frames
        )
