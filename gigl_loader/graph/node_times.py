"""Times of the nodes of a type: by position, and the nodes in order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.tensors import ArraySpec

if TYPE_CHECKING:
    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.graph.document import Document

__all__ = ["NodeTimes"]


class NodeTimes(NamedTuple):
    """A time of every node of a type."""

    times: Int64Array
    """By position, int64 [N]."""
    order: Array
    """Positions by ascending (time, node id), int32 or int64 [N]."""

    def not_later(self, bounds: Int64Array) -> Int64Array:
        """Return for each bound how many nodes have a time that is not later, int64."""
        low = np.zeros(len(bounds), np.int64)
        high = np.full(len(bounds), len(self.order), np.int64)
        while True:  # Binary searches, all at once: the sorted times are not stored.
            open_ = low < high
            if not open_.any():
                return low
            middle = np.where(open_, (low + high) // 2, 0)
            early = self.times[self.order[middle]] <= bounds
            low = np.where(open_ & early, middle + 1, low)
            high = np.where(open_ & ~early, middle, high)

    @staticmethod
    def check(document: Document, count: int) -> None:
        """Raise ``FormatError`` unless a file has the times of ``count`` nodes."""
        order = document.specs.get("order")
        width = "I32" if order is not None and order.dtype == "I32" else "I64"
        document.require("times", ArraySpec("I64", (count,)))
        document.require("order", ArraySpec(width, (count,)))
        if len(document.specs) > 2:
            raise FormatError(f"{document.name}: other arrays than times and order")
