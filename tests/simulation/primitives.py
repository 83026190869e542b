"""Locks, conditions, events, queues and threads of a simulated world, with the names of the real ones."""

from __future__ import annotations

import queue
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from tests.simulation.world import Task, World


def threads_of(world: World) -> SimpleNamespace:
    """Return what stands for the module ``threading``."""
    return SimpleNamespace(
        Thread=lambda **options: Thread(world, **options),
        Lock=lambda: Lock(world),
        RLock=lambda: Lock(world),
        Condition=lambda lock=None: Condition(world, lock),
        Event=lambda: Event(world),
        get_ident=lambda: id(world.current),
        current_thread=lambda: world.current,
    )


def _wake(world: World, waiting: deque[Task]) -> None:
    """Have the first thread go on of those that wait. One whose time is over meanwhile goes on by itself."""
    while waiting:
        task = waiting.popleft()
        if task.is_parked:
            world.unpark(task)
            return


def _wait(world: World, waiting: deque[Task], until: float | None) -> bool:
    """Wait among others until ``_wake``, or until a time. Return whether it was ``_wake``."""
    task = world.current
    waiting.append(task)
    try:
        return world.park(until)
    finally:
        if task in waiting:
            waiting.remove(task)


class Thread:
    """``threading.Thread``."""

    def __init__(
        self,
        world: World,
        *,
        target: Callable[..., object],
        name: str,
        args: tuple[Any, ...] = (),
        daemon: bool,
    ) -> None:
        assert daemon, f"{name}: it would keep a process from its end"
        self.name = name
        self._world = world
        self._job = partial(target, *args)
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._world.start(self._job, self.name)

    def is_alive(self) -> bool:
        return self._task is not None and self._task.is_alive

    def join(self, timeout: float | None = None) -> None:
        until = None if timeout is None else self._world.now + timeout
        if self._task is not None:
            self._world.join(self._task, until)


class Lock:
    """``threading.RLock``, and ``threading.Lock`` as far as the code under simulation uses it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: Task | None = None
        self._count = 0
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._world.current
        if self._owner is me:
            self._count += 1
            return True
        self._world.give_way()
        until = None if timeout < 0 else self._world.now + timeout
        while self._owner is not None:
            if not blocking:
                return False
            if not _wait(self._world, self._waiting, until):
                return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._owner = None
            _wake(self._world, self._waiting)

    def release_all(self) -> int:
        """Release a lock that may have been taken several times. Return how often."""
        count, self._count = self._count, 1
        self.release()
        return count

    def acquire_again(self, count: int) -> None:
        """Take the lock as often as before ``release_all``."""
        self.acquire()
        self._count = count

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """``threading.Condition``."""

    def __init__(self, world: World, lock: Lock | None = None) -> None:
        self._world = world
        self._lock = Lock(world) if lock is None else lock
        self._waiting: deque[Task] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        count = self._lock.release_all()
        woken = _wait(self._world, self._waiting, None if timeout is None else self._world.now + timeout)
        self._lock.acquire_again(count)
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._world.now + timeout
        while not (result := predicate()):
            left = None if until is None else until - self._world.now
            if left is not None and left <= 0:
                return predicate()
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            _wake(self._world, self._waiting)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Event:
    """``threading.Event``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: deque[Task] = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        while self._waiting:
            _wake(self._world, self._waiting)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        until = None if timeout is None else self._world.now + timeout
        while not self._is_set and _wait(self._world, self._waiting, until):
            pass
        return self._is_set


class SimpleQueue:
    """``queue.SimpleQueue``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiting: deque[Task] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        _wake(self._world, self._waiting)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        until = None if timeout is None else self._world.now + timeout
        while not self._items:
            if not block:
                raise queue.Empty
            if not _wait(self._world, self._waiting, until):
                raise queue.Empty
        return self._items.popleft()
