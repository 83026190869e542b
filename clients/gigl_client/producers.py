"""Creation of producers: the first rank of a worker key leads, and the other ranks follow.

No rank waits for a rank that has not started: a leader waits for servers only, and a follower for a leader
that is creating the producer. So ranks may build loaders in any order. The leader publishes its result,
success or failure, to all followers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError, GiglError, SamplingError, StorageUnavailable
from gigl_loader.group import RankLock, name_ranks, wait_for
from gigl_loader.options import MAX_KEY
from gigl_loader.retry import Deadline, attempts, retried
from gigl_loader.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_client.cluster import Cluster, Server
    from gigl_loader.group import RankGroup
    from gigl_loader.sampling.source import SourceRequest

_LOGGER = logging.getLogger(__name__)
_SHARE_OF_LEADER = 0.9
"""Share of the timeout for the leader, so that followers receive its failure before their own timeout."""
_ATTEMPT_S = 10.0
_UNDO_S = 2.0
_LAST_ATTEMPT_S = 0.1
_MAX_AT_ONCE = 32
_LISTED = 16
_LOOK_S = 0.05

_KINDS = {
    kind.__name__: kind
    for kind in (FormatError, SamplingError, StorageUnavailable, TimeoutError, TypeError, ValueError)
}
"""Exceptions of a leader that followers raise as the same class. Any other becomes ``GiglError``."""


class ProducerCreator:
    """Creates the producers of one dataset's loaders, or waits for the rank that does."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._loaders = itertools.count(1)

    def produce(self, request: SourceRequest) -> str:
        """Return the key of a loader's producer, once all servers have the producer.

        Followers raise what their leader raises, and ``TimeoutError`` where the leader publishes no result.
        After a failure of the leader, producers that it created are destroyed again.
        """
        group = request.group
        key = self._key(request)
        if group is None or (request.alone and request.store.worker_key is None):
            creation = self._creation(key, request, request.timeout_s)
            try:
                creation.create()
            except BaseException:
                creation.undo()
                raise
            _LOGGER.info("producer %s: of this rank alone; %s", key, creation.describe())
            return key
        # Only a part of the job's secret: keys of the store may show up in logs.
        place = f"producer/{self._cluster.job[:8]}/{key}"
        place += f"/{group.turn(place)}"
        leader = int(group.first(f"{place}/leader", str(group.rank)))
        group.join(place)
        if leader == group.rank:
            self._lead(group, place, key, request)
        else:
            _follow(group, place, key, leader, request)
        return key

    def _key(self, request: SourceRequest) -> str:
        """Return the worker key of the user, or a key that no other loader of the job has."""
        if request.store.worker_key is not None:
            return request.store.worker_key
        group, name = request.group, _short(request.name)
        if group is None:
            return f"{name}#{next(self._loaders)}"
        if request.alone:
            return f"{name}#{next(self._loaders)} of rank {group.rank}"
        # Ranks build loaders of equal names in one order.
        return f"{name}#{group.turn(f'producers/{self._cluster.job[:8]}/{name}')}"

    def _lead(self, group: RankGroup, place: str, key: str, request: SourceRequest) -> None:
        timeout_s = _SHARE_OF_LEADER * request.timeout_s
        creation = self._creation(key, request, timeout_s)
        servers = len(self._cluster.servers)
        _LOGGER.info("producer %s: rank %d leads, and creates it on %d servers", key, group.rank, servers)
        began = time.monotonic()
        try:
            with self._turn(group, request, timeout_s) as batch:
                stagger_s = time.monotonic() - began
                creation.create()
        except BaseException as error:
            with suppress(ConnectionError):  # Of two failures, the first counts.
                group.publish(f"{place}/outcome", json.dumps([_kind(error), str(error) or repr(error)]))
            creation.undo()  # After publishing: this may take longer than followers wait.
            raise
        group.publish(f"{place}/outcome", json.dumps(None))
        if _LOGGER.isEnabledFor(logging.INFO):  # One call to the store for each rank of the key.
            text = "producer %s: rank %d led %s; %s, stagger %.2f s; %s"
            ranks = name_ranks(group.joined(place))
            _LOGGER.info(text, key, group.rank, ranks, batch, stagger_s, creation.describe())

    def _creation(self, key: str, request: SourceRequest, timeout_s: float) -> _Creation:
        return _Creation(self._cluster, key, request.plan.to_json(), Deadline.after(timeout_s))

    @contextmanager
    def _turn(self, group: RankGroup, request: SourceRequest, timeout_s: float) -> Iterator[str]:
        """Wait until this leader may create its producer. Yields its batch of leaders, as text."""
        limit = request.store.max_producer_inits
        if limit is None:
            yield "batch 1 (of all leaders)"
            return
        key = f"producer/{self._cluster.job[:8]}/turns"
        gap_s = request.start_gap_s or 0.0
        with admitted(group, key, limit=limit, gap_s=gap_s, timeout_s=timeout_s) as described:
            yield described


def _short(name: str) -> str:
    """Return a name within the servers' length limit: a long one is cut and ends with its hash."""
    if len(name) <= MAX_KEY:
        return name
    return f"{name[:MAX_KEY]}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _follow(group: RankGroup, place: str, key: str, leader: int, request: SourceRequest) -> None:
    _LOGGER.info("producer %s: rank %d waits for its leader, rank %d", key, group.rank, leader)
    began = time.monotonic()
    what = f"create the producer of {request.name} on the storage servers, which it was the first to begin"
    (result,) = group.collect(f"{place}/outcome", ranks=[leader], timeout=request.timeout_s, what=what)
    failure = json.loads(result)
    if failure is not None:
        kind, message = failure
        raise _KINDS.get(kind, GiglError)(f"rank {leader}: {message}")
    text = "producer %s: rank %d uses that of its leader, rank %d, after %.2f s"
    _LOGGER.info(text, key, group.rank, leader, time.monotonic() - began)


def _kind(error: BaseException) -> str:
    """Return the nearest base class in ``_KINDS``, by name; empty where there is none."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), "")


class _Creation:
    """One producer, to be created on all servers."""

    def __init__(self, cluster: Cluster, key: str, plan: str, deadline: Deadline) -> None:
        self._servers = cluster.servers
        self._arguments = (key, plan, cluster.graph_digest)
        self._deadline = deadline
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._created: list[Server] = []
        """Servers that have the producer."""
        self._failed: set[int] = set()
        """Ids of servers that did not answer an attempt."""
        self._made: list[Server] = []
        """Servers that created the producer for this call."""
        self._seconds: dict[str, float] = {}
        """Until each server had the producer."""

    def create(self) -> None:
        """Create the producer on all servers concurrently.

        A silent server is not waited for where other servers hold its partitions: the producer is
        created when a channel is opened there. Raises the error of one server. Other servers may have created
        the producer: see ``undo``.
        """
        self._began = time.monotonic()
        with ThreadPool(min(len(self._servers), _MAX_AT_ONCE)) as threads:
            tasks = [threads.submit(copy_context().run, self._create_on, server) for server in self._servers]
            self._dispatch_s = time.monotonic() - self._began
            try:
                pending = set(tasks)
                while pending and not self._is_enough():
                    done, pending = wait(pending, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
                    if any(task.exception() for task in done):
                        break
                enough = self._is_enough()
            finally:
                # After a refusal or an interrupt, the other attempts are pointless.
                self._given_up.set()
        errors = [error for task in tasks if (error := task.exception()) is not None]
        if enough:
            errors = [error for error in errors if not isinstance(error, StorageUnavailable)]
        if errors:
            # A refusal says more than a server that is away.
            raise next((error for error in errors if not isinstance(error, StorageUnavailable)), errors[0])

    def describe(self) -> str:
        """Return the time of the dispatch, and until each server had the producer: the slowest 16 servers."""
        seconds = sorted(self._seconds.items(), key=lambda each: -each[1])
        listed = ", ".join(f"{server} in {taken:.2f} s" for server, taken in seconds[:_LISTED])
        more = f", ... ({len(seconds)} servers)" if len(seconds) > _LISTED else ""
        dispatched = f"dispatched to {len(self._servers)} servers in {self._dispatch_s:.3f} s"
        return f"{dispatched}; created on {listed}{more}"

    def _is_enough(self) -> bool:
        """Return whether every server was tried, and the servers with the producer hold all partitions."""
        with self._lock:
            created, asked = list(self._created), {*map(id, self._created), *self._failed}
        if len(asked) < len(self._servers):
            return False
        held = {part for server in created for part in server.endpoint.partitions}
        return held.issuperset(part for server in self._servers for part in server.endpoint.partitions)

    def undo(self) -> None:
        """Destroy the producer on the servers that created it for this call."""
        if self._made:
            with ThreadPool(min(len(self._made), _MAX_AT_ONCE)) as threads:
                list(threads.map(self._destroy_on, self._made))

    def _create_on(self, server: Server) -> None:
        """Retry until the server has the producer."""

        def note(error: Exception) -> None:
            with self._lock:
                self._failed.add(id(server))

        tries = attempts(self._deadline, least_s=_LAST_ATTEMPT_S, wait=self._given_up.wait)
        retried(partial(self._create_once, server), StorageUnavailable, tries, failed=note)

    def _create_once(self, server: Server) -> None:
        if server.client.create_producer(*self._arguments, self._deadline.left_s(_ATTEMPT_S)):
            self._made.append(server)
        with self._lock:
            self._created.append(server)
            self._seconds[str(server.endpoint)] = time.monotonic() - self._began

    def _destroy_on(self, server: Server) -> None:
        with suppress(GiglError, ValueError):  # Its lease ends it otherwise.
            server.client.destroy_producer(self._arguments[0], _UNDO_S)


@contextmanager
def admitted(group: RankGroup, key: str, *, limit: int, gap_s: float, timeout_s: float) -> Iterator[str]:
    """Hold one of ``limit`` places under ``key``, shared by all ranks.

    Yields the batch and the place, as text: the leaders with the same turn at their places are a batch.

    The next holder of a place begins ``gap_s`` seconds after the last one began, by the clocks of their
    hosts. ``TimeoutError`` names a rank that holds a place where none becomes free within ``timeout_s``. It
    is also raised where a place becomes free too late for the gap.
    """
    deadline = time.monotonic() + timeout_s
    places = [RankLock(group, f"{key}/{number}") for number in range(limit)]
    taken: list[RankLock] = []

    def take() -> bool:
        for place in places:
            if place.take():
                taken.append(place)
                return True
        return False

    if not wait_for(take, timeout_s):
        raise TimeoutError(
            f"no turn to create a producer within {timeout_s:g} s: rank {places[0].holder} is still creating "
            "its own; raise max_concurrent_producer_inits, or look at that rank"
        )
    (place,) = taken
    began, turns = map(float, (place.note or "0 0").split())
    try:
        _wait_for_gap(began, gap_s, deadline, timeout_s)
        began, turns = time.time(), turns + 1
        yield f"batch {turns:.0f} (place {places.index(place) + 1} of {limit})"
    finally:
        place.give_back(f"{began:.6f} {turns:.0f}")


def _wait_for_gap(last_began: float, gap_s: float, deadline: float, timeout_s: float) -> None:
    # At most the gap: the clock of another host may be wrong.
    pause = min(max(last_began + gap_s - time.time(), 0.0), gap_s)
    if pause >= max(deadline - time.monotonic(), 0.0) and pause:
        raise TimeoutError(
            f"no turn to create a producer within {timeout_s:g} s: the next is {pause:.1f} s from now; lower "
            "process_start_gap_seconds, or raise timeout"
        )
    time.sleep(pause)
