"""Pool of samplers: each serves one thread at a time, and keeps its scratch memory for the next batch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.errors import FormatError, StorageUnavailable
from gigl_loader.sampling.costs import SCRATCH_BYTES_PER_EDGE, CostCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from gigl_loader.graph.graph import Graph
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.plan import PlanSampler
    from gigl_server.admission import Limits
    from gigl_server.sessions.channel import Channel, SampleTask

_LEAST_EDGES = 1 << 16
_FIRST_S = 1.0  # A large batch that also waits for other memory blocks later ones for this long at most.
_Key = tuple[str, bool, bool]
_OBJECTS_BYTES = 1 << 16  # Size of a sampler without scratch memory.


class EdgeAllowances:
    """Allowances of edges, so that all batches under way fit the scratch memory. Under the service's lock.

    The number of edges of a batch is known only when it is drawn. So each channel has an allowance: a batch
    that exceeds it is aborted before it takes more memory, and sampled again with twice the allowance. Each
    thread has memory for a small allowance; large allowances share the rest, and wait for it in order.
    """

    def __init__(self, limits: Limits, threads: int, clock: Callable[[], float]) -> None:
        # Half of the scratch memory is for idle samplers, a quarter each for small and large allowances.
        quarter = limits.scratch_memory // 4 // SCRATCH_BYTES_PER_EDGE
        self.most = max(min(limits.batch_edges, quarter), min(limits.batch_edges, _LEAST_EDGES))
        """Edges of the largest batch."""
        self.small = min(max(quarter // threads, _LEAST_EDGES), self.most)
        """Edges that any thread may draw at any time."""
        self._free = max(quarter, self.most)
        self._clock = clock
        self._lent: dict[SampleTask, int] = {}
        self._first: SampleTask | None = None
        self._first_until = 0.0

    @property
    def lent(self) -> list[SampleTask]:
        """Batches with a large allowance."""
        return list(self._lent)

    @property
    def first_waiting(self) -> SampleTask | None:
        """The request that waits for a large allowance, before all others."""
        first = self._first
        if first is None or first not in first.channel.queue or self.allowance(first) <= self._free:
            return None
        return first

    def admits(self, task: SampleTask) -> bool:
        """Return whether there is memory for a request now."""
        needed = self.allowance(task)
        if needed <= self.small:
            return True
        first = self._first
        if first is None or first not in first.channel.queue or self._clock() > self._first_until:
            self._first = first = task
            self._first_until = self._clock() + _FIRST_S
        return task is first and needed <= self._free

    def allowance(self, task: SampleTask) -> int:
        """Return the number of edges that the batch may have when it is sampled next."""
        return min(max(task.channel.allowance, self.small), self.most)

    def begin(self, task: SampleTask) -> None:
        """Reserve the allowance of an admitted request."""
        task.allowance = self.allowance(task)
        if task.allowance > self.small:
            self._free -= task.allowance
            self._lent[task] = task.allowance
            self._first = None if self._first is task else self._first

    def end(self, task: SampleTask, *, too_large: bool) -> bool:
        """Release the allowance. Return whether to retry a batch that was too large, with a larger one."""
        self._free += self._lent.pop(task, 0)
        channel = task.channel
        if too_large:
            channel.allowance = max(channel.allowance, 2 * task.allowance)
            return task.allowance < self.most
        return False


@dataclass(slots=True, eq=False)
class _Source:
    """Graph that samplers draw from, and a store over it where other servers hold a part."""

    graph: Graph
    store: PartitionedStore | None
    users: int = 0
    retired: bool = False

    def check_sound(self) -> None:
        """Raise ``StorageUnavailable`` once damage is known: a batch may have been drawn from it."""
        for text in [*self.graph.verifier.damage.values()]:
            raise StorageUnavailable(f"this server found damage, and samples the batch again: {text}")


class SamplerPool:
    """Lends samplers by plan. Any sampler of a plan gives the same batch. Thread-safe.

    Samplers of a plan are kept while a producer has it (``keep_only``).
    """

    def __init__(self, graph: Graph, *, keep_bytes: int) -> None:
        """Keep at most ``keep_bytes`` of idle samplers, the most recently used ones.

        A sampler of more than a quarter of ``keep_bytes`` is not kept: it grew for an unusually large batch.
        """
        self._keep_bytes = keep_bytes
        self._idle_bytes = self._lent_bytes = 0
        self._source = _Source(graph, None)
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, _Idle] = OrderedDict()  # Least recently used first.

    def sample_from(self, graph: Graph, store: PartitionedStore | None) -> None:
        """Make samplers over ``store``; over the graph, all of which is here, where there is none.

        Samplers that are lent finish on what they began with. The store before is closed after the last one.
        """
        with self._lock:
            old, self._source = self._source, _Source(graph, store)
            old.retired = True
            unused = not old.users
            idle = self._take_idle()
        idle.clear()
        if unused and old.store is not None:
            old.store.close()

    @property
    def ask_others(self) -> bool:
        """Whether samplers wait for other servers, which hold a part of the graph."""
        return self._source.store is not None

    @property
    def idle(self) -> int:
        with self._lock:
            return len(self._idle)

    @property
    def idle_bytes(self) -> int:
        """Bytes of idle samplers."""
        with self._lock:
            return self._idle_bytes

    @property
    def lent_bytes(self) -> int:
        """Bytes of lent samplers after their last batch. Those of a first batch are not known yet."""
        with self._lock:
            return self._lent_bytes

    @contextmanager
    def lent(self, channel: Channel) -> Iterator[PlanSampler]:
        """Lend a sampler for a channel's producer. A sampler that raised is not used again, nor kept.

        Nor is one whose channel was closed meanwhile: its producer may be gone.

        ``StorageUnavailable``, before or afterwards, where damage of its graph is known.
        """
        key = (channel.producer.plan_text, channel.deferred_features, channel.interactive)
        source = self._enter()
        idle: _Idle | None = None
        try:
            source.check_sound()
            idle = self._take(key, source)
            sampler = _make(channel, source) if idle is None else idle.sampler
            try:
                yield sampler
            except FormatError:
                source.check_sound()
                raise
            source.check_sound()
            self._give(key, sampler, source, channel)
        finally:
            self._leave(source, 0 if idle is None else idle.nbytes)

    def check_sound(self) -> None:
        """Raise ``StorageUnavailable`` once damage of the graph is known."""
        with self._lock:
            source = self._source
        source.check_sound()

    def keep_only(self, plans: Collection[str]) -> int:
        """Free idle samplers of all other plans. Return how many bytes those had."""
        with self._lock:
            gone = [place for place, each in self._idle.items() if each.key[0] not in plans]
            before = self._idle_bytes
            unused = [self._pop(place) for place in gone]
            freed = before - self._idle_bytes
        unused.clear()  # Outside the lock: freeing much memory takes long.
        return freed

    def clear(self) -> None:
        """Free idle samplers."""
        with self._lock:
            idle = self._take_idle()
        idle.clear()  # Outside the lock: freeing much memory takes long.

    def _take_idle(self) -> OrderedDict[int, _Idle]:
        idle, self._idle = self._idle, OrderedDict()
        self._idle_bytes = 0
        return idle

    def _enter(self) -> _Source:
        with self._lock:
            self._source.users += 1
            return self._source

    def _leave(self, source: _Source, lent_bytes: int) -> None:
        with self._lock:
            self._lent_bytes -= lent_bytes
            source.users -= 1
            last = source.retired and not source.users
        if last and source.store is not None:
            source.store.close()

    def _take(self, key: _Key, source: _Source) -> _Idle | None:
        """Take the most recently used sampler: its memory is the warmest."""
        with self._lock:
            if source.retired:
                return None
            found = next((place for place in reversed(self._idle) if self._idle[place].key == key), None)
            if found is None:
                return None
            idle = self._pop(found)
            self._lent_bytes += idle.nbytes
            return idle

    def _give(self, key: _Key, sampler: PlanSampler, source: _Source, channel: Channel) -> None:
        nbytes = _OBJECTS_BYTES + len(key[0]) + sampler.scratch_bytes
        if nbytes > self._keep_bytes // 4:
            return
        spent = []
        with self._lock:
            # Once a channel is closed, ``keep_only`` may have looked already.
            if source.retired or channel.closed:
                return
            self._idle[id(sampler)] = _Idle(key, sampler, nbytes)
            self._idle_bytes += nbytes
            while self._idle_bytes > self._keep_bytes:
                spent.append(self._pop(next(iter(self._idle))))
        spent.clear()  # Outside the lock: freeing much memory takes long.

    def _pop(self, place: int) -> _Idle:
        idle = self._idle.pop(place)
        self._idle_bytes -= idle.nbytes
        return idle


def _make(channel: Channel, source: _Source) -> PlanSampler:
    store = source.store
    costs = CostCounter() if store is None else CostCounter(store.wire)
    return channel.producer.plan.open(
        source.graph,
        store,
        costs=costs,
        deferred=channel.deferred_features,
        new_nodes=channel.interactive,
    )


class _Idle(NamedTuple):
    key: _Key
    sampler: PlanSampler
    nbytes: int
