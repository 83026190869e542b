"""Texts of a relation column, each of which makes an edge type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import EdgeType, is_hidden_list
from gigl_loader.partition.job import Job
from gigl_loader.partition.readers import Table
from gigl_loader.partition.refusals import quoted, type_text
from gigl_loader.partition.roles import relation_column
from gigl_loader.partition.steps.vocabularies import distinct_texts
from gigl_loader.partition.table import GraphTables, of_relation

_MAX_RELATIONS = 4096
"""Each is a file in every partition."""


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
    one_type = type_text((kind[0], column, kind[2]))
    advice = f"make it a column of one edge type (--edges {one_type}=FILES --encode {quoted(column)})"
    return distinct_texts(
        job, kind, table, column, limit=_MAX_RELATIONS, advice=advice, missing="no relation"
    )
