"""Reader of rows that several replies may bring at once: only one of them is written to its places."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.errors import SamplingError
from gigl_loader.native import copy_rows
from gigl_loader.rpc.replies import RowScatter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_loader.arrays import Bytes, Int64Array
    from gigl_loader.rpc.reply_stream import ReplyStream
    from gigl_loader.sampling.store import FeatureRequest

__all__ = ["Outrun", "RowReader"]


class Outrun(SamplingError):
    """Another reply was complete first, or the call has ended."""


class RowReader:
    """Writes the rows of one request to their places. It is called once for each reply, from any thread.

    The first reply is written straight to its places, chunk by chunk. A reply that comes while another is
    being written goes to private memory, and to its places only when it is whole and its checksum is right.
    The first reply that is complete wins. After that, and after ``close``, nothing more is written: a chunk
    of another reply could be damaged, and the memory may belong to the next batch.
    """

    def __init__(
        self,
        request: FeatureRequest,
        places: Int64Array,
        out: Sequence[Bytes],
        *,
        placed: Callable[[int], None],
    ) -> None:
        """Row i of a reply goes to row ``places[i]`` (int64 [N]) of ``out``.

        ``out``: for each column uint8 [any, row bytes]. ``placed`` is called with the CPU time, in
        nanoseconds, of copying the rows of each reply.
        """
        self._request, self._places, self._out = request, places, out
        self._placed = placed
        self._lock = threading.Lock()
        self._has_writer = self._closed = False

    def __call__(self, reply: ReplyStream) -> None:
        """Read a reply. ``Outrun`` if another reply was first."""
        with self._lock:
            self._check_open()
            direct, self._has_writer = not self._has_writer, True
        if direct:
            try:
                self._write(reply)
            finally:
                with self._lock:
                    self._has_writer = False
        else:
            self._receive(reply)

    def close(self) -> None:
        """Write nothing more. Waits for the chunk that is being written, never for a server."""
        with self._lock:
            self._closed = True

    def _write(self, reply: ReplyStream) -> None:
        """Write each chunk to its places as it comes."""
        rows = RowScatter(self._request, self._places, self._out)
        try:
            for chunk in rows.chunks(reply):
                with self._lock:  # Held while memory is copied, so that ``close`` waits for that.
                    self._check_open()
                    rows.add(chunk)
            rows.finish()
            with self._lock:
                self._check_open()
                self._closed = True
        finally:
            self._placed(rows.placing_ns)

    def _receive(self, reply: ReplyStream) -> None:
        """Receive all rows in private memory, and copy them to their places if no other reply was first."""
        count = len(self._request.rows)
        private = [np.empty((count, out.shape[1]), np.uint8) for out in self._out]
        every = np.arange(count, dtype=np.int64)
        rows = RowScatter(self._request, every, private)
        try:
            for chunk in rows.chunks(reply):
                if self._closed:
                    break
                rows.add(chunk)
            with self._lock:
                self._check_open()
                rows.finish()
                for source, out in zip(private, self._out, strict=True):
                    copy_rows(source, every, self._places, out)
                self._closed = True
        finally:
            self._placed(rows.placing_ns)

    def _check_open(self) -> None:
        if self._closed:
            raise Outrun("another server answered first")
