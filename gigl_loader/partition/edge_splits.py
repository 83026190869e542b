"""Splits of edges by hash, and the edges that they hold out of the adjacency lists."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.graph.schema import Column, held_out_list, type_name
from gigl_loader.partition.combined import ProjectedTable, Projection
from gigl_loader.partition.ids import as_ids, require_integers
from gigl_loader.partition.shards import first_rows, shards_of
from gigl_loader.partition.stage import StageInfo
from gigl_loader.splits import edges_by_split

if TYPE_CHECKING:
    from gigl_loader.arrays import Array, BoolArray
    from gigl_loader.graph.schema import EdgeSplits, EdgeType
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
        found = job.runner.run(job, _CountStage(edge_type, split, job.runner.shards(table)))
        counts = {name: sum(each["counts"][name] for each in found) for name in rule.fractions}
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

    def over(self, table: Table) -> _SplitTable:
        """Return the same rule over a shard."""
        return _SplitTable(table, self._rule, self._held)

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


@dataclass(frozen=True, slots=True)
class _CountStage:
    """Counts the edges of each split, a shard of the table a task."""

    edge_type: EdgeType
    split: _SplitTable
    shards: Sequence[Table]

    @property
    def info(self) -> StageInfo:
        return StageInfo(
            name=f"splits/{type_name(self.edge_type)}",
            step=f"edges {','.join(self.edge_type)}: splitting",
            num_rows=self.split.table.num_rows,
            num_tasks=len(self.shards),
        )

    def run(self, job: Job, task: int) -> dict[str, Any]:
        shard = self.shards[task]
        return {"counts": self.split.over(shard).count(job.advance), "rows": shard.num_rows}


class FilteredTable:
    """The edges of a table that are held out, or the others, with the ids that they have in the whole."""

    def __init__(self, split: _SplitTable, *, num_rows: int, held: bool, first_row: int = 0) -> None:
        self._split = split
        self._held = held
        self._first_row = first_row
        self._table = split.table
        self.name = self._table.name
        self.num_rows = num_rows
        self.columns: Mapping[str, Kind] = {"id": Column("I64"), **self._table.columns}

    def shards(self, rows: int) -> list[FilteredTable]:
        """Return shards. Their ``num_rows`` are bounds: which rows they keep is known when they are read."""
        found = shards_of(self._table, rows)
        return [
            FilteredTable(
                self._split.over(shard),
                num_rows=shard.num_rows,
                held=self._held,
                first_row=self._first_row + row,
            )
            for shard, row in zip(found, first_rows(found), strict=False)
        ]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for row, chunk, chosen in self._chosen(names, rows):
            found = {
                "id": self._first_row + row + chosen,
                **{name: values[chosen] for name, values in chunk.items()},
            }
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
