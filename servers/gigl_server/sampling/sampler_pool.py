"""Pool of samplers: each serves one thread at a time, and keeps its scratch memory for the next batch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.sampling.costs import CostCounter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.graph.graph import Graph
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.source import PlanSampler
    from gigl_server.sessions.channel import Channel

__all__ = ["SamplerPool"]

_Key = tuple[str, bool]

_OBJECTS_BYTES = 1 << 16  # Size of a sampler without scratch memory.


class SamplerPool:
    """Lends samplers by plan. Any sampler of a plan gives the same batch. Thread-safe."""

    def __init__(self, graph: Graph, *, keep_bytes: int) -> None:
        """Keep at most ``keep_bytes`` of idle samplers, the most recently used ones.

        A sampler of more than a quarter of ``keep_bytes`` is not kept: it grew for an unusually large batch.
        """
        self._graph = graph
        self._keep_bytes = keep_bytes
        self._idle_bytes = 0
        self._store: PartitionedStore | None = None
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, _Idle] = OrderedDict()  # Least recently used first.

    def sample_from(self, store: PartitionedStore | None) -> None:
        """Make samplers over ``store``. ``None``: over the graph, all of which is here."""
        self._store = store

    @property
    def idle(self) -> int:
        with self._lock:
            return len(self._idle)

    @property
    def idle_bytes(self) -> int:
        """Bytes of idle samplers."""
        with self._lock:
            return self._idle_bytes

    @contextmanager
    def lent(self, channel: Channel) -> Iterator[PlanSampler]:
        """Lend a sampler for a channel's producer. A sampler that raised is not used again."""
        key = (channel.producer.plan_text, channel.deferred_features)
        sampler = self._take(key) or self._make(channel)
        yield sampler
        self._give(key, sampler)

    def clear(self) -> None:
        """Free idle samplers."""
        with self._lock:
            idle, self._idle = self._idle, OrderedDict()
            self._idle_bytes = 0
        idle.clear()  # Outside the lock: freeing much memory takes long.

    def _make(self, channel: Channel) -> PlanSampler:
        store = self._store
        costs = CostCounter() if store is None else CostCounter(store.wire)
        return channel.producer.plan.open(self._graph, store, costs=costs, deferred=channel.deferred_features)

    def _take(self, key: _Key) -> PlanSampler | None:
        """Take the most recently used sampler: its memory is the warmest."""
        with self._lock:
            found = next((place for place in reversed(self._idle) if self._idle[place].key == key), None)
            return None if found is None else self._pop(found)

    def _give(self, key: _Key, sampler: PlanSampler) -> None:
        nbytes = _OBJECTS_BYTES + len(key[0]) + sampler.scratch_bytes
        if nbytes > self._keep_bytes // 4:
            return
        spent = []
        with self._lock:
            self._idle[id(sampler)] = _Idle(key, sampler, nbytes)
            self._idle_bytes += nbytes
            while self._idle_bytes > self._keep_bytes:
                spent.append(self._pop(next(iter(self._idle))))
        spent.clear()  # Outside the lock: freeing much memory takes long.

    def _pop(self, place: int) -> PlanSampler:
        idle = self._idle.pop(place)
        self._idle_bytes -= idle.nbytes
        return idle.sampler


class _Idle(NamedTuple):
    key: _Key
    sampler: PlanSampler
    nbytes: int
