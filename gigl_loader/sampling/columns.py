"""Columns that batches carry: features of nodes and edges, as a user chose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from gigl_loader.graph.column_names import check_column_names
from gigl_loader.options import EdgeType, NodeType, by_edge_type

if TYPE_CHECKING:
    from gigl_loader.graph.schema import Column, GraphSchema

_Kind = TypeVar("_Kind", NodeType, EdgeType)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """Which features a batch carries. Types that are left out carry none."""

    nodes: Mapping[NodeType, tuple[str, ...]] = field(default_factory=dict)
    edges: Mapping[EdgeType, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(self.nodes.values()) or any(self.edges.values())

    def stored(self, schema: GraphSchema) -> dict[NodeType | EdgeType, dict[str, Column]]:
        """Return the columns by type and name, as the graph stores them."""
        carried: list[tuple[NodeType | EdgeType, Sequence[str]]]
        carried = [*self.nodes.items(), *self.edges.items()]
        return {kind: {name: schema.columns[kind][name] for name in names} for kind, names in carried}


def read_columns(schema: GraphSchema, node_columns: Any, edge_columns: Any) -> ColumnPlan:
    """Return the columns that a user chose. ``None`` stands for all.

    A list applies to all types, each of which keeps the listed columns that it has; a mapping is by type,
    and types that it leaves out keep all. ``ValueError`` and ``TypeError`` name what is not in the graph,
    and a column that an attribute of batches would hide.
    """
    if isinstance(edge_columns, Mapping):
        edge_columns = by_edge_type(schema.edges, edge_columns, "edge_columns")
    columns = ColumnPlan(
        nodes=_chosen("node_columns", node_columns, {k: v.columns for k, v in schema.nodes.items()}),
        edges=_chosen("edge_columns", edge_columns, {k: v.columns for k, v in schema.edges.items()}),
    )
    check_column_names(columns.nodes, columns.edges, homogeneous=schema.homogeneous)
    return columns


def _chosen(
    option: str, given: Any, known: Mapping[_Kind, Mapping[str, object]]
) -> dict[_Kind, tuple[str, ...]]:
    if given is None:
        return {kind: tuple(columns) for kind, columns in known.items()}
    if isinstance(given, Mapping):
        for kind in given:
            if kind not in known:
                raise ValueError(f"{option}: unknown type {kind!r}; known: {_sorted(known)}")
        wanted = {kind: _names(f"{option} of {kind!r}", names) for kind, names in given.items()}
        for kind, names in wanted.items():
            _check_known(f"{option} of {kind!r}", names, known[kind])
        return {kind: _kept(columns, wanted.get(kind)) for kind, columns in known.items()}
    names = _names(option, given)
    _check_known(option, names, {name for columns in known.values() for name in columns})
    return {kind: _kept(columns, names) for kind, columns in known.items()}


def _kept(columns: Mapping[str, object], wanted: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(name for name in columns if wanted is None or name in wanted)


def _names(what: str, given: Any) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"{what} must be a list of names, or a mapping of types to lists, got {given!r:.200}")
    wrong = [name for name in given if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"{what} must be names, got {wrong[0]!r:.200}")
    return list(given)


def _check_known(what: str, names: Sequence[str], known: Any) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{what}: no column {name!r}; known: {_sorted(known)}")


def _sorted(names: Any) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
