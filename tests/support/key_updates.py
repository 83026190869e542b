"""A side of TLS that renews its keys without end, which Python's ``ssl`` cannot do."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from pathlib import Path

_LIBRARIES = ("libssl.so.3", "libssl.so.1.1")
_POINTERS = ("TLS_client_method", "TLS_server_method", "SSL_CTX_new", "SSL_new")
_PEM = 1


class KeyUpdates:
    """TLS 1.3 over a socket, by the OpenSSL of this machine. No certificate is verified.

    The socket blocks until this is made. ``served`` is a file with certificate and key, of a server.
    """

    def __init__(self, connection: socket.socket, *, served: Path | None = None) -> None:
        self._api = _library()
        method = self._api.TLS_server_method if served else self._api.TLS_client_method
        self._context = ctypes.c_void_p(self._api.SSL_CTX_new(ctypes.c_void_p(method())))
        if served:
            path = str(served).encode()
            assert self._api.SSL_CTX_use_certificate_file(self._context, path, _PEM) == 1
            assert self._api.SSL_CTX_use_PrivateKey_file(self._context, path, _PEM) == 1
            assert self._api.SSL_CTX_set_num_tickets(self._context, ctypes.c_size_t(0)) == 1
        self._session = ctypes.c_void_p(self._api.SSL_new(self._context))
        assert self._api.SSL_set_fd(self._session, connection.fileno()) == 1
        greet = self._api.SSL_accept if served else self._api.SSL_connect
        if greet(self._session) != 1:
            self.close()
            raise OSError("no TLS handshake")

    def send(self, count: int, *, requested: bool = False) -> int:
        """Send so many updates, and return how many went before the other side ended the connection.

        Those that are ``requested`` have the other side answer each with one of its own.
        """
        for sent in range(count):
            made = self._api.SSL_key_update(self._session, int(requested)) == 1
            # Without ``made``, the last one waits: of a socket that does not block.
            if self._api.SSL_do_handshake(self._session) != 1 or not made:
                return sent
        return count

    def write(self, data: bytes) -> bool:
        """Send data in one record. Return whether it went."""
        return bool(self._api.SSL_write(self._session, data, len(data)) == len(data))

    def read(self, nbytes: int) -> bytes:
        """Wait for so many bytes of data. Fewer where the other side ended the connection."""
        received = b""
        data = ctypes.create_string_buffer(nbytes)
        while len(received) < nbytes:
            got = self._api.SSL_read(self._session, data, nbytes - len(received))
            if got <= 0:
                break
            received += data.raw[:got]
        return received

    def close(self) -> None:
        self._api.SSL_free(self._session)
        self._api.SSL_CTX_free(self._context)


def _library() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        for function in _POINTERS:
            getattr(library, function).restype = ctypes.c_void_p
        return library
    raise OSError(f"none of {', '.join(_LIBRARIES)} is here")
