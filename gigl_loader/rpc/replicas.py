"""Connections to the holders of a partition: each request goes to one of them, and to another if that fails.

All holders give the same bytes, so a request may be repeated elsewhere at any time. A holder that refuses or
cannot be reached costs one attempt; one that is silent is left running while the next holder is asked. The
first answer wins, and the other attempts are cancelled.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from gigl_loader.errors import SamplingError
from gigl_loader.rpc.attempt_threads import AttemptThreads
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.hedging import Hedging
from gigl_loader.rpc.refusals import Contact
from gigl_loader.rpc.replica_call import ReplicaCall
from gigl_loader.sampling.store import WireCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.rpc.holders import Holders
    from gigl_loader.rpc.reply_stream import ReplyStream

__all__ = ["ReplicaConnection", "Replicas"]

_ATTEMPT_S, _SHORTEST_ATTEMPT_S = 30.0, 2.0

Result = TypeVar("Result")


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
