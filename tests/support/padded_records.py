"""Records of TLS 1.3 that carry padding and no data, which no library of TLS sends."""

from __future__ import annotations

import ssl
import struct
from socket import socket
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

_DATA, _TLS_1_2, _TAG_BYTES = 23, 0x0303, 16


class PaddedRecords:
    """A caller over a connected socket. It verifies no certificate, and owns the socket.

    ``folder`` gets a file with the secrets of the session.
    """

    def __init__(self, connection: socket, folder: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        log = folder / "secrets"
        log.unlink(missing_ok=True)
        context.keylog_filename = str(log)
        self._connection = context.wrap_socket(connection)
        secrets = dict(line.split()[::2] for line in log.read_text().splitlines() if line[0] != "#")
        secret = bytes.fromhex(secrets["CLIENT_TRAFFIC_SECRET_0"])
        cipher = AESGCM(_expanded(secret, b"key", 16))
        self._cipher, self._iv = cipher, _expanded(secret, b"iv", 12)
        self._records = 0

    def send(self, padding: int) -> None:
        """Send a record of so many bytes of padding."""
        content = bytes([_DATA]) + bytes(padding)
        head = struct.pack(">BHH", _DATA, _TLS_1_2, len(content) + _TAG_BYTES)
        nonce = int.from_bytes(self._iv, "big") ^ self._records
        sealed = self._cipher.encrypt(nonce.to_bytes(12, "big"), content, head)
        self._records += 1
        socket.sendall(self._connection, head + sealed)  # Past TLS.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _expanded(secret: bytes, name: bytes, length: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446 (7.1), without context."""
    label = b"tls13 " + name
    info = struct.pack(">HB", length, len(label)) + label + b"\0"
    return HKDFExpand(SHA256(), length, info).derive(secret)
