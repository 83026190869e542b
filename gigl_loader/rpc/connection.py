"""Connection to one peer's data port: pooled connections, and one attempt of a call.

All errors of the native connections are translated here.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gigl_loader.errors import FormatError, SamplingError
from gigl_loader.native import (
    DataClient,
    StreamCancelled,
    StreamClosed,
    StreamError,
    StreamTimedOut,
    TlsContext,
)
from gigl_loader.processes import keep_freed_memory
from gigl_loader.retry import Deadline, attempts, retried
from gigl_loader.rpc.calls import Cancellation, Cancelled
from gigl_loader.rpc.refusals import Contact, FaultKind, Refusal, RefusalKind, Retry, rule_of
from gigl_loader.rpc.reply_stream import ReplyBuffer, ReplyStream
from gigl_loader.rpc.tokens import JOB_HEADER
from gigl_loader.sampling.store import WireCounts
from gigl_loader.tensors import Layout
from gigl_loader.tracing import trace_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

_CONNECT_S = 5.0
"""A host that is down sends nothing: without this limit, connecting would take all the time of an attempt."""

_IDLE_S = 60.0
"""Shorter than the service's limit, so that callers close idle connections, and seldom find closed ones."""

_LAST_ATTEMPT_S = 0.1

_REPLY_STALLS_S, _SHORTEST_STALL_S = 30.0, 2.0
"""Silence in the middle of a frame after which it is requested again: at most, and at least."""

_POLL_S = 0.01  # To look for a connection that another call has put back.


class PooledConnection:
    """One connection, used by one call at a time."""

    def __init__(self, client: DataClient, header: bytes, generation: int) -> None:
        self.client = client
        self.header = header
        """Header text of every call."""
        self.generation = generation
        self.scratch = ReplyBuffer()
        self.idle_since = 0.0
        self.is_new = True
        """Whether no call has used it yet. The service may have closed an older one meanwhile."""
        self.cancelled = False

    def connect(self, timeout_s: float) -> None:
        """Connect a new connection. Raises ``StreamClosed`` where the system or the peer gives none."""
        try:
            self.client.connect(min(timeout_s, _CONNECT_S))
        except (StreamCancelled, StreamTimedOut):
            raise
        except StreamError as error:
            raise StreamClosed(str(error)) from None

    def cancel(self) -> None:
        """End the call that uses the connection, from any thread. No later call uses it."""
        self.cancelled = True
        self.client.cancel()


def header_text(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the header text of a request."""
    return "".join(f"{name}: {value}\n" for name, value in headers).encode()


class ConnectionPool:
    """Connections to one peer: as many as calls are under way, and idle ones for later calls. Thread-safe."""

    def __init__(self, endpoint: Endpoint, caller: Caller, *, job: str) -> None:
        self._endpoint = endpoint
        self._caller = caller
        self._job = job
        self._lock = threading.Lock()
        self._tls: TlsContext | None = None
        self._has_tls = False
        self._generation = 0
        self._idle: list[PooledConnection] = []  # Last used last.
        self._num_used = 0  # By calls.
        self._closed = False

    def take(self) -> PooledConnection:
        """Return an idle connection, or a new one that is not connected yet.

        Raises ``StreamCancelled`` after ``close``, ``ValueError`` for a caller that must not connect, or
        whose certificates cannot be used.
        """
        with self._lock:
            self._end_old()
            while self._idle:
                connection = self._idle.pop()
                if not connection.client.is_stale():
                    connection.is_new = False
                    self._num_used += 1
                    return connection
            connection = self._new()
            self._num_used += 1
            return connection

    def put_back(self, connection: PooledConnection) -> None:
        """Take a connection back after a call, and keep it if another call can use it."""
        usable = connection.client.reusable and not connection.cancelled
        with self._lock:
            self._num_used -= 1
            if usable and not self._closed and connection.generation == self._generation:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)

    def has_none_after(self, seconds: float, cancellation: Cancellation) -> bool:
        """Wait for a connection that a call puts back, at most ``seconds``. Return whether there is none."""
        until = time.monotonic() + seconds
        while self._num_used and not self._idle and time.monotonic() < until and not cancellation.cancelled:
            cancellation.wait(_POLL_S)
        return not (self._num_used or self._idle)

    def drop_idle(self) -> None:
        """Close idle connections, which a service that was restarted does not know."""
        with self._lock:
            self._idle.clear()

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` from the next call on."""
        with self._lock:
            self._use(caller)

    def has_another_token(self, connection: PooledConnection, refused: int) -> bool:
        """Return whether new connections show another token than ``connection``, which was refused.

        It may be in the files by now, or be the caller's next one, where no more than ``refused`` were tried.
        """
        with self._lock:
            if connection.generation == self._generation and refused <= (len(self._caller.other_tokens) or 1):
                self._use(self._caller.after_refusal())
            return connection.generation != self._generation

    def close(self) -> None:
        """Close idle connections, and make no more. Those that are in use belong to their calls."""
        with self._lock:
            self._closed = True
            self._idle.clear()

    def _new(self) -> PooledConnection:
        if self._closed:
            raise StreamCancelled("closed")
        keep_freed_memory()
        self._use(self._caller.latest())
        parts = self._caller.ssl_parts(self._endpoint)
        if parts is not None and not self._has_tls:
            self._tls = TlsContext.client(parts.roots, parts.certificate or b"", parts.key or b"")
            self._has_tls = True
        client = DataClient(self._endpoint.host, self._endpoint.data_port, self._tls if parts else None)
        headers = (*self._caller.headers, *(((JOB_HEADER, self._job),) if self._job else ()))
        return PooledConnection(client, header_text(headers), self._generation)

    def _use(self, caller: Caller) -> None:
        """Show what ``caller`` has from the next call on. Under the lock."""
        if caller is not self._caller:
            self._caller, self._has_tls, self._tls = caller, False, None
            self._generation += 1
            self._idle.clear()

    def _end_old(self) -> None:
        now = time.monotonic()
        self._idle = [each for each in self._idle if now - each.idle_since < _IDLE_S]


_LOGGER = logging.getLogger(__name__)

Result = TypeVar("Result")


class AttemptFailed(Exception):
    """The attempt failed, and another one may succeed. The message is the reason."""

    def __init__(self, reason: str, kind: RefusalKind | FaultKind, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.kind = kind
        self.timed_out = timed_out
        """The attempt reached its deadline."""


class _TokenRefused(Exception):
    """The peer refused the token of the call: there may be another one."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Connection:
    """Connection to one peer. Thread-safe: any number of threads share it."""

    def __init__(
        self,
        endpoint: Endpoint,
        caller: Caller,
        *,
        timeout_s: float,
        job: str = "",
        contact: Contact = Contact.FIRST,
    ) -> None:
        """Connects at the first call, which has ``timeout_s``, as every call.

        ``job`` is the secret of the training job, for requests for what belongs to a job. ``contact``:
        whether a handshake with the peer has succeeded, with this token.
        """
        if timeout_s <= 0:
            raise ValueError(f"timeouts must be positive, got {timeout_s} s")
        self._endpoint = endpoint
        self.wire_version = endpoint.wire_version
        """Version of requests that was agreed upon with the peer. 0: the newest of this build."""
        self._pool = ConnectionPool(endpoint, caller, job=job)
        self._timeout_s = timeout_s
        self._contact = contact
        self._lock = threading.Lock()
        self._closed = False
        self._is_short = False  # Of connections. It was logged.
        self._under_way: set[Cancellation] = set()
        """Of calls under way."""
        self._counts = asdict(WireCounts())
        self.on_membership: Callable[[int], None] | None = None
        """Called with each new version of the membership in a reply, where replies tell one."""
        self._heard = 0

    def counts(self) -> WireCounts:
        """Return what was sent and received since the connection was made."""
        with self._lock:
            return WireCounts(**self._counts)

    def count(self, **amounts: int) -> None:
        """Add ``amounts`` to the counts, by name."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def call(
        self,
        request: bytes,
        read: Callable[[ReplyStream], Result],
        *,
        timeout_s: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> Result:
        """Send a request, again while the peer is busy, and return ``read(reply)``.

        Where another call may succeed, raises the class of the fault, a kind of ``StorageUnavailable``.
        """
        cancellation, began = cancellation or Cancellation(), time.monotonic()
        try:
            with self._entered(cancellation):
                deadline = Deadline.after(timeout_s or self._timeout_s)
                return self._patient(request, read, deadline, cancellation)
        except AttemptFailed as error:
            seconds = time.monotonic() - began
            text = f"{self._endpoint} did not answer within {seconds:.1f} s: {error}"
            raise rule_of(error.kind).error(text) from None

    def attempt(
        self,
        request: bytes,
        read: Callable[[ReplyStream], Result],
        *,
        timeout_s: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> Result:
        """Make one attempt of a call, and return ``read(reply)``.

        ``read`` reads the whole reply, and finishes it. ``timeout_s``: by default that of the connection.
        Raises ``AttemptFailed`` where another attempt may succeed, else what ``refusals.FAULT_RULES`` says.
        By ``cancellation``, another thread ends the attempt with ``Cancelled``.
        """
        cancellation = cancellation or Cancellation()
        with self._entered(cancellation):
            deadline = time.monotonic() + (timeout_s or self._timeout_s)
            return self._attempt(request, read, deadline, cancellation)

    def sample(
        self,
        request: bytes,
        read: Callable[[ReplyStream], Result],
        *,
        timeout_s: float,
        cancellation: Cancellation,
    ) -> Result:
        """Send a request for a batch, a ``SampleRequest``, once, and return ``read(reply)``.

        The peer replies when the batch was sampled. Raises the class of the fault (``refusals.FAULT_RULES``),
        and ``Cancelled`` after ``cancellation``.
        """
        with self._entered(cancellation):
            try:
                return self._attempt(
                    request, read, time.monotonic() + timeout_s, cancellation, asks_batch=True
                )
            except AttemptFailed as error:
                raise rule_of(error.kind).error(f"{self._endpoint}: {error}") from None

    @contextmanager
    def _entered(self, cancellation: Cancellation) -> Iterator[None]:
        """Count an attempt as under way, and raise a refusal as the class of its fault."""
        with self._lock:
            if self._closed:
                raise self._ended_error()
            self._under_way.add(cancellation)
        try:
            yield
        except Refusal as refusal:
            raise refusal.error(str(self._endpoint), self._contact) from None
        finally:
            with self._lock:
                self._under_way.discard(cancellation)

    def _patient(
        self,
        request: bytes,
        read: Callable[[ReplyStream], Result],
        deadline: Deadline,
        cancellation: Cancellation,
    ) -> Result:
        """Make an attempt, again while the peer is busy. Raises ``Refusal`` or ``AttemptFailed``."""

        def check(error: AttemptFailed) -> None:
            if error.kind is not RefusalKind.BUSY:
                raise error

        def wait(seconds: float) -> None:
            if cancellation.wait(seconds):
                raise self._ended_error()
            self.count(retries=1)

        attempt = partial(self._attempt, request, read, deadline.at, cancellation)
        tries = attempts(deadline, least_s=_LAST_ATTEMPT_S, wait=wait)
        return retried(attempt, AttemptFailed, tries, failed=check)

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` from the next call on."""
        self._pool.renew(caller)

    def close(self) -> None:
        """Cancel calls under way at once, start no further attempt, and disconnect. Closing twice is fine."""
        with self._lock:
            self._closed = True
            under_way = list(self._under_way)
        self._pool.close()
        for cancellation in under_way:
            cancellation.cancel()

    def _attempt(
        self,
        request: bytes,
        read: Callable[[ReplyStream], Result],
        deadline: float,
        cancellation: Cancellation,
        *,
        asks_batch: bool = False,
    ) -> Result:
        """Make an attempt until ``deadline`` (monotonic). Raises ``Refusal`` or ``AttemptFailed``."""
        if cancellation.cancelled:
            raise self._ended_error()
        self.count(calls=1, bytes_out=len(request))
        try:
            return self._send(request, read, deadline, cancellation, asks_batch=asks_batch)
        except StreamError as error:
            if cancellation.cancelled or isinstance(error, StreamCancelled):
                raise self._ended_error() from None
            timed_out = isinstance(error, StreamTimedOut)
            raise AttemptFailed(str(error), FaultKind.CONNECTION, timed_out=timed_out) from None
        except FormatError as error:
            self.count(damaged=1)
            raise AttemptFailed(str(error), FaultKind.REPLY) from None
        except AttemptFailed as error:
            self.count(damaged=error.kind is RefusalKind.DAMAGED)
            raise

    def _send(
        self,
        request: bytes,
        read: Callable[[ReplyStream], Result],
        deadline: float,
        cancellation: Cancellation,
        *,
        asks_batch: bool,
    ) -> Result:
        """Send a request, again where its connection was closed before a reply, or a token was replaced.

        Where no new connection can be had, for example beyond a limit of the peer, the request waits for one
        that another call uses, and is sent over a new one after each pause. Without any, the attempt fails.
        """
        tokens_refused, retries = 0, None
        while True:
            connection, failure = self._pool.take(), ""
            try:
                with cancellation.ends_by(connection.cancel):
                    return self._ask(connection, request, read, deadline, cancellation, asks_batch=asks_batch)
            except StreamClosed as error:  # A request may be sent twice.
                if connection.client.left:
                    raise
                if connection.is_new:
                    failure = str(error)
                else:  # The service closed an idle connection, or was restarted.
                    self._pool.drop_idle()
            except _TokenRefused as refused:
                tokens_refused += 1
                if not self._pool.has_another_token(connection, tokens_refused):
                    raise _failure_of(refused.refusal, self._contact) from None
            finally:
                self._pool.put_back(connection)
            if failure:
                wait = partial(self._pool.has_none_after, cancellation=cancellation)
                retries = retries or islice(attempts(Deadline(deadline), wait=wait), 1, None)
                if next(retries, None) is None:
                    raise StreamClosed(failure)
                self.count(retries=1)
                if not self._is_short:
                    self._is_short = True
                    text = "%s: no further connection: calls wait for those that are in use: %s"
                    _LOGGER.warning(text, self._endpoint, failure)

    def _ask(
        self,
        connection: PooledConnection,
        request: bytes,
        read: Callable[[ReplyStream], Result],
        deadline: float,
        cancellation: Cancellation,
        *,
        asks_batch: bool,
    ) -> Result:
        """Connect a new connection, and make the call until ``deadline`` (monotonic)."""
        began = time.monotonic()
        client = connection.client
        if connection.is_new:
            connection.connect(max(deadline - began, 0.001))
        left = max(deadline - time.monotonic(), 0.001)
        header = connection.header
        trace = sys.modules.get("opentelemetry.trace")
        if trace is not None and trace.get_current_span() is not trace.INVALID_SPAN:
            header += header_text(trace_headers())
        refused, nbytes, membership = client.call(header, request, left, asks_batch)
        self._contact = Contact.ESTABLISHED if not refused else self._contact
        if membership not in (0, self._heard) and self.on_membership is not None:
            self._heard = membership
            self.on_membership(membership)
        if refused:  # No part of a reply was heard: else a busy server would not count as stalled.
            raise self._refused(ReplyStream(client, nbytes, connection.scratch))
        cancellation.hear()
        if asks_batch:  # The time of the call is for sampling: a reply that was begun comes at once.
            client.expect_within(min(_REPLY_STALLS_S, max(left / 4, _SHORTEST_STALL_S)))
        reply = ReplyStream(client, nbytes, connection.scratch, cancellation.hear)
        try:
            return read(reply)
        finally:
            self.count(bytes_in=reply.received)
            if _LOGGER.isEnabledFor(logging.DEBUG):
                asked = {} if asks_batch else Layout.parse(np.frombuffer(request, np.uint8)).metadata
                verb, ms = asked.get("ask", "sample"), 1e3 * (time.monotonic() - began)
                done = f"{len(request)} bytes sent, {reply.received} received in {ms:.1f} ms"
                _LOGGER.debug("%s: %s: %s", self._endpoint, verb, done)

    def _refused(self, reply: ReplyStream) -> Exception:
        """Read a refusal, and return the exception of its attempt."""
        record = np.empty(reply.nbytes, np.uint8)
        reply.read(record)
        reply.finish()
        refusal = Refusal.from_record(record.tobytes())
        if refusal is None:
            return AttemptFailed("a refusal that cannot be read", FaultKind.CONNECTION)
        if refusal.kind is RefusalKind.UNAUTHENTICATED:
            return _TokenRefused(refusal)
        return _failure_of(refusal, self._contact)

    def _ended_error(self) -> Exception:
        """Return the error of a call that was cancelled, alone or with its connection."""
        if self._closed:
            return SamplingError(f"the connection to {self._endpoint} was closed")
        return Cancelled(f"the call to {self._endpoint} was cancelled")


def _failure_of(refusal: Refusal, contact: Contact) -> Exception:
    """Return the exception of an attempt that was refused: the refusal itself where no retry can help."""
    rule = rule_of(refusal.kind)
    if rule.retry is not Retry.AGAIN or (rule.first is not None and contact is Contact.FIRST):
        return refusal
    return AttemptFailed(refusal.message, refusal.kind)
