"""Checks of a directory of GLT that the building of a graph does not make itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.partition.glt.layout import EdgeFiles, FeatureFiles
    from gigl_loader.partition.glt.tensors import Rows

__all__ = ["EdgeIds", "check_book", "check_edge_ids", "check_node_ids"]

_ROWS = 1 << 20


def check_book(book: Rows, num_partitions: int, advance: Callable[[int], None]) -> None:
    """Raise ``FormatError`` unless every entry of a partition book is a partition."""
    for row, parts in _chunks(book):
        _require_range(book, row, parts, num_partitions, "partition")
        advance(len(parts))


def check_node_ids(features: Sequence[FeatureFiles], num_nodes: int, advance: Callable[[int], None]) -> None:
    """Raise ``FormatError`` where features are of nodes that the partition book does not have."""
    for each in features:
        for row, ids in _chunks(each.ids):
            _require_range(each.ids, row, ids, num_nodes, "node id")
            advance(len(ids))


def check_edge_ids(
    edges: EdgeFiles, features: FeatureFiles | None, seen: EdgeIds, advance: Callable[[int], None]
) -> bool:
    """Note the edge ids of a partition; return whether its features come in the order of its edges.

    ``FormatError`` for an id that is out of range, or was there before.
    """
    assert edges.ids is not None
    in_order = features is not None
    others = _chunks(features.ids) if features is not None else None
    for row, ids in _chunks(edges.ids):
        seen.add(edges.ids, row, ids)
        if others is not None:
            in_order &= np.array_equal(ids, next(others)[1])
        advance(len(ids))
    return in_order


class EdgeIds:
    """The set of edge ids that were seen, with a bit for each that there can be."""

    def __init__(self, num_edges: int) -> None:
        self._num_edges = num_edges
        self._bits = np.zeros(self.nbytes(num_edges), np.uint8)

    @staticmethod
    def nbytes(num_edges: int) -> int:
        return -(-num_edges // 8)

    def add(self, rows: Rows, first_row: int, ids: Array) -> None:
        """Add ids, which are ``rows`` from ``first_row`` on. ``FormatError`` for one that is there."""
        _require_range(rows, first_row, ids, self._num_edges, "edge id")
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        places, bits = ordered >> 3, np.uint8(1) << (ordered & 7).astype(np.uint8)
        known = (self._bits[places] & bits) != 0
        known[1:] |= ordered[1:] == ordered[:-1]
        if known.any():
            row = int(order[known].min())
            raise FormatError(f"{rows.path}, row {first_row + row}: edge id {ids[row]} occurs a second time")
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        if len(starts):
            self._bits[places[starts]] |= np.bitwise_or.reduceat(bits, starts)


def _chunks(rows: Rows) -> Iterator[tuple[int, Array]]:
    with rows.open() as file:
        for start in range(0, len(rows), _ROWS):
            yield start, rows.read(file, start, min(_ROWS, len(rows) - start))


def _require_range(rows: Rows, first_row: int, values: Array, end: int, what: str) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= end))
    if len(wrong):
        row = int(wrong[0])
        raise FormatError(f"{rows.path}, row {first_row + row}: {what} {values[row]} is not in 0..{end - 1}")
