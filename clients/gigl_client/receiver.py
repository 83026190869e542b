"""Receiver of replies: takes a frame from its ring slot or fetches it, and adds deferred features."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.channel.frame import Failure, Frame
from gigl_loader.compat import add_note
from gigl_loader.errors import FormatError, StorageUnavailable
from gigl_loader.rpc.frames import MAX_INLINE_BYTES, fetch_frame
from gigl_loader.rpc.refusals import Damaged, Gone
from gigl_loader.rpc.replies import MAX_REPLY_BYTES

if TYPE_CHECKING:
    from gigl_client.buffers import PrivateBuffers, RingBuffers
    from gigl_client.in_flight import InFlightRequest
    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.graph_store_pb2 import SampleReply
    from gigl_loader.sampling.deferred_features import Completion
    from gigl_loader.sampling.frame_schema import FrameSchema

__all__ = ["Receiver", "Scratch", "Unfetched"]

_FETCH_S = 30.0
"""A server keeps a frame for this long."""
_SHORTEST_FETCH_S = 2.0


class Unfetched(Exception):
    """A frame is probably ready at a server, and could not be fetched."""

    def __init__(self, reason: StorageUnavailable) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(slots=True, eq=False)
class Scratch:
    """Memory of one thread for frames with deferred features."""

    memory: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))

    def lend(self, nbytes: int) -> Bytes:
        """Return memory, uint8 [nbytes], that is valid until the next call."""
        if len(self.memory) < nbytes:
            self.memory = np.empty(nbytes + nbytes // 4, np.uint8)
        return self.memory[:nbytes]


class Receiver:
    """Turns replies into frames. Thread-safe; each thread passes a ``Scratch`` of its own."""

    def __init__(
        self,
        frame: FrameSchema,
        buffers: PrivateBuffers,
        completion: Completion | None,
        *,
        timeout_s: float,
    ) -> None:
        """``frame`` is the schema of complete frames; ``completion`` adds deferred features to a frame.

        ``buffers`` hold frames that arrive over a network.
        """
        self._frame = frame
        self._buffers = buffers
        self._completion = completion
        self._fetch_s = min(_FETCH_S, max(timeout_s / 4, _SHORTEST_FETCH_S), timeout_s)
        self._lock = threading.Lock()
        self.wire_bytes = 0
        """Bytes of frames that came over the network."""
        self.sampling_s = 0.0
        """Seconds that servers sampled."""

    def frame(self, sent: InFlightRequest, reply: SampleReply, scratch: Scratch) -> Frame:
        """Return the frame of a reply. The ring slot of the request is lent with the frame, or freed.

        Raises ``StorageUnavailable`` and ``Gone`` where the batch must be requested again, ``Unfetched``
        where its channel must also be closed, ``SamplingError`` where the batch failed, ``FormatError`` for
        bytes that break a rule, ``Cancelled`` after ``sent.cancellation``.
        """
        with self._lock:
            self.sampling_s += max(reply.sampling_s, 0.0)
        ring, slot = sent.opened.ring, sent.slot
        result = reply.WhichOneof("outcome")
        if result == "in_slot" and ring is not None and slot is not None:
            return self._in_slot(sent, ring, slot, reply.nbytes)
        sent.give_slot()
        if result == "failure":
            raise _failure(sent, reply)
        if result == "handle":
            return self._fetched(sent, reply.handle, reply.nbytes, scratch)
        if result == "frame":
            return self._inline(sent, reply, scratch)
        raise FormatError(
            f"{sent.channel}: an answer of kind {result} to an ask for batch {sent.request.batch}"
        )

    def _in_slot(self, sent: InFlightRequest, ring: RingBuffers, slot: int, nbytes: int) -> Frame:
        if not sent.opened.deferred_features:
            return self._parsed(sent, self._lent(ring, slot, nbytes))
        try:
            return self._completed(sent, ring.view(slot, nbytes))
        finally:
            ring.give(slot)

    @staticmethod
    def _lent(ring: RingBuffers, slot: int, nbytes: int) -> Bytes:
        try:
            return ring.lend(slot, nbytes)
        except FormatError:
            ring.give(slot)
            raise

    def _fetched(self, sent: InFlightRequest, handle: bytes, nbytes: int, scratch: Scratch) -> Frame:
        if not 0 < nbytes <= MAX_REPLY_BYTES:
            raise FormatError(
                f"{sent.channel}: a frame of {nbytes} bytes; at most {MAX_REPLY_BYTES} are read"
            )
        memory = self._memory(sent, nbytes, scratch)
        try:
            fetch_frame(
                sent.channel.server.connection,
                handle,
                nbytes,
                memory,
                timeout_s=self._fetch_s,
                cancellation=sent.cancellation,
            )
        except (Damaged, Gone):  # The server has it no more.
            raise
        except StorageUnavailable as error:
            raise Unfetched(error) from None
        return self._arrived(sent, memory)

    def _inline(self, sent: InFlightRequest, reply: SampleReply, scratch: Scratch) -> Frame:
        """Return a frame that came in the reply."""
        nbytes = len(reply.frame)
        if not 0 < nbytes <= MAX_INLINE_BYTES or nbytes != reply.nbytes:
            raise FormatError(
                f"{sent.channel}: {nbytes} bytes in a reply, said to be a frame of {reply.nbytes}; "
                f"at most {MAX_INLINE_BYTES} are read"
            )
        memory = self._memory(sent, nbytes, scratch)
        memory[:] = np.frombuffer(reply.frame, np.uint8)
        return self._arrived(sent, memory)

    def _memory(self, sent: InFlightRequest, nbytes: int, scratch: Scratch) -> Bytes:
        return scratch.lend(nbytes) if sent.opened.deferred_features else self._buffers.lend(nbytes)

    def _arrived(self, sent: InFlightRequest, memory: Bytes) -> Frame:
        with self._lock:
            self.wire_bytes += len(memory)
        deferred = sent.opened.deferred_features
        return self._completed(sent, memory) if deferred else self._parsed(sent, memory)

    def _parsed(self, sent: InFlightRequest, memory: Bytes) -> Frame:
        return _expected(sent, self._frame.parse(memory))

    def _completed(self, sent: InFlightRequest, memory: Bytes) -> Frame:
        assert self._completion is not None, "no channel without rows is opened where there are no rows"
        deferred = _expected(sent, self._completion.parse(memory))
        layout = self._completion.layout(deferred)
        complete = self._buffers.lend(layout.nbytes)
        self._completion.write(deferred, layout, complete)
        return Frame(complete, layout)


def _expected(sent: InFlightRequest, frame: Frame) -> Frame:
    """Return ``frame``. ``FormatError`` unless it is a frame of the requested batch and no failure record."""
    request = sent.request
    if (frame.epoch, frame.batch) != (request.epoch, request.batch) or frame.is_failure:
        what = "a failure of batch" if frame.is_failure else "batch"
        raise FormatError(
            f"{sent.channel}: {what} {frame.batch} of epoch {frame.epoch} instead of "
            f"batch {request.batch} of epoch {request.epoch}"
        )
    return frame


def _failure(sent: InFlightRequest, reply: SampleReply) -> Exception:
    """Return the exception for a failure that a server reports, with the server's traceback as a note."""
    failure = Failure.parse(np.frombuffer(reply.failure, np.uint8))
    if reply.unavailable:
        return StorageUnavailable(f"{sent.channel}: {failure.message}")
    error = replace(failure, worker=None).error()
    add_note(error, f"{sent.channel}, when it sampled:\n{failure.traceback}")
    return error
