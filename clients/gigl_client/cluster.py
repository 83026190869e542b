"""Connections of one process to the storage servers of one graph."""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gigl_client.discovery import MembershipFollower, assigned, find_servers, read_addresses
from gigl_loader.errors import GiglError
from gigl_loader.graph.manifest import Manifest
from gigl_loader.group import RankGroup
from gigl_loader.retry import Deadline
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.holders import Holders
from gigl_loader.rpc.refusals import Contact
from gigl_loader.rpc.remote_store import fetch_manifest, replicated_stores
from gigl_loader.rpc.replicas import Replicas
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tokens import new_job
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_client.discovery import Found
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.rpc.control import ClusterView
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

_LAST_S = 0.1
"""Time of a call that begins as its deadline passes."""


def loads_of(servers: Sequence[Server], timeout_s: float) -> dict[int, dict[str, Any]]:
    """Return the load of each server by rank, or ``{"error": reason}`` where a server does not respond."""

    def load(server: Server) -> dict[str, Any]:
        try:
            return _fields(server.client.load(timeout_s))
        except (GiglError, ValueError) as error:
            return {"error": str(error)}

    with ThreadPool(len(servers)) as threads:  # Each server has all of the time.
        return dict(enumerate(threads.map(load, servers)))


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields of a protobuf message by name, nested messages as dictionaries."""
    return {field.name: _plain(getattr(message, field.name), field) for field in message.DESCRIPTOR.fields}


def _plain(value: Any, field: Any) -> Any:
    several = hasattr(value, "__len__") and not isinstance(value, (str, bytes))
    if field.message_type is None:
        return list(value) if several else value
    return [_fields(each) for each in value] if several else _fields(value)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Beat = Callable[[list[bytes], float], object]


_LOGGER = logging.getLogger(__name__)

_BEATS_PER_LEASE = 3  # Two heartbeats in a row may be lost.
_MAX_THREADS = 8
_MAX_BEAT_S = 5.0


class Heartbeats:
    """Sends the ids of open channels to their servers periodically, from a few threads."""

    def __init__(self, beats: Sequence[Beat]) -> None:
        """``beats`` has one function per server, ``beat(channels, timeout_s)``."""
        self._beats = list(beats)
        self._kept: list[set[bytes]] = [set() for _ in beats]
        self._lock = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._interval_s = math.inf
        self._stopped = False

    def add(self, beat: Beat) -> int:
        """Add a server. Return its number."""
        with self._lock:
            self._beats.append(beat)
            self._kept.append(set())
            return len(self._beats) - 1

    def keep(self, server: int, channel: bytes, lease_s: float) -> None:
        """Renew the lease of a channel until ``drop`` or ``stop``."""
        with self._lock:
            self._kept[server].add(channel)
            self._interval_s = min(self._interval_s, lease_s / _BEATS_PER_LEASE)
            self._lock.notify_all()
            if not self._threads and not self._stopped:
                with suppress(RuntimeError):  # No thread starts during interpreter shutdown.
                    self._start()

    def drop(self, server: int, channel: bytes) -> None:
        """Stop renewing a channel: its lease ends it. Fine for an unknown channel."""
        with self._lock:
            self._kept[server].discard(channel)

    def stop(self) -> None:
        """Send no further heartbeat. Does not wait for calls under way. Stopping twice is fine."""
        with self._lock:
            self._stopped = True
            self._lock.notify_all()

    def _start(self) -> None:
        count = min(len(self._beats), _MAX_THREADS)
        for first in range(count):
            thread = threading.Thread(
                target=self._run, args=(first, count), daemon=True, name="gigl-heartbeat"
            )
            thread.start()
            self._threads.append(thread)

    def _run(self, first: int, step: int) -> None:
        began = time.monotonic()
        while self._pause_until(began):
            began = time.monotonic()
            servers = range(first, len(self._beats), step)
            for server in servers:
                if self._stopped:
                    return
                # A server that hangs must not delay the next round of the servers that share its thread.
                self._beat(server, min(self._interval_s / len(servers), _MAX_BEAT_S))

    def _beat(self, server: int, seconds: float) -> None:
        with self._lock:
            channels = list(self._kept[server])
        if channels:
            try:
                self._beats[server](channels, seconds)
            except (GiglError, ValueError) as error:  # Requests for batches fail with it, too, and raise it.
                _LOGGER.debug("no heartbeat: %s", error)

    def _pause_until(self, last: float) -> bool:
        """Wait until the next heartbeat is due. Return ``False`` after ``stop``."""
        with self._lock:
            while not self._stopped:
                left = last + self._interval_s - time.monotonic()
                if left <= 0:
                    return True
                self._lock.wait(left)
        return False


@dataclass(slots=True, eq=False)
class Server:
    """One storage server and the connections to it."""

    endpoint: Endpoint
    """Changes when the server holds other partitions, or when its rank changes."""
    client: StoreClient
    """Client of the control port."""
    connection: Connection
    """Connection to the data port."""
    number: int
    """Number of the server in ``Heartbeats``. It never changes."""

    @property
    def rank(self) -> int:
        """Index of the server by ascending partitions, then address."""
        return self.endpoint.host_index

    def close(self) -> None:
        """Disconnect. Closing twice is fine."""
        self.client.close()
        self.connection.close()


class Cluster:
    """All servers of a graph. Connections end with ``close``, or when the object is collected.

    It follows the membership: servers that join are used, servers that left are not.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        schema: GraphSchema,
        graph_digest: str,
        job: str,
        caller: Caller,
        timeout_s: float,
        membership: int = 0,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """``endpoints`` are by rank. ``job`` is the secret of the job's ranks, 64 hex digits.

        ``membership`` is the version of ``endpoints``. ``assignment`` has the partitions that are counted for
        each server; it is the same for all ranks of a job, and stays as it is. By default it is that of
        ``endpoints``.
        """
        self.schema = schema
        self.graph_digest = graph_digest
        self.job = job
        self.caller = caller
        self.timeout_s = timeout_s
        held = [endpoint.partitions for endpoint in endpoints]
        self.assignment = tuple(map(tuple, assigned(held) if assignment is None else assignment))
        self.heartbeats = Heartbeats([])
        """Renew the leases of open channels. They hold no reference to the cluster."""
        self.holders = Holders(endpoints, key=secrets.token_hex(8))
        self._lock = threading.Lock()
        self._opened: list[Server] = []
        self._followers: weakref.WeakSet[Any] = weakref.WeakSet()
        opened, apply = self._opened, weakref.WeakMethod(self._apply)

        def applied(view: ClusterView) -> None:
            if (follow := apply()) is not None:
                follow(view)

        self._follower = MembershipFollower(
            membership, lambda: [server.client for server in list(opened)], applied
        )
        self._opened += map(self._connect, endpoints)
        self.replicas = self.open_replicas(timeout_s=timeout_s)
        """Connections for queries about nodes."""
        self._owner = os.getpid()
        self._end = weakref.finalize(
            self, _end, self._opened, self.heartbeats, self._follower, self.replicas, self._owner
        )

    @property
    def servers(self) -> tuple[Server, ...]:
        """The servers that are members now, by rank."""
        return tuple(self._opened)

    @property
    def holds_all_everywhere(self) -> bool:
        """Whether every server holds every partition, so that no features cross the network twice."""
        count = self.schema.num_partitions
        return all(len(server.endpoint.partitions) == count for server in self.servers)

    def open_store(self, *, timeout_s: float, concurrency: int = 1) -> PartitionedStore:
        """Return a store of all partitions. Each request is retried at its holders for ``timeout_s`` at most.

        The caller closes the store. ``concurrency`` is the number of batches that use it at the same time.
        """
        remote = replicated_stores(
            self.open_replicas(timeout_s=timeout_s),
            range(self.schema.num_partitions),
            schema=self.schema,
            digest=self.graph_digest,
        )
        return PartitionedStore(self.schema, local={}, remote=remote, concurrency=concurrency)

    def open_replicas(self, *, timeout_s: float) -> Replicas:
        """Return connections to the holders of all partitions. The caller closes them."""
        return Replicas(
            self.holders,
            self.caller,
            timeout_s=timeout_s,
            on_membership=self._follower.told,
            on_no_holder=self._follower.doubt,
            contact=Contact.ESTABLISHED,
        )

    def follow(self, channels: Follower) -> None:
        """Pass the servers to ``channels`` after each change, while it lives."""
        self._followers.add(channels)

    def _connect(self, endpoint: Endpoint) -> Server:
        """Return a server. Sends nothing yet. Requests to the data port are retried for ``timeout_s``."""
        told = self._follower.told
        client = StoreClient(endpoint, self.caller, self.job, on_membership=told, contact=Contact.ESTABLISHED)
        connection = Connection(
            endpoint, self.caller, timeout_s=self.timeout_s, job=self.job, contact=Contact.ESTABLISHED
        )
        connection.on_membership = told
        return Server(endpoint, client, connection, self.heartbeats.add(client.heartbeat))

    def _apply(self, view: ClusterView) -> None:
        """Use the servers of a newer view. Channels to servers that left are given up."""
        if view.graph != self.graph_digest:
            return
        with self._lock:
            before = {_place(server.endpoint): server for server in self._opened}
            for endpoint in view.servers:
                server = before.pop(_place(endpoint), None)
                if server is None:
                    _LOGGER.info("%s has joined, with partitions %s", endpoint, list(endpoint.partitions))
                    self._opened.append(self._connect(endpoint))
                else:
                    server.endpoint = endpoint
                    server.connection.wire_version = endpoint.wire_version
            for server in before.values():
                _LOGGER.info("%s has left", server.endpoint)
                self._opened.remove(server)
            self._opened.sort(key=lambda server: server.rank)
            self.holders.update(view.servers)
            followers = list(self._followers)
        for channels in followers:
            channels.use(self.servers)
        for server in before.values():
            server.close()

    def check_usable(self) -> None:
        """Raise ``RuntimeError`` in a forked child, ``ValueError`` after ``close``."""
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"this RemoteDistDataset belongs to process {self._owner}: network connections do not "
                "survive a fork; connect in the process that uses it"
            )
        if not self._end.alive:
            raise ValueError("the dataset was closed: build loaders before, and shut them down first")

    def close(self) -> None:
        """Disconnect. Closing twice is fine, and in a forked child it does nothing."""
        self._end()


class Follower(Protocol):
    """Receives the server list after each membership change."""

    def use(self, servers: Sequence[Server]) -> None:
        """Use only these servers from now on."""


def _place(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint.control_address, endpoint.data_port


def _end(
    servers: Sequence[Server],
    heartbeats: Heartbeats,
    follower: MembershipFollower,
    replicas: Replicas,
    owner: int,
) -> None:
    if os.getpid() != owner:
        return
    follower.stop()
    heartbeats.stop()
    replicas.close()
    for server in list(servers):
        server.close()


def connect_cluster(addresses: str | Sequence[str], caller: Caller, *, timeout_s: float) -> Cluster:
    """Connect to the cluster that one of ``addresses`` belongs to.

    Raises what ``find_servers`` raises, and ``ValueError`` for servers that do not hold one whole graph.
    """
    deadline = Deadline.after(timeout_s)
    group = RankGroup.current()
    rank, world_size = (0, 1) if group is None else (group.rank, group.world_size)
    found = find_servers(
        read_addresses(addresses), caller, timeout_s=timeout_s, rank=rank, world_size=world_size
    )
    schema = _manifest(found, caller, deadline).schema
    _check_complete(found, schema)
    job, assignment = _shared(found, deadline)
    return Cluster(
        found.endpoints,
        schema=schema,
        graph_digest=found.graph,
        job=job,
        caller=caller,
        timeout_s=timeout_s,
        membership=found.membership,
        assignment=assignment,
    )


def _manifest(found: Found, caller: Caller, deadline: Deadline) -> Manifest:
    """Return the ``graph.json`` of a server. ``ValueError`` unless it has the digest of the cluster."""
    left_s = max(deadline.left_s(), _LAST_S)
    replicas = Replicas(Holders(found.endpoints, key=secrets.token_hex(8)), caller, timeout_s=left_s)
    what = f"graph.json of the cluster of {found.endpoints[0]}"
    try:
        manifest = Manifest.parse(fetch_manifest(replicas.connection(None)), what=what)
    finally:
        replicas.close()
    if manifest.digest != found.graph:
        raise ValueError(
            f"{what}: another graph than its servers said: was one restarted on another graph just now?"
        )
    return manifest


def _check_complete(found: Found, schema: GraphSchema) -> None:
    """Raise ``ValueError`` unless each partition has a server."""
    held = sorted({part for endpoint in found.endpoints for part in endpoint.partitions})
    if held != list(range(schema.num_partitions)):
        raise ValueError(
            f"the servers of this cluster hold the partitions {held}, and the graph has "
            f"{schema.num_partitions}: start a server for each"
        )


def _shared(found: Found, deadline: Deadline) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """Return the secret of this job, and the partitions that are counted for each server.

    The first rank to connect to this graph chooses both: ranks may see servers come and go at other times,
    and must share out nodes alike.
    """
    own = json.dumps([new_job(), assigned(endpoint.partitions for endpoint in found.endpoints)])
    group = RankGroup.current(patience_s=max(deadline.left_s(), _LAST_S))
    if group is not None:
        key = f"store/{found.graph[:16]}"
        own = group.first(f"{key}/{group.turn(key)}/job", own)
    job, assignment = json.loads(own)
    return job, tuple(map(tuple, assignment))
