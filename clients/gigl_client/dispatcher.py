"""Dispatcher between a source and its servers: sends requests, turns replies into frames, retries.

Each request has a thread of its own until its frame is here, whole. No thread holds the lock while it waits
for a server.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from gigl_client.in_flight import InFlight, InFlightRequest
from gigl_loader.channel.frame import Failure, Frame
from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable, strip_traceback
from gigl_loader.rpc.calls import AttemptThreads, Cancelled
from gigl_loader.rpc.control import PENDING_HEADER
from gigl_loader.rpc.refusals import Busy, Damaged, FaultKind, Unknown, rule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_client.channel_pool import ChannelPool
    from gigl_client.channels import Channel, OpenChannel
    from gigl_client.receiver import Arrival, Receiver
    from gigl_loader.rpc.reply_stream import ReplyStream
    from gigl_loader.sampling.request import BatchRequest

_LOGGER = logging.getLogger(__name__)

_FIRST_S, _LONGER_S = 1.0, 30.0
_CLOSE_S = 2.0
_SILENT_S = 2.0
"""Silence of a server that the trainer waits for, after which it is asked whether it has the request. One
without descriptors leaves new connections, and what was sent over them, in the queue of its kernel."""
_CHECK_S = 5.0
_MAX_BROKEN = 3
_MAX_CHECKS = 2
"""Checks in a row without the request, after which it was lost: it may wait to be read."""


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
        self._silent_s, self._check_s = (min(each, timeout_s / 4) for each in (_SILENT_S, _CHECK_S))
        self.retries = self.calls = self.bytes_out = 0
        self.damaged = 0
        """Number of replies and requests that did not match their checksum or broke a rule."""
        self.hedged = 0
        """Further requests for a batch whose server was late."""
        self._times_broken: Counter[int] = Counter()  # By batch of the current epoch.
        self.needed = False
        """The trainer waits for a batch."""
        self._check_from = 0.0
        """When the awaited request may be checked again (monotonic). Infinity: a check is under way."""
        self._calls: set[Any] = set()
        """Calls whose end was not handled yet. Closing cancels them."""
        self._callers = AttemptThreads(f"requests of {name}")
        channels.on_change = self._go_on
        channels.on_leave = self._put_back
        self.cpu_s = 0.0
        """CPU time of the threads that receive batches."""

    def start_epoch(self, epoch: int, first_batch: int) -> None:
        """Leave the current epoch, and request the first batches of another."""
        with self._changed:
            self._cancel_all()
            self._in_flight.start(epoch, first_batch)
            self._times_broken.clear()
            self._channels.forget_loads()
            self._hand_out()

    def take(self) -> Frame | Exception | None:
        """Return the next batch or the exception that failed it, ``None`` where none was received yet.

        Sends further requests.
        """
        with self._changed:
            ready = self._in_flight.take()
            if ready is not None:
                self.needed = False
            self._hand_out()
            if ready is None and self.needed:
                now = time.monotonic()
                self._hedge(now)
                self._check_awaited(now)
            return ready

    def check_at(self) -> float:
        """Return when to look whether the awaited request was lost (monotonic). Infinity: not now."""
        sent = self._in_flight.oldest_awaited()
        if sent is None or sent.replied:
            return math.inf
        return max(sent.since + self._silent_s, self._check_from)

    def close(self, *others: Callable[[], None], wait: bool) -> None:
        """End the threads, close the channels and call ``others``. ``wait``: wait for them, at most 2 s."""
        with self._changed:
            self._in_flight.stop()
            jobs = self._channels.close()
            calls, self._calls = self._calls, set()
            self._changed.notify_all()
        self._callers.close()
        _at_once([partial(_cancel, calls), *jobs, *others], seconds=_CLOSE_S if wait else 0)

    def _cancel_all(self) -> None:
        """End the calls of an epoch that is left, but for those whose servers may write to a ring slot."""
        for sent in self._in_flight.under_way():
            if sent.slot is None:
                sent.cancellation.cancel()

    def _hand_out(self) -> None:
        """Request as many batches as may be in flight."""
        now = time.monotonic()
        in_flight, channels = self._in_flight, self._channels
        while not channels.closed and (batch := in_flight.next(now, channels.most_in_flight)) is not None:
            urgent, tried = in_flight.holds_up_others(batch), in_flight.tried(batch)
            channel = channels.for_batch(batch, tried, urgent=urgent, needed=self.needed)
            if channel is None:
                return
            request = self._request_of(batch)
            if request is not None:
                self._send(channel, request, now)

    def _hedge(self, now: float) -> None:
        """Request the awaited batch from another server where its server is late."""
        late = self._in_flight.late(now)
        if late is None:
            return
        channel = self._channels.for_hedge(self._in_flight.tried(late.request.batch))
        if channel is None:
            return
        self.hedged += 1
        if not channel.late:  # Else there would be no server left to prefer.
            late.channel.is_late(now - late.since)
            if late.replied:  # Its frame is late, and no further response of the server may be under way.
                late.channel.is_alive()
        _LOGGER.debug("%s is late with batch %d: asking %s", late.channel, late.request.batch, channel)
        self._send(channel, late.request, now)

    def _check_awaited(self, now: float) -> None:
        """Ask a silent server whether it has the request of the awaited batch."""
        sent = self._in_flight.oldest_awaited()
        if sent is None or now < self.check_at() or sent.channel.opened is not sent.opened:
            return
        try:
            call = sent.channel.server.client.probe(sent.opened.id, self._check_s)
        except Exception:  # The client was closed.
            return
        self._check_from = math.inf
        self._await(call, partial(self._settle_check, sent, call))

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

    def _send(self, channel: Channel, request: BatchRequest, now: float) -> None:
        opened = channel.opened
        assert opened is not None, "only open channels are asked"
        slot = None if opened.ring is None else opened.ring.take()
        sent = InFlightRequest(
            request=request, fence=self._in_flight.fence, channel=channel, opened=opened, slot=slot, since=now
        )
        self._in_flight.add(sent)
        message = sent.message()
        self.calls += 1
        self.bytes_out += len(message)
        _LOGGER.debug("%s: Sample batch %d of epoch %d", channel, request.batch, request.epoch)
        self._calls.add(sent.cancellation)
        try:
            self._callers.run(partial(self._call, sent, message))
        except RuntimeError as error:  # The system has no thread to give, or the source was closed.
            self._calls.discard(sent.cancellation)
            self._lose(sent, rule_of(FaultKind.RESOURCES).error(f"{channel}: {error}"))

    def _call(self, sent: InFlightRequest, message: bytes) -> None:
        """Request a batch, and settle its reply. Raises nothing."""
        began = time.thread_time()
        try:
            self._receive(sent, message)
        except Exception as error:
            # Its frames hold what the threads of the store refer to, which may hold the error.
            strip_traceback(error)
            if not isinstance(error, Cancelled):  # Else another server has sent the batch.
                self._land(sent, error)
        with self._changed:
            self.cpu_s += time.thread_time() - began

    def _receive(self, sent: InFlightRequest, message: bytes) -> None:
        def read(reply: ReplyStream) -> Arrival:
            self._replied(sent)  # The next request is sent before this reply is read.
            self._let_first_pass(sent)
            return self._receiver.read(sent, reply)

        failure: Exception | None = None
        try:
            arrival = sent.send(message, read, self._call_s)
        except Exception as error:
            failure = strip_traceback(error)  # Else a cycle with this frame would keep the memory of frames.
        with self._changed:
            self._calls.discard(sent.cancellation)
        if failure is not None:
            begun = sent.replied
            self._replied(sent)
            if not sent.cancellation.cancelled:
                self._call_failed(sent, failure, begun=begun)
        elif self._is_due(sent, arrival):
            self._settle_arrival(sent, arrival)

    def _replied(self, sent: InFlightRequest) -> None:
        """Record that a server has replied to a request, or that the call failed."""
        with self._changed:
            if sent.replied:
                return
            sent.replied = True
            if sent.channel.late_until and not sent.cancellation.cancelled:
                sent.channel.responds()
                self._changed.notify_all()
            self._in_flight.replied(sent)
            self._hand_out()

    def _is_due(self, sent: InFlightRequest, arrival: Arrival) -> bool:
        """Return whether the batch of a reply is needed. If it was skipped, it is requested again."""
        with self._changed:
            current = self._in_flight.is_current(sent)
        if current and not arrival.message.skipped:
            return True
        sent.give_slot()
        self._again(sent, StorageUnavailable(f"{sent.channel} skipped it"))
        return False

    def _await(self, call: Any, settle: Callable[[], None]) -> None:
        """Have a thread settle a call of gRPC when it has ended."""
        self._calls.add(call)

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # The source was closed, or no thread is left: the call is repeated.
                self._callers.run(settle)

        call.add_done_callback(ended)

    def _settle_arrival(self, sent: InFlightRequest, arrival: Arrival) -> None:
        """Record the batch of a reply, or retry."""
        try:
            frame = self._receiver.frame(sent, arrival)
        except Damaged as error:
            self._came_damaged(sent, str(error))
        except FormatError as error:
            self._came_broken(sent, error)
        except StorageUnavailable as error:  # Of the owner of deferred features.
            self._again(sent, error)
        else:
            self._land(sent, frame, arrival)

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

    def _call_failed(self, sent: InFlightRequest, error: Exception, *, begun: bool) -> None:
        """Give up the channel, retry the batch, or fail the batch, depending on ``error``.

        A server that had ``begun`` a reply may have ended it to free its memory: it is not given up.
        """
        if isinstance(error, StorageUnavailable) and not begun and not isinstance(error, (Busy, Damaged)):
            self._lose(sent, error)
            return
        if sent.slot is not None and not isinstance(error, (Busy, Damaged, ValueError)):
            # The server may still sample the batch and write to its slot: the slot must not be reused.
            self._give_up(sent, error)
            return
        sent.give_slot()
        if isinstance(error, Damaged):
            self._came_damaged(sent, str(error))
        elif isinstance(error, StorageUnavailable):
            self._again(sent, error)
        elif isinstance(error, SamplingError):  # Of the call. A failure of the batch comes as a response.
            self._give_up(sent, error)  # Whether the server refuses every call, opening a channel says.
        else:
            self._land(sent, error)

    def _again(self, sent: InFlightRequest, error: Exception) -> None:
        """Retry a batch after a delay."""
        with self._changed:
            if self._in_flight.is_current(sent):
                self.retries += 1
                self._in_flight.put_back(sent, error, time.monotonic())
                self._go_on()

    def _came_damaged(self, sent: InFlightRequest, text: str) -> None:
        """Count damage, and retry the batch after a delay."""
        with self._changed:
            self.damaged += 1
        _LOGGER.warning("batch %d of epoch %d: %s", sent.request.batch, sent.request.epoch, text)
        self._again(sent, rule_of(FaultKind.REPLY).error(text))

    def _came_broken(self, sent: InFlightRequest, error: FormatError) -> None:
        """Retry a batch whose frame was whole, and breaks a rule. It fails after ``_MAX_BROKEN`` of them."""
        with self._changed:
            self.damaged += 1
            if self._in_flight.is_current(sent):
                self._times_broken[sent.request.batch] += 1
            last = self._times_broken[sent.request.batch] >= _MAX_BROKEN
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
                self._in_flight.put_back(sent, error, time.monotonic())
            self._lose(sent, error)

    def _lose(self, sent: InFlightRequest, error: Exception) -> None:
        """Give up a channel and retry all its requests: the server may still write to its ring."""
        with self._changed:
            if sent.channel.opened is sent.opened:
                self.retries += self._in_flight.put_back_all(sent.opened, time.monotonic())
                self._channels.lose(sent.channel, strip_traceback(error))
                self._go_on()

    def _put_back(self, opened: OpenChannel) -> None:
        """Retry all requests of a channel to a server that has left."""
        self.retries += self._in_flight.put_back_all(opened, time.monotonic())

    def _land(self, sent: InFlightRequest, frame: Frame | Exception, arrival: Arrival | None = None) -> None:
        with self._changed:
            if self._in_flight.is_current(sent):
                if isinstance(frame, Exception):
                    frame = strip_traceback(frame)
                else:
                    self._channels.received(frame.nbytes)
                    frame.served_by = sent.channel.name
                if arrival is not None:
                    self._channels.adapt(
                        sent.channel,
                        queued_s=arrival.message.waiting_s,
                        sampling_s=arrival.message.sampling_s,
                        needed=self.needed,
                        ready=self._in_flight.ready,
                    )
                for other in self._in_flight.land(sent, frame, time.monotonic()):
                    self._cancel_late(other)
                self._go_on()

    def _cancel_late(self, sent: InFlightRequest) -> None:
        """Cancel a request whose batch another server has sent: its server drops it.

        One with a ring slot is left to end: its server may write to the slot until it has replied.
        """
        if sent.slot is not None:
            return
        sent.cancellation.cancel()
        channel = sent.channel
        if sent.replied or not channel.late or channel.probing or channel.opened is not sent.opened:
            return
        try:
            call = channel.server.client.probe(sent.opened.id, self._call_s)
        except Exception:  # The client was closed.
            return
        channel.probing = True
        self._await(call, partial(self._settle_probe, sent, call))

    def _settle_probe(self, sent: InFlightRequest, call: Any) -> None:
        """Use a server that was late again, or give up the channel to it, as after a request."""
        channel = sent.channel
        with self._changed:
            self._calls.discard(call)
            if channel.opened is not sent.opened:
                return
            channel.probing = False
        try:
            known = call.result().channels
        except Exception as error:
            self._lose(sent, _translated(sent, error))
            return
        if sent.opened.id not in known:
            self._lose(sent, Unknown(f"{channel}: the server does not know the channel"))
            return
        with self._changed:
            channel.is_alive()
            self._go_on()

    def _settle_check(self, sent: InFlightRequest, call: Any) -> None:
        """Give up the channel of a request that the server has not, and of a server that is out of reach.

        The connection on which a request waits says nothing of a network that was cut. Any other check that
        fails says nothing of the request. One that times out may have met a connection that no longer carries
        calls, though it still answers pings: damage to the windows of flow control does that. One that
        carried a check is kept: a server without descriptors could not accept another.
        """
        with self._changed:
            self._calls.discard(call)
            self._check_from = time.monotonic() + self._silent_s
            self._changed.notify_all()
        try:
            call.result()
            trailers = call.trailing_metadata() or ()
        except Exception as error:
            sent.channel.note_fault(found := strip_traceback(_translated(sent, error)))
            code = error.code() if isinstance(error, grpc.RpcError) else None
            if code is grpc.StatusCode.UNAVAILABLE and not sent.replied:
                self._lose(sent, found)
            elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
                sent.checks_silent += 1
                # At the first, second, fourth, ...: a server that stands still gets few connections.
                if sent.checks_silent.bit_count() == 1:
                    sent.channel.server.client.connect_anew()
            return
        pending = [value.split(",") for key, value in trailers if key == PENDING_HEADER]
        if not pending or str(sent.request.batch) in pending[0]:
            return
        sent.checks_failed += 1
        if sent.checks_failed < _MAX_CHECKS or sent.replied:  # The request may have come just now.
            return
        sent.cancellation.cancel()
        self._give_up(sent, rule_of(FaultKind.CONNECTION).error(f"{sent.channel}: a request was lost"))

    def _go_on(self) -> None:
        self._hand_out()
        self._changed.notify_all()


def _cancel(calls: set[Any]) -> None:
    """Cancel calls whose result is not needed: they hold the memory that they would fill."""
    for call in calls:
        call.cancel()


def _translated(sent: InFlightRequest, error: Exception) -> Exception:
    if isinstance(error, grpc.RpcError):
        return sent.channel.server.client.error(error)
    return StorageUnavailable(f"{sent.channel}: {str(error) or 'the call was cancelled'}")


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
