"""Connections to the holders of a partition: a request goes to one, and to another if that fails or is slow.

All holders give the same bytes, so a request may be repeated elsewhere at any time. ``calls.Call`` decides
when; here are the threads of its attempts, and the connections to the holders.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gigl_loader.errors import GiglError, SamplingError, StorageUnavailable, strip_traceback
from gigl_loader.native import check_stop, current_stop_flag
from gigl_loader.rpc.calls import STOP_POLL_S, AttemptThreads, Call, Cancellation, Hedging
from gigl_loader.rpc.connection import AttemptFailed, Connection
from gigl_loader.rpc.holders import Holders
from gigl_loader.rpc.refusals import Contact, FaultKind, Retry, retry_of, rule_of
from gigl_loader.rpc.replies import Outrun
from gigl_loader.sampling.store import WireCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.rpc.reply_stream import ReplyStream


_MAX_AT_ONCE = 8
"""Attempts of one call under way at the same time, each at another holder: as many silent holders do not keep
a call from one that is ready."""

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Attempt:
    """An attempt at one holder, under way or ended."""

    holder: Endpoint
    seconds: float
    """Its time limit."""
    since: float
    cancellation: Cancellation = field(default_factory=Cancellation)
    result: Any = None
    error: Exception | None = None

    @property
    def heard_at(self) -> float:
        """When it was started, or a part of its reply came last (monotonic)."""
        return max(self.since, self.cancellation.heard_at)


class ReplicaCall(Generic[Result]):
    """One call, driven by the thread of its caller. The first attempt that succeeds wins."""

    def __init__(
        self, connection: ReplicaConnection, request: bytes, read: Callable[[ReplyStream], Result]
    ) -> None:
        """Use ``ReplicaConnection.call``."""
        self._connection = connection
        self._replicas = replicas = connection.replicas
        self._request, self._read = request, read
        self._began = time.monotonic()
        self._deadline = self._began + replicas.timeout_s
        self._kind = type(read), len(request).bit_length()
        self._call: Call[_Attempt] = Call(
            self._kind,
            replicas.hedging,
            most=_MAX_AT_ONCE,
            began=self._began,
            deadline=self._deadline,
        )
        self._queue: deque[Endpoint] = deque()
        """Holders of this round that were not tried yet, in order."""
        self._look_at = 0.0
        """When to look for a holder again, after none was left (monotonic)."""
        self._errors: dict[str, tuple[Endpoint, Exception]] = {}
        self._changed = threading.Condition()
        self._ended: deque[_Attempt] = deque()
        self._left = False
        self._flag = current_stop_flag()

    def run(self) -> Result:
        """Return the first result. Raises as ``ReplicaConnection.call``."""
        while (now := time.monotonic()) < (deadline := self._until()):
            check_stop()
            self._connection.check_open()
            due_at = max(self._call.due_at(), self._look_at)
            ended = self._next(min(due_at, deadline)) if now < due_at else self._start(now)
            if ended is not None and self._succeeded(ended):
                result: Result = ended.result
                return result
        self._connection.check_open()
        raise self._unavailable()

    def _until(self) -> float:
        """Return when the call ends in vain (monotonic). A reply that is coming is waited for."""
        stalled_s = self._replicas.hedging.stalled_s(self._kind)
        coming = (each.cancellation.heard_at + stalled_s for each in self._call.attempts)
        return max((self._deadline, *coming))

    def wake(self) -> None:
        """Have ``run`` look whether its connection was closed."""
        with self._changed:
            self._changed.notify_all()

    def leave(self) -> None:
        """Cancel the attempts that have not ended, and ignore them."""
        with self._changed:
            self._left = True
            self._ended.clear()
        for attempt in self._call.attempts:
            attempt.cancellation.cancel()

    def _start(self, now: float) -> _Attempt | None:
        """Start an attempt at the next holder, in a thread. Return it where it has ended.

        A sole holder is tried in this thread: no other holder could take over.
        """
        call = self._call
        if not self._queue:
            asked = {attempt.holder.control_address for attempt in call.attempts}
            holders = self._replicas.holders.of(self._connection.partition)
            self._queue.extend(each for each in holders if each.control_address not in asked)
            if not self._queue:
                self._look_at = now + self._replicas.hedging.stalled_s(self._kind)
                if not asked:
                    self._replicas.miss_holder()
                return None
            if self._errors or asked:
                self._connection.count(retries=1)
        if not call.may_start(now):
            return None
        if call.attempts:
            self._connection.count(hedged=1)
            if now >= call.stalled_at():
                self._count_as_stalled(now)
        seconds = max(min(self._replicas.attempt_s, self._deadline - now), 0.001)  # Without its payload.
        attempt = _Attempt(self._queue.popleft(), seconds, now)
        alone = not call.attempts and len(self._replicas.holders.holding(self._connection.partition)) == 1
        call.started(attempt)
        if alone:
            self._make(attempt)
            return attempt
        try:
            self._replicas.threads.run(partial(self._make_and_tell, attempt))
        except RuntimeError as error:  # The system has no thread to give.
            attempt.error = AttemptFailed(str(error), FaultKind.RESOURCES)
            return attempt
        return None

    def _make_and_tell(self, attempt: _Attempt) -> None:
        self._make(attempt)
        with self._changed:
            if not self._left:
                self._ended.append(attempt)
                self._changed.notify_all()

    def _make(self, attempt: _Attempt) -> None:
        """Make an attempt, and keep its result or its error."""
        try:
            attempt.result = self._connection.connected(attempt.holder).attempt(
                self._request, self._read, timeout_s=attempt.seconds, cancellation=attempt.cancellation
            )
        except (AttemptFailed, GiglError) as error:
            # Frames refer to the attempt, to the memory of the reply, and to its connection, which would stay
            # open.
            attempt.error = strip_traceback(error)
        except Exception as error:
            attempt.error = error
        else:
            self._replicas.holders.answered(attempt.holder)

    def _next(self, until: float) -> _Attempt | None:
        """Return an attempt that has ended. ``None``: none by ``until``, or the connection was closed."""
        with self._changed:
            if not self._ended and not self._connection.closed.is_set():
                left = until - time.monotonic()
                self._changed.wait(max(left if self._flag is None else min(left, STOP_POLL_S), 0.0))
            return self._ended.popleft() if self._ended else None

    def _succeeded(self, ended: _Attempt) -> bool:
        """Record how an attempt ended. Return whether it succeeded.

        Raises its error where no other attempt can resolve it.
        """
        now = time.monotonic()
        error = ended.error
        if error is None:
            for loser in self._call.won(ended, now):
                loser.cancellation.cancel()
            return True
        self._connection.check_open()
        if isinstance(error, Outrun):  # The winner has not ended yet.
            self._call.failed(ended, now, None)
            return False
        if not isinstance(error, AttemptFailed) and retry_of(error) not in (Retry.AGAIN, Retry.ELSEWHERE):
            raise error
        self._look_at = 0.0  # The holder may be tried again.
        self._note(ended, error)
        self._replicas.holders.failed(ended.holder, str(error))
        if self._refused_by_all():
            raise error
        self._call.failed(ended, now, error, pauses=not self._queue)
        if not self._queue:
            self._replicas.miss_holder()
        return False

    def _note(self, attempt: _Attempt, error: Exception) -> None:
        """Keep the error of a holder for the message."""
        # The timeout of a short last attempt says less than the error before it.
        timed_out = isinstance(error, AttemptFailed) and error.timed_out
        if timed_out and attempt.seconds < self._replicas.attempt_s:
            self._errors.setdefault(attempt.holder.control_address, (attempt.holder, error))
        else:
            self._errors[attempt.holder.control_address] = attempt.holder, error

    def _refused_by_all(self) -> bool:
        """Return whether every holder refused, for example for another graph: waiting cannot help."""
        holders = self._replicas.holders.holding(self._connection.partition)
        refused = {
            address for address, (_, error) in self._errors.items() if retry_of(error) is Retry.ELSEWHERE
        }
        # Without any holder, one may join.
        return bool(holders) and all(holder.control_address in refused for holder in holders)

    def _count_as_stalled(self, now: float) -> None:
        for holder in [attempt.holder for attempt in self._call.attempts]:
            silent = StorageUnavailable(f"silent for {now - self._began:.1f} s")
            self._errors.setdefault(holder.control_address, (holder, silent))
            self._replicas.holders.failed(holder, str(silent))

    def _unavailable(self) -> Exception:
        """Return the error of a call whose time is over, with each holder and its last error."""
        seconds = time.monotonic() - self._began
        for attempt in self._call.attempts:
            self._errors[attempt.holder.control_address] = attempt.holder, StorageUnavailable("silent")
        what = self._connection.what
        if not self._errors:
            return StorageUnavailable(f"{what} has no holder, after {seconds:.1f} s")
        if len(self._errors) == 1:
            [(holder, error)] = self._errors.values()
            kind = rule_of(error.kind).error if isinstance(error, AttemptFailed) else StorageUnavailable
            return kind(f"{holder}, which holds {what}, did not answer within {seconds:.1f} s: {error}")
        listed = "; ".join(
            f"{holder}: {str(error).removeprefix(str(holder)).lstrip(': ')}"
            for holder, error in self._errors.values()
        )
        return StorageUnavailable(f"no holder of {what} answered within {seconds:.1f} s: {listed}")


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
        on_no_holder: Callable[[], None] | None = None,
        contact: Contact = Contact.FIRST,
    ) -> None:
        """A call is retried for ``timeout_s`` in total; each attempt at a holder has ``attempt_s``, by
        default 30 s, or a third of ``timeout_s`` if that is less: a silent connection takes one attempt.

        ``job`` is the secret of the training job. ``on_membership`` is called with the version of the
        membership that a reply told, ``on_no_holder`` where a partition has no holder, and after each round
        in which all have failed: one may have joined. Neither may block. ``contact``: whether handshakes with
        the holders have succeeded.
        """
        self.holders = holders
        self.hedging = Hedging()
        self.timeout_s = timeout_s
        self.attempt_s = attempt_s or min(_ATTEMPT_S, max(timeout_s / 3, _SHORTEST_ATTEMPT_S))
        self.threads = AttemptThreads("attempt")
        self._caller = caller
        self._job = job
        self._on_membership = on_membership
        self._on_no_holder = on_no_holder
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
            timeout_s=self.attempt_s,
            job=self._job,
            contact=self._contact,
        )
        connection.on_membership = self._on_membership
        return connection

    def miss_holder(self) -> None:
        """Have the membership looked at: no holder of a partition has responded."""
        if self._on_no_holder is not None:
            self._on_no_holder()

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
    """Connection to the holders of one partition. Thread-safe."""

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
        """Send a request to a holder, and return ``read(reply)``.

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
        """Name of the data that the servers hold, for messages."""
        return "the graph" if self.partition is None else f"partition {self.partition}"


def connection_to(
    endpoint: Endpoint, caller: Caller, *, timeout_s: float, attempt_s: float | None = None
) -> ReplicaConnection:
    """Return a connection to one service, as its only holder. A call is retried for ``timeout_s``."""
    holders = Holders([endpoint], key="")
    return Replicas(holders, caller, timeout_s=timeout_s, attempt_s=attempt_s).connection(None)
