"""What a peer service shows and asks for: a certificate, and a token that all hosts share."""

from __future__ import annotations

import datetime
import hmac
import ipaddress
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cryptography import x509

__all__ = ["Credentials", "authorization", "check_dates", "new_token"]

_MIN_TOKEN = 16
_BACKDATED = datetime.timedelta(days=1)  # Clocks of hosts that are this far apart still agree on validity.
_VALID = datetime.timedelta(days=365)  # Longer than any run: the certificate lives as long as its service.


def new_token() -> str:
    """Return a fresh random token (256 bits)."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Certificate, key and token of a service. The token and the key are never shown."""

    token: str = field(repr=False)
    """At least 16 visible ASCII characters, the same on all hosts."""
    certificate: bytes = b""
    """PEM, with intermediates. Empty: no TLS."""
    key: bytes = field(default=b"", repr=False)
    """PEM, not encrypted."""
    authority: bytes = b""
    """PEM of what callers shall trust instead of the certificate itself: that of a certificate authority."""
    insecure: bool = False
    """Allow plain text beyond this machine. Whoever can read the network can then read and ask."""

    def __post_init__(self) -> None:
        if len(self.token) < _MIN_TOKEN or not all("!" <= each <= "~" for each in self.token):
            raise ValueError(f"a token has at least {_MIN_TOKEN} visible ASCII characters and no space")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("a certificate needs its key, and a key its certificate")
        if self.authority and not self.certificate:
            raise ValueError("an authority without a certificate that it signed")

    @classmethod
    def ephemeral(cls, hosts: Sequence[str], *, token: str | None = None) -> Credentials:
        """Make a self-signed certificate for these names and addresses, valid for a year."""
        certificate, key = _self_signed(hosts)
        return cls(token=token or new_token(), certificate=certificate, key=key)

    @classmethod
    def plaintext(cls, *, token: str | None = None, insecure: bool = False) -> Credentials:
        """Go without TLS: between processes of one machine, or with ``insecure`` on a trusted network."""
        return cls(token=token or new_token(), insecure=insecure)

    @property
    def trusted(self) -> str:
        """PEM of what callers must trust. Empty: no TLS."""
        return (self.authority or self.certificate).decode("ascii")

    def to_json(self) -> dict[str, str | bool]:
        """Return everything, secrets too, for a child process over a socket of its own."""
        texts = {name: getattr(self, name).decode("ascii") for name in ("certificate", "key", "authority")}
        return {**texts, "token": self.token, "insecure": self.insecure}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Credentials:
        """Undo ``to_json``."""
        parts = {name: document[name].encode("ascii") for name in ("certificate", "key", "authority")}
        return cls(**parts, token=document["token"], insecure=document["insecure"])

    def accepts(self, authorization_values: Sequence[str | bytes]) -> bool:
        """Return whether exactly one value was sent and it is right, in time that tells nothing about it."""
        if len(authorization_values) != 1:
            return False
        value = authorization_values[0]
        sent = value.encode("utf-8", "replace") if isinstance(value, str) else value
        return hmac.compare_digest(sent, authorization(self.token).encode())


def authorization(token: str) -> str:
    """Return the value of the header ``authorization`` that shows a token."""
    return f"Bearer {token}"


def check_dates(pem: str, now: datetime.datetime | None = None) -> None:
    """Raise ``ValueError`` if a certificate in ``pem`` is not valid at ``now``, with both times."""
    from cryptography import x509

    now = now or datetime.datetime.now(datetime.timezone.utc)
    for certificate in x509.load_pem_x509_certificates(pem.encode()):
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


def _self_signed(hosts: Sequence[str]) -> tuple[bytes, bytes]:
    # Imported here: only who serves over TLS pays for it.
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


def _alternative_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
