"""Batches in flight: requested, waited for, requested again or from a second server, and received."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gigl_client.channels import may_pass
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.retry import Backoff
from gigl_loader.rpc.attempts import Cancellation, Hedging

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from gigl_client.channel_pool import ChannelPool
    from gigl_client.channels import Channel, OpenChannel
    from gigl_loader.channel.frame import Frame
    from gigl_loader.sampling.request import BatchRequest


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
    """Of its call, and of the fetch of its frame."""
    replied: bool = False
    """The call has ended. Its frame may still be fetched."""
    checks_failed: int = 0
    """Checks for which its server had no such request."""
    checks_silent: int = 0
    """Checks that timed out."""

    def give_slot(self) -> None:
        """Free the ring slot of a request. Only where the server never wrote to it, and never will."""
        if self.slot is not None and self.opened.ring is not None:
            self.opened.ring.give(self.slot)


@dataclass(slots=True, eq=False)
class Ready:
    """A received batch, or the exception to raise in its place."""

    channel: Channel | None
    frame: Frame | Exception


@dataclass(slots=True, eq=False, kw_only=True)
class RetryState:
    """Retries of a batch that was not received so far."""

    since: float
    backoff: Backoff
    not_before: float
    error: Exception


class InFlight:
    """Batches of the current epoch. Not thread-safe: guarded by the lock of the dispatcher."""

    def __init__(self, num_batches: int, *, in_order: bool) -> None:
        self._num_batches = num_batches
        self._in_order = in_order
        self.fence = 0
        self.epoch = -1
        self.position = self._next_batch = num_batches
        """Next batch to be delivered, in order."""
        self.remaining = 0
        self._begun = True
        """Some server has sampled a batch of the epoch."""
        self.has_first = True
        """Later batches need not wait for the first one of the epoch: it was received, or must be retried."""
        self.taken = 0
        """Batches received, in all epochs."""
        self._returned: list[int] = []
        self._requests: dict[int, BatchRequest] = {}
        self._ready: dict[int, Ready] = {}
        self.sent: dict[int, InFlightRequest] = {}
        self.hedged: dict[int, InFlightRequest] = {}
        """Second requests of batches in ``sent``, at other servers. The first response counts."""
        self.retries: dict[int, RetryState] = {}

    def start(self, epoch: int, first_batch: int) -> None:
        """Leave the current epoch: responses to its requests are discarded from now on."""
        # Requests carry the fence: with a newer one, a server drops queued requests and ready frames of older
        # ones.
        self.fence += 1
        self.epoch, self.position, self._next_batch = epoch, first_batch, first_batch
        self.remaining = self._num_batches - first_batch
        self._begun = self.has_first = not self._in_order
        for kept in (self._returned, self._requests, self._ready, self.sent, self.hedged, self.retries):
            kept.clear()

    def stop(self) -> None:
        """Leave the current epoch without starting another."""
        self.start(self.epoch, self._num_batches)

    @property
    def awaited(self) -> str:
        """The batch that ``take`` waits for, as text."""
        return f"batch {self.position}" if self._in_order else "any batch"

    def next(self, now: float) -> int | None:
        """Return the batch to request now. ``None`` where every batch is requested, ready or backing off.

        In order, the first batch of an epoch is requested alone until a server has sampled it: the trainer
        waits for it, and all servers would be busy with later ones.
        """
        due = [batch for batch in self._returned if not self._waits(batch, now)]
        if due:
            return min(due)
        if not self._begun and self.sent:
            return None
        return self._next_batch if self._next_batch < self._num_batches else None

    def holds_up_others(self, batch: int) -> bool:
        """Return whether no other batch can be delivered before this one."""
        return self._in_order and batch == self.position

    def known_request(self, batch: int) -> BatchRequest | None:
        """Return the request of a batch that was requested before. ``None`` for a new batch."""
        return self._requests.get(batch)

    def add(self, sent: InFlightRequest) -> None:
        """Record a request that was sent for a batch that ``next`` returned."""
        batch = sent.request.batch
        self._leave(batch)
        self._requests[batch] = sent.request
        self.sent[batch] = sent
        sent.channel.load += 1

    def add_hedge(self, sent: InFlightRequest) -> None:
        """Record a second request for a batch that is in flight."""
        self.hedged[sent.request.batch] = sent
        sent.channel.load += 1

    def oldest_awaited(self) -> InFlightRequest | None:
        """Return the request of the next batch to be delivered; out of order, the oldest."""
        if self._in_order:
            return self.sent.get(self.position)
        return min(self.sent.values(), key=lambda sent: sent.since, default=None)

    def replied(self, sent: InFlightRequest) -> bool:
        """Record that a server responded. Return whether the response is still awaited."""
        current = self.is_current(sent)
        self._begun |= current
        return current

    def is_current(self, sent: InFlightRequest) -> bool:
        """Return whether the response to this request is still awaited."""
        batch = sent.request.batch
        return self.sent.get(batch) is sent or self.hedged.get(batch) is sent

    def put_back(self, sent: InFlightRequest, error: Exception | None, now: float) -> None:
        """Queue a batch again: at once, or, after an ``error``, with a delay that grows per error.

        A batch that another server is asked for as well is left to that server.
        """
        batch = sent.request.batch
        sent.channel.load -= 1
        self._begun = self.has_first = True
        second = self.hedged.pop(batch, None)
        if second is not None:
            if second is not sent:
                self.sent[batch] = second
            return
        del self.sent[batch]
        self._returned.append(batch)
        if error is not None:
            before = self.retries.get(batch)
            backoff = Backoff() if before is None else before.backoff
            self.retries[batch] = RetryState(
                since=now if before is None else before.since,
                backoff=backoff,
                not_before=now + backoff.next_s(),
                error=error,
            )

    def put_back_all(self, opened: OpenChannel, now: float) -> int:
        """Queue all batches of a lost channel again. Return how many."""
        lost = [each for each in (*self.sent.values(), *self.hedged.values()) if each.opened is opened]
        for sent in lost:
            self.put_back(sent, None, now)
        return len(lost)

    def land(self, sent: InFlightRequest, frame: Frame | Exception) -> InFlightRequest | None:
        """Record a received batch, or the exception that failed it.

        Return the request for it that another server has, too, and that nobody needs any more.
        """
        batch = sent.request.batch
        first, second = self.sent.pop(batch), self.hedged.pop(batch, None)
        other = second if sent is first else first
        if other is not None:
            other.channel.load -= 1
        sent.channel.allowance += 1
        self.has_first = True
        self._ready[batch] = Ready(sent.channel, frame)
        return other

    def fail(self, batch: int, error: Exception) -> None:
        """Record that a batch that ``next`` returned cannot be requested."""
        self._leave(batch)
        self._ready[batch] = Ready(None, error)

    def take(self) -> Ready | None:
        """Take the next batch, or return ``None``. A batch that was taken counts as received."""
        batch = self.position if self._in_order else next(iter(self._ready), -1)
        ready = self._ready.pop(batch, None)
        if ready is None:
            return None
        if ready.channel is not None:
            ready.channel.load -= 1
            ready.channel.batches += not isinstance(ready.frame, Exception)
        self._requests.pop(batch, None)
        self.retries.pop(batch, None)
        self.remaining -= 1
        self.taken += 1
        self.position = batch + 1
        return ready

    def delaying_retry(self) -> tuple[int, RetryState] | None:
        """Return the retried batch that delays delivery: the next one, or, out of order, the oldest."""
        if self._in_order:
            found = self.retries.get(self.position)
            return None if found is None else (self.position, found)
        return min(self.retries.items(), key=lambda item: item[1].since, default=None)

    def next_retry(self, now: float) -> float:
        """Return the earliest end of a backoff (monotonic). Infinity where no batch backs off.

        Batches whose backoff is over wait for a server to become available, which is signalled separately.
        """
        waiting = [self.retries[batch].not_before for batch in self._returned if self._waits(batch, now)]
        return min(waiting, default=float("inf"))

    def _waits(self, batch: int, now: float) -> bool:
        return batch in self.retries and self.retries[batch].not_before > now

    def _leave(self, batch: int) -> None:
        if batch in self._returned:
            self._returned.remove(batch)
        else:
            self._next_batch = batch + 1


_KIND = "batch"


class BatchHedging:
    """Says which request is late. Guarded by the lock of the dispatcher."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._hedging = Hedging()
        self._refused = -math.inf
        """When the request was sent for which the budget had no hedge left."""
        self.count = 0
        """Batches that were requested from a second server."""

    def landed(self, sent: InFlightRequest, now: float) -> None:
        """Record how long a received batch took."""
        self._hedging.record(_KIND, now - sent.since)

    def due(self, now: float) -> InFlightRequest | None:
        """Return the request that should be sent to a second server now.

        It is later than 95 % of the requests, and within the budget of 5 % of them; or so late that its
        server counts as stalled, whatever the budget.
        """
        sent = self._awaited()
        if sent is None or now < self.at():
            return None
        if now - sent.since < self._hedging.stalled_s(_KIND) and not self._hedging.take():
            self._refused = sent.since
            return None
        return sent

    def at(self) -> float:
        """Return when a request is due (monotonic). Infinity where none is awaited."""
        sent = self._awaited()
        if sent is None:
            return math.inf
        delay = self._hedging.delay_s(_KIND)
        if delay is None or self._refused == sent.since:
            delay = self._hedging.stalled_s(_KIND)
        return sent.since + delay

    def _awaited(self) -> InFlightRequest | None:
        """Return the request that the trainer waits for, unless it was sent to a second server before."""
        sent = self._in_flight.oldest_awaited()
        return None if sent is None or sent.request.batch in self._in_flight.hedged else sent


_MAX_NAMED = 8
_MAX_WAIT_S = 3600.0  # At a time: a condition cannot wait for infinity.


class BatchWait:
    """Waits for responses of servers. Guarded by the lock of the dispatcher."""

    def __init__(
        self,
        channels: ChannelPool,
        in_flight: InFlight,
        changed: threading.Condition,
        hedging: BatchHedging,
        *,
        fetchers_stuck_at: Callable[[], float],
        check_at: Callable[[], float],
        timeout_s: float,
    ) -> None:
        """A server that does not respond, or a batch that fails to arrive, is retried for ``timeout_s``.

        ``fetchers_stuck_at`` returns when another thread is needed that fetches frames, ``check_at`` when to
        look whether a request was lost (monotonic).
        """
        self._channels = channels
        self._in_flight = in_flight
        self._changed = changed
        self._hedging = hedging
        self._fetchers_stuck_at = fetchers_stuck_at
        self._check_at = check_at
        self._timeout_s = timeout_s
        self._calm = 0.0
        self._received = -1

    def wait(self, deadline: float, timeout: float) -> None:
        """Wait until a response arrives, a channel changes or a backoff ends.

        Raises ``StorageUnavailable`` where a server or the owner of nodes was retried for ``timeout_s``, or
        where a retry cannot help; ``ValueError`` for a mistake of the caller; ``TimeoutError`` at
        ``deadline`` (monotonic), which is ``timeout`` s after the wait began. The caller may wait again
        after any of them.
        """
        now = time.monotonic()
        if self._in_flight.taken != self._received:  # A batch arrived: the time for retries begins anew.
            self._received, self._calm = self._in_flight.taken, now
        self._check_channels(now, began=deadline - timeout)
        retry = self._in_flight.delaying_retry()
        give_up = float("inf") if retry is None else max(retry[1].since, self._calm) + self._timeout_s
        if retry is not None and now >= give_up:
            self._calm = now
            raise _unavailable(self._in_flight.epoch, *retry, now)
        if now >= deadline:
            raise self._timed_out(now, timeout, retry)
        until = min(
            deadline,
            give_up,
            self._in_flight.next_retry(now),
            self._hedge_at(now),
            self._fetchers_stuck_at(),
            self._check_at(),
        )
        self._changed.wait(min(max(until - now, 0.001), _MAX_WAIT_S))

    def _check_channels(self, now: float, *, began: float) -> None:
        """Raise the error that ended the attempts to open a channel. The next wait starts them again.

        This wait starts them again itself where the attempts began before it: an earlier wait has raised
        their error, or no wait needed the channel.
        """
        for channel in self._needed():
            error = channel.failure
            if error is not None and not channel.opening:
                if may_pass(error) and channel.tries_since < began:
                    self._channels.open_all()
                    return
                channel.failure = None
                raise _not_reached(channel, error, now) if may_pass(error) else _refused(channel, error)

    def _hedge_at(self, now: float) -> float:
        """Return when to look for a late request. One that no other server can take is left to its own."""
        at = self._hedging.at()
        return at if at > now else float("inf")

    def _timed_out(self, now: float, timeout: float, retry: tuple[int, RetryState] | None) -> Exception:
        for channel in self._needed():
            if channel.failure is not None and (retry is None or channel.down_since < retry[1].since):
                return _not_reached(channel, channel.failure, now)
        if retry is not None:  # No server is away for longer.
            return _unavailable(self._in_flight.epoch, *retry, now)
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


def _unavailable(epoch: int, batch: int, retry: RetryState, now: float) -> StorageUnavailable:
    seconds = now - retry.since
    return StorageUnavailable(
        f"batch {batch} of epoch {epoch}: {retry.error} (asked for it for {seconds:.1f} s)"
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
    requests = sorted(
        (sent for sent in in_flight.sent.values() if sent.channel is channel),
        key=lambda sent: sent.request.batch,
    )
    if not requests:
        return "is asked for nothing"
    named = ", ".join(f"{sent.request.batch} ({now - sent.since:.1f} s)" for sent in requests[:_MAX_NAMED])
    more = f" and {len(requests) - _MAX_NAMED} others" if len(requests) > _MAX_NAMED else ""
    return f"is asked for batches {named}{more}"
