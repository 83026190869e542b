"""Time slices of batches: a batch of minutes must not keep a thread from other owners.

It is paused at its next check of its stop flag (``StopFlag.pause``), keeps what it has done, and goes on when
its owner is next. Batches that were begun hold scratch memory, so their number is limited; where all places
are taken and another owner waits, a paused batch is stopped and sampled anew later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_server.sampling.fair_queue import QUANTUM_S
from gigl_server.sessions.channel import StopCause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gigl_server.admission import Identity
    from gigl_server.sampling.fair_queue import FairQueue
    from gigl_server.sessions.channel import SampleTask

TICK_S = 0.02
"""Between two looks at the batches that were begun."""

_MOST_PASSED_S = 1.0
"""Time that counts between two looks. More: the process was stopped (SIGSTOP), and the batch did not run."""

_LATE_S = 0.25
"""A batch that reaches no check of its flag for so long leaves its place to another one all the same. Both
then run at once: no batch waits for one that waits for a lock of a paused batch."""

_LEAST_ASIDE = 8


def places(threads: int) -> int:
    """Return how many batches may be begun at once: those with a thread, and those that were set aside."""
    return threads + max(threads, _LEAST_ASIDE)


def extra_threads(threads: int) -> int:
    """Return how many interactive batches may run beside ``threads`` batches. More wait for one to end."""
    return max(threads // 2, 2)


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
    def has_extra_thread(self) -> bool:
        """Whether an interactive batch may run beside as many others as run at once.

        It waits for none of them to end: the kernel divides the cores.
        """
        return self.busy < self.threads + extra_threads(self.threads)

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

    def end(self, task: SampleTask, seconds: float, *, busy_s: float) -> None:
        """Record the end of a batch that took ``seconds``, the time that it was set aside included.

        ``busy_s``: of these, without the time for which its thread waited for a core.
        """
        self.begun.discard(task)
        if task.aside_since is None:
            self.busy -= 1
        else:
            task.aside_s += self._clock() - task.aside_since
        self._turns.settle(task, max(seconds - task.aside_s, task.ran_s, 0.0), busy_s=busy_s)

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
