"""Sampling plans from outside: checked against the schema before anything is made of them."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gigl_loader.options import SamplingPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType

__all__ = ["differences", "read_plan"]

_MAX_HOPS = 254  # The address of a draw has 8 bits for it, and two values that are no hop.
_MAX_FANOUT = 2**31
_SHOWN = 200


def read_plan(text: str, schema: GraphSchema) -> SamplingPlan:
    """Read ``SamplingPlan.to_json()``. ``ValueError`` for anything that is no plan for this graph."""
    try:
        document = json.loads(text, object_pairs_hook=_without_repetition)
    except RecursionError:
        raise ValueError("the plan is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the plan is not JSON: {error}") from None
    _check_fields(document)
    plan = SamplingPlan(
        seed_type=_node_type(document["seed_type"], schema),
        num_neighbors=_fanouts(document["num_neighbors"], schema),
        run_seed=_whole(document["run_seed"], "run_seed"),
        replace=_flag(document, "replace"),
        with_edge=_flag(document, "with_edge"),
        node_columns=_node_columns(document["node_columns"], schema),
        edge_columns=_edge_columns(document["edge_columns"], schema),
    )
    if plan.num_hops > _MAX_HOPS:
        raise ValueError(f"{plan.num_hops} hops: at most {_MAX_HOPS} can be sampled")
    return plan


def differences(here: SamplingPlan, asked: SamplingPlan) -> str:
    """Say in which fields two plans differ, with both values."""
    unequal = [
        each.name for each in fields(SamplingPlan) if getattr(here, each.name) != getattr(asked, each.name)
    ]
    return ", ".join(
        f"{name} is {_shown(getattr(here, name))} there and {_shown(getattr(asked, name))} here"
        for name in unequal
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name comes twice")
    return document


def _check_fields(document: object) -> None:
    if not isinstance(document, dict):
        raise ValueError(f"a plan is a JSON object, not {type(document).__name__}")
    known = {field.name for field in fields(SamplingPlan)}
    unknown, absent = sorted(document.keys() - known), sorted(known - document.keys())
    if unknown:
        raise ValueError(f"unknown field {unknown[0][:_SHOWN]!r} of the plan: are the versions equal?")
    if absent:
        raise ValueError(f"the plan lacks {', '.join(absent)}: are the versions equal?")


def _node_type(value: object, schema: GraphSchema) -> NodeType:
    if not isinstance(value, str) or value not in schema.nodes:
        raise ValueError(f"no node type {_shown(value)}; known: {_listed(schema.nodes)}")
    return value


def _edge_type(value: object, schema: GraphSchema) -> EdgeType:
    if not (isinstance(value, list) and len(value) == 3 and all(isinstance(part, str) for part in value)):
        raise ValueError(f"an edge type is a list of three names, got {_shown(value)}")
    edge_type = (value[0], value[1], value[2])
    if edge_type not in schema.edges:
        raise ValueError(f"no edge type {_shown(edge_type)}; known: {_listed(schema.edges)}")
    return edge_type


def _fanouts(value: object, schema: GraphSchema) -> dict[EdgeType, tuple[int, ...]]:
    fanouts = {}
    for edge_type, hops in _entries(value, "num_neighbors", schema).items():
        if not isinstance(hops, list) or len(hops) > _MAX_HOPS:
            raise ValueError(f"fanouts of {edge_type} are a list of at most {_MAX_HOPS} numbers")
        fanouts[edge_type] = tuple(_whole(hop, f"a fanout of {edge_type}") for hop in hops)
        if any(hop >= _MAX_FANOUT for hop in fanouts[edge_type]):
            raise ValueError(f"a fanout of {edge_type} is {_MAX_FANOUT} or more")
    return fanouts


def _edge_columns(value: object, schema: GraphSchema) -> dict[EdgeType, tuple[str, ...]]:
    return {
        edge_type: _columns(names, schema.edges[edge_type].columns, edge_type)
        for edge_type, names in _entries(value, "edge_columns", schema).items()
    }


def _node_columns(value: object, schema: GraphSchema) -> dict[NodeType, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ValueError("node_columns is an object of lists")
    return {
        _node_type(node_type, schema): _columns(names, schema.nodes[node_type].columns, node_type)
        for node_type, names in value.items()
        if _node_type(node_type, schema)
    }


def _entries(value: object, name: str, schema: GraphSchema) -> dict[EdgeType, Any]:
    """Read a list of pairs, the first of which is an edge type."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise ValueError(f"{name} is a list of pairs")
    entries = {_edge_type(key, schema): entry for key, entry in value}
    if len(entries) != len(value):
        raise ValueError(f"{name} has an edge type twice")
    return entries


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


def _flag(document: Mapping[str, Any], name: str) -> bool:
    value = document[name]
    if type(value) is not bool:
        raise ValueError(f"{name} is true or false, got {_shown(value)}")
    return value


def _listed(names: Mapping[Any, object]) -> str:
    return _shown(list(names)) if names else "none"
