"""Queue of responses: the batch that is delivered first comes out first."""

from __future__ import annotations

import heapq
import queue
import threading
from typing import Generic, TypeVar

__all__ = ["ResponseQueue"]

Item = TypeVar("Item")


class ResponseQueue(Generic[Item]):
    """Hands out items by fence and batch, the lowest first. Thread-safe; ``put`` does not wait.

    A frame of 121 MB takes a fetching thread many times as long as its reply: in the order of arrival, the
    batch that the trainer waits for would wait for frames that nobody needs yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[tuple[int, int, int, Item]] = []
        self._count = 0
        # Counts items and ends. It wakes one thread for each, without the polling of a condition.
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def put(self, item: Item, *, fence: int, batch: int) -> None:
        """Add an item. Of equal fence and batch, the one that was added first comes out first."""
        with self._lock:
            self._count += 1
            heapq.heappush(self._items, (fence, batch, self._count, item))
        self._signals.put(True)

    def end(self) -> None:
        """Let one ``get`` return ``None``."""
        self._signals.put(False)

    def get(self) -> Item | None:
        """Wait for an item, and return the first one. ``None``: the queue was ended."""
        if not self._signals.get():
            return None
        with self._lock:
            return heapq.heappop(self._items)[-1]
