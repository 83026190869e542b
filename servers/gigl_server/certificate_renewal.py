"""Renewal of a running server's certificate, for connections from then on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigl_loader.rpc.credentials import Credentials

__all__ = ["ServedCertificate", "check_renewal"]


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
