"""Call to the holders of a partition: attempts at one after the other, and at several where one is silent."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gigl_loader.errors import StorageUnavailable
from gigl_loader.native import check_stop, current_stop_flag
from gigl_loader.retry import Backoff
from gigl_loader.rpc.cancellation import STOP_POLL_S, Cancellation
from gigl_loader.rpc.refusals import FaultKind, Retry, retry_of, rule_of
from gigl_loader.rpc.row_reader import Outrun

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.rpc.replicas import ReplicaConnection
    from gigl_loader.rpc.reply_stream import ReplyStream

__all__ = ["ReplicaCall"]

_MAX_AT_ONCE = 3
"""Attempts of one call under way at the same time."""
_LAST_ATTEMPT_S = 0.2  # Reserved for a last attempt, at most 1/4 of the call.

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """An attempt under way."""

    holder: Endpoint
    cancellation: Cancellation = field(default_factory=Cancellation)


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """An attempt that has ended."""

    holder: Endpoint
    result: Any
    error: Exception | None
    seconds: float = 0.0


class ReplicaCall(Generic[Result]):
    """Attempts of one call. The first that succeeds wins; the others are cancelled."""

    def __init__(
        self, connection: ReplicaConnection, request: bytes, read: Callable[[ReplyStream], Result]
    ) -> None:
        """Use ``ReplicaConnection.call``."""
        self._connection = connection
        self._replicas = connection.replicas
        self._request, self._read = request, read
        self._kind = type(read), len(request).bit_length()
        self._changed = threading.Condition()
        self._ended: deque[_Ended] = deque()
        self._running: dict[str, _Attempt] = {}
        self._left = False
        self._errors: dict[str, tuple[Endpoint, Exception]] = {}
        self._is_hedge = False
        """The next attempt beside others would be a hedge, within the budget."""
        self._flag = current_stop_flag()
        self._began = time.monotonic()
        self._deadline = self._began + self._replicas.timeout_s

    def run(self) -> Result:
        """Return the first result. Raises as ``ReplicaConnection.call``."""
        backoff = Backoff()
        queue = deque(self._holders())
        ask_at = 0.0  # When to ask the next holder.
        while (now := time.monotonic()) < self._deadline:
            check_stop()
            self._connection.check_open()
            ended = None
            if now < ask_at:
                ended = self._next(min(ask_at, self._deadline))
            else:
                if not queue:
                    queue.extend(self._holders())
                    self._connection.count(retries=bool(queue))
                if queue and self._may_start():
                    ended = self._start(queue.popleft())
                    ask_at = time.monotonic() + self._delay_s()
                else:
                    ask_at = now + self._stalled_s
            if ended is None:
                continue
            if self._settled(ended) is not None:
                return self._won(ended)
            self._is_hedge = False
            ask_at = 0.0 if queue else self._pause_until(backoff.next_s())
        self._connection.check_open()
        raise self._unavailable()

    def wake(self) -> None:
        """Have ``run`` look whether its connection was closed."""
        with self._changed:
            self._changed.notify_all()

    def leave(self) -> None:
        """Cancel the attempts that have not ended, and ignore them."""
        with self._changed:
            self._left = True
            self._ended.clear()
            running = list(self._running.values())
        for attempt in running:
            attempt.cancellation.cancel()

    def _holders(self) -> list[Endpoint]:
        """Return the holders to ask, in order: those that are not being asked."""
        holders = self._replicas.holders.of(self._connection.partition)
        return [each for each in holders if each.control_address not in self._running]

    def _pause_until(self, seconds: float) -> float:
        """Return when a pause ends: also in time for a last attempt."""
        now = time.monotonic()
        last = self._deadline - min(_LAST_ATTEMPT_S, self._replicas.timeout_s / 4)
        return last if now < last < now + seconds else now + seconds

    @property
    def _stalled_s(self) -> float:
        return self._replicas.hedging.stalled_s(self._kind)

    def _delay_s(self) -> float:
        """Return the time until another holder is asked as well."""
        delay = self._replicas.hedging.delay_s(self._kind)
        self._is_hedge = delay is not None and len(self._running) == 1
        return delay if self._is_hedge and delay is not None else self._stalled_s

    def _may_start(self) -> bool:
        """Return whether another holder may be asked, beside those under way, and count it if it is."""
        if not self._running:
            return True
        if len(self._running) >= _MAX_AT_ONCE:
            return False
        if self._is_hedge and not self._replicas.hedging.take():
            self._is_hedge = False
            return False
        self._connection.count(hedged=1)
        if not self._is_hedge:
            self._count_as_stalled()
        return True

    def _won(self, ended: _Ended) -> Result:
        # Of this attempt alone: with the time that was waited for a server that stood still, such a server
        # would have later calls wait longer for the next one.
        self._replicas.hedging.record(self._kind, ended.seconds)
        result: Result = ended.result
        return result

    def _start(self, holder: Endpoint) -> _Ended | None:
        """Begin an attempt in a thread. The only holder is asked in this one: no other could take over."""
        if not self._running and len(self._replicas.holders.holding(self._connection.partition)) == 1:
            return self._made(_Attempt(holder))
        attempt = _Attempt(holder)
        with self._changed:
            self._running[holder.control_address] = attempt
        try:
            self._replicas.threads.run(partial(self._run_attempt, attempt))
        except RuntimeError as error:  # The system has no thread to give.
            self._end(_Ended(holder, None, rule_of(FaultKind.RESOURCES).error(f"{holder}: {error}")))
        return None

    def _run_attempt(self, attempt: _Attempt) -> None:
        self._end(self._made(attempt))

    def _made(self, attempt: _Attempt) -> _Ended:
        """Make an attempt. Return how it ended."""
        began = time.monotonic()
        holder = attempt.holder
        seconds = max(min(self._replicas.attempt_s, self._deadline - time.monotonic()), 0.001)
        try:
            connection = self._connection.connected(holder)
            result = connection.call(
                self._request,
                self._read,
                timeout_s=seconds,
                attempts=1,
                cancellation=attempt.cancellation,
            )
        except Exception as error:
            return _Ended(holder, None, error)
        self._replicas.holders.answered(holder)
        return _Ended(holder, result, None, time.monotonic() - began)

    def _end(self, ended: _Ended) -> None:
        with self._changed:
            self._running.pop(ended.holder.control_address, None)
            if not self._left:
                self._ended.append(ended)
                self._changed.notify_all()

    def _next(self, until: float) -> _Ended | None:
        """Return an attempt that has ended. ``None``: none by ``until``, or the connection was closed."""
        with self._changed:
            if not self._ended and not self._connection.closed.is_set():
                left = until - time.monotonic()
                self._changed.wait(max(left if self._flag is None else min(left, STOP_POLL_S), 0.0))
            return self._ended.popleft() if self._ended else None

    def _settled(self, ended: _Ended) -> _Ended | None:
        """Return a success. Record a failure that another attempt may resolve; raise any other."""
        error = ended.error
        if error is None:
            return ended
        self._connection.check_open()
        if isinstance(error, Outrun):  # The winner has not ended yet.
            return None
        if retry_of(error) not in (Retry.AGAIN, Retry.ELSEWHERE):
            raise error
        self._errors[ended.holder.control_address] = ended.holder, error
        self._replicas.holders.failed(ended.holder, str(error))
        if self._refused_by_all():
            raise error
        return None

    def _refused_by_all(self) -> bool:
        """Return whether every holder refused, for example for another graph: waiting cannot help."""
        holders = self._replicas.holders.holding(self._connection.partition)
        refused = {
            address for address, (_, error) in self._errors.items() if retry_of(error) is Retry.ELSEWHERE
        }
        return all(holder.control_address in refused for holder in holders)

    def _count_as_stalled(self) -> None:
        for holder in [attempt.holder for attempt in list(self._running.values())]:
            seconds = time.monotonic() - self._began
            self._errors.setdefault(
                holder.control_address,
                (holder, StorageUnavailable(f"silent for {seconds:.1f} s")),
            )
            self._replicas.holders.failed(holder, f"silent for {seconds:.1f} s")

    def _unavailable(self) -> StorageUnavailable:
        seconds = time.monotonic() - self._began
        for attempt in list(self._running.values()):
            self._errors[attempt.holder.control_address] = attempt.holder, StorageUnavailable("silent")
        what = self._connection.what
        if not self._errors:
            return StorageUnavailable(f"{what} has no holder, after {seconds:.1f} s")
        reasons = [(holder, _reason(holder, error)) for holder, error in self._errors.values()]
        if len(reasons) == 1:
            holder, reason = reasons[0]
            return StorageUnavailable(
                f"{holder}, which holds {what}, did not answer within {seconds:.1f} s: {reason}"
            )
        listed = "; ".join(f"{holder}: {reason}" for holder, reason in reasons)
        return StorageUnavailable(f"no holder of {what} answered within {seconds:.1f} s: {listed}")


def _reason(holder: Endpoint, error: Exception) -> str:
    """Return what an error says beside the holder and the time of one attempt."""
    text = str(error)
    reason = text.partition(" did not answer within ")[2].partition(": ")[2]
    return reason or text.removeprefix(str(holder)).lstrip(": ")
