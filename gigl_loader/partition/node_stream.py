"""Order in which a streaming assigner places the nodes of all types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import NodeType

__all__ = ["NodeStream"]

_WINDOWS = 4096
"""The more there are, the closer node types keep in step. Part of the result: never depends on memory."""

_Value = TypeVar("_Value", bound=np.generic)


class NodeStream:
    """The nodes of all types in one order: each type by ascending node id, all types in step.

    The stream is cut into windows, and each type into as many ranges of equal size. A window has the range of
    the first type, then that of the second, and so on: so that the ends of an edge between two types come
    about equally early, whatever the sizes of the types.
    """

    def __init__(self, counts: Mapping[NodeType, int]) -> None:
        """``counts`` are the numbers of nodes by type."""
        self.counts = dict(counts)
        self.size = sum(counts.values())
        self._numbers = {node_type: number for number, node_type in enumerate(counts)}
        windows = np.arange(_WINDOWS + 1, dtype=np.int64)
        # [T, W + 1]: where the range of each type in each window begins, in the order of its own nodes.
        self._ranges = np.array([windows * count // _WINDOWS for count in counts.values()]).reshape(
            len(counts), _WINDOWS + 1
        )
        sizes = np.diff(self._ranges).T.reshape(-1)
        # [W * T + 1]: the same in the order of the stream.
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def places(self, node_type: NodeType, ranks: Int64Array) -> Int64Array:
        """Return the places in the stream of nodes, int64 [N], given by rank among the ids of their type."""
        if len(self.counts) == 1 or len(ranks) == 0:
            return ranks
        number = self._numbers[node_type]
        # Range w is [w * count // W, (w + 1) * count // W).
        window = ((ranks + 1) * _WINDOWS - 1) // self.counts[node_type]
        began = self._ranges[number][window] - self._starts[window * len(self.counts) + number]
        return np.asarray(ranks - began)

    def kinds(self, begin: int, end: int) -> npt.NDArray[np.uint16]:
        """Return the number of the type of each node in ``[begin, end)`` of the stream, uint16 [N]."""
        if len(self.counts) == 1:
            return np.zeros(end - begin, np.uint16)
        low = int(np.searchsorted(self._starts, begin, side="right")) - 1
        high = int(np.searchsorted(self._starts, end, side="left"))
        bounds = np.clip(self._starts[low : high + 1], begin, end)
        numbers = np.arange(low, high) % len(self.counts)
        return np.repeat(numbers.astype(np.uint16), np.diff(bounds))

    def of_type(
        self, node_type: NodeType, values: npt.NDArray[_Value], *, rows: int = 1 << 20
    ) -> npt.NDArray[_Value]:
        """Return those of one type, [N] by ascending node id, of values by place in the stream."""
        if len(self.counts) == 1:
            return values
        count = self.counts[node_type]
        found = np.empty(count, values.dtype)
        for start in range(0, count, rows):
            ranks = np.arange(start, min(start + rows, count))
            found[start : start + rows] = values[self.places(node_type, ranks)]
        return found
