"""Fair queueing of batches: owners by sampling time, the channels of an owner in rounds.

Batches that callers wait for go before those of trainers, within a share of the time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_server.admission import Identity
    from gigl_server.sessions.channel import Channel, SampleTask

QUANTUM_S = 0.1
"""Seconds that a batch runs before it may be set aside for another owner. A batch that is expected to take
longer is heavy."""

_GRACE_S = 0.03
"""A trainer sends its next request within milliseconds of a reply. A heavy batch of an owner that is ahead
waits this long for that request: setting the batch aside again takes as long."""

_FIRST_COST_S = 0.01
_KEPT_COSTS = 4096
_BURST_S = 1.0
"""Seconds for which unused time of the interactive share is kept, and which it may put an owner ahead."""


class InteractiveShare:
    """Time of the sampling threads in which interactive batches go before others. Not thread-safe.

    A bucket of seconds, which fills with ``share`` of the time of all threads, and is emptied by the time
    that interactive batches take. Once it is empty, they take turns with all batches.
    """

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.threads = 1
        self._share = share
        self._clock = clock
        self._seconds = 0.0
        self._filled = clock() - _BURST_S

    @property
    def has_time(self) -> bool:
        now, rate = self._clock(), self._share * self.threads
        self._seconds = min(self._seconds + (now - self._filled) * rate, _BURST_S * rate)
        self._filled = now
        return self._seconds > 0

    def charge(self, seconds: float) -> None:
        """Take seconds out. Batches that took turns while it was empty leave no debt beyond a quantum."""
        self._seconds = max(self._seconds - seconds, -QUANTUM_S)


class FairQueue:
    """Chooses the next batch. Not thread-safe.

    Between owners: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) of seconds of sampling
    threads. The owner that had the fewest is next, so one with heavy batches gets fewer of them. An owner
    that was idle starts at the current time of the queue: it gets no credit for the time that it did not use.
    An owner with share 2 gets twice the time of one with share 1: its seconds count half.

    A batch is charged while it runs (``charge``). One that ran for ``QUANTUM_S`` is set aside where an owner
    with less time waits (``is_to_yield``), and is chosen again by the same rule.

    Among the channels of an owner: rounds, ``share`` batches for each. A channel waits at most
    for one share of each other channel, however many requests they have. While batches of an owner are set
    aside, it begins no further heavy ones.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        share_of: Callable[[Identity], float] = lambda _: 1.0,
        *,
        interactive_share: float = 0.0,
    ) -> None:
        """``share_of`` returns the weight of an owner."""
        self.interactive = InteractiveShare(interactive_share, clock)
        self._has_interactive = False
        """An interactive channel has come so far."""
        self._clock = clock
        self._share_of = share_of
        self._owners: dict[Identity, _Owner] = {}
        self._costs = ExpectedCosts()
        self._time = 0.0
        """Virtual time: seconds of the owner that was served last, before its batch."""
        self.awaited: Identity | None = None
        """Owner for whose request the last call of ``next`` delayed a heavy batch."""

    def __len__(self) -> int:
        return sum(len(each.round) + len(each.aside) for each in self._owners.values())

    @property
    def waiting(self) -> list[Channel]:
        """Channels whose next request needs frame memory."""
        return [
            channel
            for owner in self._owners.values()
            for channel in owner.round
            if channel.queue and channel.queue[0].needs_frame_memory
        ]

    def without_batch(self) -> SampleTask | None:
        """Return the request of the owner with the least time among owners without a batch under way."""
        owners = sorted(self._owners.values(), key=lambda each: each.spent)
        idle = (each for each in owners if not (each.running or each.aside))
        return next((channel.queue[0] for owner in idle for channel in owner.round if channel.queue), None)

    def enter(self, channel: Channel) -> None:
        """Add a channel that has requests, behind the other channels of its owner."""
        if channel.in_round:
            return
        channel.in_round = True
        self._has_interactive |= channel.interactive
        owner = self._owners.get(channel.owner)
        if owner is None:
            owner = self._owners[channel.owner] = _Owner(spent=self._time)
        if owner.is_idle and self._clock() - owner.served > _GRACE_S:
            owner.spent = max(owner.spent, self._time)
        owner.round.enter(channel)

    def next(self, admits: Callable[[SampleTask], bool]) -> SampleTask | None:
        """Remove and return the next batch: one that was set aside, or a request.

        Channels whose request is not admitted now are skipped.
        """
        now = self._clock()
        self.awaited = None
        self._forget_idle(now)
        first = self.next_interactive(admits)
        if first is not None:
            return first
        for owner in sorted(self._owners.values(), key=lambda each: each.spent):
            task = self._next_of(owner, admits, now)
            if task is not None:
                self._time = max(self._time, owner.spent)
                return self._begun(owner, task)
        return None

    def next_interactive(self, admits: Callable[[SampleTask], bool]) -> SampleTask | None:
        """Remove and return the next light request of an interactive channel, while their share has time.

        An owner that had ``_BURST_S`` more than another one that waits takes turns with it.
        """
        if not self._has_interactive or not self.interactive.has_time:
            return None
        waiting = sorted((each for each in self._owners.values() if each.round), key=lambda each: each.spent)
        for owner in waiting:
            if owner.spent > waiting[0].spent + _BURST_S:
                return None
            task = owner.round.next_interactive(
                lambda each: self._costs.expected(each.channel) < QUANTUM_S and admits(each)
            )
            if task is not None:
                return self._begun(owner, task)
        return None

    def _begun(self, owner: _Owner, task: SampleTask) -> SampleTask:
        owner.running.add(task)
        self.charge(task, min(self._costs.expected(task.channel), QUANTUM_S))
        return task

    def _next_of(self, owner: _Owner, admits: Callable[[SampleTask], bool], now: float) -> SampleTask | None:
        """Return a batch of an owner that was set aside, or a request, in turns where there are both."""
        light_only = bool(owner.aside)
        if owner.aside and not owner.resumed and not self._is_kept_back(owner, now):
            owner.resumed = True
            return owner.aside.popleft()
        owner.resumed = False
        task = owner.round.next(self._admission(owner, admits, now, light_only=light_only))
        if task is None and owner.aside and not self._is_kept_back(owner, now):
            return owner.aside.popleft()
        return task

    def _admission(
        self, owner: _Owner, admits: Callable[[SampleTask], bool], now: float, *, light_only: bool
    ) -> Callable[[SampleTask], bool]:
        """Return a function that admits requests. ``light_only``: no further heavy batch is begun."""

        def admitted(task: SampleTask) -> bool:
            heavy = self._costs.expected(task.channel) >= QUANTUM_S
            return not (heavy and (light_only or self._is_kept_back(owner, now))) and admits(task)

        return admitted

    def charge(self, task: SampleTask, seconds: float) -> None:
        """Charge a batch ``seconds`` in all, while it runs. Less than before changes nothing."""
        more = seconds - task.charged_s
        if more > 0:
            self._spend(task, more)
            task.charged_s = seconds

    def _spend(self, task: SampleTask, seconds: float) -> None:
        self._owners[task.channel.owner].spent += seconds / self._share_of(task.channel.owner)

    def is_to_yield(self, task: SampleTask, admits: Callable[[SampleTask], bool]) -> bool:
        """Return whether an owner with less time than that of a running batch has a batch to run."""
        spent = self._owners[task.channel.owner].spent
        return any(each.spent < spent and each.has_work(admits) for each in self._owners.values())

    def set_aside(self, task: SampleTask) -> None:
        """Take a running batch from its thread, until ``next`` returns it."""
        owner = self._owners[task.channel.owner]
        owner.running.discard(task)
        owner.aside.append(task)

    def settle(self, task: SampleTask, seconds: float, *, busy_s: float) -> None:
        """End a batch, charged the seconds that it took in place of the expected ones.

        One whose frame was there is charged the expected ones: as if no other job had requested it.

        An interactive batch is light or heavy, and takes of the interactive share, by ``busy_s``: other work
        for which it waited, without a core, must not use up the share.
        """
        owner = self._owners[task.channel.owner]
        if task.shared is None:
            self._spend(task, seconds - task.charged_s)
            self._costs.add(task.channel, busy_s if task.channel.interactive else seconds)
        if task.channel.interactive:
            self.interactive.charge(busy_s)
        task.charged_s = 0.0
        owner.running.discard(task)
        if task in owner.aside:
            owner.aside.remove(task)
        owner.served = self._clock()

    def charge_wait(self, owner: Identity, seconds: float) -> None:
        """Charge an owner the time that a thread waited for it."""
        if owner in self._owners:
            self._owners[owner].spent += seconds / self._share_of(owner)

    def spent(self, owner: Identity) -> float:
        """Return the seconds of an owner that has requests or batches, by share."""
        return self._owners[owner].spent

    def _is_kept_back(self, ahead: _Owner, now: float) -> bool:
        """Return whether heavy batches wait, because an owner with less time is about to send a request."""
        for identity, owner in self._owners.items():
            behind = owner.spent + _GRACE_S < ahead.spent
            if behind and not owner.round and owner.is_about_to_ask(now):
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


class ExpectedCosts:
    """Moving averages of the seconds that batches take: by owner and plan, by owner, and of all owners.

    They outlive channels and jobs: opening new ones makes no batch look cheap. Bounded: the least recently
    used averages are dropped.
    """

    def __init__(self, *, keep: int = _KEPT_COSTS) -> None:
        self._keep = keep
        self._costs: OrderedDict[tuple[Identity, bytes], float] = OrderedDict()
        self._typical_s = _FIRST_COST_S

    def __len__(self) -> int:
        return len(self._costs)

    def expected(self, channel: Channel) -> float:
        """Return the expected seconds of a batch: by the plan, else the owner's mean, else that of all."""
        for key in _keys(channel):
            if key in self._costs:
                return self._costs[key]
        return self._typical_s

    def add(self, channel: Channel, seconds: float) -> None:
        """Record the seconds of a batch."""
        for key in _keys(channel):
            before = self._costs.get(key, seconds)
            self._costs[key] = before + (seconds - before) / 4
            self._costs.move_to_end(key)
        self._typical_s += (seconds - self._typical_s) / 64
        while len(self._costs) > self._keep:
            self._costs.popitem(last=False)


def _keys(channel: Channel) -> tuple[tuple[Identity, bytes], ...]:
    return (channel.owner, channel.producer.digest), (channel.owner, b"")


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

    def has_work(self, admits: Callable[[SampleTask], bool]) -> bool:
        """Return whether ``next`` would return a request."""
        return any(channel.queue and admits(channel.queue[0]) for channel in self._channels)

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

    def next_interactive(self, admits: Callable[[SampleTask], bool]) -> SampleTask | None:
        """Return a request of an interactive channel, which goes behind the others."""
        for place, channel in enumerate(self._channels):
            if channel.interactive and channel.queue and admits(channel.queue[0]):
                task = channel.queue.popleft()
                if place == 0:
                    self._used = 0
                del self._channels[place]
                channel.in_round = bool(channel.queue)
                if channel.in_round:
                    self._channels.append(channel)
                return task
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
    """Seconds of sampling threads by share. A batch under way counts with what it was charged so far."""
    round: _Round = field(default_factory=_Round)
    running: set[SampleTask] = field(default_factory=set)
    aside: deque[SampleTask] = field(default_factory=deque)
    """Batches that were begun and wait for a thread, in the order in which they were set aside."""
    resumed: bool = False
    """The last batch was one that had been set aside: a request is next."""
    served: float = float("-inf")
    """When its last batch was finished."""

    @property
    def is_idle(self) -> bool:
        return not (self.round or self.running or self.aside)

    def has_work(self, admits: Callable[[SampleTask], bool]) -> bool:
        """Return whether it has a batch that was set aside, or an admitted request."""
        return bool(self.aside) or self.round.has_work(admits)

    def is_about_to_ask(self, now: float) -> bool:
        """Return whether its next request is about to come: a light batch runs, or ended just now."""
        if self.aside:
            return False
        light = any(each.charged_s < QUANTUM_S for each in self.running)
        return light or now - self.served < _GRACE_S
