"""Tables of reversed edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gigl_loader.graph.schema import EdgeType
from gigl_loader.partition.combined import ProjectedTable, Projection, chain
from gigl_loader.partition.table import GraphTables, Table

__all__ = ["reverse_of", "with_reverse_edges"]


def reverse_of(edge_type: EdgeType) -> EdgeType:
    """Return the type of the reversed edges, by the rule of PyG's ``ToUndirected``."""
    source, relation, destination = edge_type
    return destination, f"rev_{relation}", source


def with_reverse_edges(
    tables: GraphTables, reverses: Mapping[EdgeType, EdgeType] | None = None, *, undirected: bool = False
) -> GraphTables:
    """Return the tables with reversed edges.

    ``reverses`` gives the type of the reversed edges for some types; both may be the same type, which then
    holds edges of both directions. ``undirected`` does so for every type whose ends are of one type, and adds
    a type ``rev_...`` for every other, as PyG's ``ToUndirected`` does. A reversed edge has the columns and
    the ``id`` of its edge; without ``id``, those of another type have its row number, those of the same type
    follow it. It is in the split of its edge, and quantised as its edge is. An edge that the table has in
    both directions comes twice, a self loop too.

    ``ValueError`` for an unknown type, for ends that do not fit, and for a type that has a table already.
    """
    wanted = dict(reverses or {})
    if undirected:
        for kind in tables.edges:
            wanted.setdefault(kind, kind if kind[0] == kind[2] else reverse_of(kind))
    edges = dict(tables.edges)
    weights, times, splits = dict(tables.weights), dict(tables.times), dict(tables.splits)
    quantize = dict(tables.quantize)
    for kind, reverse in wanted.items():
        if kind not in tables.edges:
            known = ", ".join(map(str, tables.edges)) or "none"
            raise ValueError(f"no edges of type {kind} to reverse; known: {known}")
        if (reverse[0], reverse[2]) != (kind[2], kind[0]):
            raise ValueError(
                f"{reverse} is no reverse of {kind}: it must lead from {kind[2]!r} to {kind[0]!r}"
            )
        if reverse != kind and reverse in edges:
            raise ValueError(f"edges of type {reverse} have a table: they cannot be the reverse of {kind}")
        edges[reverse] = _both_ways(tables.edges[kind]) if reverse == kind else _reversed(tables.edges[kind])
        if kind in weights:
            weights[reverse] = weights[kind]
        if kind in times:
            times[reverse] = times[kind]
        if kind in quantize:
            quantize[reverse] = quantize[kind]
        if kind in splits:
            splits[reverse] = replace(splits[kind], hashed="both" if reverse == kind else "dst,src")
    return replace(tables, edges=edges, weights=weights, times=times, splits=splits, quantize=quantize)


def _reversed(table: Table) -> Table:
    swapped = {"src": "dst", "dst": "src"}
    return ProjectedTable(table, {name: Projection((swapped.get(name, name),)) for name in table.columns})


def _both_ways(table: Table) -> Table:
    return chain([table, _reversed(table)])
