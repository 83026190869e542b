"""Batches in flight: a ``Call`` for each, the wait for the next one, and the errors of a wait in vain."""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gigl_client.channels import MAX_IN_FLIGHT, Tried, may_pass
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc.calls import Call, Cancellation, Hedging
from gigl_loader.rpc.graph_store_pb2 import SampleRequest

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gigl_client.channel_pool import ChannelPool
    from gigl_client.channels import Channel, OpenChannel
    from gigl_loader.channel.frame import Frame
    from gigl_loader.rpc.reply_stream import ReplyStream
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.tracing import BatchSpans, OpenSpan

Result = TypeVar("Result")


@dataclass(slots=True, eq=False, kw_only=True)
class InFlightRequest:
    """A request that was sent to one server. Another server may be sent the same ``request`` later."""

    request: BatchRequest
    fence: int
    channel: Channel
    opened: OpenChannel
    slot: int | None
    since: float
    cancellation: Cancellation = field(default_factory=Cancellation)
    """Of its call."""
    replied: bool = False
    """The reply has begun, or the call has failed. Its frame may still be on its way."""
    arrived: bool = False
    """Its frame is here, whole or without rows, which owners send."""
    checks_failed: int = 0
    """Checks for which its server had no such request."""
    checks_silent: int = 0
    """Checks that timed out."""
    span: OpenSpan | None = None
    """Of the batch, where the program traces."""

    @property
    def heard_at(self) -> float:
        """When it was sent, or a part of its frame came last (monotonic). Infinity once the frame is here."""
        return math.inf if self.arrived else max(self.since, self.cancellation.heard_at)

    def send(self, message: bytes, read: Callable[[ReplyStream], Result], timeout_s: float) -> Result:
        """Send the request, and return ``read(reply)``. Raises what ``Connection.sample`` does."""
        sample = self.channel.server.connection.sample
        endpoint, ended = self.channel.server.endpoint, self.cancellation
        if self.span is None:
            return sample(message, read, timeout_s=timeout_s, cancellation=ended)
        with self.span.request("gigl.request", server_address=endpoint.host, server_port=endpoint.data_port):
            return sample(message, read, timeout_s=timeout_s, cancellation=ended)

    def step(self, name: str) -> AbstractContextManager[Any]:
        """Return a context that is a step of the batch, where the program traces."""
        return nullcontext() if self.span is None else self.span.step(name)

    def message(self) -> bytes:
        """Return the request as it is sent."""
        message = SampleRequest(
            channel=self.opened.id,
            epoch=self.request.epoch,
            batch=self.request.batch,
            fence=self.fence,
            inputs=self.request.input_bytes(),
            index=self.request.index.astype("<i8", copy=False).tobytes(),
            slot=0 if self.slot is None else self.slot + 1,
            number=self.request.number,
            new_nodes=b"" if self.request.new is None else self.request.new.document,
        )
        return bytes(message.SerializeToString())

    def give_slot(self) -> None:
        """Free the ring slot of a request. Only where the server never wrote to it, and never will."""
        if self.slot is not None and self.opened.ring is not None:
            self.opened.ring.give(self.slot)


_KIND = "batch"
_MAX_AT_ONCE = 8
"""Requests of one batch under way at the same time, each at another server: as many silent servers do not
keep a batch from one that is ready."""


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch that was requested and not delivered yet."""

    request: BatchRequest
    """The same at every attempt: a batch is a pure function of it."""
    call: Call[InFlightRequest]
    failures: Counter[Channel] = field(default_factory=Counter)
    """Attempts that failed, by channel."""


class Failing(NamedTuple):
    """A batch of which an attempt has failed."""

    batch: int
    since: float
    """Time of the first failure (monotonic)."""
    error: Exception | None
    """The last one."""


class InFlight:
    """Batches of the current epoch. Not thread-safe: guarded by the lock of the dispatcher."""

    def __init__(self, num_batches: int, *, in_order: bool, spans: BatchSpans | None = None) -> None:
        self.num_batches = num_batches
        """Of the epoch that starts next."""
        self._in_order = in_order
        self._spans = spans
        self._hedging = Hedging()
        self.fence = 0
        self.epoch = -1
        self.position = self._next_batch = num_batches
        """Next batch to be delivered, in order."""
        self.remaining = 0
        self._retried_at = self._hedged_at = -math.inf
        """When ``next`` and ``late`` were called last (monotonic)."""
        self._begun = True
        """Some server has sampled a batch of the epoch."""
        self.has_first = True
        """Later batches need not wait for the first one of the epoch: it was received, or must be retried."""
        self.taken = 0
        """Batches received, in all epochs."""
        self._batches: dict[int, _Batch] = {}
        self._ready: dict[int, tuple[Frame | Exception, Channel | None]] = {}
        """Received batches and the errors of failed ones, with the channel that each came over."""

    def start(self, epoch: int, first_batch: int) -> None:
        """Leave the current epoch: responses to its requests are discarded from now on."""
        # Requests carry the fence: with a newer one, a server drops queued requests and ready frames of older
        # ones.
        self.fence += 1
        self.epoch, self.position, self._next_batch = epoch, first_batch, first_batch
        self.remaining = self.num_batches - first_batch
        self._begun = self.has_first = not self._in_order
        self._batches.clear()
        self._ready.clear()

    @property
    def ready(self) -> int:
        """Number of batches that were received and not delivered."""
        return len(self._ready)

    def under_way(self) -> list[InFlightRequest]:
        """Return the requests that were sent and whose batches were not received."""
        return [sent for batch in self._pending() for sent in batch.call.attempts]

    def stop(self) -> None:
        """Leave the current epoch without starting another."""
        self.start(self.epoch, self.num_batches)

    @property
    def awaited(self) -> str:
        """The batch that ``take`` waits for, as text."""
        return f"batch {self.position}" if self._in_order else "any batch"

    def next(self, now: float, most: int = MAX_IN_FLIGHT) -> int | None:
        """Return the batch to request now. ``None`` where every batch is requested, ready or backing off.

        At most ``most`` batches are in flight, also those that back off: a server that refuses at once would
        get a request for each batch of the epoch.

        In order, the first batch of an epoch is requested alone until a server has sampled it: the trainer
        waits for it, and all servers would be busy with later ones.
        """
        self._retried_at = now
        idle = self._idle()
        due = [number for number, batch in idle if batch.call.due_at() <= now]
        if due:
            return min(due)
        if not self._begun and len(idle) < len(self._pending()):
            return None
        if len(self._batches) >= most:
            return None
        return self._next_batch if self._next_batch < self.num_batches else None

    def holds_up_others(self, batch: int) -> bool:
        """Return whether no other batch can be delivered before this one."""
        return self._in_order and batch == self.position

    def tried(self, batch: int) -> Tried:
        """Return the channels over which a batch was requested so far."""
        known = self._batches.get(batch)
        if known is None:
            return Tried()
        return Tried([each.channel for each in known.call.attempts], known.failures)

    def known_request(self, batch: int) -> BatchRequest | None:
        """Return the request of a batch that was requested before. ``None`` for a new batch."""
        known = self._batches.get(batch)
        return None if known is None else known.request

    def add(self, sent: InFlightRequest) -> None:
        """Record a request that was sent: for a batch that ``next`` returned, or for a late one."""
        number = sent.request.batch
        batch = self._batches.get(number)
        if batch is None:
            call: Call[InFlightRequest] = Call(_KIND, self._hedging, most=_MAX_AT_ONCE)
            batch = self._batches[number] = _Batch(sent.request, call)
            self._next_batch = number + 1
        if self._spans is not None:
            sent.span = self._spans.begin(sent.request.epoch, number)
        batch.call.started(sent)
        sent.channel.load += 1

    def oldest_awaited(self) -> InFlightRequest | None:
        """Return the first request of the next batch to be delivered; out of order, the oldest."""
        call = self._awaited()
        return call.attempts[0] if call is not None else None

    def late(self, now: float) -> InFlightRequest | None:
        """Return the last request for the awaited batch, if it should be sent to another server now."""
        self._hedged_at = now
        call = self._awaited()
        return call.attempts[-1] if call is not None and call.may_start(now) else None

    def late_at(self) -> float:
        """Return when ``late`` returns a request (monotonic). Infinity where none is awaited.

        One that it has returned is left to its server: no other can take it.
        """
        call = self._awaited()
        at = math.inf if call is None else call.due_at()
        return at if at > self._hedged_at else math.inf

    def sent_over(self, channel: Channel) -> list[InFlightRequest]:
        """Return the requests that were sent over a channel and not replied to, by batch."""
        sent = [each for batch in self._pending() for each in batch.call.attempts if each.channel is channel]
        return sorted(sent, key=lambda each: each.request.batch)

    def replied(self, sent: InFlightRequest) -> bool:
        """Record that a server responded. Return whether the response is still awaited."""
        current = self.is_current(sent)
        self._begun |= current
        return current

    def is_current(self, sent: InFlightRequest) -> bool:
        """Return whether the response to this request is still awaited."""
        batch = self._batches.get(sent.request.batch)
        return batch is not None and any(each is sent for each in batch.call.attempts)

    def put_back(self, sent: InFlightRequest, error: Exception | None, now: float) -> None:
        """Queue a batch again: at once, or, after an ``error``, with a delay that grows per error.

        A batch with a request at another server is left to that server.
        """
        sent.channel.load -= 1
        self._begun = self.has_first = True
        batch = self._batches[sent.request.batch]
        batch.failures[sent.channel] += 1
        batch.call.failed(sent, now, error)

    def put_back_all(self, opened: OpenChannel, now: float) -> int:
        """Queue all batches of a lost channel again. Return how many."""
        lost = [each for batch in self._pending() for each in batch.call.attempts if each.opened is opened]
        for sent in lost:
            self.put_back(sent, None, now)
        return len(lost)

    def land(self, sent: InFlightRequest, frame: Frame | Exception, now: float) -> list[InFlightRequest]:
        """Record a received batch, or the exception that failed it.

        Return the requests for it at other servers, which are not needed any more.
        """
        others = self._batches[sent.request.batch].call.won(sent, now)
        for other in others:
            other.channel.load -= 1
        sent.channel.allowance += 1
        self.has_first = True
        if self._spans is not None and isinstance(frame, Exception):
            self._spans.end(self.epoch, sent.request.batch, frame)
        self._ready[sent.request.batch] = frame, sent.channel
        return others

    def fail(self, batch: int, error: Exception) -> None:
        """Record that a new batch that ``next`` returned cannot be requested."""
        self._next_batch = batch + 1
        self._ready[batch] = error, None

    def take(self) -> Frame | Exception | None:
        """Take the next batch, or the exception to raise in its place. ``None`` where none is ready.

        A batch that was taken counts as received.
        """
        batch = self.position if self._in_order else next(iter(self._ready), -1)
        if batch not in self._ready:
            return None
        frame, channel = self._ready.pop(batch)
        if channel is not None:
            channel.load -= 1
            channel.batches += not isinstance(frame, Exception)
        self._batches.pop(batch, None)
        self.remaining -= 1
        self.taken += 1
        self.position = batch + 1
        return frame

    def delaying_retry(self) -> Failing | None:
        """Return the failing batch that delays delivery: the next one, or, out of order, the oldest."""
        failing = [
            Failing(number, batch.call.failing_since, batch.call.error)
            for number, batch in self._batches.items()
            if batch.call.failing_since is not None and (not self._in_order or number == self.position)
        ]
        return min(failing, key=lambda each: each.since, default=None)

    def next_retry(self) -> float:
        """Return the earliest end of a backoff (monotonic). Infinity where no batch backs off.

        Batches whose backoff was over in the last ``next`` wait for a server to become available, which is
        signalled separately. A backoff that has ended since then counts: nothing else would end the wait.
        """
        ends = (batch.call.due_at() for _, batch in self._idle())
        return min((end for end in ends if end > self._retried_at), default=math.inf)

    def _pending(self) -> list[_Batch]:
        """Return the batches that were requested and not received."""
        return [batch for number, batch in self._batches.items() if number not in self._ready]

    def _idle(self) -> list[tuple[int, _Batch]]:
        """Return the batches of which no request is under way, by number."""
        return [
            (number, batch)
            for number, batch in self._batches.items()
            if not batch.call.attempts and number not in self._ready
        ]

    def _awaited(self) -> Call[InFlightRequest] | None:
        """Return the call for the next batch to be delivered; out of order, the oldest. With a request."""
        calls = (
            batch.call
            for number, batch in self._batches.items()
            if batch.call.attempts and (not self._in_order or number == self.position)
        )
        return min(calls, key=lambda call: call.attempts[0].since, default=None)


_MAX_NAMED = 8
_MAX_WAIT_S = 3600.0  # At a time: a condition cannot wait for infinity.


class BatchWait:
    """Waits for responses of servers. Guarded by the lock of the dispatcher."""

    def __init__(
        self,
        channels: ChannelPool,
        in_flight: InFlight,
        changed: threading.Condition,
        *,
        check_at: Callable[[], float],
    ) -> None:
        """``check_at`` returns when to look whether a request was lost (monotonic)."""
        self._channels = channels
        self._in_flight = in_flight
        self._changed = changed
        self._check_at = check_at

    def wait(self, deadline: float, timeout: float) -> None:
        """Wait until a response arrives, a channel changes or a backoff ends.

        At ``deadline`` (monotonic), which is ``timeout`` s after the wait began, raises
        ``StorageUnavailable`` where a server or the owner of nodes was retried until then, else
        ``TimeoutError``. Where a retry cannot help, raises at once: ``ValueError`` for a mistake of the
        caller. The caller may wait again after any of them.
        """
        now = time.monotonic()
        self._check_needed()
        self._channels.open_all()
        if now >= deadline:
            raise self._timed_out(now, timeout)
        until = min(
            deadline,
            self._in_flight.next_retry(),
            self._in_flight.late_at(),
            self._check_at(),
            self._channels.reopen_at(),
        )
        self._changed.wait(min(max(until - now, 0.001), _MAX_WAIT_S))

    def _check_needed(self) -> None:
        """Raise the error of a needed server that refused. The next wait tries it again."""
        for channel in self._needed():
            error = channel.failure
            if error is not None and not channel.opening and not may_pass(error):
                channel.failure = None
                raise _refused(channel, error)

    def _timed_out(self, now: float, timeout: float) -> Exception:
        retry = self._in_flight.delaying_retry()
        for channel in self._needed():
            if channel.failure is not None and (retry is None or channel.down_since < retry.since):
                return _not_reached(channel, channel.failure, now)
        if retry is not None:  # No server is away for longer.
            return _unavailable(self._in_flight.epoch, retry, now)
        waiting = _waiting_text(self._channels, self._in_flight, timeout, now)
        latest = max(self._channels, key=lambda channel: channel.fault_at, default=None)
        if latest is None or latest.last_fault is None or latest.fault_at < now - timeout:
            return TimeoutError(waiting)
        return StorageUnavailable(f"{_named(latest, latest.last_fault)}; {waiting}")

    def check_refused(self) -> None:
        """Raise the error of a server that refused, where a retry cannot help."""
        for channel in self._channels:
            error = channel.failure
            if channel.opened is None and error is not None and not channel.opening and not may_pass(error):
                channel.failure = None
                raise _refused(channel, error)

    def _needed(self) -> list[Channel]:
        """Return the needed channels that are lost, longest first: other servers may wait for that one."""
        return sorted(self._channels.needed(), key=lambda channel: channel.down_since)


def _refused(channel: Channel, error: Exception) -> Exception:
    """Return the exception for an error that a retry cannot resolve.

    Never a plain ``SamplingError``, which means that a batch was consumed.
    """
    if isinstance(error, SamplingError):
        return StorageUnavailable(_named(channel, error))
    return error


def _not_reached(channel: Channel, error: Exception, now: float) -> StorageUnavailable:
    seconds = now - channel.down_since
    return StorageUnavailable(f"{_named(channel, error)} (away for {seconds:.1f} s)")


def _named(channel: Channel, error: Exception) -> str:
    text = str(error)
    return text if str(channel) in text else f"{channel}: {text}"


def _unavailable(epoch: int, failing: Failing, now: float) -> StorageUnavailable:
    batch, since, error = failing
    return StorageUnavailable(
        f"batch {batch} of epoch {epoch}: {error} (asked for it for {now - since:.1f} s)"
    )


def _waiting_text(channels: ChannelPool, in_flight: InFlight, timeout: float, now: float) -> str:
    """Return a line with the batch that is awaited, and the open requests of each server with their age."""
    missing = f"no batch within {timeout:g} s ({in_flight.awaited} of epoch {in_flight.epoch})"
    if in_flight.epoch < 0:
        missing = f"the storage servers were not ready within {timeout:g} s"
    return "; ".join([missing, *(f"{channel} {_state(channel, in_flight, now)}" for channel in channels)])


def _state(channel: Channel, in_flight: InFlight, now: float) -> str:
    if channel.opened is None:
        return f"is away for {now - channel.down_since:.1f} s"
    requests = in_flight.sent_over(channel)
    if not requests:
        return "is asked for nothing"
    named = ", ".join(f"{sent.request.batch} ({now - sent.since:.1f} s)" for sent in requests[:_MAX_NAMED])
    more = f" and {len(requests) - _MAX_NAMED} others" if len(requests) > _MAX_NAMED else ""
    return f"is asked for batches {named}{more}"
