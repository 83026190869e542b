"""Fields of a plan from outside, read with every check against the schema of the graph."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gigl_loader.sampling.plan import ColumnPlan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType

__all__ = ["MAX_FANOUT", "MAX_HOPS", "PlanFields", "differences"]

MAX_HOPS = 254  # The address of a draw has 8 bits for it, and two values that are no hop.
MAX_FANOUT = 2**31 - 1

_SHOWN = 200
_REQUIRED = object()


class PlanFields:
    """The JSON object of a plan. Each field is read once, by the class of its kind; none may be left over.

    All methods raise ``ValueError`` with the rule that is broken.
    """

    def __init__(
        self, text: str, schema: GraphSchema, allowed_samplers: Collection[str] | None = None
    ) -> None:
        """``allowed_samplers`` are the users' classes that may be imported; ``None``: any."""
        try:
            document = json.loads(text, object_pairs_hook=_without_repetition)
        except RecursionError:
            raise ValueError("the plan is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"the plan is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise ValueError(f"a plan is a JSON object, not {type(document).__name__}")
        self._document: dict[str, Any] = document
        self.schema = schema
        self.allowed_samplers = allowed_samplers

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return a field as it is. Without a ``default`` it has to be there."""
        value = self._document.pop(name, default)
        if value is _REQUIRED:
            raise ValueError(f"the plan lacks {name}: are the versions equal?")
        return value

    def whole(self, name: str) -> int:
        """Return a whole number."""
        return _whole(self.take(name), name)

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        """Return true or false."""
        value = self.take(name, default)
        if type(value) is not bool:
            raise ValueError(f"{name} is true or false, got {_shown(value)}")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """Return a text."""
        value = self.take(name, default)
        if not isinstance(value, str):
            raise ValueError(f"{name} is a text, got {_shown(value)}")
        return value

    def node_type(self, name: str) -> NodeType:
        """Return a node type of the graph."""
        return _node_type(self.take(name), self.schema)

    def edge_type(self, name: str) -> EdgeType:
        """Return an edge type of the graph."""
        return _edge_type(self.take(name), self.schema)

    def edge_types(self, name: str, known: Collection[EdgeType] | None = None) -> tuple[EdgeType, ...]:
        """Return a list of edge types of the graph, or of those ``known``."""
        value = self.take(name)
        if not isinstance(value, list):
            raise ValueError(f"{name} is a list of edge types, got {_shown(value)}")
        return tuple(_edge_type(each, self.schema, known) for each in value)

    def fanouts(self, name: str) -> dict[EdgeType, tuple[int, ...]]:
        """Return fanouts per hop by edge type."""
        fanouts = {}
        for edge_type, hops in self._entries(name).items():
            if not isinstance(hops, list) or len(hops) > MAX_HOPS:
                raise ValueError(f"fanouts of {edge_type} are a list of at most {MAX_HOPS} numbers")
            fanouts[edge_type] = tuple(_whole(hop, f"a fanout of {edge_type}") for hop in hops)
            if any(hop > MAX_FANOUT for hop in fanouts[edge_type]):
                raise ValueError(f"a fanout of {edge_type} is {MAX_FANOUT + 1} or more")
        return fanouts

    def columns(self) -> ColumnPlan:
        """Return the features that are asked for."""
        by_node_type = self.take("node_columns")
        if not isinstance(by_node_type, dict):
            raise ValueError("node_columns is an object of lists")
        known = {_node_type(kind, self.schema): self.schema.nodes[kind].columns for kind in by_node_type}
        edges = self._entries("edge_columns")
        return ColumnPlan(
            nodes={kind: _columns(names, known[kind], kind) for kind, names in by_node_type.items()},
            edges={
                kind: _columns(names, self.schema.edges[kind].columns, kind) for kind, names in edges.items()
            },
        )

    def check_all_read(self) -> None:
        """Raise for a field that no class has read."""
        if self._document:
            raise ValueError(
                f"unknown field {min(self._document)[:_SHOWN]!r} of the plan: are the versions equal?"
            )

    def _entries(self, name: str) -> dict[EdgeType, Any]:
        """Read a list of pairs, the first of which is an edge type."""
        value = self.take(name)
        if not isinstance(value, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in value
        ):
            raise ValueError(f"{name} is a list of pairs")
        entries = {_edge_type(key, self.schema): entry for key, entry in value}
        if len(entries) != len(value):
            raise ValueError(f"{name} has an edge type twice")
        return entries


def differences(here: str, asked: str) -> str:
    """Return in which fields two plans (as JSON) differ, with both values."""
    ours, theirs = json.loads(here), json.loads(asked)
    return ", ".join(
        f"{name} is {_shown(ours.get(name))} there and {_shown(theirs.get(name))} here"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name comes twice")
    return document


def _node_type(value: object, schema: GraphSchema) -> NodeType:
    if not isinstance(value, str) or value not in schema.nodes:
        raise ValueError(f"no node type {_shown(value)}; known: {_listed(schema.nodes)}")
    return value


def _edge_type(value: object, schema: GraphSchema, known: Collection[EdgeType] | None = None) -> EdgeType:
    if not (isinstance(value, list) and len(value) == 3 and all(isinstance(part, str) for part in value)):
        raise ValueError(f"an edge type is a list of three names, got {_shown(value)}")
    edge_type = (value[0], value[1], value[2])
    if edge_type not in (schema.edges if known is None else known):
        raise ValueError(f"no edge type {_shown(edge_type)}; known: {_listed(schema.edges)}")
    return edge_type


def _columns(value: object, known: Mapping[str, object], kind: NodeType | EdgeType) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"columns of {kind!r} are a list of names")
    if len(set(value)) != len(value):
        raise ValueError(f"a column of {kind!r} comes twice")
    for name in value:
        if name not in known:
            raise ValueError(f"{kind!r} has no column {_shown(name)}; known: {_listed(known)}")
    return tuple(value)


def _whole(value: object, what: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{what} is a whole number, got {_shown(value)}")
    return value


def _listed(names: Mapping[Any, object]) -> str:
    return _shown(list(names)) if names else "none"
