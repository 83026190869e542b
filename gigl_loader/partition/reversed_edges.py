"""Reversed edges, and types that are declared as reverses of each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from gigl_loader.graph.reverses import reverse_name, reverses_of
from gigl_loader.graph.schema import EdgeSplits, EdgeType
from gigl_loader.partition.readers import Table
from gigl_loader.partition.table import GraphTables
from gigl_loader.partition.views import ProjectedTable, Projection, chain


def with_reverse_edges(
    tables: GraphTables, reverses: Mapping[EdgeType, EdgeType] | None = None, *, undirected: bool = False
) -> GraphTables:
    """Return the tables with reversed edges, and with the types that are declared as reverses.

    ``reverses`` gives the type of the reversed edges for some types; both may be the same type, which then
    holds edges of both directions. A type that has a table keeps it: it is declared as the reverse.
    ``undirected`` does so for every type whose ends are of one type, and adds a type ``rev_...`` for every
    other, as PyG's ``ToUndirected`` does. A reversed edge has the columns and the ``id`` of its edge; without
    ``id``, those of another type have its row number, those of the same type follow it. It is in the split of
    its edge, and quantised as its edge is. An edge that the table has in both directions comes twice, a self
    loop too.

    ``ValueError`` for an unknown type, for ends that do not fit, for a reverse of two types, and for declared
    reverses with other splits.
    """
    wanted = dict(reverses or {})
    if undirected:
        for kind in sorted(tables.edges, key=lambda each: len(each[1])):
            if kind not in wanted.values():
                wanted.setdefault(kind, kind if kind[0] == kind[2] else reverse_name(kind))
    edges, splits = dict(tables.edges), dict(tables.splits)
    alike: dict[str, Any] = {
        name: dict(getattr(tables, name)) for name in ("weights", "times", "quantize", "encode")
    }
    for kind, reverse in wanted.items():
        _check_reverse(tables, kind, reverse, wanted)
        if kind in splits or reverse in splits:
            splits |= _split_alike(kind, reverse, splits)
        if reverse in tables.edges and reverse != kind:
            continue
        turned = _reversed(tables.edges[kind])
        edges[reverse] = chain([tables.edges[kind], turned]) if reverse == kind else turned
        for each in alike.values():
            if kind in each:
                each[reverse] = each[kind]
    declared = {reverse: kind for kind, reverse in wanted.items()} | wanted
    return replace(tables, edges=edges, splits=splits, reverses=declared, **alike)


def with_declared_reverses(tables: GraphTables, reverses: Mapping[EdgeType, EdgeType]) -> GraphTables:
    """Return the tables with types declared as reverses of each other, or of themselves. None gets edges.

    ``ValueError`` for an unknown type, for ends that do not fit, and for a reverse of two types.
    """
    for kind, reverse in reverses.items():
        _check_reverse(tables, kind, reverse, reverses)
        if reverse not in tables.edges:
            raise ValueError(f"there are no edges of type {reverse}, the reverse of {kind}: add them first")
    return replace(tables, reverses={reverse: kind for kind, reverse in reverses.items()} | dict(reverses))


def with_equal_splits(tables: GraphTables) -> GraphTables:
    """Return the tables with the same splits for each type and its reverses, declared or by name.

    Else the reverse of a held-out edge would be among the messages. ``ValueError`` for splits that differ.
    """
    splits = dict(tables.splits)
    for kind in sorted(tables.edges, key=lambda each: (len(each[1]), each)):
        for reverse in reverses_of(kind, tables.edges, tables.reverses):
            if kind in splits or reverse in splits:
                splits |= _split_alike(kind, reverse, splits)
    return replace(tables, splits=splits)


_TURNED: Mapping[str, Literal["src,dst", "dst,src", "both"]]
_TURNED = {"src,dst": "dst,src", "dst,src": "src,dst", "both": "both"}


def _split_alike(
    kind: EdgeType, reverse: EdgeType, splits: Mapping[EdgeType, EdgeSplits]
) -> dict[EdgeType, EdgeSplits]:
    """Return the splits of a type and its reverse, of which one has splits."""
    rule = splits.get(kind, splits.get(reverse))
    assert rule is not None
    if kind == reverse:
        return {kind: replace(rule, hashed="both")}
    of_reverse = splits.get(reverse, rule)
    if (of_reverse.fractions, of_reverse.seed) != (rule.fractions, rule.seed):
        raise ValueError(f"{reverse} is the reverse of {kind}: both have the same splits, these differ")
    return {kind: rule, reverse: replace(rule, hashed=_TURNED[rule.hashed])}


def _check_reverse(
    tables: GraphTables, kind: EdgeType, reverse: EdgeType, wanted: Mapping[EdgeType, EdgeType]
) -> None:
    if kind not in tables.edges:
        known = ", ".join(map(str, tables.edges)) or "none"
        raise ValueError(f"no edges of type {kind} to reverse; known: {known}")
    if (reverse[0], reverse[2]) != (kind[2], kind[0]):
        raise ValueError(f"{reverse} is no reverse of {kind}: it must lead from {kind[2]!r} to {kind[0]!r}")
    of = {each for each, other in wanted.items() if other == reverse} | {wanted.get(reverse, kind)}
    if len(of) > 1:
        raise ValueError(
            f"{reverse} is the reverse of {' and of '.join(map(str, sorted(of)))}: name one of them"
        )


def _reversed(table: Table) -> Table:
    swapped = {"src": "dst", "dst": "src"}
    return ProjectedTable(table, {name: Projection((swapped.get(name, name),)) for name in table.columns})
