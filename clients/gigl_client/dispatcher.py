"""Dispatcher between a source and its servers: sends requests, turns replies into frames, retries.

Only dedicated threads wait for a server. A request is an asynchronous call, whose end a callback puts in a
queue; a few threads take it from there and fetch the frame. No thread holds the lock while it waits for a
server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from gigl_client.batch_hedging import BatchHedging
from gigl_client.channel import bare
from gigl_client.in_flight import InFlight, InFlightRequest
from gigl_client.receiver import Scratch, Unfetched
from gigl_client.response_queue import ResponseQueue
from gigl_loader.channel.frame import Failure, Frame
from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.rpc.checksums import MAX_DAMAGED, message_is_whole
from gigl_loader.rpc.frames import MAX_INLINE_BYTES
from gigl_loader.rpc.graph_store_pb2 import SampleRequest
from gigl_loader.rpc.refusals import Busy, Damaged, Gone, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_client.channel import Channel, OpenChannel
    from gigl_client.channel_pool import ChannelPool
    from gigl_client.in_flight import Ready
    from gigl_client.receiver import Receiver
    from gigl_loader.rpc.graph_store_pb2 import SampleReply
    from gigl_loader.sampling.request import BatchRequest

    Responses = ResponseQueue["Response"]

__all__ = ["FETCHERS", "Dispatcher"]

_LOGGER = logging.getLogger(__name__)

FETCHERS = 2
"""Number of threads of a source that fetch frames and their deferred features."""

_MAX_MORE_FETCHERS = 16
"""Threads that are started when all others wait for a server that is late."""
_STUCK_S = 0.5
_FIRST_S = 1.0
_CLOSE_S = 2.0
_LONGER_S = 30.0
_LEAVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Response:
    """A request whose call has ended."""

    sent: InFlightRequest
    call: Any


class Dispatcher:
    """Requests of one source. Holds no reference to the source, which can therefore be collected."""

    def __init__(
        self,
        channels: ChannelPool,
        in_flight: InFlight,
        receiver: Receiver,
        changed: threading.Condition,
        *,
        name: str,
        request: Callable[[int, int], BatchRequest],
        timeout_s: float,
    ) -> None:
        """Start the threads. The lock of ``changed`` guards ``channels`` and ``in_flight``.

        ``request(epoch, batch)`` returns the request of a batch.
        """
        self._channels = channels
        self._in_flight = in_flight
        self._receiver = receiver
        self._changed = changed
        self._request = request
        # Longer than the search for a lost server, so that the error names the server that is away and not
        # one that waits for it.
        self._call_s = timeout_s + min(timeout_s / 4, _LONGER_S)
        self.retries = self.calls = self.bytes_out = 0
        self.damaged = 0
        """Number of replies and requests that did not match their checksum or broke a rule."""
        self.hedging = BatchHedging(in_flight)
        self._fetching: dict[int, float] = {}
        """Threads that fetch a frame now, and since when."""
        self._name = name
        self._times_damaged: Counter[int] = Counter()  # By batch of the current epoch.
        self.cpu_s = 0.0
        """CPU time of the threads."""
        self.needed = False
        """The trainer waits for a batch."""
        self._calls: set[Any] = set()
        """Calls whose end was not handled yet."""
        # Two queues, so that a lost server is noticed even while every fetching thread waits for a frame.
        self._frames: Responses = ResponseQueue()
        self._failures: Responses = ResponseQueue()
        channels.on_change = self._go_on
        channels.on_leave = self._put_back
        self._threads: list[threading.Thread] = []
        for number in range(FETCHERS):
            self._start_thread(self._frames, f"fetch {number} of {name}")
        self._start_thread(self._failures, f"settle for {name}")

    def start_epoch(self, epoch: int, first_batch: int) -> None:
        """Leave the current epoch, and request the first batches of another."""
        with self._changed:
            self._in_flight.start(epoch, first_batch)
            self._times_damaged.clear()
            self._channels.forget_loads()
            self._hand_out()

    def take(self) -> Ready | None:
        """Return the next batch, or ``None`` where it was not received yet. Sends further requests."""
        with self._changed:
            ready = self._in_flight.take()
            if ready is not None:
                self.needed = False
            self._hand_out()
            if ready is None and self.needed:
                self._hedge(time.monotonic())
            return ready

    def close(self, *others: Callable[[], None], wait: bool) -> None:
        """End the threads, close the channels and call ``others``. ``wait``: wait for them, 3 s at most."""
        with self._changed:
            self._in_flight.stop()
            jobs = self._channels.close()
            calls, self._calls = self._calls, set()
            self._changed.notify_all()
        for responses in (*[self._frames] * (len(self._threads) - 1), self._failures):
            responses.end()
        _at_once([partial(_cancel, calls), *jobs, *others], seconds=_CLOSE_S if wait else 0)
        deadline = time.monotonic() + (_LEAVE_S if wait else 0)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0))

    def _hand_out(self) -> None:
        """Request as many batches as may be in flight."""
        now = time.monotonic()
        while not self._channels.closed and (batch := self._in_flight.next(now)) is not None:
            urgent = self._in_flight.holds_up_others(batch)
            channel = self._channels.for_batch(batch, urgent=urgent, needed=self.needed)
            if channel is None:
                return
            request = self._request_of(batch)
            if request is not None:
                self._send(channel, request, now)

    def _hedge(self, now: float) -> None:
        """Request the awaited batch from a second server where its server is late."""
        late = self.hedging.due(now)
        channel = None if late is None else self._channels.for_hedge(late.channel)
        if late is None or channel is None:
            return
        self.hedging.count += 1
        late.channel.late = True
        _LOGGER.debug("%s is late with batch %d: asking %s", late.channel, late.request.batch, channel)
        self._keep_a_fetcher(now)
        self._send(channel, late.request, now, hedge=True)

    def _request_of(self, batch: int) -> BatchRequest | None:
        """Return the request for a batch: the same one at every retry. ``None`` where it cannot be made."""
        request = self._in_flight.known_request(batch)
        if request is not None:
            return request
        try:
            return self._request(self._in_flight.epoch, batch)
        except Exception as error:  # For example weights of which none is positive.
            failure = Failure.of(error, epoch=self._in_flight.epoch, batch=batch, worker=None).error()
            failure.__cause__ = error
            self._in_flight.fail(batch, failure)
            self._changed.notify_all()
            return None

    def _send(self, channel: Channel, request: BatchRequest, now: float, *, hedge: bool = False) -> None:
        opened = channel.opened
        assert opened is not None, "only open channels are asked"
        slot = None if opened.ring is None else opened.ring.take()
        sent = InFlightRequest(
            request=request, fence=self._in_flight.fence, channel=channel, opened=opened, slot=slot, since=now
        )
        if hedge:
            self._in_flight.add_hedge(sent)
        else:
            self._in_flight.add(sent)
        message = _message(sent)
        self.calls += 1
        self.bytes_out += len(message.inputs) + len(message.index)
        try:
            call = channel.server.client.sample(message, self._call_s)
        except Exception as error:  # The client was closed.
            call = Future[SampleReply]()
            call.set_exception(error)
        self._calls.add(call)
        call.add_done_callback(partial(_arrived, self._frames, self._failures, sent))

    def _start_thread(self, responses: Responses, name: str) -> None:
        thread = threading.Thread(target=self._work, args=(responses,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _keep_a_fetcher(self, now: float) -> None:
        """Start another thread where none is free, and one has fetched for so long that it may be stuck."""
        count = len(self._threads) - 1
        stuck = any(now - since > _STUCK_S for since in self._fetching.values())
        if (
            stuck
            and len(self._fetching) == count < FETCHERS + _MAX_MORE_FETCHERS
            and not self._channels.closed
        ):
            with suppress(RuntimeError):  # The system has no thread to give.
                self._start_thread(self._frames, f"fetch {count} of {self._name}")

    def _work(self, responses: Responses) -> None:
        scratch = Scratch()
        while (response := responses.get()) is not None:
            began = time.thread_time()
            if responses is self._frames:
                with self._changed:
                    self._fetching[threading.get_ident()] = now = time.monotonic()
                    self._keep_a_fetcher(now)
            try:
                self._settle(response, scratch)
            except Exception as error:
                self._land(response.sent, error)
            with self._changed:
                self._fetching.pop(threading.get_ident(), None)
                self.cpu_s += time.thread_time() - began
            del response

    def _settle(self, response: Response, scratch: Scratch) -> None:
        """Record the batch of a response, or retry. Responses to an epoch that was left are discarded."""
        sent = response.sent
        with self._changed:
            self._calls.discard(response.call)
            if sent.channel.late:
                sent.channel.late = False
                self._changed.notify_all()
            current = self._in_flight.replied(sent)
            self._hand_out()
        try:
            reply: SampleReply = response.call.result()
        except Exception as error:
            self._call_failed(sent, _translated(sent, error))
            return
        sent.channel.server.client.heard(response.call.trailing_metadata())
        if not message_is_whole(reply, response.call.trailing_metadata()):
            sent.give_slot()
            self._came_damaged(sent, FormatError(f"{sent.channel}: a reply does not match its checksum"))
            return
        if not current or reply.skipped:
            sent.give_slot()
            self._again(sent, StorageUnavailable(f"{sent.channel} skipped it"))
            return
        self._let_first_pass(sent)
        try:
            frame = self._receiver.frame(sent, reply, scratch)
        except Unfetched as error:  # The server counts the unfetched frame until the channel is closed.
            self._give_up(sent, error.reason)
        except (StorageUnavailable, Gone) as error:
            self._again(sent, error)
        except FormatError as error:
            self._came_damaged(sent, error)
        else:
            self._land(sent, frame)

    def _let_first_pass(self, sent: InFlightRequest) -> None:
        """Wait until the first batch of the epoch was received, at most for ``_FIRST_S``.

        Frames of later batches would take half of the network and of the cores from it.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._in_flight.has_first
                    or self._in_flight.holds_up_others(sent.request.batch)
                    or not self._in_flight.is_current(sent)
                ),
                _FIRST_S,
            )

    def _call_failed(self, sent: InFlightRequest, error: Exception) -> None:
        """Give up the channel, retry the batch, or fail the batch, depending on ``error``."""
        if isinstance(error, (StorageUnavailable, Unknown)):
            self._lose(sent, error)
            return
        if sent.slot is not None and not isinstance(error, (Busy, Damaged, ValueError)):
            # The server may still sample the batch and write to its slot: the slot must not be reused.
            self._give_up(sent, error)
            return
        sent.give_slot()
        if isinstance(error, Damaged):
            self._came_damaged(sent, FormatError(str(error)))
        elif isinstance(error, SamplingError):  # Of the call. A failure of the batch comes as a response.
            self._again(sent, error)
        else:
            self._land(sent, error)

    def _again(self, sent: InFlightRequest, error: Exception) -> None:
        """Retry a batch after a delay."""
        with self._changed:
            if self._in_flight.is_current(sent):
                self.retries += 1
                self._in_flight.put_back(sent, bare(error), time.monotonic())
                self._go_on()

    def _came_damaged(self, sent: InFlightRequest, error: FormatError) -> None:
        """Retry a batch. It fails when it was damaged three times."""
        with self._changed:
            self.damaged += 1
            if self._in_flight.is_current(sent):
                self._times_damaged[sent.request.batch] += 1
            last = self._times_damaged[sent.request.batch] >= MAX_DAMAGED
        _LOGGER.warning("batch %d of epoch %d: %s", sent.request.batch, sent.request.epoch, error)
        if last:
            self._land(sent, error)
        else:
            self._again(sent, error)

    def _give_up(self, sent: InFlightRequest, error: Exception) -> None:
        """Retry a batch after a delay, and give up its channel."""
        with self._changed:
            if self._in_flight.is_current(sent):
                self.retries += 1
                self._in_flight.put_back(sent, bare(error), time.monotonic())
            self._lose(sent, error)

    def _lose(self, sent: InFlightRequest, error: Exception) -> None:
        """Give up a channel and retry all its requests: the server may still write to its ring."""
        with self._changed:
            if sent.channel.opened is sent.opened:
                self.retries += self._in_flight.put_back_all(sent.opened, time.monotonic())
                self._channels.lose(sent.channel, bare(error))
                self._go_on()

    def _put_back(self, opened: OpenChannel) -> None:
        """Retry all requests of a channel to a server that has left."""
        self.retries += self._in_flight.put_back_all(opened, time.monotonic())

    def _land(self, sent: InFlightRequest, frame: Frame | Exception) -> None:
        with self._changed:
            if self._in_flight.is_current(sent):
                self.hedging.landed(sent, time.monotonic())
                self._in_flight.land(sent, bare(frame) if isinstance(frame, Exception) else frame)
                self._go_on()

    def _go_on(self) -> None:
        self._hand_out()
        self._changed.notify_all()


def _arrived(frames: Responses, failures: Responses, sent: InFlightRequest, call: Any) -> None:
    """Queue a call that has ended. Runs on a thread of gRPC, which must not block."""
    failed = call.cancelled() or call.exception() is not None
    (failures if failed else frames).put(Response(sent, call), fence=sent.fence, batch=sent.request.batch)


def _cancel(calls: set[Any]) -> None:
    """Cancel calls whose result is not needed: they hold the memory that they would fill."""
    for call in calls:
        call.cancel()


def _translated(sent: InFlightRequest, error: Exception) -> Exception:
    if isinstance(error, grpc.RpcError):
        return sent.channel.server.client.error(error)
    return StorageUnavailable(f"{sent.channel}: {str(error) or 'the call was cancelled'}")


def _message(sent: InFlightRequest) -> SampleRequest:
    request = sent.request
    return SampleRequest(
        channel=sent.opened.id,
        epoch=request.epoch,
        batch=request.batch,
        fence=sent.fence,
        inputs=request.input_bytes(),
        index=request.index.astype("<i8", copy=False).tobytes(),
        slot=0 if sent.slot is None else sent.slot + 1,
        inline_bytes=MAX_INLINE_BYTES,
    )


def _at_once(jobs: Sequence[Callable[[], None]], *, seconds: float) -> None:
    """Run ``jobs`` concurrently in threads, and wait at most ``seconds`` for them."""
    threads = [threading.Thread(target=job, name="close", daemon=True) for job in jobs]
    deadline = time.monotonic() + seconds
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # No thread starts during interpreter shutdown: leases end the channels.
        return
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
