"""Receiver of replies: takes a frame from its ring slot or fetches it, and the threads that do so."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from gigl_loader.channel.frame import Failure, Frame
from gigl_loader.errors import FormatError, StorageUnavailable, add_note
from gigl_loader.rpc.refusals import Damaged, Gone
from gigl_loader.rpc.replies import MAX_REPLY_BYTES
from gigl_loader.rpc.reply_stream import MAX_INLINE_BYTES, fetch_frame, read_sample_reply

if TYPE_CHECKING:
    from gigl_client.channels import PrivateBuffers, RingBuffers
    from gigl_client.in_flight import InFlightRequest
    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.graph_store_pb2 import SampleReply
    from gigl_loader.rpc.reply_stream import ReplyStream
    from gigl_loader.sampling.frame_schema import FrameSchema
    from gigl_loader.sampling.frame_writer import Completion
    from gigl_loader.sampling.store import FeatureSource

Item = TypeVar("Item")


class ResponseQueue(Generic[Item]):
    """Hands out items by fence and batch, the lowest first. Thread-safe; ``put`` does not wait.

    A frame of 121 MB takes a fetching thread many times as long as its reply: in the order of arrival, the
    batch that the trainer waits for would wait for frames that nobody needs yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[tuple[int, int, int, Item]] = []
        self._count = 0
        # Counts items and ends. It wakes one thread for each, without the polling of a condition.
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def put(self, item: Item, *, fence: int, batch: int) -> None:
        """Add an item. Of equal fence and batch, the one that was added first comes out first."""
        with self._lock:
            self._count += 1
            heapq.heappush(self._items, (fence, batch, self._count, item))
        self._signals.put(True)

    def end(self) -> None:
        """Let one ``get`` return ``None``."""
        self._signals.put(False)

    def get(self) -> Item | None:
        """Wait for an item, and return the first one. ``None``: the queue was ended."""
        if not self._signals.get():
            return None
        with self._lock:
            return heapq.heappop(self._items)[-1]


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


@dataclass(slots=True, eq=False)
class Arrival:
    """Reply to a request, as it was received."""

    message: SampleReply
    frame: Bytes | None = None
    """The frame, where it came with the reply."""
    error: FormatError | None = None
    """The frame was not read: the reply is not what it says."""


class Receiver:
    """Turns replies into frames. Thread-safe; each thread passes a ``Scratch`` of its own."""

    def __init__(
        self,
        frame: FrameSchema | Completion,
        buffers: PrivateBuffers,
        completion: Completion | None,
        features: FeatureSource | None,
        *,
        timeout_s: float,
    ) -> None:
        """``frame`` parses frames that are delivered as they come. ``completion`` adds deferred ``features``.

        Without ``completion``, frames with deferred features are delivered, too. ``buffers`` hold frames that
        arrive over a network.
        """
        self._frame = frame
        self._buffers = buffers
        self._completion = completion
        self._features = features
        self._fetch_s = min(_FETCH_S, max(timeout_s / 4, _SHORTEST_FETCH_S), timeout_s)
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
            if not 0 < nbytes <= MAX_INLINE_BYTES or nbytes != message.nbytes:
                arrival.error = FormatError(
                    f"{sent.channel}: {nbytes} bytes in a reply, said to be a frame of {message.nbytes}; "
                    f"at most {MAX_INLINE_BYTES} are read"
                )
                return arrival
            incomplete = self._completes(sent)
            arrival.frame = np.empty(nbytes, np.uint8) if incomplete else self._buffers.lend(nbytes)
            reply.read(arrival.frame)
        reply.finish()
        sent.arrived = arrival.frame is not None
        return arrival

    def is_prompt(self, sent: InFlightRequest, arrival: Arrival) -> bool:
        """Return whether ``frame`` needs no further call to a server."""
        return arrival.message.WhichOneof("outcome") != "handle" and not self._completes(sent)

    def frame(self, sent: InFlightRequest, arrival: Arrival, scratch: Scratch) -> Frame:
        """Return the frame of a reply. The ring slot of the request is lent with the frame, or freed.

        Raises ``StorageUnavailable`` and ``Gone`` where the batch must be requested again, ``Unfetched``
        where its channel must also be closed, ``SamplingError`` where the batch failed, ``FormatError`` for
        bytes that break a rule, ``Cancelled`` after ``sent.cancellation``.
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
        if result == "handle":
            return self._fetched(sent, reply.handle, reply.nbytes, scratch)
        if arrival.frame is not None:
            return self._arrived(sent, arrival.frame)
        raise FormatError(
            f"{sent.channel}: an answer of kind {result} to an ask for batch {sent.request.batch}"
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

    def _fetched(self, sent: InFlightRequest, handle: bytes, nbytes: int, scratch: Scratch) -> Frame:
        if not 0 < nbytes <= MAX_REPLY_BYTES:
            raise FormatError(
                f"{sent.channel}: a frame of {nbytes} bytes; at most {MAX_REPLY_BYTES} are read"
            )
        memory = self._memory(sent, nbytes, scratch)
        sent.cancellation.hear()  # The server is to send it from now on.
        sent.waits = False
        try:
            with sent.step("gigl.fetch"):
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

    def _memory(self, sent: InFlightRequest, nbytes: int, scratch: Scratch) -> Bytes:
        return scratch.lend(nbytes) if self._completes(sent) else self._buffers.lend(nbytes)

    def _arrived(self, sent: InFlightRequest, memory: Bytes) -> Frame:
        sent.arrived = True
        with self._lock:
            self.wire_bytes += len(memory)
        return self._completed(sent, memory) if self._completes(sent) else self._parsed(sent, memory)

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
        complete = self._buffers.lend(layout.nbytes)
        with sent.step("gigl.gather"):
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


if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_client.in_flight import InFlightRequest

    Responses = ResponseQueue["Response"]


FETCHERS = 2
"""Number of threads of a source that fetch frames and their deferred features."""

_MAX_MORE_FETCHERS = 16
"""Threads that are started when all others wait for a server that is late."""
_STUCK_S = 0.5


@dataclass(frozen=True, slots=True)
class Response:
    """What a thread settles: the reply to a request, or the end of a call about one."""

    sent: InFlightRequest
    arrival: Arrival | None = None
    """The reply to the request."""
    call: Any = None
    """``grpc.Future`` of a call about the request."""
    is_probe: bool = False
    """The call asked whether the server responds, after that of ``sent`` was cancelled. Otherwise it asked
    whether the server has the request ``sent``, about which it was silent."""


class ResponseThreads:
    """Daemon threads that settle responses. Thread-safe."""

    def __init__(self, settle: Callable[[Response, Scratch], None], *, name: str) -> None:
        """``settle`` is called for each response, with memory of the thread. It must not raise."""
        self._settle = settle
        self._name = name
        self._lock = threading.Lock()
        # Two queues, so that a lost server is noticed even while every fetching thread waits for a frame.
        self._frames: Responses = ResponseQueue()
        self._failures: Responses = ResponseQueue()
        self._fetching: dict[int, float] = {}
        """Threads that fetch a frame now, and since when."""
        self._threads: list[threading.Thread] = []
        self._num_fetchers, self._most_fetchers = 0, FETCHERS + _MAX_MORE_FETCHERS
        self._ended = False
        self.cpu_s = 0.0
        """CPU time of the threads, and of those that received replies."""
        for _ in range(FETCHERS):
            self._start_fetcher()
        self._start(self._failures, f"settle for {name}")

    def put(self, response: Response) -> None:
        """Have a thread settle a response. Does not wait: it is called on threads of gRPC."""
        sent, queue = response.sent, self._frames if response.arrival is not None else self._failures
        queue.put(response, fence=sent.fence, batch=sent.request.batch)

    def add_cpu(self, seconds: float) -> None:
        """Add the CPU time of a thread that has received a reply."""
        with self._lock:
            self.cpu_s += seconds

    def stuck_at(self) -> float:
        """Return when another thread is to fetch (monotonic): all have been fetching for so long.

        Infinity while one of them is free.
        """
        with self._lock:
            if len(self._fetching) < self._num_fetchers or not self._may_start():
                return float("inf")
            return min(self._fetching.values()) + _STUCK_S

    def keep_a_fetcher(self, now: float) -> None:
        """Start another thread where none is free, and one has fetched for so long that it may be stuck.

        Else frames of servers that answer would wait for a server that has stopped in mid-reply.
        """
        if now >= self.stuck_at():
            with self._lock:
                try:
                    if self._may_start():
                        self._start_fetcher()
                except RuntimeError:  # The system has no thread to give.
                    self._most_fetchers = self._num_fetchers

    def end(self) -> None:
        """Have each thread end after its response."""
        with self._lock:
            self._ended = True
            # It refers to what refers to these threads: all buffers would wait for the garbage collection.
            self._settle = _ignored
            for _ in range(self._num_fetchers):
                self._frames.end()
            self._failures.end()

    def join(self, seconds: float) -> None:
        """Wait for the threads to end, at most so long. The calling thread is not waited for."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0))

    def _may_start(self) -> bool:
        return self._num_fetchers < self._most_fetchers and not self._ended

    def _start_fetcher(self) -> None:
        self._start(self._frames, f"fetch {self._num_fetchers} of {self._name}")
        self._num_fetchers += 1

    def _start(self, responses: Responses, name: str) -> None:
        thread = threading.Thread(target=self._work, args=(responses,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self, responses: Responses) -> None:
        scratch, me = Scratch(), threading.get_ident()
        while (response := responses.get()) is not None:
            began = time.thread_time()
            if responses is self._frames:
                now = time.monotonic()
                with self._lock:
                    self._fetching[me] = now
                self.keep_a_fetcher(now)
            self._settle(response, scratch)
            del response
            with self._lock:
                self._fetching.pop(me, None)
                self.cpu_s += time.thread_time() - began


def _ignored(response: Response, scratch: Scratch) -> None:
    """Do nothing."""
