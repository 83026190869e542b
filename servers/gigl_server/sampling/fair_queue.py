"""Fair queueing of batches: owners by sampling time, the channels of an owner in rounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_server.identity import Identity
    from gigl_server.sessions.channel import Channel, SampleTask

__all__ = ["FairQueue"]

_HEAVY_S = 0.1
_GRACE_S = 0.03
"""A trainer sends its next request within milliseconds of a reply. A heavy batch of an owner that is ahead
waits this long for that request: the heavy batch would hold the thread many times as long."""


class FairQueue:
    """Chooses the next batch. Not thread-safe.

    Between owners: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) of seconds of sampling
    threads. The owner that had the fewest is next, so one with heavy batches gets fewer of them. An owner
    that was idle starts at the current time of the queue: it gets no credit for the time that it did not use.
    An owner with share 2 gets twice the time of one with share 1: its seconds count half.

    Among the channels of an owner: rounds, ``share`` batches for each. A channel waits at most
    for one share of each other channel, however many requests they have.
    """

    def __init__(
        self, clock: Callable[[], float], share_of: Callable[[Identity], float] = lambda _: 1.0
    ) -> None:
        """``share_of`` returns the weight of an owner."""
        self._clock = clock
        self._share_of = share_of
        self._owners: dict[Identity, _Owner] = {}
        self._time = 0.0
        """Virtual time: seconds of the owner that was served last, before its batch."""
        self.awaited: Identity | None = None
        """Owner for whose request the last call of ``next`` delayed a heavy batch."""

    def __len__(self) -> int:
        return sum(len(each.round) for each in self._owners.values())

    @property
    def waiting(self) -> list[Channel]:
        """Channels whose next request needs frame memory."""
        return [
            channel
            for owner in self._owners.values()
            for channel in owner.round
            if channel.queue and channel.queue[0].needs_frame_memory
        ]

    def enter(self, channel: Channel) -> None:
        """Add a channel that has requests, behind the other channels of its owner."""
        if channel.in_round:
            return
        channel.in_round = True
        owner = self._owners.get(channel.owner)
        if owner is None:
            owner = self._owners[channel.owner] = _Owner(spent=self._time)
        if owner.is_idle and self._clock() - owner.served > _GRACE_S:
            owner.spent = max(owner.spent, self._time)
        owner.round.enter(channel)

    def next(self, admits: Callable[[SampleTask], bool]) -> SampleTask | None:
        """Remove and return the next request. Channels whose request is not admitted now are skipped."""
        now = self._clock()
        self.awaited = None
        self._forget_idle(now)
        for owner in sorted(self._owners.values(), key=lambda each: each.spent):
            task = owner.round.next(self._admission(owner, admits, now))
            if task is not None:
                self._time = max(self._time, owner.spent)
                task.charged_s = task.channel.cost_s
                owner.spent += task.charged_s / self._share_of(task.channel.owner)
                owner.running += 1
                return task
        return None

    def _admission(
        self, owner: _Owner, admits: Callable[[SampleTask], bool], now: float
    ) -> Callable[[SampleTask], bool]:
        return lambda task: not self._is_kept_back(task, owner, now) and admits(task)

    def settle(self, task: SampleTask, seconds: float) -> None:
        """Charge the seconds that a batch took, in place of the expected ones."""
        channel = task.channel
        channel.cost_s += (seconds - channel.cost_s) / 4
        owner = self._owners[channel.owner]
        owner.spent += (seconds - task.charged_s) / self._share_of(channel.owner)
        owner.running -= 1
        owner.served = self._clock()

    def charge_wait(self, owner: Identity, seconds: float) -> None:
        """Charge an owner the time that a thread waited for it."""
        if owner in self._owners:
            self._owners[owner].spent += seconds / self._share_of(owner)

    def _is_kept_back(self, task: SampleTask, ahead: _Owner, now: float) -> bool:
        """Return whether a heavy batch waits, because an owner with less time is about to send a request."""
        if task.channel.cost_s < _HEAVY_S:
            return False
        for identity, owner in self._owners.items():
            behind = owner.spent + _GRACE_S < ahead.spent
            if behind and not owner.round and (owner.running or now - owner.served < _GRACE_S):
                self.awaited = identity
                return True
        return False

    def _forget_idle(self, now: float) -> None:
        """Forget owners without requests whose time is not ahead of the queue."""
        gone = [
            identity
            for identity, owner in self._owners.items()
            if owner.is_idle and owner.spent <= self._time and now - owner.served > _GRACE_S
        ]
        for identity in gone:
            del self._owners[identity]


class _Round:
    """Rounds over channels that have requests: ``share`` turns for each, one batch a turn."""

    def __init__(self) -> None:
        self._channels: deque[Channel] = deque()
        self._used = 0
        """Turns of the first channel in this round so far."""

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._channels)

    def enter(self, channel: Channel) -> None:
        self._channels.append(channel)

    def next(self, admits: Callable[[SampleTask], bool]) -> SampleTask | None:
        for _ in range(len(self._channels)):
            channel = self._channels[0]
            if channel.queue and admits(channel.queue[0]):
                task = channel.queue.popleft()
                self._used += 1
                if self._used >= channel.share or not channel.queue:
                    self._pass_on(stays=bool(channel.queue))
                return task
            self._pass_on(stays=bool(channel.queue))
        return None

    def _pass_on(self, *, stays: bool) -> None:
        channel = self._channels.popleft()
        self._used = 0
        channel.in_round = stays
        if stays:
            self._channels.append(channel)


@dataclass(slots=True, eq=False)
class _Owner:
    """Channels of one owner, and the time that it used."""

    spent: float
    """Seconds of sampling threads by share. Batches under way count with their expected seconds."""
    round: _Round = field(default_factory=_Round)
    running: int = 0
    served: float = float("-inf")
    """When its last batch was finished."""

    @property
    def is_idle(self) -> bool:
        return not self.round and not self.running
