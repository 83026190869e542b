"""Receiver of batches: reads a frame from a reply or a ring slot, and adds rows that owners send."""

from __future__ import annotations

import heapq
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.channel.frame import Failure, Frame
from gigl_loader.errors import FormatError, StorageUnavailable, add_note
from gigl_loader.rpc.calls import Cancelled
from gigl_loader.rpc.replies import MAX_REPLY_BYTES
from gigl_loader.rpc.reply_stream import read_sample_reply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_client.channels import PrivateBuffers, RingBuffers
    from gigl_client.in_flight import InFlightRequest
    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.graph_store_pb2 import SampleReply
    from gigl_loader.rpc.reply_stream import ReplyStream
    from gigl_loader.sampling.frame_schema import FrameSchema
    from gigl_loader.sampling.frame_writer import Completion
    from gigl_loader.sampling.store import FeatureSource

COMPLETING = 2
"""Frames of a source to which rows of owners are added at the same time."""

_MAX_COMPLETING = 18
_STUCK_S = 0.5


class Turns:
    """Threads of lower batches go first, ``COMPLETING`` at a time. Thread-safe.

    One that takes longer than half a second may wait for a server that has stopped, and is not counted.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int, int]] = []
        self._count = 0
        self._since: dict[int, float] = {}

    @contextmanager
    def take(self, sent: InFlightRequest) -> Iterator[None]:
        """Have a turn in the block. Raises ``Cancelled`` where the request is cancelled meanwhile."""
        with self._changed:
            self._count += 1
            place = (sent.fence, sent.request.batch, number := self._count)
            heapq.heappush(self._waiting, place)
            try:
                while self._waiting[0] != place or not self._has_room():
                    if sent.cancellation.cancelled:
                        raise Cancelled(f"batch {sent.request.batch} is not needed any more")
                    self._changed.wait(_STUCK_S)
            finally:
                self._waiting.remove(place)
                heapq.heapify(self._waiting)
                self._changed.notify_all()
            self._since[number] = time.monotonic()
        try:
            yield
        finally:
            with self._changed:
                del self._since[number]
                self._changed.notify_all()

    def _has_room(self) -> bool:
        since = time.monotonic() - _STUCK_S
        prompt = sum(each > since for each in self._since.values())
        return prompt < COMPLETING and len(self._since) < _MAX_COMPLETING


@dataclass(slots=True, eq=False)
class Arrival:
    """Reply to a request, as it was received."""

    message: SampleReply
    frame: Bytes | None = None
    """The frame, where it came with the reply."""
    error: FormatError | None = None
    """The frame was not read: the reply is not what it says."""


class Receiver:
    """Turns replies into frames. Thread-safe."""

    def __init__(
        self,
        frame: FrameSchema | Completion,
        buffers: PrivateBuffers,
        completion: Completion | None,
        features: FeatureSource | None,
    ) -> None:
        """``frame`` parses frames that are delivered as they come. ``completion`` adds deferred ``features``.

        Without ``completion``, frames with deferred features are delivered, too. ``buffers`` hold frames that
        arrive over a network.
        """
        self._frame = frame
        self._buffers = buffers
        self._completion = completion
        self._features = features
        self._turns = Turns()
        self._lock = threading.Lock()
        self.wire_bytes = 0
        """Bytes of frames that came over the network."""
        self.sampling_s = 0.0
        """Seconds that servers sampled."""

    def read(self, sent: InFlightRequest, reply: ReplyStream) -> Arrival:
        """Read the reply to a request, with the frame that follows it. Raises ``FormatError`` for damage."""
        message = read_sample_reply(reply)
        arrival = Arrival(message)
        if message.WhichOneof("outcome") == "frame":
            nbytes = reply.nbytes - reply.received
            if not 0 < nbytes <= MAX_REPLY_BYTES or nbytes != message.nbytes:
                arrival.error = FormatError(
                    f"{sent.channel}: {nbytes} bytes in a reply, said to be a frame of {message.nbytes}; "
                    f"at most {MAX_REPLY_BYTES} are read"
                )
                return arrival
            incomplete = self._completes(sent)
            arrival.frame = np.empty(nbytes, np.uint8) if incomplete else self._buffers.lend(nbytes)
            reply.read(arrival.frame)
        reply.finish()
        sent.arrived = arrival.frame is not None
        return arrival

    def frame(self, sent: InFlightRequest, arrival: Arrival) -> Frame:
        """Return the frame of a reply. The ring slot of the request is lent with the frame, or freed.

        Raises ``StorageUnavailable`` where the batch must be requested again, ``SamplingError`` where the
        batch failed, ``FormatError`` for bytes that break a rule, ``Cancelled`` after ``sent.cancellation``.
        """
        reply = arrival.message
        with self._lock:
            self.sampling_s += max(0.0, reply.sampling_s)  # In this order: 0 for what is no number.
        ring, slot = sent.opened.ring, sent.slot
        result = reply.WhichOneof("outcome")
        if result == "in_slot" and ring is not None and slot is not None:
            sent.arrived = True
            return self._in_slot(sent, ring, slot, reply.nbytes)
        sent.give_slot()
        if arrival.error is not None:
            raise arrival.error
        if result == "failure":
            raise _failure(sent, reply)
        if arrival.frame is None:
            raise FormatError(
                f"{sent.channel}: an answer of kind {result} to an ask for batch {sent.request.batch}"
            )
        with self._lock:
            self.wire_bytes += len(arrival.frame)
        return (
            self._completed(sent, arrival.frame)
            if self._completes(sent)
            else self._parsed(sent, arrival.frame)
        )

    def _in_slot(self, sent: InFlightRequest, ring: RingBuffers, slot: int, nbytes: int) -> Frame:
        if not self._completes(sent):
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

    def _completes(self, sent: InFlightRequest) -> bool:
        """Return whether features are added to the frame of a reply."""
        return self._completion is not None and sent.opened.deferred_features

    def _parsed(self, sent: InFlightRequest, memory: Bytes) -> Frame:
        return _expected(sent, self._frame.parse(memory))

    def _completed(self, sent: InFlightRequest, memory: Bytes) -> Frame:
        assert self._completion is not None
        assert self._features is not None
        deferred = _expected(sent, self._completion.parse(memory))
        layout = self._completion.layout(deferred)
        with self._turns.take(sent), sent.step("gigl.gather"):
            complete = self._buffers.lend(layout.nbytes)
            self._completion.write(deferred, layout, complete, self._features)
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
