"""Connections to the holders of a partition: a request goes to one, and to another if that fails or is slow.

All holders give the same bytes, so a request may be repeated elsewhere at any time. A holder that refuses or
cannot be reached costs one attempt; one that is silent is left running while the next holder is asked. The
first answer wins, and the other attempts are cancelled.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.native import check_stop, current_stop_flag
from gigl_loader.retry import Backoff
from gigl_loader.rpc.attempts import STOP_POLL_S, AttemptThreads, Cancellation, Hedging
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.refusals import Contact, FaultKind, Retry, retry_of, rule_of
from gigl_loader.rpc.replies import Outrun
from gigl_loader.sampling.store import WireCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.rpc.holders import Holders
    from gigl_loader.rpc.reply_stream import ReplyStream

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


_ATTEMPT_S, _SHORTEST_ATTEMPT_S = 30.0, 2.0


class Replicas:
    """Connections of one user, such as a store, to the holders of all partitions. Thread-safe."""

    def __init__(
        self,
        holders: Holders,
        caller: Caller,
        *,
        timeout_s: float,
        attempt_s: float | None = None,
        job: str = "",
        on_membership: Callable[[int], None] | None = None,
        contact: Contact = Contact.FIRST,
    ) -> None:
        """A call is retried for ``timeout_s`` in total; each attempt at a holder has ``attempt_s``, by
        default 30 s, or a third of ``timeout_s`` if that is less: a silent connection takes one attempt.

        ``job`` is the secret of the training job. ``on_membership`` is called with the version of the
        membership that a reply told. ``contact``: whether handshakes with the holders have succeeded.
        """
        self.holders = holders
        self.hedging = Hedging()
        self.timeout_s = timeout_s
        self.attempt_s = attempt_s or min(_ATTEMPT_S, max(timeout_s / 3, _SHORTEST_ATTEMPT_S))
        self.threads = AttemptThreads("attempt")
        self._caller = caller
        self._job = job
        self._on_membership = on_membership
        self._contact = contact
        self._lock = threading.Lock()
        self._opened: dict[int | None, ReplicaConnection] = {}
        self._left: dict[str, WireCounts] = {}
        """Traffic of connections that were closed."""

    def connection(self, partition: int | None) -> ReplicaConnection:
        """Return the connection to the holders of a partition. ``None``: to any server."""
        with self._lock:
            found = self._opened.get(partition)
            if found is None:
                found = self._opened[partition] = ReplicaConnection(self, partition)
            return found

    def connect(self, endpoint: Endpoint) -> Connection:
        """Return a new connection to one holder."""
        connection = Connection(
            endpoint,
            self._caller,
            timeout_s=self.timeout_s,
            attempt_s=self.attempt_s,
            job=self._job,
            contact=self._contact,
        )
        connection.on_membership = self._on_membership
        return connection

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` from the next call on."""
        with self._lock:
            self._caller = caller
            opened = list(self._opened.values())
        for each in opened:
            each.renew(caller)

    def traffic(self) -> dict[str, WireCounts]:
        """Return what was sent to and received from each server, by control address."""
        with self._lock:
            opened, sums = list(self._opened.values()), dict(self._left)
        for each in opened:
            _add(sums, each.traffic())
        return sums

    def close(self) -> None:
        """Close all connections. Closing twice is fine."""
        with self._lock:
            opened = list(self._opened.values())
        for each in opened:
            each.close()
        self.threads.close()

    def closed(self, connection: ReplicaConnection) -> None:
        """Forget a connection that was closed. The threads end with the last."""
        with self._lock:
            if self._opened.pop(connection.partition, None) is not None:
                _add(self._left, connection.traffic())
            last = not self._opened
        if last:
            self.threads.close()


def _add(sums: dict[str, WireCounts], traffic: Mapping[str, WireCounts]) -> None:
    for address, counts in traffic.items():
        sums[address] = sums.get(address, WireCounts()) + counts


class ReplicaConnection:
    """Connection to the holders of one partition. Thread-safe. It is used as a ``Connection`` is."""

    def __init__(self, replicas: Replicas, partition: int | None) -> None:
        """Use ``Replicas.connection``."""
        self.replicas = replicas
        self.partition = partition
        self._lock = threading.Lock()
        self._connections: dict[tuple[str, int], Connection] = {}
        self._left = WireCounts()
        self._calls: set[ReplicaCall[Any]] = set()
        self.closed = threading.Event()

    def call(self, request: bytes, read: Callable[[ReplyStream], Result]) -> Result:
        """Send a request to a holder, and return ``read(chunks)`` for the chunks of its reply.

        ``read`` may run several times, in several threads at once: what it writes to must allow that.
        Raises ``StorageUnavailable`` with every holder and its last error if none answered in time. Errors
        that no holder can resolve are raised at once (``refusals.FAULT_RULES``).
        """
        call = ReplicaCall(self, request, read)
        with self._lock:
            self._calls.add(call)
        try:
            return call.run()
        finally:
            call.leave()
            with self._lock:
                self._calls.discard(call)

    def counts(self) -> WireCounts:
        """Return what was sent and received since the connection was made."""
        with self._lock:
            connections, left = list(self._connections.values()), self._left
        return sum((each.counts() for each in connections), left)

    def traffic(self) -> dict[str, WireCounts]:
        """Return the counts by control address of the server."""
        with self._lock:
            return {address: each.counts() for (address, _), each in self._connections.items()}

    def count(self, **amounts: int) -> None:
        """Add ``amounts`` to the counts, by name."""
        with self._lock:
            self._left += WireCounts(**amounts)

    @property
    def wire_version(self) -> int:
        """Version of requests that every holder reads, as agreed upon. 0: the newest of this build."""
        return self.replicas.holders.wire_version

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` from the next call on."""
        with self._lock:
            connections = list(self._connections.values())
        for each in connections:
            each.renew(caller)

    def close(self) -> None:
        """End calls under way, and disconnect. Closing twice is fine."""
        self.closed.set()
        with self._lock:
            connections, calls = list(self._connections.values()), list(self._calls)
        for connection in connections:
            connection.close()
        for call in calls:
            call.wake()
        self.replicas.closed(self)

    def connected(self, holder: Endpoint) -> Connection:
        """Return the connection to a holder. Connections to servers that left are closed."""
        key = holder.control_address, holder.data_port
        left: list[Connection] = []
        with self._lock:
            self.check_open()
            found = self._connections.get(key)
            if found is None:
                found = self._connections[key] = self.replicas.connect(holder)
                known = {
                    (each.control_address, each.data_port) for each in self.replicas.holders.endpoints
                } | {key}
                left = [self._connections.pop(gone) for gone in self._connections.keys() - known]
                self._left = sum((each.counts() for each in left), self._left)
        for connection in left:
            connection.close()
        return found

    def check_open(self) -> None:
        """Raise ``SamplingError`` after ``close``."""
        if self.closed.is_set():
            raise SamplingError(f"the connection to the holders of {self.what} was closed")

    @property
    def what(self) -> str:
        """What the servers hold, for messages."""
        return "the graph" if self.partition is None else f"partition {self.partition}"
