"""One call to any of several servers: when it is attempted, hedged, retried and cancelled.

``Call`` is a state machine without threads, clock or sockets. Gathers, lists and queries drive it from the
thread of their caller (``rpc.replicas``), batches from the callbacks of their dispatcher (``gigl_client``).

Hedging is that of "The Tail at Scale" (Dean and Barroso, 2013): a second copy of the slowest few percent of
requests cuts the tail of their latency, and adds only those few percent of load.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gigl_loader.errors import SamplingError, strip_traceback
from gigl_loader.native import check_stop, current_stop_flag
from gigl_loader.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from gigl_loader.native import StopFlag

STOP_POLL_S = 0.05
"""Interval at which a waiting thread polls its stop flag: setting the flag wakes no thread."""


class Cancelled(SamplingError):
    """The call was cancelled: its result is not needed any more."""


class Cancellation:
    """Ends a call wherever it waits: while it connects, sends or receives, and between two attempts."""

    def __init__(self) -> None:
        self.heard_at = -math.inf
        """When a part of the reply came last (monotonic), as ``hear`` was told."""
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._end: Callable[[], object] | None = None

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def cancel(self) -> None:
        """End the call. Does not wait. Cancelling twice, or after the end of the call, is fine."""
        with self._lock:
            self._event.set()
            if self._end is not None:
                self._end()

    def hear(self) -> None:
        """Record that a part of the reply has come: its server is slow at most, and not stalled."""
        self.heard_at = time.monotonic()

    def then(self, end: Callable[[], object] | None) -> None:
        """Set the function that ``cancel`` calls. ``end`` must not block.

        It is called at once where the call is cancelled already.
        """
        with self._lock:
            self._end = end
            if end is not None and self.cancelled:
                end()

    @contextmanager
    def ends_by(self, end: Callable[[], object]) -> Iterator[None]:
        """Have ``cancel`` call ``end``, as by ``then``, until the end of the block.

        Not later: a connection that was returned to its pool may serve another call.
        """
        self.then(end)
        try:
            yield
        finally:
            self.then(None)

    def wait(self, seconds: float) -> bool:
        """Wait until the call is cancelled, for at most ``seconds``. Return whether it is.

        Raises ``native.Stopped`` where the stop flag of this thread is set meanwhile.
        """
        until = time.monotonic() + seconds
        while current_stop_flag() is not None and (left := until - time.monotonic()) > STOP_POLL_S:
            check_stop()
            if self._event.wait(min(left, STOP_POLL_S)):
                return True
        return self._event.wait(max(until - time.monotonic(), 0.0))


_IDLE_S = 10.0
"""Time without a job after which a thread ends."""

_Job = tuple["Callable[[], None]", "StopFlag | None"]


class AttemptThreads:
    """Daemon threads that run jobs. A thread is started where none is free. A job must not raise.

    The thread that was busy last gets the next job, so that those of a burst end after it.
    """

    def __init__(self, name: str, *, idle_s: float = _IDLE_S) -> None:
        """A thread ends after ``idle_s`` without a job."""
        self._name = name
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._free: list[queue.SimpleQueue[_Job | None]] = []
        """One queue for each thread that waits for a job, busy last at the end."""
        self._closed = False

    def run(self, job: Callable[[], None]) -> None:
        """Run a job in a thread, under the stop flag and in the context (``contextvars``) of the caller.

        ``RuntimeError`` where the system has no thread to give, or after ``close``.
        """
        flagged = partial(copy_context().run, job), current_stop_flag()
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads were closed")
            jobs = self._free.pop() if self._free else None
        if jobs is None:
            jobs = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(jobs,), name=self._name, daemon=True).start()
        jobs.put(flagged)

    def close(self) -> None:
        """End every thread after its job. Does not wait."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for jobs in free:
            jobs.put(None)

    def _work(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (item := self._next(jobs)) is not None:
            job, flag = item
            with flag or nullcontext():
                job()
            del item, job, flag
            with self._lock:
                if self._closed:
                    return
                self._free.append(jobs)

    def _next(self, jobs: queue.SimpleQueue[_Job | None]) -> _Job | None:
        """Return the next job. ``None``: the thread is to end."""
        try:
            return jobs.get(timeout=self._idle_s)
        except queue.Empty:
            with self._lock:
                if jobs in self._free:
                    self._free.remove(jobs)
                    return None
        return jobs.get()  # It is on its way.


_WINDOW = 256
_ENOUGH = 64
"""Requests of a kind before any is hedged: the 95th percentile of fewer is not reliable."""
_EVERY = 32
"""Requests of a kind after which its percentile is computed anew."""
_PERCENTILE = 0.95
_SHARE = 0.05
_MAX_SAVED = 8.0
"""Limit on unused hedges that are kept for later."""
_MIN_S = 0.010
"""Shorter delays would measure the scheduling of threads instead of slow servers."""
_STALLED_S = 1.0
_STALLED_TIMES = 3.0


class _Kind:
    """Latest durations of one kind of request."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=_WINDOW)
        self.since = 0
        self.percentile: float | None = None


class Hedging:
    """Durations of requests by kind, and a budget. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[Hashable, _Kind] = {}
        self._budget = 0.0

    def record(self, kind: Hashable, seconds: float) -> None:
        """Add the duration of a request that succeeded."""
        with self._lock:
            self._budget = min(self._budget + _SHARE, _MAX_SAVED)
            found = self._kinds.setdefault(kind, _Kind())
            found.seconds.append(seconds)
            found.since += 1
            if len(found.seconds) >= _ENOUGH and (found.percentile is None or found.since >= _EVERY):
                found.since = 0
                found.percentile = sorted(found.seconds)[int(_PERCENTILE * len(found.seconds))]

    def delay_s(self, kind: Hashable) -> float | None:
        """Return the delay before a hedge: the 95th percentile. ``None``: not known yet."""
        found = self._kinds.get(kind)
        percentile = None if found is None else found.percentile
        return None if percentile is None else max(percentile, _MIN_S)

    def stalled_s(self, kind: Hashable) -> float:
        """Return after what silence a server counts as stalled: another is tried then, budget or not."""
        return max(_STALLED_TIMES * (self.delay_s(kind) or 0.0), _STALLED_S)

    def take(self) -> bool:
        """Take a hedge from the budget: 5 % of the requests. Return whether one was left."""
        with self._lock:
            if self._budget < 1:
                return False
            self._budget -= 1
            return True


class CallAttempt(Protocol):
    """Request that was sent to one server."""

    @property
    def since(self) -> float:
        """When it was sent (monotonic)."""

    @property
    def heard_at(self) -> float:
        """When it was sent, or a part of its reply came last. Infinity: its server owes nothing more."""


Attempt = TypeVar("Attempt", bound=CallAttempt)

_LAST_ATTEMPT_S = 0.2
"""Reserved for a last attempt before the deadline; connecting takes 10 ms."""


class Call(Generic[Attempt]):
    """State of one call. Not thread-safe: a lock of its user guards it.

    Without an attempt under way, the next one is due at once, or after a pause that grows with each failure.
    Beside the newest attempt, another one is due when it is later than 95 % of the calls of its kind (a
    hedge, within the budget), and when its server counts as stalled, whatever the budget: when nothing was
    heard of it for long. A server whose reply comes slowly does not: a network that is full would carry a
    second reply more slowly still. The first attempt that succeeds wins; ``won`` returns the other attempts,
    which the user of the call cancels.
    """

    def __init__(
        self, kind: Hashable, hedging: Hedging, *, most: int, began: float = 0.0, deadline: float = math.inf
    ) -> None:
        """Calls of one ``kind`` are expected to take equally long. ``most`` attempts run at the same time."""
        self._kind = kind
        self._hedging = hedging
        self._most = most
        self._deadline = deadline
        self._reserve_s = min(_LAST_ATTEMPT_S, (deadline - began) / 4)
        self._backoff: Backoff | None = None
        self._refused = False
        """The budget had no hedge left beside the newest attempt."""
        self.attempts: list[Attempt] = []
        """Attempts under way, oldest first."""
        self.not_before = 0.0
        """When the pause after a failure ends (monotonic)."""
        self.failing_since: float | None = None
        """When an attempt failed first."""
        self.error: Exception | None = None
        """Error of the last attempt that failed."""

    def due_at(self) -> float:
        """Return when the next attempt is due (monotonic). Infinity while as many as may be are under way."""
        if not self.attempts:
            return self.not_before
        if len(self.attempts) >= self._most or self.attempts[-1].heard_at == math.inf:
            return math.inf
        hedged = len(self.attempts) == 1 and not self._refused
        delay_s = self._hedging.delay_s(self._kind) if hedged else None
        due_at = self.stalled_at() if delay_s is None else self.attempts[-1].since + delay_s
        return max(due_at, self.not_before)

    def stalled_at(self) -> float:
        """Return when the server of the newest attempt counts as stalled (monotonic)."""
        return self.attempts[-1].heard_at + self._hedging.stalled_s(self._kind)

    def may_start(self, now: float) -> bool:
        """Return whether to start an attempt now. Takes a hedge from the budget where it is one."""
        if now < self.due_at():
            return False
        self._refused = bool(self.attempts) and now < self.stalled_at() and not self._hedging.take()
        return not self._refused

    def started(self, attempt: Attempt) -> None:
        """Record that an attempt was started."""
        self.attempts.append(attempt)
        self._refused = False

    def won(self, attempt: Attempt, now: float) -> list[Attempt]:
        """Record that an attempt succeeded. Return the others, whose results are not needed."""
        # The time of this attempt alone: that of a stalled server before it would make later hedges later.
        self._hedging.record(self._kind, now - attempt.since)
        others = [each for each in self.attempts if each is not attempt]
        self.attempts.clear()
        return others

    def failed(self, attempt: Attempt, now: float, error: Exception | None, *, pauses: bool = True) -> None:
        """Record that an attempt failed with an error that another attempt may resolve.

        ``None`` where the request was lost with its connection. ``pauses``: the next attempt waits.
        """
        self.attempts.remove(attempt)
        if error is None:
            return
        self.error = strip_traceback(error)
        self.failing_since = now if self.failing_since is None else self.failing_since
        if pauses:
            self._backoff = self._backoff or Backoff()
            pause_ends, last = now + self._backoff.next_s(), self._deadline - self._reserve_s
            self.not_before = last if now < last < pause_ends else pause_ends
