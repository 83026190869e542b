"""Reply of the data port while it is received, and the frames of storage servers that come so."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Protocol

import numpy as np
from google.protobuf.message import DecodeError

from gigl_loader.errors import FormatError
from gigl_loader.rpc.graph_requests import encode_frame_request
from gigl_loader.rpc.graph_store_pb2 import SampleReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.calls import Cancellation
    from gigl_loader.rpc.connection import Connection


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


MAX_INLINE_BYTES = 512 << 10
"""A frame of at most so many bytes may come in the reply of a request: that saves a call to the data port."""
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


def fetch_frame(
    connection: Connection,
    handle: bytes,
    nbytes: int,
    out: Bytes,
    *,
    timeout_s: float | None = None,
    cancellation: Cancellation | None = None,
) -> None:
    """Write the frame behind ``handle`` to ``out[:nbytes]``, uint8. The socket is read without the GIL.

    ``connection`` sends the secret of the job that requested the frame. Raises ``Gone`` if the server no
    longer has the frame: a handle is valid for one fetch, even if the connection breaks during it.
    ``StorageUnavailable`` where the attempt failed or took ``timeout_s`` (default: that of the connection).
    ``FormatError`` for another number of bytes, ``Cancelled`` after ``cancellation``. After any error,
    ``out`` may hold a part of the frame.
    """
    if len(out) < nbytes:
        raise ValueError(f"a frame of {nbytes} bytes does not fit in {len(out)}")

    def land(reply: ReplyStream) -> None:
        if reply.nbytes != nbytes:
            raise FormatError(f"reply: {reply.nbytes} bytes of a frame that was said to have {nbytes}")
        reply.read(out[:nbytes])
        reply.finish()

    # One attempt: a failed one may have consumed the handle, and a retry would then fail with Gone.
    connection.call(
        encode_frame_request(handle, wire=connection.wire_version),
        land,
        timeout_s=timeout_s,
        cancellation=cancellation,
    )
