"""Renewal of a running server's certificates and tokens, when their files change or at SIGHUP."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.secret_files import FileWatch

_LOGGER = logging.getLogger(__name__)
_LOOK_S = 2.0
_AGAIN_S = 60.0
"""Files that could not be used are tried again after this long: a certificate may become valid meanwhile."""
CHANGED = "files changed"


class Renewal:
    """Reads certificates and tokens again when their files change. For one thread.

    Files are read once they have stayed the same between two looks, as a certificate and its key are seldom
    written at the same moment. Files that cannot be used are logged once; the previous content stays in use.
    """

    def __init__(
        self,
        watch: FileWatch,
        renew: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``renew`` reads the files and uses them; it raises ``OSError`` or ``ValueError`` if it cannot.

        ``watch`` was made before the files were read for the first time.
        """
        self._watch = watch
        self._renew, self._clock = renew, clock
        self._next = clock() + _LOOK_S
        self._again = float("inf")
        self._told = ""

    def look(self) -> None:
        """Check whether the files changed, at most every two seconds."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _LOOK_S
        if self._watch.changed():
            self._again = now
        elif now >= self._again:
            self.renew(CHANGED)

    def renew(self, why: str) -> None:
        """Read the files now. ``why`` begins the line of the log."""
        self._watch.changed()
        try:
            self._renew()
        except (OSError, ValueError) as error:
            self._again = self._clock() + _AGAIN_S
            if why != CHANGED or str(error) != self._told:
                _LOGGER.error("%s: certificates and tokens stay as they are: %s", why, error)
            self._told = str(error)
        else:
            self._again, self._told = float("inf"), ""
            _LOGGER.info("%s: certificates and tokens are those of now", why)


class ServedCertificate:
    """Certificate of a gRPC port. Any thread may replace it."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._lock = threading.Lock()
        self._news: Any = None

    def grpc_server_credentials(self) -> Any:
        """Return the credentials of a gRPC server. ``None``: plain text."""
        import grpc

        if not self._credentials.certificate:
            return None
        require_client = bool(self._credentials.client_authority)
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._credentials), self._fetch, require_client_authentication=require_client
        )

    def replace(self, credentials: Credentials) -> None:
        """Use another certificate from the next handshake on. ``ValueError`` where a restart is needed."""
        check_renewal(self._credentials, credentials)
        if self._credentials.certificate:
            with self._lock:
                self._news = _configuration(credentials)
        self._credentials = credentials

    def _fetch(self) -> Any:
        """Return the configuration if it changed since the last handshake. gRPC keeps the one before."""
        with self._lock:
            news, self._news = self._news, None
        return news


def check_renewal(before: Credentials, after: Credentials) -> None:
    """Raise ``ValueError`` for changes that need another process."""
    for name, had, has in (
        ("TLS", before.certificate, after.certificate),
        ("certificates of callers", before.client_authority, after.client_authority),
        ("a token", not before.is_open, not after.is_open),
    ):
        if bool(had) != bool(has):
            raise ValueError(f"{name} cannot begin or end to be asked for: start the server again")
    if before.cluster_key != after.cluster_key:
        raise ValueError("another cluster key needs all servers of the cluster: start them again")


def _configuration(credentials: Credentials) -> Any:
    import grpc

    pair = (credentials.key, credentials.certificate)
    return grpc.ssl_server_certificate_configuration([pair], credentials.client_authority or None)
