"""Certificates of an authority made for a test, good and bad."""

from __future__ import annotations

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates. Two of them do not know each other."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"authority {id(self)}")])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        self.pem = self._sign(self._name, self._key.public_key(), basic, (-10.0, 10.0))

    def sign(
        self, host: str = "127.0.0.1", *others: str, days: tuple[float, float] = (-1.0, 1.0)
    ) -> tuple[bytes, bytes]:
        """Return a certificate for addresses, valid between two days from now, and its key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.IPAddress(ipaddress.ip_address(each)) for each in (host, *others)]
        names = x509.SubjectAlternativeName(hosts)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._sign(x509.Name([]), key.public_key(), names, days), private

    def _sign(
        self,
        subject: x509.Name,
        public: ec.EllipticCurvePublicKey,
        extension: x509.ExtensionType,
        days: tuple[float, float],
    ) -> bytes:
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder(self._name, subject, public, x509.random_serial_number())
        builder = builder.not_valid_before(now + days[0] * _DAY).not_valid_after(now + days[1] * _DAY)
        signed = builder.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)
