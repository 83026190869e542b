"""Splits of edges by hash, and the edges that they hold out of the adjacency lists."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.graph.schema import Column, held_out_list
from gigl_loader.partition.combined import ProjectedTable, Projection
from gigl_loader.partition.ids import as_ids, require_integers
from gigl_loader.splits import edges_by_split

if TYPE_CHECKING:
    from gigl_loader.arrays import Array, BoolArray
    from gigl_loader.graph.schema import EdgeSplits
    from gigl_loader.partition.job import Job
    from gigl_loader.partition.table import GraphTables, Kind, Table

__all__ = ["hold_out_edges"]

_ROWS = 1 << 16


def hold_out_edges(job: Job, given: GraphTables) -> GraphTables:
    """Return the tables with the sizes of splits, and with the edges that are held out apart.

    Those are the edges of splits that ``message_edges`` does not name: hidden lists have them, with the ids
    that they would have among the others.
    """
    edges, splits, labels = dict(given.edges), dict(given.splits), dict(given.labels)
    for edge_type, rule in given.splits.items():
        table = given.edges[edge_type]
        held = set() if given.message_edges is None else set(rule.fractions) - set(given.message_edges)
        for name in ("src", "dst"):
            require_integers(table, name)
        split = _SplitTable(table, rule, held)
        counts = split.count(job.track(f"edges {','.join(edge_type)}: splitting", table.num_rows))
        splits[edge_type] = replace(rule, counts=counts)
        num_held = sum(counts[name] for name in held)
        if held:
            kept = FilteredTable(split, num_rows=table.num_rows - num_held, held=False)
            out = FilteredTable(split, num_rows=num_held, held=True)
            edges[edge_type] = kept
            pairs = {name: Projection((name,)) for name in ("src", "dst", "id")}
            labels[held_out_list(edge_type)] = ProjectedTable(out, pairs)
    return replace(given, edges=edges, splits=splits, labels=labels, message_edges=None)


class _SplitTable:
    """A table of edges that knows of each whether it is held out."""

    def __init__(self, table: Table, rule: EdgeSplits, held: Collection[str]) -> None:
        self.table = table
        self._rule = rule
        self._held = held

    def count(self, advance: Callable[[int], None]) -> dict[str, int]:
        """Return the number of edges in each split."""
        counts = dict.fromkeys(self._rule.fractions, 0)
        row = 0
        for chunk in self.table.read(["src", "dst"], _ROWS):
            for name, which in self._by_split(chunk, row).items():
                counts[name] += int(np.count_nonzero(which))
            row += len(chunk["src"])
            advance(len(chunk["src"]))
        return counts

    def held(self, chunk: Mapping[str, Array], first_row: int) -> BoolArray:
        """Return which edges of a chunk are held out, bool [R]."""
        found = np.zeros(len(chunk["src"]), np.bool_)
        for name, which in self._by_split(chunk, first_row).items():
            if name in self._held:
                found |= which
        return found

    def _by_split(self, chunk: Mapping[str, Array], first_row: int) -> dict[str, BoolArray]:
        src, dst = (as_ids(self.table, name, chunk[name], first_row) for name in ("src", "dst"))
        return edges_by_split(self._rule, src, dst)


class FilteredTable:
    """The edges of a table that are held out, or the others, with the ids that they have in the whole."""

    def __init__(self, split: _SplitTable, *, num_rows: int, held: bool) -> None:
        self._split = split
        self._held = held
        self._table = split.table
        self.name = self._table.name
        self.num_rows = num_rows
        self.columns: Mapping[str, Kind] = {"id": Column("I64"), **self._table.columns}

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for row, chunk, chosen in self._chosen(names, rows):
            found = {"id": row + chosen, **{name: values[chosen] for name, values in chunk.items()}}
            yield {name: found[name] for name in names}

    def where(self, column: str, row: int) -> str:
        """Return the place in the whole table, which is read for it."""
        numbers = (first + int(each) for first, _, chosen in self._chosen([], _ROWS) for each in chosen)
        return self._table.where(column, next(islice(numbers, row, None)))

    def _chosen(
        self, names: Sequence[str], rows: int
    ) -> Iterator[tuple[int, dict[str, Array], np.ndarray[tuple[int], np.dtype[np.int64]]]]:
        """Yield each chunk with the number of its first row, and which of its rows are in this table."""
        wanted = [*dict.fromkeys(("src", "dst", *names))]
        row = 0
        for chunk in self._table.read([name for name in wanted if name in self._table.columns], rows):
            held = self._split.held(chunk, row)
            yield row, chunk, np.flatnonzero(held if self._held else ~held)
            row += len(held)
