"""Dispatcher between a source and its servers: sends requests, turns replies into frames, retries.

Nothing here waits for a server but threads that do nothing else: asks are calls whose end a callback
puts in a queue, and a few threads behind it fetch. All others hold the lock for moments only.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from gigl_client.channel import bare
from gigl_client.in_flight import InFlight, InFlightRequest
from gigl_client.receiver import Scratch, Unfetched
from gigl_loader.channel.frame import Failure, Frame
from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.rpc.checksums import MAX_DAMAGED, message_is_whole
from gigl_loader.rpc.graph_store_pb2 import SampleRequest
from gigl_loader.rpc.refusals import Busy, Damaged, Gone, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_client.channel import Channel
    from gigl_client.channel_pool import ChannelPool
    from gigl_client.in_flight import Ready
    from gigl_client.receiver import Receiver
    from gigl_loader.rpc.graph_store_pb2 import SampleReply
    from gigl_loader.sampling.request import BatchRequest

    Responses = queue.SimpleQueue["Response | None"]

__all__ = ["FETCHERS", "Dispatcher"]

_LOGGER = logging.getLogger(__name__)

FETCHERS = 2
"""Threads of a source that fetch frames, and rows for them."""

_CLOSE_S = 2.0
_LONGER_S = 30.0
_LEAVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Response:
    """A call that has ended."""

    sent: InFlightRequest
    call: Any


class Dispatcher:
    """The asks of one source. Knows the servers, not the source, so that a forgotten source can go."""

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
        """The lock of ``changed`` guards channels and batches. ``request`` gives a batch of an epoch."""
        self._channels = channels
        self._in_flight = in_flight
        self._receiver = receiver
        self._changed = changed
        self._request = request
        # Longer than servers are looked for, so that one that is away is named and not who waits for it.
        self._call_s = timeout_s + min(timeout_s / 4, _LONGER_S)
        self.retries = self.calls = self.bytes_out = 0
        self.damaged = 0
        """Replies and requests that did not match their checksum, or broke a rule."""
        self._times_damaged: Counter[int] = Counter()  # By batch of the epoch under way.
        self.cpu_s = 0.0
        """Of the threads that fetch."""
        self.needed = False
        """Somebody waits for a batch."""
        self._calls: set[Any] = set()
        """Whose ends were not seen to yet."""
        # Apart, so that a server that is lost is noticed though frames of it are waited for.
        self._frames: Responses = queue.SimpleQueue()
        self._failures: Responses = queue.SimpleQueue()
        channels.on_change = self._go_on
        work = {f"fetch {number} of {name}": self._frames for number in range(FETCHERS)}
        work[f"settle for {name}"] = self._failures
        self._threads = [
            threading.Thread(target=self._work, args=(responses,), name=name, daemon=True)
            for name, responses in work.items()
        ]
        for thread in self._threads:
            thread.start()

    def start_epoch(self, epoch: int, first_batch: int) -> None:
        """Leave the epoch under way, and ask for the first batches of another."""
        with self._changed:
            self._in_flight.start(epoch, first_batch)
            self._times_damaged.clear()
            self._channels.forget_loads()
            self._hand_out()

    def take(self) -> Ready | None:
        """Take the next batch, if it is there, and keep the servers busy."""
        with self._changed:
            ready = self._in_flight.take()
            if ready is not None:
                self.needed = False
            self._hand_out()
            return ready

    def close(self, *others: Callable[[], None], wait: bool) -> None:
        """End the threads, close the channels, and do what ``others`` do: with ``wait``, for 3 s at most."""
        with self._changed:
            self._in_flight.stop()
            jobs = self._channels.close()
            calls, self._calls = self._calls, set()
            self._changed.notify_all()
        for responses in (*[self._frames] * FETCHERS, self._failures):
            responses.put(None)
        _at_once([partial(_cancel, calls), *jobs, *others], seconds=_CLOSE_S if wait else 0)
        deadline = time.monotonic() + (_LEAVE_S if wait else 0)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0))

    def _hand_out(self) -> None:
        """Ask for as many batches as may be in flight."""
        now = time.monotonic()
        while not self._channels.closed and (batch := self._in_flight.next(now)) is not None:
            urgent = self._in_flight.holds_up_others(batch)
            channel = self._channels.for_batch(batch, urgent=urgent, needed=self.needed)
            if channel is None:
                return
            request = self._request_of(batch)
            if request is not None:
                self._send(channel, request, now)

    def _request_of(self, batch: int) -> BatchRequest | None:
        """Return the request for a batch: the same one, however often it is asked for."""
        request = self._in_flight.known_request(batch)
        if request is not None:
            return request
        try:
            return self._request(self._in_flight.epoch, batch)
        except Exception as error:  # Weights that cannot be drawn by.
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

    def _work(self, responses: Responses) -> None:
        scratch = Scratch()
        while (response := responses.get()) is not None:
            began = time.thread_time()
            try:
                self._settle(response, scratch)
            except Exception as error:
                self._land(response.sent, error)
            with self._changed:
                self.cpu_s += time.thread_time() - began
            del response

    def _settle(self, response: Response, scratch: Scratch) -> None:
        """Make the batch of an answer, unless nobody wants it any more, or find out why there is none."""
        sent = response.sent
        with self._changed:
            self._calls.discard(response.call)
            current = self._in_flight.is_current(sent)
        try:
            reply: SampleReply = response.call.result()
        except Exception as error:
            self._call_failed(sent, _translated(sent, error))
            return
        if not message_is_whole(reply, response.call.trailing_metadata()):
            sent.give_slot()
            self._came_damaged(sent, FormatError(f"{sent.channel}: a reply does not match its checksum"))
            return
        if not current or reply.skipped:
            sent.give_slot()
            self._again(sent, StorageUnavailable(f"{sent.channel} skipped it"))
            return
        try:
            frame = self._receiver.frame(sent, reply, scratch)
        except Unfetched as error:  # The server counts what was not fetched, until the channel is closed.
            self._give_up(sent, error.reason)
        except (StorageUnavailable, Gone) as error:
            self._again(sent, error)
        except FormatError as error:
            self._came_damaged(sent, error)
        else:
            self._land(sent, frame)

    def _call_failed(self, sent: InFlightRequest, error: Exception) -> None:
        """Give the channel up, ask again, or, for what cannot be asked for, let the batch fail."""
        if isinstance(error, (StorageUnavailable, Unknown)):
            self._lose(sent, error)
            return
        if sent.slot is not None and not isinstance(error, (Busy, Damaged, ValueError)):
            self._give_up(sent, error)  # Perhaps the server goes on with it, and writes to its slot.
            return
        sent.give_slot()
        if isinstance(error, Damaged):
            self._came_damaged(sent, FormatError(str(error)))
        elif isinstance(error, SamplingError):  # Not of the batch: that comes as an answer.
            self._again(sent, error)
        else:
            self._land(sent, error)

    def _again(self, sent: InFlightRequest, error: Exception) -> None:
        """Have a batch asked for again, a little later."""
        with self._changed:
            if self._in_flight.is_current(sent):
                self.retries += 1
                self._in_flight.put_back(sent, bare(error), time.monotonic())
                self._go_on()

    def _came_damaged(self, sent: InFlightRequest, error: FormatError) -> None:
        """Have a batch asked for again. When it came damaged three times, it fails."""
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
        """Have a batch asked for again, a little later, and give the channel up."""
        with self._changed:
            if self._in_flight.is_current(sent):
                self.retries += 1
                self._in_flight.put_back(sent, bare(error), time.monotonic())
            self._lose(sent, error)

    def _lose(self, sent: InFlightRequest, error: Exception) -> None:
        """Give a channel up, with all that it was asked for: its ring may still be written to."""
        with self._changed:
            if sent.channel.opened is sent.opened:
                self.retries += self._in_flight.put_back_all(sent.opened, time.monotonic())
                self._channels.lose(sent.channel, bare(error))
                self._go_on()

    def _land(self, sent: InFlightRequest, frame: Frame | Exception) -> None:
        with self._changed:
            if self._in_flight.is_current(sent):
                self._in_flight.land(sent, bare(frame) if isinstance(frame, Exception) else frame)
                self._changed.notify_all()

    def _go_on(self) -> None:
        self._hand_out()
        self._changed.notify_all()


def _arrived(frames: Responses, failures: Responses, sent: InFlightRequest, call: Any) -> None:
    """Hear that a call has ended, in a thread of gRPC's, which has other things to do."""
    failed = call.cancelled() or call.exception() is not None
    (failures if failed else frames).put(Response(sent, call))


def _cancel(calls: set[Any]) -> None:
    """End calls that nobody waits for: they keep the memory that they were to fill."""
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
    )


def _at_once(jobs: Sequence[Callable[[], None]], *, seconds: float) -> None:
    """Do these things at the same time, in threads, and wait for their end so long at most."""
    threads = [threading.Thread(target=job, name="close", daemon=True) for job in jobs]
    deadline = time.monotonic() + seconds
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # At the end of the interpreter, none can be started: leases end what is left.
        return
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
