"""Reply of the data port while it is received."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Protocol

import numpy as np
from google.protobuf.message import DecodeError

from gigl_loader.errors import FormatError
from gigl_loader.rpc.graph_store_pb2 import SampleReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.arrays import Bytes


class ReplySource(Protocol):
    """Connection that a reply is read from (``native.DataClient``)."""

    def read(self, out: Bytes) -> None:
        """Fill ``out``, uint8 [N], with the next bytes."""

    def finish(self) -> bool:
        """Read the checksum that follows the payload, and return whether it matches."""


class ReplyBuffer:
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


_HEARD_BYTES = 256 << 10
"""Of a reply, after which its server was heard of: fewer in a second are as good as silence."""


class ReplyStream:
    """One reply. Read all of its bytes once, in order, then call ``finish``."""

    def __init__(
        self, source: ReplySource, nbytes: int, scratch: ReplyBuffer, heard: Callable[[], None] = lambda: None
    ) -> None:
        """``heard`` is called for each part that has come."""
        self._source = source
        self._scratch = scratch
        self._heard = heard
        self.nbytes = nbytes
        """Size of the payload, as the service said. Check it before memory is taken for it."""
        self.received = 0
        """Bytes read so far."""

    def read(self, out: Bytes) -> None:
        """Fill ``out``, uint8 [N], with the next bytes. ``FormatError`` where the reply is shorter."""
        if self.received + len(out) > self.nbytes:
            raise FormatError(f"reply: it ends after {self.nbytes} bytes")
        for at in range(0, len(out), _HEARD_BYTES):
            part = out[at : at + _HEARD_BYTES]
            self._source.read(part)
            self._heard()
            self.received += len(part)

    def pieces(self, sizes: Sequence[int]) -> Iterator[Bytes]:
        """Yield the next bytes in pieces of these sizes, uint8 [size], each valid until the next one."""
        for size in sizes:
            piece = self._scratch.take(size)
            self.read(piece)
            yield piece

    def next(self, nbytes: int) -> bytes:
        """Return the next bytes."""
        piece = self._scratch.take(nbytes)
        self.read(piece)
        return piece.tobytes()

    def finish(self) -> None:
        """Raise ``FormatError`` unless all bytes were read, and match their checksum."""
        if self.received != self.nbytes:
            raise FormatError(f"reply: {self.nbytes - self.received} bytes follow its end")
        if not self._source.finish():
            raise FormatError("reply: it does not match its checksum")


_MESSAGE_SIZE = Struct("<I")
_MAX_MESSAGE_BYTES = 1 << 20
"""Limit of the message before a frame. A failure has a traceback."""


def read_sample_reply(reply: ReplyStream) -> SampleReply:
    """Read the message of a reply to a request for a batch. What follows is its frame, or nothing."""
    head = reply.next(_MESSAGE_SIZE.size)
    (nbytes,) = _MESSAGE_SIZE.unpack(head)
    if nbytes > _MAX_MESSAGE_BYTES:
        raise FormatError(f"reply: a message of {nbytes} bytes; at most {_MAX_MESSAGE_BYTES} are read")
    try:
        message: SampleReply = SampleReply.FromString(reply.next(nbytes))
    except DecodeError:
        raise FormatError("reply: the message is no SampleReply") from None
    return message
