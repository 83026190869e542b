"""Frames that a storage server keeps ready, fetched into memory of the caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError
from gigl_loader.rpc.graph_requests import encode_frame_request

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.checksums import ReplyChunks
    from gigl_loader.rpc.connection import Connection


__all__ = ["fetch_frame"]


def fetch_frame(
    connection: Connection, handle: bytes, nbytes: int, out: Bytes, *, timeout_s: float | None = None
) -> None:
    """Write the frame behind ``handle`` to ``out[:nbytes]``. Copies run without the GIL.

    ``connection`` shows the secret of the job that asked for the frame. ``Gone`` if the server has it no
    more: a handle is good once, so also where a connection broke while the frame was under way.
    ``StorageUnavailable`` where the attempt failed or took ``timeout_s``, by default the connection's.
    ``FormatError`` for another number of bytes. Whatever is raised, ``out`` may hold a part of the frame.
    """
    if len(out) < nbytes:
        raise ValueError(f"a frame of {nbytes} bytes does not fit in {len(out)}")

    def land(chunks: ReplyChunks) -> None:
        end = 0
        for chunk, _ in chunks:
            begin, end = end, end + len(chunk)
            if end > nbytes:
                break
            chunks.checksum.copy(chunk, out[begin:end])
        if end != nbytes:
            raise FormatError(f"reply: {end} bytes or more of a frame that was said to have {nbytes}")

    # Whether a failed attempt took the frame is not known: then, waiting for another would be for nothing.
    connection.call(encode_frame_request(handle), land, timeout_s=timeout_s, attempts=1)
