"""Tables of a graph of any size, made while they are read: no input lies on a disk. Needs NumPy alone.

Every row is a function of its number, so that tasks may read any part, in any order, as often as they like.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, Column
from gigl_loader.partition import GraphTables, NodeTable

_BLOCK = 1 << 18
"""Rows that are drawn together."""
_SCRAMBLE = {"src": 999_999_937, "dst": 2_147_483_629}
"""Primes that spread popular nodes over all ids, sources and destinations differently."""


def made_tables(*, nodes: int, edges: int, dim: int, dtype: str = "F32") -> GraphTables:
    """Return ``edges`` between ``nodes`` with a skew, and ``dim`` features a node, ``F32`` or ``I8``.

    Ends are the squares of uniform numbers: a hundredth of the nodes has a tenth of the edges.
    """
    return GraphTables(
        {HOMOGENEOUS_EDGE: _Edges("edges", {"src": Column("I64"), "dst": Column("I64")}, edges, nodes)},
        {HOMOGENEOUS_NODE: NodeTable(_Nodes("nodes", {"x": Column(dtype, (dim,))}, nodes, nodes))},
    )


class _Made(ABC):
    """Rows ``[first, first + num_rows)`` of a table."""

    def __init__(self, name: str, columns: dict[str, Column], num_rows: int, nodes: int) -> None:
        self.name, self.columns, self.num_rows, self._nodes = name, columns, num_rows, nodes
        self._first = 0

    @property
    def stamp(self) -> object:
        return [self._first, self.num_rows, self._nodes]

    def shards(self, rows: int) -> list[_Made]:
        """Cut at blocks, so that none is made twice."""
        step = max(rows // _BLOCK, 1) * _BLOCK
        found = []
        for begin in range(0, max(self.num_rows, 1), step):
            shard = copy(self)
            shard._first, shard.num_rows = self._first + begin, min(step, self.num_rows - begin)
            found.append(shard)
        return found

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Any]]:
        row, end = self._first, self._first + self.num_rows
        while row < end:
            block = row // _BLOCK
            last = min((block + 1) * _BLOCK, end)
            made = self._block(block, min(_BLOCK, end - block * _BLOCK), names)
            for begin in range(row, last, rows):
                low, high = begin - block * _BLOCK, min(begin + rows, last) - block * _BLOCK
                yield {name: array[low:high] for name, array in made.items()}
            row = last

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, column {column!r}, row {self._first + row}"

    @abstractmethod
    def _block(self, block: int, rows: int, names: Sequence[str]) -> dict[str, Any]:
        """Return the columns of a block."""


class _Edges(_Made):
    def _block(self, block: int, rows: int, names: Sequence[str]) -> dict[str, Any]:
        generator = np.random.Generator(np.random.SFC64([0, block]))
        uniform = {name: generator.random(rows) for name in ("src", "dst")}
        return {name: self._ends(uniform[name], _SCRAMBLE[name]) for name in names}

    def _ends(self, uniform: Any, prime: int) -> Any:
        ranks = (uniform * uniform * self._nodes).astype(np.int64)
        return ranks * prime % self._nodes


class _Nodes(_Made):
    def _block(self, block: int, rows: int, names: Sequence[str]) -> dict[str, Any]:
        generator = np.random.Generator(np.random.SFC64([1, block]))
        column = self.columns["x"]
        if column.dtype == "I8":
            words = generator.integers(0, 2**64, (rows, -(-column.shape[0] // 8)), np.uint64)
            return {"x": words.view(np.int8)[:, : column.shape[0]]}
        return {"x": generator.random((rows, *column.shape), np.float32)}
