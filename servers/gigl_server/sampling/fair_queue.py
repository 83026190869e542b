"""Fair queueing of batches: owners by sampling time, the channels of an owner in rounds; and time slices.

A batch of minutes must not keep a thread from other owners. It is paused at its next check of its stop flag
(``StopFlag.pause``), keeps what it has done, and goes on when its owner is next. Batches that were begun hold
scratch memory, so their number is limited; where all places are taken and another owner waits, a paused batch
is stopped and sampled anew later.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gigl_server.sessions.channel import StopCause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

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
TICK_S = 0.02
"""Between two looks at the batches that were begun."""

_MOST_PASSED_S = 1.0
"""Time that counts between two looks. More: the process was stopped (SIGSTOP), and the batch did not run."""

_LATE_S = 0.25
"""A batch that reaches no check of its flag for so long leaves its place to another one all the same. Both
then run at once: no batch waits for one that waits for a lock of a paused batch."""

_LEAST_ASIDE = 8


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
        self, clock: Callable[[], float], share_of: Callable[[Identity], float] = lambda _: 1.0
    ) -> None:
        """``share_of`` returns the weight of an owner."""
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
        for owner in sorted(self._owners.values(), key=lambda each: each.spent):
            task = self._next_of(owner, admits, now)
            if task is not None:
                self._time = max(self._time, owner.spent)
                owner.running.add(task)
                self.charge(task, min(self._costs.expected(task.channel), QUANTUM_S))
                return task
        return None

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
            task.charged_s = seconds
            self._owners[task.channel.owner].spent += more / self._share_of(task.channel.owner)

    def is_to_yield(self, task: SampleTask, admits: Callable[[SampleTask], bool]) -> bool:
        """Return whether an owner with less time than that of a running batch has a batch to run."""
        spent = self._owners[task.channel.owner].spent
        return any(each.spent < spent and each.has_work(admits) for each in self._owners.values())

    def set_aside(self, task: SampleTask) -> None:
        """Take a running batch from its thread, until ``next`` returns it."""
        owner = self._owners[task.channel.owner]
        owner.running.discard(task)
        owner.aside.append(task)

    def settle(self, task: SampleTask, seconds: float) -> None:
        """End a batch, charged the seconds that it took in place of the expected ones."""
        owner = self._owners[task.channel.owner]
        owner.spent += (seconds - task.charged_s) / self._share_of(task.channel.owner)
        task.charged_s = 0.0
        owner.running.discard(task)
        if task in owner.aside:
            owner.aside.remove(task)
        owner.served = self._clock()
        self._costs.add(task.channel, seconds)

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


def places(threads: int) -> int:
    """Return how many batches may be begun at once: those with a thread, and those that were set aside."""
    return threads + max(threads, _LEAST_ASIDE)


class TimeSlices:
    """Batches that were begun, with a thread or set aside. Under the service's lock."""

    def __init__(
        self, turns: FairQueue, clock: Callable[[], float], limit_s: Callable[[Identity], float]
    ) -> None:
        """``limit_s`` returns the seconds that a batch of an owner may run."""
        self.threads = 1
        """Batches that run at once."""
        self.busy = 0
        """Batches that run now."""
        self.begun: set[SampleTask] = set()
        self._turns = turns
        self._clock = clock
        self._limit_s = limit_s

    @property
    def has_thread(self) -> bool:
        """Whether another batch may run now."""
        return self.busy < self.threads

    @property
    def is_full(self) -> bool:
        """Whether no other batch may be begun."""
        return len(self.begun) >= places(self.threads)

    @property
    def aside(self) -> list[SampleTask]:
        """Batches that wait for a thread."""
        return [each for each in self.begun if each.aside_since is not None]

    def has_place(self, owner: Identity) -> bool:
        """Return whether an owner may begin a batch. The last place is for owners that have begun none."""
        free = places(self.threads) - len(self.begun)
        return free > 1 or (free == 1 and all(each.channel.owner != owner for each in self.begun))

    def run(self, task: SampleTask) -> bool:
        """Give a thread to the batch that the queue chose. Return whether it is new."""
        self.busy += 1
        now = self._clock()
        task.clocked, task.stint_s, task.yielding_s = now, 0.0, None
        if task.aside_since is None:
            self.begun.add(task)
            return True
        task.aside_s += now - task.aside_since
        task.aside_since = None
        task.flag.resume()
        return False

    def end(self, task: SampleTask, seconds: float) -> None:
        """Record the end of a batch that took ``seconds``, the time that it was set aside included."""
        self.begun.discard(task)
        if task.aside_since is None:
            self.busy -= 1
        else:
            task.aside_s += self._clock() - task.aside_since
        self._turns.settle(task, max(seconds - task.aside_s, task.ran_s, 0.0))

    def look(self, admits: Callable[[SampleTask], bool]) -> None:
        """Charge batches the time that passed, stop batches beyond their limit, and set some aside."""
        running = [each for each in self.begun if each.aside_since is None or not each.flag.parked]
        for task in running:
            self._count(task)
        for task in running:
            if task.aside_since is None and self._has_yielded(task):
                self._set_aside(task)
        if not self.has_thread:
            self._take_thread(running, admits)

    def stop_for(self, waiting: SampleTask, among: Collection[SampleTask]) -> None:
        """Stop one of ``among``: of the owner that is most ahead of the one whose request waits for a place.

        A batch is not stopped twice for what it has done: it runs for twice as long the next time.
        """
        if any(each.cause is StopCause.PLACE for each in self.begun):
            return
        behind = self._turns.spent(waiting.channel.owner)
        found = [
            each
            for each in among
            if each.ran_s >= each.safe_s and self._turns.spent(each.channel.owner) > behind
        ]
        if found:
            victim = max(found, key=lambda each: self._turns.spent(each.channel.owner))
            victim.safe_s = 2 * victim.ran_s
            victim.stop(StopCause.PLACE)

    @staticmethod
    def _has_yielded(task: SampleTask) -> bool:
        return task.yielding_s is not None and (task.flag.parked or task.yielding_s > _LATE_S)

    def _count(self, task: SampleTask) -> None:
        now = self._clock()
        passed = min(now - task.clocked, _MOST_PASSED_S)
        task.clocked = now
        task.ran_s += passed
        task.stint_s += passed
        if task.yielding_s is not None:
            task.yielding_s += passed
        self._turns.charge(task, task.ran_s)
        if task.ran_s > self._limit_s(task.channel.owner):
            task.stop(StopCause.TIME)

    def _take_thread(self, running: Collection[SampleTask], admits: Callable[[SampleTask], bool]) -> None:
        """Tell a batch to leave its thread, where an owner with less time waits for one."""
        yielding = [each for each in running if each.aside_since is None and each.yielding_s is not None]
        if len(yielding) > self.threads // 4:
            return
        full = [each for each in running if each.yielding_s is None and each.stint_s >= QUANTUM_S]
        ahead = max(full, key=lambda each: self._turns.spent(each.channel.owner), default=None)
        if ahead is not None and self._turns.is_to_yield(ahead, admits):
            ahead.yielding_s = 0.0
            ahead.flag.pause()

    def _set_aside(self, task: SampleTask) -> None:
        task.aside_since = self._clock()
        self.busy -= 1
        self._turns.set_aside(task)
