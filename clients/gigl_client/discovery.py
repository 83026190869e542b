"""Discovery of all storage servers from the address of any one, and their membership as it changes."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import as_completed
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from gigl_loader.errors import FormatError, GiglError, StorageUnavailable
from gigl_loader.retry import FOREVER, Backoff, Deadline, attempts, retried
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.peer import check_data_port
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.versions import BuildVersions
from gigl_loader.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.rpc.control import ClusterView
    from gigl_loader.rpc.credentials import Caller

T = TypeVar("T")

PARTNERS = 16
"""Servers of a rank, and ranks of a server, at least. With four batches in flight at each, a rank has 64."""


def servers_of_rank(servers: Sequence[T], rank: int, world_size: int) -> list[T]:
    """Return the servers that sample for a rank, in their order.

    Any server samples any batch. Each rank has 16 servers and each server 16 ranks, or more, so channels grow
    with ranks or servers and not with their product: 7,680 instead of 57,600 for 120 servers and 480 ranks.
    """
    count = min(len(servers), max(PARTNERS, -(-PARTNERS * len(servers) // world_size)))
    first = rank * len(servers) // world_size
    return [servers[place] for place in sorted((first + step) % len(servers) for step in range(count))]


_LOGGER = logging.getLogger(__name__)

_REFRESH_ATTEMPT_S = 2.0
_LONGEST_PAUSE_S = 5.0
_DOUBT_S = 1.0
"""First pause after a view that was fetched for a missing holder."""


class MembershipFollower:
    """Fetches the view of a cluster when a reply has a newer version, or a holder is missed. Thread-safe.

    The thread starts with the first of these. It holds no reference to the cluster.
    """

    def __init__(
        self,
        version: int,
        clients: Callable[[], Iterable[StoreClient]],
        apply: Callable[[ClusterView], None],
    ) -> None:
        """``clients`` returns clients to fetch from; ``apply`` takes each newer view."""
        self.version = version
        """Of the latest view."""
        self._told = version
        self._in_doubt = False
        """A holder is missed, and a newer view may have it."""
        self._clients, self._apply = clients, apply
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def told(self, version: int) -> None:
        """Note the version in a reply. Does not block."""
        if version > self._told and not self._stopped.is_set():
            with self._lock:
                self._told = max(self._told, version)
            self._wake()

    def doubt(self) -> None:
        """Fetch a view soon: no holder of a partition responds, and no reply may tell of a new one.

        Does not block. Views are fetched with pauses from 1 to 5 s, however often it is called.
        """
        if not self._stopped.is_set():
            self._in_doubt = True
            self._wake()

    def stop(self) -> None:
        """Fetch no more views. Stopping twice is fine."""
        self._stopped.set()
        self._news.set()

    def _wake(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="gigl-membership", daemon=True)
                with suppress(RuntimeError):  # The system has none, or the interpreter ends.
                    thread.start()
                    self._thread = thread
        self._news.set()

    def _run(self) -> None:
        doubts, look_at = Backoff(first_s=_DOUBT_S, longest_s=_LONGEST_PAUSE_S), 0.0
        while not self._stopped.is_set():
            self._news.wait()
            self._news.clear()
            if self._in_doubt and time.monotonic() >= look_at:
                self._in_doubt = False
                if any(map(self._take, islice(self._views(), 1))):
                    doubts.reset()
                look_at = time.monotonic() + doubts.next_s()
            if self.version < self._told:
                self._catch_up()

    def _catch_up(self) -> None:
        """Fetch views until one is as new as the version in a reply."""
        for _ in attempts(FOREVER, first_s=0.1, longest_s=_LONGEST_PAUSE_S, wait=self._stopped.wait):
            any(map(self._take, self._views()))
            if self.version >= self._told or self._stopped.is_set():
                return

    def _views(self) -> Iterator[ClusterView]:
        """Yield the views of servers that are ready. The first is any of them."""
        clients = list(self._clients())
        first = int(random.random() * len(clients))
        for client in clients[first:] + clients[:first]:
            if self._stopped.is_set():
                return
            try:
                view = client.cluster(_REFRESH_ATTEMPT_S)
            except (GiglError, ValueError) as error:
                _LOGGER.debug("no view of the cluster: %s", error)
                continue
            if view.ready and view.servers:
                yield view

    def _take(self, view: ClusterView) -> bool:
        """Use a view. Return whether it is newer than the latest."""
        if view.membership <= self.version:
            return False
        self.version = view.membership
        self._apply(view)
        return True


def assigned(partitions: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the partitions that are counted for each server.

    Each partition is counted for one of its holders: in ascending order, for the holder with the fewest so
    far, the first of equals. So all processes that know the same servers count alike.
    """
    held = [set(each) for each in partitions]
    own: list[list[int]] = [[] for _ in held]
    for part in sorted(set().union(*held)):
        holders = [index for index, parts in enumerate(held) if part in parts]
        own[min(holders, key=lambda index: (len(own[index]), index))].append(part)
    return tuple(map(tuple, own))


_ATTEMPT_S = 10.0
_OTHER_S = 2.0
_LAST_ATTEMPT_S = 0.2
"""Time of the last attempt before the deadline. To connect and to check takes 20 ms."""
_MAX_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A cluster that is ready."""

    endpoints: tuple[Endpoint, ...]
    """By rank."""
    graph: str
    """Digest of the graph that all of them have."""
    membership: int
    """Version of ``endpoints``."""


class _NotReady(Exception):
    """A server says that it is not ready, and why."""


_PASSING = (StorageUnavailable, _NotReady)


def read_addresses(addresses: str | Sequence[str]) -> list[Address]:
    """Parse addresses, in a list or separated by commas. ``ValueError`` names an invalid one."""
    listed = addresses if isinstance(addresses, Iterable) else [addresses]
    texts = addresses.split(",") if isinstance(addresses, str) else list(listed)
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"addresses must be 'HOST:PORT' of storage servers, got {addresses!r}")
    read = [Address.parse(text.strip()) for text in texts]
    for address in read:
        if address.port == 0 or address.is_wildcard:
            raise ValueError(
                f"{address} cannot be asked: give the address that the server told when it began"
            )
    return read


def find_servers(
    addresses: Sequence[Address], caller: Caller, *, timeout_s: float, rank: int = 0, world_size: int = 1
) -> Found:
    """Return the servers of the cluster that one of ``addresses`` belongs to, once all are ready.

    Each rank checks the servers that sample for it (``servers_of_rank``): in a small cluster, all.
    Servers that do not respond or are not ready are retried for ``timeout_s``; then ``StorageUnavailable``
    names one of them and the reason. Errors that waiting cannot resolve are raised at once: ``ValueError``
    for another version, another graph or an invalid certificate, ``SamplingError`` for a wrong token.
    """
    deadline, reason = Deadline.after(timeout_s), ""
    search = _Search(addresses, caller, deadline, rank, world_size)

    def tell(error: Exception) -> None:
        nonlocal reason
        if str(error) != reason:
            reason, left_s = str(error), deadline.left_s()
            _LOGGER.warning("waiting for storage servers, up to %.0f s more: %s", left_s, reason)

    try:
        return retried(search.attempt, _PASSING, attempts(deadline, least_s=_LAST_ATTEMPT_S), failed=tell)
    except _PASSING as error:
        text = f"no storage cluster that is ready within {timeout_s:g} s: {error}"
        raise StorageUnavailable(text) from None


class _Search:
    """Attempts to find a cluster."""

    def __init__(
        self, addresses: Sequence[Address], caller: Caller, deadline: Deadline, rank: int, world_size: int
    ) -> None:
        self._endpoints = [Endpoint.of_address(address, what="storage server") for address in addresses]
        self._caller = caller
        self._deadline = deadline
        self._place = rank, world_size
        self._joining: dict[Endpoint, _NotReady] = {}
        """Addresses that were of another cluster when they were asked last, and why that may pass."""

    def attempt(self) -> Found:
        """Return the cluster. Raises the reason why it cannot be used."""
        view = self._first_view()
        if not view.servers:
            raise FormatError("a storage server says that it is ready, and names no server of its cluster")
        self._check_addresses(view)
        errors, newest = self._check_all(view)
        refused = [error for error in errors.values() if not isinstance(error, _PASSING)]
        if refused:  # Errors that waiting cannot resolve come first.
            raise refused[0]
        answering = [server for server in view.servers if server not in errors]
        if _partitions(answering) != _partitions(view.servers):
            raise next(iter(errors.values()))
        for error in errors.values():
            _LOGGER.warning("other servers hold its partitions: %s", error)
        return Found(endpoints=newest.servers, graph=view.graph, membership=newest.membership)

    def _check_all(self, view: ClusterView) -> tuple[dict[Endpoint, BaseException], ClusterView]:
        """Check the servers of this rank at the same time.

        Return what is wrong in the cluster, by server, and the newest of the views that they gave.
        """
        here = [server for server in view.servers if server.control_address not in view.away]
        usable = here if _partitions(here) == _partitions(view.servers) else view.servers
        checked = servers_of_rank(usable, *self._place)
        with ThreadPool(min(len(checked), _MAX_AT_ONCE)) as threads:
            checks = {server: threads.submit(self._check, server, view.graph) for server in checked}
        errors = {
            server: error for server, check in checks.items() if (error := check.exception()) is not None
        }
        away = StorageUnavailable("the other servers say that it does not answer")
        unchecked = [server for server in view.servers if server not in checks]
        errors |= {server: away for server in unchecked if server.control_address in view.away}
        views = [view, *(check.result() for server, check in checks.items() if server not in errors)]
        return errors, max(views, key=lambda each: each.membership)

    def _first_view(self) -> ClusterView:
        """Return the view of the first server that responds and is ready. All are called at the same time."""
        errors: list[Exception] = []
        threads = ThreadPool(min(len(self._endpoints), _MAX_AT_ONCE))
        try:
            asked = [threads.submit(self._view_or_reason, endpoint) for endpoint in self._endpoints]
            for view in as_completed(asked):
                found = view.result()
                if not isinstance(found, Exception):
                    return found
                errors.append(found)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # Does not wait for a silent server.
        # A server that is not ready gives a better reason than one that does not respond.
        raise next((error for error in errors if isinstance(error, _NotReady)), errors[0])

    def _check_addresses(self, view: ClusterView) -> None:
        """Raise ``ValueError`` if one of the addresses belongs to another cluster. A server may be down."""
        known = {server.control_address for server in view.servers}
        for endpoint in self._endpoints:
            if endpoint.control_address not in known:
                timeout_s = self._deadline.left_s(_OTHER_S)
                other = self._view_or_reason(endpoint, timeout_s)
                if isinstance(other, Exception):
                    if timeout_s < _OTHER_S and endpoint in self._joining:  # It had no time to reply.
                        raise self._joining[endpoint]
                    continue
                _check_graph(endpoint, other.graph, view.graph)
                try:
                    _check_cluster(endpoint, other, known)
                except ValueError as error:
                    if joining := view.reason or other.reason:  # Else it knows all members.
                        self._joining[endpoint] = _NotReady(f"{error} (one of them {joining})")
                        raise self._joining[endpoint] from None
                    raise

    def _view_or_reason(self, endpoint: Endpoint, timeout_s: float | None = None) -> ClusterView | Exception:
        """Return the view of a server, or the error where waiting may resolve it."""
        try:
            return self._view(endpoint, timeout_s)
        except _PASSING as error:
            return error

    def _view(self, server: Endpoint, timeout_s: float | None = None) -> ClusterView:
        with closing(StoreClient(server, self._caller)) as client:
            view = client.cluster(self._deadline.left_s(_ATTEMPT_S) if timeout_s is None else timeout_s)
        BuildVersions.of(view).agree(str(server))
        if not view.ready:
            raise _NotReady(f"{server} is not ready: {view.reason or 'it did not say why'}")
        return view

    def _check(self, server: Endpoint, graph: str) -> ClusterView:
        """Check that a server has the graph, is ready, and can be reached on both ports. Return its view."""
        view = self._view(server)
        _check_graph(server, view.graph, graph)
        if view.partitions != server.partitions:
            raise _NotReady(  # It has taken over a partition, or repairs one: its next view says so.
                f"{server} holds partitions {list(view.partitions)}, not {list(server.partitions)}"
            )
        check_data_port(server, self._caller, digest=graph, timeout_s=self._deadline.left_s(_ATTEMPT_S))
        return view


def _partitions(servers: Iterable[Endpoint]) -> set[int]:
    return {part for server in servers for part in server.partitions}


def _check_cluster(endpoint: Endpoint, view: ClusterView, known: set[str]) -> None:
    """Raise ``ValueError`` if a server knows none of the servers in use, under any address."""
    others = [server.control_address for server in view.servers]
    if others and known.isdisjoint(others):
        raise ValueError(
            f"{endpoint} is of another cluster, of {', '.join(others[:4])}, than the server that was asked "
            f"first, of {', '.join(sorted(known)[:4])}: give addresses of one cluster"
        )


def _check_graph(server: Endpoint, found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(
            f"{server} has another graph ({found[:12]}) than the server that was asked first "
            f"({expected[:12]}): a cluster serves parts of one and the same partitioned graph"
        )
