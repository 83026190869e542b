"""Diagnosis of TLS failures, as text: gRPC says little more than that a connection failed."""

from __future__ import annotations

import os
import socket
import ssl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.rpc.certificates import check_dates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.rpc.credentials import Caller, SslParts
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["server_context", "tls_fault"]

_SETTINGS_S = 1.0
"""Time for the first bytes of an HTTP/2 server. In TLS 1.3 it may refuse the caller's certificate instead."""

_NOT_FOR_NAME = {62, 63, 64}
"""OpenSSL's codes for a certificate of another name, mail address or network address."""

_GIVE_CA = "ca=, GIGL_TLS_CA or --tls-ca"


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return the TLS context of a server, from a certificate with intermediates and its key, both as PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with _file_of(certificate + b"\n" + key) as path:
        context.load_cert_chain(path)
    return context


def tls_fault(endpoint: Endpoint, caller: Caller, port: int, timeout_s: float) -> str | None:
    """Return, in one line, why TLS keeps ``caller`` from using this port of the service.

    Takes up to two handshakes. ``None`` where they find no fault.
    """
    deadline = time.monotonic() + timeout_s
    try:
        parts = caller.ssl_parts(endpoint)
        if parts is None:
            return _plain_fault(endpoint, port, deadline)
        return _handshake_fault(endpoint, parts, port, deadline)
    except ValueError as error:
        return str(error)
    except OSError:
        return None  # Not reached: no fault of TLS.


def _plain_fault(endpoint: Endpoint, port: int, deadline: float) -> str | None:
    try:
        _certificate(endpoint, port, deadline)
    except ssl.SSLError:
        return None
    return f"it uses TLS, and is asked without: name the authority that signed its certificate ({_GIVE_CA})"


def _handshake_fault(endpoint: Endpoint, parts: SslParts, port: int, deadline: float) -> str | None:
    context = _context(parts)
    try:
        with _connected(endpoint, port, deadline) as plain:
            secure = context.wrap_socket(plain, server_hostname=endpoint.host, suppress_ragged_eofs=False)
            with secure:
                return _refusal(secure, parts)
    except ssl.SSLCertVerificationError as error:
        check_dates(_certificate(endpoint, port, deadline))
        if error.verify_code in _NOT_FOR_NAME:
            return f"its certificate is not good for {endpoint.host!r}: ask it by a name that it is for"
        return (
            f"its certificate is not trusted here ({error.verify_message}): name the authority that signed "
            f"it ({_GIVE_CA})"
        )
    except ssl.SSLError as error:
        if error.reason is not None and "ALERT" in error.reason:
            return _alert(error, parts)
        return "it does not use TLS, and is said to"


def _refusal(secure: ssl.SSLSocket, parts: SslParts) -> str | None:
    """Return how the service refuses the caller's certificate, or its lack."""
    secure.settimeout(_SETTINGS_S)
    try:
        secure.recv(1)
    except TimeoutError:
        return None
    except (ssl.SSLError, ConnectionError) as error:
        return _alert(error, parts)
    return None


def _alert(error: OSError, parts: SslParts) -> str:
    if parts.certificate is None:
        return "it asks callers for a certificate: give one that its authority signed, with its key"
    _check_own_dates(parts.certificate)
    alert = getattr(error, "reason", None) or ""
    why = f" ({alert})" if "ALERT" in alert else ""
    return f"it does not accept our certificate{why}: give one that its authority signed"


def _check_own_dates(certificate: bytes) -> None:
    try:
        check_dates(certificate.decode("ascii"))
    except ValueError as error:
        raise ValueError(str(error).replace("its certificate", "our certificate", 1)) from None


def _context(parts: SslParts) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata=parts.roots.decode("ascii"))
        if parts.certificate is not None and parts.key is not None:
            with _file_of(parts.certificate + b"\n" + parts.key) as path:
                context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise ValueError(f"a certificate that was given cannot be used: {error}") from None
    return context


@contextmanager
def _file_of(secret: bytes) -> Iterator[str]:
    """Lend a path to ``secret`` in memory, since Python's ``ssl`` reads keys from files only."""
    fd = os.memfd_create("gigl-key", os.MFD_CLOEXEC)
    try:
        os.write(fd, secret)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _certificate(endpoint: Endpoint, port: int, deadline: float) -> str:
    """Return the certificate of the service, without checking it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with _connected(endpoint, port, deadline) as plain, context.wrap_socket(plain) as secure:
        return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"")


def _connected(endpoint: Endpoint, port: int, deadline: float) -> socket.socket:
    return socket.create_connection((endpoint.host, port), max(deadline - time.monotonic(), 0.001))
