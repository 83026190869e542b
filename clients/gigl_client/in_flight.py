"""Batches in flight: requested, received, and to be requested again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gigl_loader.retry import Backoff
from gigl_loader.rpc.cancellation import Cancellation

if TYPE_CHECKING:
    from gigl_client.channel import Channel, OpenChannel
    from gigl_loader.channel.frame import Frame
    from gigl_loader.sampling.request import BatchRequest

__all__ = ["InFlight", "InFlightRequest", "Ready", "RetryState"]


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
