"""Frames on their way from a storage server: fetched from the data port, or small ones in a reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError
from gigl_loader.rpc.graph_requests import encode_frame_request

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.cancellation import Cancellation
    from gigl_loader.rpc.connection import Connection
    from gigl_loader.rpc.reply_stream import ReplyStream


__all__ = ["MAX_INLINE_BYTES", "fetch_frame"]

MAX_INLINE_BYTES = 512 << 10
"""A frame of at most so many bytes may come in the reply of a request: that saves a call to the data port."""


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
        attempts=1,
        cancellation=cancellation,
    )
