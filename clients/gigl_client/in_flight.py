"""Batches in flight: requested, received, and to be requested again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.retry import Backoff

if TYPE_CHECKING:
    from gigl_client.channel import Channel, OpenChannel
    from gigl_loader.channel.frame import Frame
    from gigl_loader.sampling.request import BatchRequest

__all__ = ["InFlight", "InFlightRequest", "Ready", "RetryState"]


@dataclass(slots=True, eq=False, kw_only=True)
class InFlightRequest:
    """One batch that a server was asked for. It stays the same batch, whoever is asked next."""

    request: BatchRequest
    fence: int
    channel: Channel
    opened: OpenChannel
    slot: int | None
    since: float

    def give_slot(self) -> None:
        """Return the slot of the ring that nothing was, or will be, written to."""
        if self.slot is not None and self.opened.ring is not None:
            self.opened.ring.give(self.slot)


@dataclass(slots=True, eq=False)
class Ready:
    """A batch that came, or what went wrong with it for good."""

    channel: Channel | None
    frame: Frame | Exception


@dataclass(slots=True, eq=False, kw_only=True)
class RetryState:
    """A batch that did not come, and may come yet."""

    since: float
    backoff: Backoff
    not_before: float
    error: Exception


class InFlight:
    """The batches of the epoch under way. Its user has a lock around it."""

    def __init__(self, num_batches: int, *, in_order: bool) -> None:
        self._num_batches = num_batches
        self._in_order = in_order
        self.fence = 0
        self.epoch = -1
        self.position = self._next_batch = num_batches
        """Next batch to be delivered, in order."""
        self.remaining = 0
        self.taken = 0
        """Batches received, in all epochs."""
        self._returned: list[int] = []
        self._requests: dict[int, BatchRequest] = {}
        self._ready: dict[int, Ready] = {}
        self.sent: dict[int, InFlightRequest] = {}
        self.troubles: dict[int, RetryState] = {}

    def start(self, epoch: int, first_batch: int) -> None:
        """Leave the epoch under way: what comes of it from now on is nobody's."""
        self.fence += 1
        self.epoch, self.position, self._next_batch = epoch, first_batch, first_batch
        self.remaining = self._num_batches - first_batch
        for kept in (self._returned, self._requests, self._ready, self.sent, self.troubles):
            kept.clear()

    def stop(self) -> None:
        """Leave the epoch under way for good."""
        self.start(self.epoch, self._num_batches)

    @property
    def awaited(self) -> str:
        """What is waited for."""
        return f"batch {self.position}" if self._in_order else "any batch"

    def next(self, now: float) -> int | None:
        """Return the number of the batch to ask for now."""
        due = [batch for batch in self._returned if not self._waits(batch, now)]
        if due:
            return min(due)
        return self._next_batch if self._next_batch < self._num_batches else None

    def holds_up_others(self, batch: int) -> bool:
        """Return whether no other batch can be received before this one."""
        return self._in_order and batch == self.position

    def known_request(self, batch: int) -> BatchRequest | None:
        """Return what was asked for before, where a batch is asked for again."""
        return self._requests.get(batch)

    def add(self, sent: InFlightRequest) -> None:
        """Note that a batch, which ``next`` named, is asked for."""
        batch = sent.request.batch
        self._leave(batch)
        self._requests[batch] = sent.request
        self.sent[batch] = sent
        sent.channel.load += 1

    def is_current(self, sent: InFlightRequest) -> bool:
        """Return whether the answer to this ask is still waited for."""
        return self.sent.get(sent.request.batch) is sent

    def put_back(self, sent: InFlightRequest, error: Exception | None, now: float) -> None:
        """Have a batch asked for again: at once, or, the more often there was an ``error``, the later."""
        batch = sent.request.batch
        del self.sent[batch]
        sent.channel.load -= 1
        self._returned.append(batch)
        if error is not None:
            before = self.troubles.get(batch)
            backoff = Backoff() if before is None else before.backoff
            self.troubles[batch] = RetryState(
                since=now if before is None else before.since,
                backoff=backoff,
                not_before=now + backoff.next_s(),
                error=error,
            )

    def put_back_all(self, opened: OpenChannel, now: float) -> int:
        """Have all batches asked for again that a lost channel was asked for. Return how many."""
        lost = [each for each in self.sent.values() if each.opened is opened]
        for sent in lost:
            self.put_back(sent, None, now)
        return len(lost)

    def land(self, sent: InFlightRequest, frame: Frame | Exception) -> None:
        """Note that a batch has come, or failed for good."""
        batch = sent.request.batch
        del self.sent[batch]
        self._ready[batch] = Ready(sent.channel, frame)

    def fail(self, batch: int, error: Exception) -> None:
        """Note that a batch, which ``next`` named, cannot be asked for."""
        self._leave(batch)
        self._ready[batch] = Ready(None, error)

    def take(self) -> Ready | None:
        """Take the next batch, if it is there. It then counts as received."""
        batch = self.position if self._in_order else next(iter(self._ready), -1)
        ready = self._ready.pop(batch, None)
        if ready is None:
            return None
        if ready.channel is not None:
            ready.channel.load -= 1
            ready.channel.batches += not isinstance(ready.frame, Exception)
        self._requests.pop(batch, None)
        self.troubles.pop(batch, None)
        self.remaining -= 1
        self.taken += 1
        self.position = batch + 1
        return ready

    def trouble(self) -> tuple[int, RetryState] | None:
        """Return what keeps the next batch from coming. Out of order, any batch in trouble."""
        if self._in_order:
            found = self.troubles.get(self.position)
            return None if found is None else (self.position, found)
        return min(self.troubles.items(), key=lambda item: item[1].since, default=None)

    def next_retry(self, now: float) -> float:
        """Return when a batch that waits may be asked for again. Infinity where none waits.

        Those that may be asked for already wait for a server, which is heard of when it is able.
        """
        waiting = [self.troubles[batch].not_before for batch in self._returned if self._waits(batch, now)]
        return min(waiting, default=float("inf"))

    def _waits(self, batch: int, now: float) -> bool:
        return batch in self.troubles and self.troubles[batch].not_before > now

    def _leave(self, batch: int) -> None:
        if batch in self._returned:
            self._returned.remove(batch)
        else:
            self._next_batch = batch + 1
