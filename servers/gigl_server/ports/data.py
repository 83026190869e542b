"""Data port: neighbours, rows and batches, one reply to each request, over a protocol of its own."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.native import DataServer, Stopped, StreamError
from gigl_loader.rpc.checksums import Crc32c, Unread
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.requests import MAX_REQUEST_BYTES
from gigl_loader.rpc.tokens import JOB_HEADER, job_key
from gigl_loader.threads import start_thread
from gigl_loader.tracing import ServedSpan, find_tracer, trace_in
from gigl_server.admission import DATA_PORT, Identity, share_of_descriptors
from gigl_server.ports.data_threads import DataThreads
from gigl_server.ports.shares import ByteSemaphore, CallsUnderWay

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.arrays import Bytes
    from gigl_loader.native import DataCall
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.endpoint import Address
    from gigl_server.admission import Access
    from gigl_server.counters import Counters
    from gigl_server.logs import AuditLog
    from gigl_server.ports.queries import Queries, Reply
    from gigl_server.ports.sample_calls import SampleCalls

_CACHED = 4096
_VERSION = 4
WRONG_TOKEN = Refusal(RefusalKind.UNAUTHENTICATED, "wrong token: all hosts must use the same one")


class Known(NamedTuple):
    """Sender of a request that may be answered."""

    identity: Identity
    job: bytes | None
    """Key of the job whose secret the request names."""


class DataCallers:
    """Checks the token of each call and its right to the graph. Thread-safe.

    The native server has checked the first token of a connection; tokens change while connections stay.
    """

    def __init__(self, credentials: Credentials, access: Access | None = None) -> None:
        """``access`` has the rights of tokens. ``None``: every token has all."""
        self.credentials = credentials
        """Tokens that are accepted: those of the last assignment."""
        self._access = access
        self._identity = lru_cache(_CACHED)(_identity)
        self._fingerprint = lru_cache(_CACHED)(_fingerprint)

    def identify(self, call: DataCall) -> Known:
        """Return who sent a call. ``Refusal`` for another version of the protocol, or without a right."""
        if call.version != _VERSION:
            raise Refusal(
                RefusalKind.MALFORMED,
                f"the request has version {call.version} of the data port, this service reads {_VERSION}: "
                "install the same version of gigl-loader on all hosts",
            )
        headers = _headers(call.header)
        token = self.credentials.identify(headers.get(b"authorization", ()))
        if token is None:
            raise Refusal(WRONG_TOKEN.kind, WRONG_TOKEN.message)
        certificate = self._fingerprint(call.certificate) if self.credentials.client_authority else ""
        identity = self._identity(call.address, token, certificate)
        self.check_right(identity)
        return Known(identity, job_key(headers.get(JOB_HEADER.encode(), ()), token))

    def check_right(self, caller: Identity) -> None:
        """Raise ``Refusal`` where a caller has no right to the graph, or has lost it meanwhile."""
        if self._access is not None:
            self._access.check(caller.token)

    def stranger(self, call: DataCall) -> Identity:
        """Return the identity of a caller whose token is not known."""
        return self._identity(call.address, "", "")


def _headers(text: bytes) -> dict[bytes, list[bytes]]:
    """Return the values of each header, from lines of a name, a colon, a space and a value."""
    headers: dict[bytes, list[bytes]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(b": ")
        headers.setdefault(name, []).append(value)
    return headers


def _identity(address: str, token: str, certificate: str) -> Identity:
    family = "ipv6" if ":" in address else "ipv4"
    return Identity.of(peer=f"{family}:[{address}]:0", token=token, certificate=certificate)


def _fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate, as the control port names it; empty without one."""
    return sha256(certificate).hexdigest() if certificate else ""


_LOGGER = logging.getLogger(__name__)
_SPARE_THREADS = 16  # Beyond those of calls: they refuse further calls.
_MAX_TURNS = 64
"""Calls whose reply is being made. A turn is released before the reply is sent."""
_WAIT_FOR_A_TURN_S = 0.5
_RECEIVED_BYTES = 512 << 20
_SMALL_BYTES = 1 << 20  # Bodies up to this size are not counted: calls are limited in number.
_CONNECTION_BYTES, _TLS_CONNECTION_BYTES = 3 << 10, 16 << 10  # Measured with 400 that rest.
_BODY_S, _BODY_STALL_S = 20.0, 5.0
_REPLY_S = 60.0
"""Time for a reply to be read. Trainers give up after 30 s and retry."""
_REFUSAL_S = 2.0
_SWEEP_S = 1.0
_LOOK_S = 0.05
"""Between two looks at the callers of replies that are being made."""
_FREELY_S = 1.0
_SHUTDOWN_S = 5.0
_STRANGERS_SHARE = 4
"""Divisor of this process's descriptor limit: so many connections may be without a token."""
_ADDRESS_SHARE = 2


class DataPort:
    """Serves from its construction to ``close``.

    A reply is made before it is sent: sending needs no turn and no Python. Calls, turns and the memory of
    requests and replies are shared fairly among identities. Connections without an accepted token are served
    and refused by a native thread of their own, and never come here.
    """

    def __init__(
        self,
        address: Address,
        queries: Queries,
        counters: Counters,
        credentials: Credentials,
        *,
        audit: AuditLog,
        access: Access | None = None,
        samples: SampleCalls | None = None,
        membership: Callable[[], int] = int,
    ) -> None:
        """Listen at ``address``; port 0 takes a free one. ``OSError`` naming it where that cannot be.

        ``access`` has the rights of tokens; ``None``: every token has all. ``samples`` has batches sampled.
        ``membership`` returns the version that every reply carries. 0: none.
        """
        self._membership = membership
        self._queries = queries
        self._counters = counters
        self._samples = samples
        self._audit = audit
        self._tracer = find_tracer()
        self._callers = DataCallers(credentials, access)
        self._calls = ByteSemaphore(DATA_PORT.calls, wait_s=0.0, what="calls")
        self._turns = ByteSemaphore(_MAX_TURNS, wait_s=_WAIT_FOR_A_TURN_S, what="turns")
        self._receiving = ByteSemaphore(_RECEIVED_BYTES, free=_SMALL_BYTES, what="requests that come")
        self._under_way = CallsUnderWay(self._tell_cut, self._hoarders)
        try:
            self._server = DataServer(
                address.host,
                address.port,
                credentials.data_context(),
                strangers=share_of_descriptors(_STRANGERS_SHARE, DATA_PORT.connections),
                per_address=share_of_descriptors(_ADDRESS_SHARE),
                stranger_s=DATA_PORT.first_s,
                tokens=credentials.authorizations,
                refusal=WRONG_TOKEN.to_record(),
            )
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error}") from None
        self._ending = threading.Event()
        self._sweeper = threading.Thread(target=self._keep_sweeping, name="data connections", daemon=True)
        self._watcher = threading.Thread(target=self._keep_watching, name="data callers", daemon=True)
        self._threads = DataThreads(self._next, self._respond, most=DATA_PORT.calls + _SPARE_THREADS)
        try:
            start_thread(self._watcher)
            start_thread(self._sweeper)
            self._threads.start()
        except OSError:
            self._ending.set()
            self._server.stop()
            raise

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that live as long as the port."""
        return () if self._ending.is_set() else (self._sweeper, self._watcher)

    def held_bytes(self) -> dict[str, int]:
        """Return the bytes of requests that are received, and an estimate of those of connections."""
        each = _TLS_CONNECTION_BYTES if self._callers.credentials.certificate else _CONNECTION_BYTES
        return {"requests": self._receiving.lent, "connections": each * self._server.num_connections}

    def renew(self, credentials: Credentials) -> None:
        """Use other credentials from now on: tokens for every call, certificates for new connections."""
        self._callers.credentials = credentials
        self._server.renew(credentials.data_context())
        self._server.accept(credentials.authorizations, WRONG_TOKEN.to_record())

    def close(self, timeout_s: float = _SHUTDOWN_S) -> None:
        """Stop listening, wait a second for replies under way, then cut the rest. Closing twice is fine."""
        self._ending.set()
        self._server.stop()
        ended = self._threads.stop(min(_FREELY_S, timeout_s))
        self._under_way.stop_all("the server ends")  # Wakes the watcher, too.
        if self._samples is not None:
            self._samples.close()
        if not ended:
            _LOGGER.warning(
                "replies that were not read: %d, their connections are cut", self._server.cut_all()
            )
            if not self._threads.stop(timeout_s):
                _LOGGER.error("the data port does not end")
        self._sweeper.join(timeout_s)
        self._watcher.join(timeout_s)
        self._tell_dropped()

    def _next(self, timeout_s: float) -> DataCall | None:
        """Wait for a call. Drops requests whose callers are gone."""
        call = self._server.next(timeout_s)
        self._drop_gone()
        return call

    def _drop_gone(self) -> None:
        for number in self._server.take_gone():
            if self._samples is not None:
                self._samples.gone(number)

    def _respond(self, call: DataCall) -> None:
        """Receive one request, and send its reply or its refusal. Raises nothing."""
        caller = self._callers.stranger(call)
        try:
            with ExitStack() as at_end:
                try:
                    known = self._callers.identify(call)
                    caller = known.identity
                    self._answer(call, known, at_end)
                except Refusal as refusal:
                    self._note(caller, refusal)
                    self._refuse(call, refusal)
        except StreamError as error:
            _LOGGER.debug("data port: a call of %s ended: %s", caller, error)
        except Exception:
            _LOGGER.exception("a request failed")
            self._fail(call)

    def _answer(self, call: DataCall, known: Known, at_end: ExitStack) -> None:
        """Send the reply. What the call holds is released at the end of ``at_end``. Raises ``Refusal``."""
        caller = known.identity
        self._check_head(call)
        at_end.callback(self._calls.take(1, caller).release)
        self._under_way.begins(call, caller)
        at_end.callback(self._under_way.ends, call)
        self._counters.add(calls=1, bytes_in=call.body_bytes)
        with self._receiving.take(call.body_bytes, caller):
            request = call.read_body(_BODY_S, _BODY_STALL_S)
        if request is None:
            raise Refusal(RefusalKind.DAMAGED, "the request does not match its checksum")
        if call.asks_batch and self._samples is not None:
            self._samples.begin(call, caller, known.job, request, self._callers.check_right)
            return
        if self._tracer is None:
            self._reply(call, known, request, at_end)
        else:
            with ServedSpan(self._tracer, "query", trace_in(call.header)):
                self._reply(call, known, request, at_end)

    def _reply(self, call: DataCall, known: Known, request: bytes, at_end: ExitStack) -> None:
        """Send the reply to a request that is no request for a batch. Raises ``Refusal``."""
        reply = self._made(call, known.identity, request)
        if reply is None:
            return
        at_end.callback(reply.loan.release)
        del request
        self._send(call, known, reply.chunks, reply.crc)

    def _check_head(self, call: DataCall) -> None:
        """Raise ``Refusal`` for a request that is not read."""
        most = MAX_REQUEST_BYTES
        if call.asks_batch:
            if self._samples is None:
                raise Refusal(RefusalKind.INVALID, "this service samples no batches")
            most = self._samples.most_bytes
        if call.body_bytes > most:
            raise Refusal(
                RefusalKind.TOO_LARGE, f"a request of {call.body_bytes} bytes; at most {most} are read"
            )

    def _made(self, call: DataCall, caller: Identity, request: bytes) -> Reply | None:
        """Return the reply to a request. ``None``: the caller is gone. ``Refusal`` if it takes too long."""
        with self._turns.take(1, caller), self._under_way.making(call) as flag:
            try:
                return self._queries.respond(request, caller, Unread() if call.unread else Crc32c())
            except Stopped as stopped:
                if not flag.timed_out:
                    return None
                text = f"the reply was not made: {stopped}; request less at once"
                raise Refusal(RefusalKind.TOO_LARGE, text) from None

    def _send(self, call: DataCall, known: Known, chunks: list[Bytes], crc: int | None) -> None:
        self._callers.check_right(known.identity)
        self._counters.add(bytes_out=sum(map(len, chunks)))
        call.reply(chunks, _REPLY_S, _REPLY_S, crc, self._membership())

    def _note(self, caller: Identity, refusal: Refusal) -> None:
        if refusal.kind is not RefusalKind.BUSY:
            self._counters.add(refused=1)
            self._audit.refused(caller, f"data port: {refusal.kind.value}: {refusal.message}")

    def _refuse(self, call: DataCall, refusal: Refusal) -> None:
        closes = refusal.kind in (RefusalKind.UNAUTHENTICATED, RefusalKind.MALFORMED)
        call.refuse(refusal.to_record(), _REFUSAL_S, closes)

    def _fail(self, call: DataCall) -> None:
        """Refuse a call that failed, if its reply has not begun. Its error goes to the log only."""
        failed = Refusal(RefusalKind.FAILED, "the service failed to answer; its log says why")
        try:
            self._refuse(call, failed)
        except (StreamError, RuntimeError):
            call.cancel()

    def _hoarders(self) -> tuple[Identity | None, ...]:
        return self._calls.hoarder(), self._receiving.hoarder(), self._queries.sending.hoarder()

    def _tell_cut(self, call: DataCall, reason: str) -> None:
        self._audit.refused(
            Identity(address=call.address), f"data port: connection of port {call.port} cut: {reason}"
        )

    def _keep_watching(self) -> None:
        while not self._ending.wait(_LOOK_S):
            self._under_way.stop_unwanted()
            self._under_way.wait_for_replies(_SWEEP_S)

    def _keep_sweeping(self) -> None:
        while not self._ending.wait(_SWEEP_S):
            self._under_way.sweep()
            self._threads.keep_one_waiting()
            self._drop_gone()
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        """Log what the native server ended since the last call, and count what it refused."""
        for address, port, reason, refused, count in self._server.sweep():
            if refused:
                self._counters.add(refused=count)
                self._audit.refused(
                    Identity(address=address),
                    f"data port: {WRONG_TOKEN.kind.value}: {WRONG_TOKEN.message}{_times(count)}",
                )
            else:
                self._audit.refused(
                    Identity(address=address),
                    f"data port: connection of port {port} cut: {reason}{_times(count)}",
                )


def _times(count: int) -> str:
    """Return how many connections ended, if there were several."""
    return "" if count == 1 else f" ({count} connections)"
