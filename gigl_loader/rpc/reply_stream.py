"""Reply of the data port while it is received: straight from the socket into memory of the reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from gigl_loader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.arrays import Bytes

__all__ = ["ReplySource", "ReplyStream", "Scratch"]


class ReplySource(Protocol):
    """Connection that a reply is read from (``native.DataClient``)."""

    def read(self, out: Bytes) -> None:
        """Fill ``out``, uint8 [N], with the next bytes."""

    def finish(self) -> bool:
        """Read the checksum that follows the payload, and return whether it matches."""


class Scratch:
    """Memory for pieces of replies, kept from one reply to the next, so that it stays in the CPU caches."""

    _MAX_KEPT = 4 << 20

    def __init__(self) -> None:
        self._memory: Bytes | None = None

    def take(self, nbytes: int) -> Bytes:
        """Return uint8 [nbytes], valid until the next call."""
        if nbytes > self._MAX_KEPT:
            return np.empty(nbytes, np.uint8)
        if self._memory is None or len(self._memory) < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]


class ReplyStream:
    """One reply. Read all of its bytes once, in order, then call ``finish``."""

    def __init__(self, source: ReplySource, nbytes: int, scratch: Scratch) -> None:
        self._source = source
        self._scratch = scratch
        self.nbytes = nbytes
        """Size of the payload, as the service said. Check it before memory is taken for it."""
        self.received = 0
        """Bytes read so far."""

    def read(self, out: Bytes) -> None:
        """Fill ``out``, uint8 [N], with the next bytes. ``FormatError`` where the reply is shorter."""
        if self.received + len(out) > self.nbytes:
            raise FormatError(f"reply: it ends after {self.nbytes} bytes")
        self._source.read(out)
        self.received += len(out)

    def pieces(self, sizes: Sequence[int]) -> Iterator[Bytes]:
        """Yield the next bytes in pieces of these sizes, uint8 [size], each valid until the next one."""
        for size in sizes:
            piece = self._scratch.take(size)
            self.read(piece)
            yield piece

    def finish(self) -> None:
        """Raise ``FormatError`` unless all bytes were read, and match their checksum."""
        if self.received != self.nbytes:
            raise FormatError(f"reply: {self.nbytes - self.received} bytes follow its end")
        if not self._source.finish():
            raise FormatError("reply: it does not match its checksum")
