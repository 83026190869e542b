"""CRC-32C on the wire: of control messages in a header, of rows while a service gathers them.

TCP's own checksum misses one damaged segment in 65,536, and switches and drivers damage bytes that no
checksum covers. A checksum finds accidental damage only; TLS protects against deliberate changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.native import copy_rows, copy_rows_crc, crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

CHECKSUM_HEADER = "gigl-crc32c"
"""Header of a control call: CRC-32C of its message, as 8 hexadecimal digits."""

HEAD_CHECKSUM_HEADER = "gigl-head-crc32c"
"""Header of a control call: CRC-32C of its path and of its other headers of this library and of the token.

A service that refuses a token, or a job without a checksum of its message, may have read a damaged one.
"""


def checksum_text(data: bytes) -> str:
    """Return the value of ``CHECKSUM_HEADER`` for a serialized message."""
    return f"{crc32c(np.frombuffer(data, np.uint8)):08x}"


def message_checksum(message: Any) -> str:
    """Return the value of ``CHECKSUM_HEADER`` for a protobuf message, sent or received."""
    return checksum_text(message.SerializeToString(deterministic=True))


def head_checksum(path: str, metadata: Iterable[Any]) -> str:
    """Return the value of ``HEAD_CHECKSUM_HEADER`` for a call with this path and metadata."""
    covered = sorted((key, value) for key, value in metadata if _is_covered(key))
    return checksum_text("\n".join([path, *(f"{key}: {value}" for key, value in covered)]).encode())


def head_is_whole(path: str, metadata: Iterable[Any]) -> bool:
    """Return whether path and headers match their checksum. ``True`` without one: old callers send none."""
    metadata = list(metadata)
    sent = [value for key, value in metadata if key == HEAD_CHECKSUM_HEADER]
    return not sent or sent == [head_checksum(path, metadata)]


def _is_covered(key: str) -> bool:
    return key == "authorization" or (key.startswith("gigl-") and key != HEAD_CHECKSUM_HEADER)


def has_checksum(metadata: Iterable[Any] | None) -> bool:
    """Return whether gRPC metadata (pairs of key and value) has the checksum of a message."""
    return any(key == CHECKSUM_HEADER for key, _ in metadata or ())


def message_is_whole(message: Any, metadata: Iterable[Any] | None, *, required: bool = False) -> bool:
    """Return whether a protobuf message matches its checksum in gRPC metadata.

    Where there is no checksum, return whether none is ``required``: some callers send none. It is, where the
    same sender has sent one before: damage to a table of compressed headers takes it away from all later
    messages of a connection. ``False`` for no message, which gRPC returns where damage removed it.
    """
    if message is None:
        return False
    sent = [value for key, value in metadata or () if key == CHECKSUM_HEADER]
    return sent == [message_checksum(message)] if sent else not required


class Checksum(Protocol):
    """Checksum of a reply: each byte is added once, in order, preferably while it is copied."""

    @property
    def value(self) -> int | None:
        """CRC-32C of the bytes that were added; ``None`` where nobody reads it."""

    def add(self, data: Bytes) -> None:
        """Continue with uint8 [N]."""

    def copy_rows(
        self,
        source: Bytes,
        rows: Int64Array | None,
        places: Int64Array | None,
        out: Bytes,
        *,
        first: int = 0,
    ) -> None:
        """Copy as ``native.copy_rows`` does, and continue with the rows in the order of ``rows``."""


class Crc32c:
    """CRC-32C, computed while the bytes are in the caches."""

    def __init__(self) -> None:
        self._value = 0

    @property
    def value(self) -> int:
        return self._value

    def add(self, data: Bytes) -> None:
        self._value = crc32c(data, self._value)

    def copy_rows(
        self,
        source: Bytes,
        rows: Int64Array | None,
        places: Int64Array | None,
        out: Bytes,
        *,
        first: int = 0,
    ) -> None:
        self._value = copy_rows_crc(source, rows, places, out, self._value, first=first)


class Unread:
    """No checksum, for a caller whose TLS checks every record."""

    @property
    def value(self) -> None:
        return None

    def add(self, data: Bytes) -> None:
        pass

    def copy_rows(
        self,
        source: Bytes,
        rows: Int64Array | None,
        places: Int64Array | None,
        out: Bytes,
        *,
        first: int = 0,
    ) -> None:
        copy_rows(source, rows, places, out, first=first)
