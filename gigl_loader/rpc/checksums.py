"""CRC-32C on the wire: of requests and control messages in a header, of replies in their last chunk.

TCP's own checksum misses one damaged segment in 65,536, and switches and drivers damage bytes where no
checksum covers them. A checksum finds accidents; who may change bytes on purpose is kept out by TLS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gigl_loader.errors import FormatError
from gigl_loader.native import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "CHECKSUM_HEADER",
    "MAX_DAMAGED",
    "checksum_text",
    "checksum_trailer",
    "message_checksum",
    "message_is_whole",
    "verified_chunks",
]

CHECKSUM_HEADER = "gigl-crc32c"
"""Header of a call: CRC-32C of its ticket or message, as 8 hexadecimal digits."""

MAX_DAMAGED = 3
"""Attempts that may come damaged, in a row, before the caller is told."""

_TRAILER_BYTES = 4

Bytes = npt.NDArray[np.uint8]


def checksum_text(data: bytes) -> str:
    """Return the value of ``CHECKSUM_HEADER`` for a ticket or a serialized message."""
    return f"{crc32c(np.frombuffer(data, np.uint8)):08x}"


def message_checksum(message: Any) -> str:
    """Return the value of ``CHECKSUM_HEADER`` for a protobuf message, sent or received."""
    return checksum_text(message.SerializeToString(deterministic=True))


def message_is_whole(message: Any, metadata: Iterable[Any] | None) -> bool:
    """Return whether a protobuf message matches its checksum in gRPC metadata (pairs of key and value).

    True where there is none: callers that do not know of checksums send none.
    """
    sent = [value for key, value in metadata or () if key == CHECKSUM_HEADER]
    return not sent or sent == [message_checksum(message)]


def checksum_trailer(crc: int) -> bytes:
    """Return the last chunk of a reply: the CRC-32C of all bytes before it, little-endian."""
    return crc.to_bytes(_TRAILER_BYTES, "little")


def verified_chunks(chunks: Iterator[tuple[Bytes, int | None]]) -> Iterator[tuple[Bytes, int | None]]:
    """Yield the chunks of a reply but its trailer. ``FormatError`` at the end, if they do not match it."""
    crc = 0
    held: tuple[Bytes, int | None] | None = (
        None  # What may be the trailer. Others are used while in the caches.
    )
    for chunk, total in chunks:
        if held is not None:
            crc = crc32c(held[0], crc)
            yield held
            held = None
        if len(chunk) == _TRAILER_BYTES:
            held = chunk, total
        else:
            crc = crc32c(chunk, crc)
            yield chunk, total
    if held is None or held[0].tobytes() != checksum_trailer(crc):
        raise FormatError("reply: it does not match its checksum, or has none")
