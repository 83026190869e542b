"""Columns that draws go by: one name for all types that declare it, or a name for each of some types."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from gigl_loader.options import EdgeType, NodeType, known_edge_type

if TYPE_CHECKING:
    from gigl_loader.graph.schema import GraphSchema

_Declared: TypeAlias = Mapping[NodeType | EdgeType, tuple[str, ...]]

TypeColumns: TypeAlias = str | Mapping[NodeType | EdgeType, str] | None
"""Name of a column, or names by type. A mapping says nothing of types that it leaves out."""


def column_of(named: TypeColumns, kind: NodeType | EdgeType, declared: Collection[str]) -> str | None:
    """Return which of the columns that a type declares is named; ``None`` for none of them."""
    name = named.get(kind) if isinstance(named, Mapping) else named
    return name if name in declared else None


def declared_weights(schema: GraphSchema) -> _Declared:
    """Return the columns that are declared as weights, of each edge type."""
    return {kind: edges.weights for kind, edges in schema.edges.items()}


def declared_times(schema: GraphSchema) -> _Declared:
    """Return the columns that are declared as times, of each node and edge type."""
    of_nodes: dict[NodeType | EdgeType, tuple[str, ...]] = {
        kind: nodes.times for kind, nodes in schema.nodes.items()
    }
    return of_nodes | {kind: edges.times for kind, edges in schema.edges.items()}


def read_weights(schema: GraphSchema, given: object) -> TypeColumns:
    """Return ``weight_attr``, a name or names by edge type. ``ValueError`` says how to declare a column."""
    return _read("weight", given, declared_weights(schema), schema)


def read_times(schema: GraphSchema, given: object) -> TypeColumns:
    """Return ``time_attr``, a name or names by node and edge type. ``ValueError`` says how to declare one.

    Also where a mapping bounds a list twice: by the times of its edges, and by those of their neighbours.
    """
    named = _read("time", given, declared_times(schema), schema)
    by_type = named if isinstance(named, Mapping) else {}
    for kind in schema.edges:
        neighbor = schema.neighbor_type(kind)
        if kind in by_type and neighbor in by_type:
            raise ValueError(
                f"time_attr names {by_type[kind]!r} of edges {kind} and {by_type[neighbor]!r} of their "
                f"neighbours, nodes of type {neighbor!r}: name one of the two"
            )
    return named


def from_json(value: Any) -> Any:
    """Return what ``to_json`` made, with the types as keys. Not checked but for its form."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(pair, list) and len(pair) == 2 and _is_type(pair[0]) for pair in value):
        raise ValueError("columns by type are a list of pairs of a type and a name")
    found = {kind if isinstance(kind, str) else tuple(kind): name for kind, name in value}
    if len(found) != len(value):
        raise ValueError("columns by type name a type twice")
    return found


def _is_type(value: object) -> bool:
    parts = value if isinstance(value, list) and len(value) == 3 else [value]
    return all(isinstance(part, str) for part in parts)


def to_json(named: TypeColumns) -> Any:
    """Return a name as it is, and names by type as pairs, which peers of version 0.2.0 refuse."""
    if not isinstance(named, Mapping):
        return named
    return [[kind if isinstance(kind, str) else list(kind), name] for kind, name in named.items()]


def _read(role: str, given: object, declared: _Declared, schema: GraphSchema) -> TypeColumns:
    """Return the columns that a user named. Names by type that one name says as well become that name."""
    if given is None or given == {}:
        return None
    if not isinstance(given, Mapping):
        if not isinstance(given, str) or not any(given in names for names in declared.values()):
            known = sorted({name for names in declared.values() for name in names})
            raise _undeclared(
                role, str(given)[:100], "", known, given if isinstance(given, str) else "COLUMN"
            )
        return given
    named: dict[NodeType | EdgeType, str] = {}
    for key, name in given.items():
        kind = _known_type(role, key, declared, schema)
        if kind in named:
            raise ValueError(f"{role}_attr names a type twice: {kind}")
        if not isinstance(name, str) or name not in declared[kind]:
            scope = kind if isinstance(kind, str) else ",".join(kind)
            raise _undeclared(role, str(name)[:100], f" of {kind}", declared[kind], f"{scope}:{name}")
        named[kind] = name
    names = set(named.values())
    if len(names) == 1 and all(kind in named for kind, each in declared.items() if names & set(each)):
        return names.pop()
    return dict(sorted(named.items(), key=lambda entry: (isinstance(entry[0], tuple), entry[0])))


def _known_type(role: str, key: Any, declared: _Declared, schema: GraphSchema) -> NodeType | EdgeType:
    if isinstance(key, str) and not hasattr(key, "to_tuple"):
        if key in declared:
            return key
        known = ", ".join(map(str, declared)) or "none"
        raise ValueError(f"{role}_attr: unknown type {key!r:.200}; known: {known}")
    return known_edge_type(schema.edges, key, f"{role}_attr")


def _undeclared(role: str, name: str, of: str, known: Collection[str], option: str) -> ValueError:
    return ValueError(
        f"{role}_attr {name!r}{of} is not declared as a {role}; known: {', '.join(known) or 'none'}. Declare "
        f"it: gigl-loader index GRAPH --{role} {option} (from_pyg: {role}_attr=...)"[:400]
    )
