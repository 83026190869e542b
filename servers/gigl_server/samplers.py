"""Samplers, each used by one thread at a time, kept with their scratch memory for the next batch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.sampling.ledger import Ledger
from gigl_loader.sampling.sampler import Sampler
from gigl_loader.sampling.stepped import SteppedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.graph.graph import Graph
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.source import BatchSampler
    from gigl_server.channels import Channel

__all__ = ["SamplerShelf"]

_Key = tuple[str, bool]


class SamplerShelf:
    """Lends samplers by what they sample. A batch depends on no earlier one, so any will do. Thread-safe."""

    def __init__(self, graph: Graph, *, keep: int) -> None:
        """Keep at most ``keep`` idle ones: of all producers, those that were used last."""
        self._graph = graph
        self._keep = keep
        self._store: PartitionedStore | None = None
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, tuple[_Key, BatchSampler]] = OrderedDict()  # Least recently used first.

    def sample_from(self, store: PartitionedStore | None) -> None:
        """Make samplers that ask ``store``. ``None``: that read the graph, which is whole here."""
        self._store = store

    @property
    def idle(self) -> int:
        with self._lock:
            return len(self._idle)

    @contextmanager
    def lent(self, channel: Channel) -> Iterator[BatchSampler]:
        """Lend a sampler for a channel's producer. One that raised is not used again."""
        key = (channel.producer.plan_text, channel.without_rows)
        sampler = self._take(key) or self._make(channel)
        yield sampler
        self._give(key, sampler)

    def clear(self) -> None:
        """Free the idle ones."""
        with self._lock:
            idle, self._idle = self._idle, OrderedDict()
        idle.clear()  # Outside the lock: it frees much memory.

    def _make(self, channel: Channel) -> BatchSampler:
        plan, store = channel.producer.plan, self._store
        if store is None:
            return Sampler(self._graph, plan, Ledger(), without_rows=channel.without_rows)
        ledger = Ledger(store.wire)
        return SteppedSampler(self._graph, plan, store, ledger, without_rows=channel.without_rows)

    def _take(self, key: _Key) -> BatchSampler | None:
        """Take the one that was used last: its memory is the warmest."""
        with self._lock:
            found = next((place for place in reversed(self._idle) if self._idle[place][0] == key), None)
            return None if found is None else self._idle.pop(found)[1]

    def _give(self, key: _Key, sampler: BatchSampler) -> None:
        spent = None
        with self._lock:
            self._idle[id(sampler)] = (key, sampler)
            if len(self._idle) > self._keep:
                spent = self._idle.popitem(last=False)
        del spent
