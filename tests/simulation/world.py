"""Virtual world: a clock, and threads of which one runs at a time, in an order that a seed decides.

The code under simulation finds clock, threads, locks, queues and chance behind the names ``time``,
``threading``, ``queue`` and ``random`` of its own modules; ``World.installed`` replaces them. A simulated
thread is a thread of the system that runs only while it has the baton, and passes it on where it waits. Where
no thread can run, the clock goes to the next event. An hour of waiting takes milliseconds, and a seed repeats
every step.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.simulation import primitives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_STEP_S = 1e-6
"""Time that a look at the clock takes."""
_MAX_STEPS = 500_000
"""Steps of one run: more are a loop without a wait."""
_FIRST_S = 1_000.0
_LATE = 0.3
"""Share of the threads that go on late, where the machine is loaded."""
_GIVES_WAY = 0.2


class Ended(BaseException):
    """The world has ended: raised in the threads that are left."""


class Stuck(AssertionError):
    """All threads wait, and no event is to come; or they run for ever."""


class Task:
    """Simulated thread."""

    def __init__(self, name: str, job: Callable[[], object] | None = None) -> None:
        self.name = name
        self.job = job
        self.baton = threading.Lock()
        """Held while the task does not run."""
        self.baton.acquire()
        self.is_alive = True
        self.is_parked = self.was_woken = False
        self.parks = 0
        """Number of its waits: a timer of an earlier one is void."""
        self.joiners: list[Task] = []


class World:
    """Clock, threads and events of one run."""

    def __init__(self, seed: int, *, load_s: float = 0.0) -> None:
        """``load_s``: longest delay of a thread that is to go on, as where cores are few."""
        self.random = Random(seed)
        self.begin = self.now = _FIRST_S
        self.steps = 0
        self._load_s = load_s
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._runnable: list[Task] = []
        self._main = self._current = Task("main")
        self._tasks: dict[Task, None] = {}  # In order, for equal runs.
        self._is_ending = False
        self._failure: BaseException | None = None
        self._unwound = threading.Semaphore(0)

    # What the code under simulation sees

    @contextmanager
    def installed(self, *modules: ModuleType) -> Iterator[None]:
        """Replace clock, threads, queues and chance of ``modules`` by those of this world."""
        names = {
            "time": SimpleNamespace(
                monotonic=self.monotonic,
                time=lambda: self.now,
                sleep=self.sleep,
                thread_time=lambda: 0.0,
            ),
            "threading": primitives.threads_of(self),
            "queue": SimpleNamespace(SimpleQueue=lambda: primitives.SimpleQueue(self), Empty=queue.Empty),
            "random": SimpleNamespace(random=self.random.random),
        }
        before = [
            (vars(module), name, vars(module)[name])
            for module in modules
            for name in names
            if name in vars(module)
        ]
        for found, name, _ in before:
            found[name] = names[name]
        try:
            yield
        finally:
            for found, name, value in before:
                found[name] = value

    def monotonic(self) -> float:
        """Return the time. It goes on a little at each look."""
        self.now += _STEP_S
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let so much time pass in this thread."""
        until = self.now + max(seconds, 0.0)
        while self.now < until:
            self.park(until)

    # What simulated servers, locks and programs use

    @property
    def current(self) -> Task:
        """The thread that runs."""
        return self._current

    @property
    def alive(self) -> list[str]:
        """Names of the threads that have not ended, but for the main one."""
        return sorted(task.name for task in self._tasks)

    def run(self, program: Callable[[], Any]) -> Any:
        """Run ``program`` in the main thread. Raises what any thread failed with. Ends the threads left."""
        try:
            result = program()
        finally:
            self._is_ending = True
            for task in list(self._tasks):
                task.baton.release()
                self._unwound.acquire()
        if self._failure is not None:
            raise self._failure
        return result

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Call ``event`` at a time. It must not wait."""
        heapq.heappush(self._events, (when, next(self._order), event))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Call ``event`` in so many seconds."""
        self.at(self.now + seconds, event)

    def start(self, job: Callable[[], object], name: str) -> Task:
        """Start a thread."""
        task = Task(name, job)
        if not self._is_ending:
            self._tasks[task] = None
            _Carrier.carries(self, task)
            self._schedule(task)
        return task

    def join(self, task: Task, until: float | None = None) -> None:
        """Wait until a thread has ended, or until a time."""
        while task.is_alive and (until is None or self.now < until):
            task.joiners.append(self._current)
            self.park(until)

    def park(self, until: float | None = None) -> bool:
        """Wait until ``unpark``, or until a time. Return whether it was ``unpark``."""
        task = self._current
        if self._is_ending:
            raise Ended
        task.is_parked, task.was_woken = True, False
        task.parks += 1
        if until is not None:
            parks = task.parks
            self.at(until, lambda: self._time_out(task, parks))
        self._pass_on(task)
        return task.was_woken

    def unpark(self, task: Task) -> None:
        """Have a thread that waits go on."""
        if task.is_parked:
            task.is_parked, task.was_woken = False, True
            self._schedule(task)

    def give_way(self) -> None:
        """Let other threads go first, by chance."""
        if self.random.random() < _GIVES_WAY and not self._is_ending:
            self._runnable.append(self._current)
            self._pass_on(self._current)

    def carry(self, task: Task) -> None:
        """Run a task, which has the baton, and pass it on."""
        try:
            if not self._is_ending and task.job is not None:
                task.job()
        except Ended:
            pass
        except BaseException as error:
            self._failure = self._failure or error
        task.is_alive, task.job = False, None
        if self._is_ending:
            self._unwound.release()
            return
        del self._tasks[task]
        for joiner in task.joiners:
            self.unpark(joiner)
        self._next().baton.release()

    def _schedule(self, task: Task) -> None:
        if self._load_s and self.random.random() < _LATE:
            self.after(self.random.random() * self._load_s, lambda: self._runnable.append(task))
        else:
            self._runnable.append(task)

    def _time_out(self, task: Task, parks: int) -> None:
        if task.is_parked and task.parks == parks:
            task.is_parked = False
            self._schedule(task)

    def _pass_on(self, task: Task) -> None:
        """Give the baton to the thread that is next, and wait for it."""
        chosen = self._next()
        if chosen is not task:
            chosen.baton.release()
            task.baton.acquire()
            if self._is_ending:
                raise Ended
        if self._failure is not None and task is self._main:
            raise self._failure

    def _next(self) -> Task:
        """Return the thread that goes on, after the events that are due."""
        self.steps += 1
        while not self._runnable or (self._events and self._events[0][0] <= self.now):
            if not self._events:
                return self._give_up(f"all threads wait for ever: {self.alive}")
            when, _, event = heapq.heappop(self._events)
            self.now = max(self.now, when)
            event()
        if self.steps > _MAX_STEPS:
            return self._give_up(f"{self.steps} steps: a loop without a wait")
        place = self.random.randrange(len(self._runnable)) if len(self._runnable) > 1 else 0
        self._current = self._runnable.pop(place)
        return self._current

    def _give_up(self, reason: str) -> Task:
        """Fail the main thread, which goes on next."""
        self._failure = self._failure or Stuck(reason)
        self._current = self._main
        return self._main


class _Carrier:
    """Thread of the system that runs one task after another, of any world."""

    _free: queue.SimpleQueue[_Carrier] = queue.SimpleQueue()

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[World, Task]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="simulation", daemon=True).start()

    @classmethod
    def carries(cls, world: World, task: Task) -> None:
        """Have a carrier run ``task`` once that has the baton."""
        try:
            carrier = cls._free.get_nowait()
        except queue.Empty:
            carrier = cls()
        carrier._tasks.put((world, task))

    def _work(self) -> None:
        while True:
            world, task = self._tasks.get()
            task.baton.acquire()
            world.carry(task)
            del world, task
            self._free.put(self)
