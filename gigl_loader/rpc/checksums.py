"""CRC-32C on the wire: of requests and control messages in a header, of replies in their last chunk.

TCP's own checksum misses one damaged segment in 65,536, and switches and drivers damage bytes that no
checksum covers. A checksum finds accidental damage only; TLS protects against deliberate changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.native import copy_crc32c, copy_rows, copy_rows_crc, crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "CHECKSUM_HEADER",
    "MAX_DAMAGED",
    "UNREAD_HEADER",
    "Checksum",
    "Crc32c",
    "ReplyChunks",
    "Unread",
    "checksum_text",
    "checksum_trailer",
    "message_checksum",
    "message_is_whole",
]

CHECKSUM_HEADER = "gigl-crc32c"
"""Header of a call: CRC-32C of its ticket or message, as 8 hexadecimal digits."""

UNREAD_HEADER = "gigl-checksum-unread"
"""Header of a call whose caller ignores the checksum of the reply, because it uses TLS, which detects every
change. Its value has no meaning."""

MAX_DAMAGED = 3
"""Damaged attempts in a row after which the call fails."""

_TRAILER_BYTES = 4


def checksum_text(data: bytes) -> str:
    """Return the value of ``CHECKSUM_HEADER`` for a ticket or a serialized message."""
    return f"{crc32c(np.frombuffer(data, np.uint8)):08x}"


def message_checksum(message: Any) -> str:
    """Return the value of ``CHECKSUM_HEADER`` for a protobuf message, sent or received."""
    return checksum_text(message.SerializeToString(deterministic=True))


def message_is_whole(message: Any, metadata: Iterable[Any] | None) -> bool:
    """Return whether a protobuf message matches its checksum in gRPC metadata (pairs of key and value).

    ``True`` where there is no checksum: old callers send none. ``False`` for no message, which gRPC returns
    where damage removed the message of a successful call.
    """
    if message is None:
        return False
    sent = [value for key, value in metadata or () if key == CHECKSUM_HEADER]
    return not sent or sent == [message_checksum(message)]


def checksum_trailer(crc: int) -> bytes:
    """Return the last chunk of a reply: the CRC-32C of all bytes before it, little-endian."""
    return crc.to_bytes(_TRAILER_BYTES, "little")


class Checksum(Protocol):
    """Checksum of a reply. Both sides add each byte once, in order, preferably while copying."""

    def add(self, data: Bytes) -> None:
        """Continue with uint8 [N]."""

    def copy(self, data: Bytes, out: Bytes) -> None:
        """Copy ``data`` to ``out``, both uint8 [N], and continue with it."""

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

    def trailer(self) -> bytes:
        """Return the last chunk of the reply."""

    def matches(self, trailer: bytes) -> bool:
        """Return whether ``trailer`` matches the bytes that were added."""


class Crc32c:
    """CRC-32C, computed while the bytes are in the caches. The trailer is its value, little-endian."""

    def __init__(self) -> None:
        self._value = 0

    def add(self, data: Bytes) -> None:
        self._value = crc32c(data, self._value)

    def copy(self, data: Bytes, out: Bytes) -> None:
        self._value = copy_crc32c(data, out, self._value)

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

    def trailer(self) -> bytes:
        return checksum_trailer(self._value)

    def matches(self, trailer: bytes) -> bool:
        return trailer == self.trailer()


class Unread:
    """No checksum, for a caller whose TLS checks every record. The trailer is zero and ignored."""

    def add(self, data: Bytes) -> None:
        pass

    def copy(self, data: Bytes, out: Bytes) -> None:
        np.copyto(out, data)

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

    def trailer(self) -> bytes:
        return checksum_trailer(0)

    def matches(self, trailer: bytes) -> bool:
        return True


class ReplyChunks:
    """Chunks of a reply without its trailer, each with the total size where it was sent. Iterates once.

    Raises ``FormatError`` at the end, if the bytes added to ``checksum`` do not match the trailer.
    """

    def __init__(self, received: Iterator[tuple[Bytes, int | None]], checksum: Checksum) -> None:
        self._received = received
        self.checksum = checksum
        """The reader adds every byte of every chunk."""
        self.nbytes = 0
        """Bytes of the chunks so far."""

    def __iter__(self) -> Iterator[tuple[Bytes, int | None]]:
        held: tuple[Bytes, int | None] | None = None  # May turn out to be the trailer.
        for piece in self._received:
            if held is not None:
                yield self._counted(held)
                held = None
            if len(piece[0]) == _TRAILER_BYTES:
                held = piece
            else:  # Yielded at once, while the chunk is in the CPU caches.
                yield self._counted(piece)
        if held is None or not self.checksum.matches(held[0].tobytes()):
            raise FormatError("reply: it does not match its checksum, or has none")

    def _counted(self, piece: tuple[Bytes, int | None]) -> tuple[Bytes, int | None]:
        self.nbytes += len(piece[0])
        return piece
