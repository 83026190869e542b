"""Texts of a relation column, each of which makes an edge type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import EdgeType, is_hidden_list, type_name
from gigl_loader.partition.job import Job
from gigl_loader.partition.readers import Table
from gigl_loader.partition.stage import StageInfo, numbered
from gigl_loader.partition.table import GraphTables, of_relation, relation_column

_MAX_RELATIONS = 4096
"""Each is a file in every partition."""
_ROWS = 1 << 16


def read_relations(job: Job, tables: GraphTables) -> dict[EdgeType, tuple[str, ...]]:
    """Return the texts of the relation column of each table that has one, ascending.

    ``FormatError`` for a missing text, for too many of them, and for one that makes a type of another table.
    """
    found: dict[EdgeType, tuple[str, ...]] = {}
    made: dict[EdgeType, EdgeType] = {}
    for kind, table in tables.edges.items():
        column = relation_column(kind)
        if column is not None:
            found[kind] = _texts_of(job, kind, table, column)
        for each in [kind] if column is None else [of_relation(kind, text) for text in found[kind]]:
            if each in made or (column is not None and is_hidden_list(each)):
                other = f", as {','.join(made[each])} does" if each in made else ", which names no edges"
                raise FormatError(f"{table.name}: {','.join(kind)} makes the type {','.join(each)}{other}")
            made[each] = kind
    return found


def reverses_of(
    reverses: Mapping[EdgeType, EdgeType], relations: Mapping[EdgeType, Sequence[str]]
) -> dict[EdgeType, EdgeType]:
    """Return the declared reverses by the edge types of the graph."""
    found: dict[EdgeType, EdgeType] = {}
    for kind, reverse in reverses.items():
        if kind in relations and reverse in relations:
            both = set(relations[kind]) & set(relations[reverse])
            found |= {of_relation(kind, text): of_relation(reverse, text) for text in both}
        elif kind not in relations and reverse not in relations:
            found[kind] = reverse
    return found


def _texts_of(job: Job, kind: EdgeType, table: Table, column: str) -> tuple[str, ...]:
    shards = job.runner.shards(table)
    info = StageInfo(
        name=f"relations/{type_name(kind)}",
        step=f"edges {','.join(kind)}: relations",
        num_rows=table.num_rows,
        num_tasks=len(shards),
    )
    results = job.runner.run(job, _RelationStage(info, column, shards))
    found = sorted({text for each in results for text in each["texts"]})
    if len(found) > _MAX_RELATIONS:
        raise FormatError(_too_many(table, column))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _RelationStage:
    """Collects the texts of a column, a shard of the table a task."""

    info: StageInfo
    column: str
    shards: Sequence[Table]

    def run(self, job: Job, task: int) -> dict[str, Any]:
        table, num_rows = self.shards[task], 0
        texts: set[str] = set()
        for row, chunk in numbered(table, [self.column], _ROWS):
            values = chunk[self.column].tolist()
            texts.update(values)
            if "" in texts:
                raise FormatError(f"{table.where(self.column, row + values.index(''))}: no relation")
            if len(texts) > _MAX_RELATIONS:
                raise FormatError(_too_many(table, self.column))
            num_rows += len(values)
            job.advance(len(values))
        return {"rows": num_rows, "texts": sorted(texts)}


def _too_many(table: Table, column: str) -> str:
    return f"{table.name}, column {column!r}: more than {_MAX_RELATIONS:,} texts, each of which makes a type"
