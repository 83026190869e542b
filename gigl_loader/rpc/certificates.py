"""X.509 certificates as PEM: creation, checks before use, and why a TLS connection failed."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cryptography import x509

    from gigl_loader.rpc.credentials import Caller, SslParts
    from gigl_loader.rpc.endpoint import Endpoint

# The library is imported inside functions: a process without TLS does not load it.


_BACKDATED = datetime.timedelta(days=1)  # Tolerates host clocks that differ by as much.
_VALID = datetime.timedelta(days=365)  # Longer than any run: the certificate lives as long as its service.


def self_signed(hosts: Sequence[str]) -> tuple[bytes, bytes]:
    """Return a certificate for these names and addresses, valid for a year, and its key, both as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if not hosts:
        raise ValueError("a certificate needs at least one host name or address")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gigl peer service")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _VALID)
        .add_extension(
            x509.SubjectAlternativeName([_alternative_name(host) for host in hosts]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


def check_dates(pem: str, now: datetime.datetime | None = None) -> None:
    """Raise ``ValueError`` with its dates if a certificate in ``pem`` is not valid at ``now``."""
    now = now or datetime.datetime.now(datetime.timezone.utc)
    for certificate in _certificates(pem.encode(), "its certificate"):
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now < begin:
            raise ValueError(
                f"its certificate is not valid before {begin:%Y-%m-%d %H:%M:%S} UTC, and here it is "
                f"{now:%Y-%m-%d %H:%M:%S} UTC: set the clocks of both hosts"
            )
        if now > end:
            raise ValueError(
                f"its certificate expired at {end:%Y-%m-%d %H:%M:%S} UTC, and here it is "
                f"{now:%Y-%m-%d %H:%M:%S} UTC: renew it, or set the clocks of both hosts"
            )


def expiry(pem: bytes) -> float:
    """Return when the first of the certificates of ``pem`` to expire does so: seconds since 1970."""
    return min(each.not_valid_after_utc.timestamp() for each in _certificates(pem, "the certificate"))


def check_pair(certificate: bytes, key: bytes) -> None:
    """Raise ``ValueError`` unless ``key`` belongs to the first certificate. Both are PEM."""
    from cryptography.hazmat.primitives import serialization

    [first, *_] = _certificates(certificate, "the certificate")
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError) as error:  # An encrypted key raises TypeError.
        raise ValueError(f"the key cannot be read: {error}: give it as PEM, not encrypted") from None
    encoding = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*encoding) != first.public_key().public_bytes(*encoding):
        raise ValueError("the key is not that of the certificate: give the pair that belongs together")


def check_name(certificate: bytes, host: str) -> None:
    """Raise ``ValueError`` unless the first certificate names ``host``, a name or address.

    A certificate without alternative names passes: old ones use the common name, which some callers check.
    """
    from cryptography import x509

    [first, *_] = _certificates(certificate, "the certificate")
    try:
        names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return
    known = [str(name.value) for name in names if isinstance(name, (x509.DNSName, x509.IPAddress))]
    if not any(_is_for(name, host) for name in known):
        raise ValueError(
            f"the certificate is not good for {host!r}, where others come (advertise): it is for "
            f"{', '.join(known[:8]) or 'no host'}"
        )


def _is_for(name: str, host: str) -> bool:
    """Return whether ``name`` matches ``host`` as in TLS: a star stands for one label of a name."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        pass
    name, host = name.lower().rstrip("."), host.lower().rstrip(".")
    if not name.startswith("*."):
        return name == host
    return host.partition(".")[2] == name[2:]


def check_authority(authority: bytes) -> None:
    """Raise ``ValueError`` unless this is at least one certificate as PEM."""
    _certificates(authority, "the authority")


def fingerprints(pem: bytes) -> set[bytes]:
    """Return the SHA-256 of each certificate. ``ValueError`` for text that is no PEM."""
    from cryptography.hazmat.primitives import hashes

    return {each.fingerprint(hashes.SHA256()) for each in _certificates(pem, "the certificate")}


def system_roots() -> bytes:
    """Return the authorities that this machine trusts, as PEM. ``ValueError`` where it has none.

    gRPC would use a built-in list, without the authorities that an administrator has added.
    """
    import ssl
    from pathlib import Path

    file = ssl.get_default_verify_paths().cafile
    if file:
        return Path(file).read_bytes()
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not found:
        raise ValueError("this machine has no list of authorities: name the one to trust")
    return "".join(map(ssl.DER_cert_to_PEM_cert, found)).encode()


def _certificates(pem: bytes, what: str) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ValueError(f"{what} cannot be read as PEM") from None


def _alternative_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


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
