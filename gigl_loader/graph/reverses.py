"""Reverse edge types: the types that hold the edges of a type the other way round."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gigl_loader.options import EdgeType, by_edge_type, known_edge_type

_PREFIX = "rev_"


def reverse_name(edge_type: EdgeType) -> EdgeType:
    """Return the type of the reversed edges, by the rule of PyG's ``ToUndirected``."""
    source, relation, destination = edge_type
    return destination, f"{_PREFIX}{relation}", source


def reverse_names(edge_type: EdgeType) -> tuple[EdgeType, ...]:
    """Return the reverse types of one by name: of ``rev_buys``, ``buys`` and then ``rev_rev_buys``."""
    source, relation, destination = edge_type
    by_prefix = reverse_name(edge_type)
    if not relation.startswith(_PREFIX):
        return (by_prefix,)
    return (destination, relation.removeprefix(_PREFIX), source), by_prefix


def reverses_of(
    edge_type: EdgeType, edges: Collection[EdgeType], declared: Mapping[EdgeType, EdgeType]
) -> tuple[EdgeType, ...]:
    """Return those of ``edges`` that hold the edges of a type the other way round: the declared one first.

    The type itself need not be one of ``edges``, as that of a label set.
    """
    found = (*([declared[edge_type]] if edge_type in declared else []), *reverse_names(edge_type))
    return tuple(dict.fromkeys(each for each in found if each in edges))


def read_reverses(
    known: Collection[EdgeType], edges: Collection[EdgeType], given: Any, what: str
) -> dict[EdgeType, EdgeType] | None:
    """Return the reverse, one of ``edges``, of each ``known`` type that a user named; ``None`` for nothing.

    ``TypeError`` and ``ValueError`` begin with ``what`` and name an unknown type.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{what} must map an edge type to the one that holds its edges the other way round, got {given!r}"
        )
    named = by_edge_type(known, given, what)
    return {kind: known_edge_type(edges, reverse, what) for kind, reverse in named.items()}
